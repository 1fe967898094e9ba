//! A worker that never trains, and lies: it names leases of others and paths that do not exist, uploads gradients that are
//! not finite and states of another step, completes leases without results, and says that its training diverged.

use std::time::Duration;

use bytes::Bytes;
use dipaco_net::{Clock, JoinToken};
use dipaco_path::{Layout, MomentSpecs, PathState, TrainDevice, numerics};
use dipaco_protocol::{ContentDigest, GrantedLease, LeaseReport, LeaseResult, Request, Response};
use dipaco_sync::{Fence, LeaseKey};
use dipaco_topology::PathId;
use dipaco_train::client::{ClientError, Identity, LeaseOffer, SHORT_CALL_TIMEOUT, Session, TokenSource};
use tokio_util::sync::CancellationToken;

use crate::Failure;

/// Takes leases and lies about them until the run is complete.
pub(crate) async fn lie(token: JoinToken, name: &str) -> Result<(), Failure> {
    let identity = Identity {
        token,
        source: TokenSource::Given,
        worker: name.to_owned(),
        instance: u64::from(std::process::id()),
        patience: Duration::from_secs(60),
        clock: Clock::system(),
        numerics: numerics(&TrainDevice::Cpu)?,
        server: None,
    };
    let session = Session::open(identity, CancellationToken::new()).await?;
    let mut number = 0_u32;
    loop {
        let asked = session.ask(&Request::Lease { held: Vec::new(), wait_ms: 1_000 }).await;
        let lease = match asked {
            Ok(LeaseOffer::Lease(lease)) => lease,
            Ok(LeaseOffer::Wait(_) | LeaseOffer::Unfit(_)) => continue,
            Ok(LeaseOffer::Finished) | Err(ClientError::Complete) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        number += 1;
        match forge(&session, &lease, number).await {
            Ok(()) => {}
            Err(error) if matches!(error.downcast_ref(), Some(ClientError::Complete)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

async fn call(session: &Session, request: &Request) -> Result<Response, Failure> {
    Ok(session.call(request, None, SHORT_CALL_TIMEOUT).await?)
}

/// Lies about a lease in every way, and gives it back or says that it diverged.
async fn forge(session: &Session, lease: &GrantedLease, number: u32) -> Result<(), Failure> {
    let key = lease.key();
    let report = || LeaseReport { seconds: 1e-9, held_out_loss: Some(0.0), ..LeaseReport::default() };
    let mut accepted = Vec::new();
    for foreign in foreign_leases(key, number) {
        let beat = Request::Heartbeat { lease: foreign, step: u64::from(number), repeated: 0, loss: None };
        let requests = [
            beat,
            Request::Follow { lease: foreign, wait_ms: 0 },
            Request::Complete { lease: foreign, report: report() },
            Request::Diverged { lease: foreign, step: lease.from },
        ];
        for request in requests {
            if !matches!(call(session, &request).await?, Response::Lost { .. } | Response::Refused { .. }) {
                accepted.push(request);
            }
        }
    }
    for (item, content) in false_results(session, lease)? {
        let digest = ContentDigest::of(&content);
        let request = Request::Submit { lease: key, item, digest, offset: 0 };
        let answer = session.call(&request, Some(content), SHORT_CALL_TIMEOUT).await?;
        if !matches!(answer, Response::Lost { .. } | Response::Refused { .. }) {
            accepted.push(request);
        }
    }
    // The lease is current, but its results are missing.
    let complete = Request::Complete { lease: key, report: report() };
    if lease.trains() && matches!(call(session, &complete).await?, Response::Done) {
        accepted.push(complete);
    }
    if !accepted.is_empty() {
        return Err(format!("the coordinator has accepted {accepted:?}").into());
    }
    let end = if number.is_multiple_of(2) {
        Request::Release
    } else {
        Request::Diverged { lease: key, step: lease.from }
    };
    call(session, &end).await?;
    Ok(())
}

/// Leases that are not the worker's: of other paths, of other numbers, of paths that do not exist.
fn foreign_leases(own: LeaseKey, number: u32) -> Vec<LeaseKey> {
    let of = |path: u32, fence: u64| LeaseKey { path: PathId(path), fence: Fence(fence), ..own };
    let fence = own.fence.0;
    let others = (0..4).map(|path| of(path, fence.saturating_sub(1)));
    others
        .chain([of(own.path.0, fence + 1), of(number, fence), of(u32::MAX, fence)])
        .filter(|key| *key != own)
        .collect()
}

/// Results that no training makes.
fn false_results(session: &Session, lease: &GrantedLease) -> Result<Vec<(LeaseResult, Bytes)>, Failure> {
    let plan = session.plan();
    let layout = Layout::of_plan(plan, &plan.topology()?)?;
    let mut results = Vec::new();
    for send in &lease.sends {
        let values = layout.fragment(send.fragment.module.level, send.fragment.index)?.values();
        let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 };
        for content in [vec![f32::NAN; values], vec![f32::INFINITY; values], vec![0.5; values + 1]] {
            let bytes: Vec<u8> = content.iter().flat_map(|value| value.to_le_bytes()).collect();
            results.push((item, bytes.into()));
        }
    }
    if lease.trains() {
        let moments = MomentSpecs::of_plan(plan)?;
        let state = PathState { step: lease.to + 1, ..PathState::start(&moments) };
        results.push((LeaseResult::State, state.encode(&moments)?.into()));
    }
    Ok(results)
}
