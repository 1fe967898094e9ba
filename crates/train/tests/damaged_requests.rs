//! Damaged requests of a worker with a valid token, against a live coordinator with a store.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::rand::seq::IndexedRandom;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_net::NetError;
use dipaco_protocol::{
    ContentDigest, FetchSource, GrantedLease, LeaseReport, LeaseResult, Request, Response,
};
use dipaco_store::ObjectRef;
use dipaco_sync::{LeaseClaim, ProcessId};
use dipaco_telemetry::Events;
use dipaco_topology::{ModuleId, PathId};
use serde::ser::SerializeTuple;
use serde::{Serialize, Serializer};
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

/// Bytes in place of a request.
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A tuple has no length before its elements.
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

/// A request about a lease, as an honest worker or a synchronizer sends it at some time.
fn request(rng: &mut CaseRng, work: &GrantedLease) -> Request {
    let key = work.key();
    let object = work.weights.choose(rng).unwrap().object.clone();
    let digest = ContentDigest { hash: object.hash.clone(), bytes: object.bytes };
    let item = match work.sends.choose(rng) {
        Some(send) if rng.random() => {
            LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 3 }
        }
        _ => LeaseResult::State,
    };
    let process = ProcessId { token: "test".into(), name: "liar".into(), instance: 1 };
    let claim = LeaseClaim { key, worker: process };
    let report =
        LeaseReport { loss: Some(2.5), held_out_loss: None, tokens: 9, seconds: 0.5, waited_seconds: 0.1 };
    let source = FetchSource::Shard { path: work.path, hash: work.shard.hash.clone(), file: None };
    match rng.random_range(0..15) {
        0 | 1 => Request::Lease { held: (0..rng.random_range(0..4)).map(PathId).collect(), wait_ms: 0 },
        2 => Request::Follow { lease: key, wait_ms: 0 },
        3 | 4 => {
            Request::Heartbeat { lease: key, step: rng.random_range(0..5), repeated: 0, loss: Some(1.5) }
        }
        5 => Request::Fetch { source: FetchSource::Object(object), offset: 0 },
        6 => Request::Fetch { source, offset: 0 },
        7 => Request::Check { object },
        8 | 9 => Request::Submit { lease: key, item, digest, offset: 0 },
        10 => Request::Complete { lease: key, report },
        11 => Request::Release,
        12 => Request::Orders {
            modules: vec![ModuleId { level: 0, index: 1 }],
            address: "a:1".into(),
            wait_ms: 0,
        },
        13 => Request::Expected { claim, item, digest },
        _ => Request::Stored { claim, item, object: ObjectRef { name: "x".into(), ..object }, norm: 0.5 },
    }
}

/// The same request without time to wait for its answer.
fn at_once(request: Request) -> Request {
    match request {
        Request::Lease { held, .. } => Request::Lease { held, wait_ms: 0 },
        Request::Follow { lease, .. } => Request::Follow { lease, wait_ms: 0 },
        Request::Orders { modules, address, .. } => Request::Orders { modules, address, wait_ms: 0 },
        other => other,
    }
}

/// Memory of this process in bytes: coordinator and liar.
fn memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Counts of answers, by kind.
#[derive(Debug, Default)]
struct Answers {
    leases: u32,
    done: u32,
    pieces: u32,
    lost: u32,
    refused: u32,
}

impl Answers {
    fn count(&mut self, answer: &Response) {
        match answer {
            Response::Lease(_) => self.leases += 1,
            Response::Done => self.done += 1,
            Response::Piece { .. } | Response::PieceStored => self.pieces += 1,
            Response::Lost { .. } => self.lost += 1,
            Response::Refused { .. } => self.refused += 1,
            _ => {}
        }
    }
}

/// A worker that sends damaged requests, beside an honest one.
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
            Err(_) => (Reached::Outside, self.runtime.block_on(self.liar.ask(&Raw(bytes), payload))),
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

#[test]
fn damaged_requests_are_refused_or_answered_and_harm_nobody() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut config = config();
    // The honest worker takes no further step, and nobody completes a round.
    (config.train.rounds, config.train.standstill_seconds) = (1000, 86_400);
    let run = runtime.block_on(Run::seeded(config));
    let (coordinator, token) = runtime.block_on(run.coordinator(Events::off(), CancellationToken::new()));
    let liar = runtime.block_on(Puppet::welcome(&token, "liar"));
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
        if rng.random_bool(0.05) {
            let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
            let answer = attack.runtime.block_on(attack.liar.ask(&ask, None)).unwrap();
            if let (Response::Lease(work), _) = answer {
                *lease.borrow_mut() = *work;
            }
        }
        postcard::to_stdvec(&request(rng, &lease.borrow())).unwrap()
    };
    // The memory of the network's tasks is not counted by call: the whole process is looked at below.
    let counts = Campaign::new("request").cases(1500).past(0.3).memory(u64::MAX).play(valid, |bytes| {
        assert!(!coordinator.is_finished(), "the coordinator ended");
        attack.borrow_mut().send(bytes)
    });
    let grown = memory().saturating_sub(before);
    let Attack { runtime, honest, work, answers, mut waits, .. } = attack.into_inner();
    waits.sort_by(f64::total_cmp);
    let p99 = waits[waits.len() * 99 / 100];
    println!(
        "request: {answers:?}; the honest worker waited {:.1} ms at p99; memory grew by {} KiB",
        p99 * 1e3,
        grown >> 10
    );
    if counts.cases > 1000 {
        let Answers { leases, done, pieces, lost, refused } = answers;
        assert!([leases, done, pieces, lost, refused].iter().all(|count| *count > 5), "{answers:?}");
    }
    assert!(grown < 256 << 20, "memory grew by {grown} bytes");
    // The honest worker ends its lease, and gets the next.
    runtime.block_on(honest.carry_out(&run, &work, 0.001));
    runtime.block_on(async {
        let _ = tokio::time::timeout(Duration::from_secs(60), honest.lease()).await.unwrap();
    });
}
