//! Damaged requests of workers and synchronizers with a valid token, against a live coordinator with a store.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_net::NetError;
use dipaco_protocol::{GrantedLease, Request, Response, SYNCHRONIZER, WORKER};
use dipaco_telemetry::Events;
use dipaco_topology::Modules;
use tokio_util::sync::CancellationToken;

use support::requests::{RawRequest, any_request, at_once};
use support::{Puppet, Run, config};

/// Memory of this process in bytes: coordinator and liar.
fn memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Counts of answers, by kind.
#[derive(Debug, Default)]
struct Answers {
    leases: u32,
    orders: u32,
    done: u32,
    pieces: u32,
    lost: u32,
    refused: u32,
}

impl Answers {
    fn count(&mut self, answer: &Response) {
        match answer {
            Response::Lease(_) => self.leases += 1,
            Response::Orders { .. } => self.orders += 1,
            Response::Done => self.done += 1,
            Response::Piece { .. } | Response::PieceStored => self.pieces += 1,
            Response::Lost { .. } => self.lost += 1,
            Response::Refused { .. } => self.refused += 1,
            _ => {}
        }
    }
}

/// A liar that sends damaged requests, beside an honest worker.
struct Attack {
    runtime: tokio::runtime::Runtime,
    liar: Puppet,
    honest: Puppet,
    /// The lease of the honest worker.
    work: GrantedLease,
    answers: Answers,
    /// Seconds that the honest worker waited for answers.
    waits: Vec<f64>,
    payload: bytes::Bytes,
}

impl Attack {
    /// Sends bytes as a request of the liar.
    fn send(&mut self, bytes: &[u8]) -> Reached {
        let payload = Some(self.payload.clone());
        let (reached, sent) = match postcard::from_bytes::<Request>(bytes) {
            Ok(request) => {
                (Reached::Accepted, self.runtime.block_on(self.liar.ask(&at_once(request), payload)))
            }
            Err(_) => (Reached::Outside, self.runtime.block_on(self.liar.ask(&RawRequest(bytes), payload))),
        };
        let begun = Instant::now();
        let beat = self.runtime.block_on(self.honest.beat(&self.work, 1));
        self.waits.push(begun.elapsed().as_secs_f64());
        assert_eq!(beat, Response::Done, "the honest worker keeps its lease");
        match sent {
            Ok((answer, _)) => self.answers.count(&answer),
            // Refused by the network's part of the coordinator: no request, or a payload of another length.
            Err(NetError::Refused { .. } | NetError::Abandoned { .. }) => self.answers.refused += 1,
            Err(error) => panic!("the connection of the liar ended: {error}"),
        }
        reached
    }
}

/// The test of a role: the role, and what its campaign must have met if it was long enough.
struct Plan {
    role: &'static str,
    meets: fn(&Answers) -> bool,
}

/// Plays a campaign of a liar with a token of this role, beside an honest worker. Returns what it met.
fn play(campaign: Campaign, plan: &Plan) -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut config = config();
    // The honest worker takes no further step, and nobody completes a round.
    (config.train.rounds, config.train.standstill_seconds) = (1000, 86_400);
    // The liar gives many leases back, and each path gives it two.
    config.topology.levels.iter_mut().for_each(|level| level.modules = Modules::Count(8));
    let run = runtime.block_on(Run::seeded(config));
    let (coordinator, token) = runtime.block_on(run.coordinator(Events::off(), CancellationToken::new()));
    let liar = runtime.block_on(Puppet::welcome(&run.token_as(plan.role, &token), "liar"));
    let honest = runtime.block_on(Puppet::welcome(&token, "honest"));
    let work = runtime.block_on(honest.lease());
    let payload = vec![7; 3000].into();
    let attack = RefCell::new(Attack {
        runtime,
        liar,
        honest,
        work,
        answers: Answers::default(),
        waits: Vec::new(),
        payload,
    });
    let lease = RefCell::new(attack.borrow().work.clone());
    let before = memory();
    let valid = |rng: &mut CaseRng| {
        let attack = attack.borrow();
        // A lease of its own most of the time; in between that of the honest worker, which is not the liar's.
        if plan.role == WORKER && rng.random_bool(0.05) {
            let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
            let answer = attack.runtime.block_on(attack.liar.ask(&ask, None)).unwrap();
            if let (Response::Lease(work), _) = answer {
                *lease.borrow_mut() = *work;
            }
        }
        postcard::to_stdvec(&any_request(rng, &lease.borrow())).unwrap()
    };
    // The memory of the network's tasks is not counted by call: the whole process is looked at below.
    let counts = campaign.cases(1500).past(0.3).memory(u64::MAX).play(valid, |bytes| {
        assert!(!coordinator.is_finished(), "the coordinator ended");
        attack.borrow_mut().send(bytes)
    });
    let grown = memory().saturating_sub(before);
    let Attack { runtime, liar, honest, work, answers, mut waits, .. } = attack.into_inner();
    waits.sort_by(f64::total_cmp);
    let p99 = waits[waits.len() * 99 / 100];
    let met = format!(
        "{answers:?}; the honest worker waited {:.1} ms at p99; memory grew by {} KiB",
        p99 * 1e3,
        grown >> 10
    );
    assert!(counts.cases <= 1000 || (plan.meets)(&answers), "{answers:?}");
    assert!(grown < 256 << 20, "memory grew by {grown} bytes");
    // Its modules go back to the coordinator.
    drop(liar);
    // The honest worker ends its lease, and gets the next.
    runtime.block_on(honest.carry_out(&run, &work, 0.001));
    runtime.block_on(async {
        let _ = tokio::time::timeout(Duration::from_secs(60), honest.lease()).await.unwrap();
    });
    met
}

#[test]
fn damaged_requests_are_refused_or_answered_and_harm_nobody() {
    let meets = |answers: &Answers| {
        let Answers { leases, done, pieces, lost, refused, .. } = answers;
        [leases, done, pieces, lost, refused].iter().all(|count| **count > 5)
    };
    println!("request: {}", play(Campaign::new("request"), &Plan { role: WORKER, meets }));
}

/// A synchronizer's token may take the outer steps of modules, and nothing that is a worker's.
#[test]
fn damaged_requests_of_a_synchronizer_are_refused_or_answered_and_harm_nobody() {
    let meets = |answers: &Answers| {
        let Answers { leases, orders, done, pieces, lost, refused } = answers;
        [leases, done, pieces].iter().all(|count| **count == 0)
            && [orders, lost, refused].iter().all(|count| **count > 5)
    };
    let plan = Plan { role: SYNCHRONIZER, meets };
    println!("synchronizer-request: {}", play(Campaign::new("synchronizer-request"), &plan));
}
