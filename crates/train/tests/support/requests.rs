//! Requests of every kind, as material for damage: for the campaign `request`, and for the example `attacker`.

use dipaco_fuzz::CaseRng;
use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::rand::seq::IndexedRandom;
use dipaco_ledger::OuterStepDone;
use dipaco_protocol::{ContentDigest, FetchSource, GrantedLease, LeaseReport, LeaseResult, Request};
use dipaco_store::ObjectRef;
use dipaco_sync::{LeaseClaim, ProcessId};
use dipaco_topology::{ModuleId, PathId};
use serde::ser::SerializeTuple;
use serde::{Serialize, Serializer};

/// Bytes in place of a request.
pub(crate) struct RawRequest<'a>(pub(crate) &'a [u8]);

impl Serialize for RawRequest<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // A tuple has no length before its elements.
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

/// A request as an honest worker or a synchronizer with this lease sends it at some time. Of any kind but
/// [`Request::Diverged`], after which its sender does not get the path again.
pub(crate) fn any_request(rng: &mut CaseRng, work: &GrantedLease) -> Request {
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
    let report = LeaseReport {
        loss: Some(2.5),
        tokens: 9,
        seconds: 0.5,
        waited_seconds: 0.1,
        ..LeaseReport::default()
    };
    let source = FetchSource::Shard { path: work.path, hash: work.shard.hash.clone(), file: None };
    match rng.random_range(0..19) {
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
            revoked: 0,
            uploads: Vec::new(),
            wait_ms: 0,
        },
        13 => Request::Expected { claim, item, digest },
        14 => Request::Stored { claim, item, to: work.to, digest, norm: 0.5 },
        15 => Request::Stepped(Box::new(outer_step(work, object))),
        16 => Request::Renew,
        17 => Request::Link { object },
        _ => Request::Hello {
            worker: "another".into(),
            instance: 2,
            version: dipaco_train::BUILD.into(),
            numerics: "other".into(),
        },
    }
}

/// An outer step of a fragment of the lease that nobody took.
fn outer_step(work: &GrantedLease, object: ObjectRef) -> OuterStepDone {
    OuterStepDone {
        fragment: work.weights[0].fragment,
        version: 1,
        fence: work.fence.0,
        weights: object.clone(),
        momentum: object,
        change: None,
        norm: 0.5,
        cosine: None,
        seconds: 0.1,
    }
}

/// The same request without time to wait for its answer.
pub(crate) fn at_once(request: Request) -> Request {
    match request {
        Request::Lease { held, .. } => Request::Lease { held, wait_ms: 0 },
        Request::Follow { lease, .. } => Request::Follow { lease, wait_ms: 0 },
        Request::Orders { modules, address, revoked, uploads, .. } => {
            Request::Orders { modules, address, revoked, uploads, wait_ms: 0 }
        }
        other => other,
    }
}
