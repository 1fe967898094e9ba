//! Many connections with uploads that stop half-way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use dipaco_net::{JoinToken, NetError};
use dipaco_path::{Layout, MomentSpecs, PathState};
use dipaco_protocol::{ContentDigest, GrantedLease, LeaseResult, PIECE_BYTES, Request, Response, WorkerPlan};
use dipaco_sync::LeaseKey;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::{ANSWER, Connected, Failure, own_numerics};

/// Connections that take a lease of their own. The others name leases that are not theirs.
const LEASES: u32 = 16;
/// Uploads of a connection at a time.
const UPLOADS: usize = 16;
/// Connections that are made at a time.
const CONNECTING: usize = 16;
/// How long the uploads of a wave make progress, and how long a wave then stands still.
const MOVING: Duration = Duration::from_secs(3);
const STANDING: Duration = Duration::from_secs(17);

type Call = Pin<Box<dyn Future<Output = Result<Response, NetError>> + Send>>;

#[derive(Debug, Default)]
struct Counts {
    leases: AtomicU64,
    answered: AtomicU64,
    standing: AtomicU64,
    closed: AtomicU64,
}

/// Opens so many connections, and then begins uploads that stop, in waves, for this time.
pub(crate) async fn stop_half_way(
    token: JoinToken,
    duration: Duration,
    connections: u32,
) -> Result<Value, Failure> {
    let numerics = own_numerics()?;
    let (slots, counts) = (Arc::new(Semaphore::new(CONNECTING)), Arc::new(Counts::default()));
    let started = Instant::now();
    let mut joining = JoinSet::new();
    for number in 0..connections {
        let (token, numerics, slots) = (token.clone(), numerics.clone(), slots.clone());
        joining.spawn(async move {
            let _slot = slots.acquire_owned().await?;
            let peer = Connected::join(&token, &format!("upload-{number}"), &numerics).await?;
            let lease = if number < LEASES { peer.lease().await? } else { None };
            Ok::<_, Failure>((peer, lease))
        });
    }
    let mut peers = Vec::new();
    while let Some(joined) = joining.join_next().await {
        peers.push(joined??);
    }
    let connecting = started.elapsed().as_secs_f64();
    // Leases of others, for connections without one.
    let any = peers.iter().find_map(|(_, lease)| lease.clone()).ok_or("nobody has got a lease")?;
    let begun = Instant::now();
    let mut attackers = JoinSet::new();
    for (peer, lease) in peers {
        counts.leases.fetch_add(lease.is_some().into(), Ordering::Relaxed);
        let lease = lease.unwrap_or_else(|| any.clone());
        let results = Arc::new(results(&peer.plan, &lease)?);
        let counts = counts.clone();
        attackers.spawn(async move {
            let peer = Arc::new(peer);
            while begun.elapsed() < duration {
                wave(&peer, lease.key(), &results, &counts).await;
            }
        });
    }
    while let Some(ended) = attackers.join_next().await {
        ended?;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Ok(json!({
        "connections": connections,
        "connecting_seconds": connecting,
        "leases": count(&counts.leases),
        "answered_uploads": count(&counts.answered),
        "standing_uploads": count(&counts.standing),
        "closed_calls": count(&counts.closed),
    }))
}

/// Contents of the results of a lease, as long as honest ones.
fn results(plan: &WorkerPlan, lease: &GrantedLease) -> Result<Vec<(LeaseResult, Bytes)>, Failure> {
    let layout = Layout::of_plan(plan, &plan.topology()?)?;
    let mut results = Vec::new();
    for send in &lease.sends {
        let values = layout.fragment(send.fragment.module.level, send.fragment.index)?.values();
        let item = LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens: 1 };
        results.push((item, dipaco_codec::encode(&vec![0.5; values], plan.outer.compression)?.into()));
    }
    if lease.uploads_state {
        let moments = MomentSpecs::of_plan(plan)?;
        let state = PathState { step: lease.to, ..PathState::start(&moments) };
        results.push((LeaseResult::State, state.encode(&moments)?.into()));
    }
    Ok(results)
}

/// Begins uploads, lets them make progress for a while, and then reads and writes nothing more of them.
async fn wave(peer: &Arc<Connected>, lease: LeaseKey, results: &[(LeaseResult, Bytes)], counts: &Counts) {
    let pieces = results.iter().flat_map(|(item, content)| {
        let digest = ContentDigest::of(content);
        let offsets = (0..digest.bytes).step_by(PIECE_BYTES as usize);
        // The last piece would complete the result.
        let offsets: Vec<u64> =
            offsets.take(digest.bytes.div_ceil(PIECE_BYTES).max(2) as usize - 1).collect();
        let request = move |offset| Request::Submit { lease, item: *item, digest: digest.clone(), offset };
        offsets.into_iter().map(move |offset| {
            let end = (offset + PIECE_BYTES).min(content.len() as u64);
            (request(offset), content.slice(offset as usize..end as usize))
        })
    });
    let mut calls: Vec<Call> = Vec::new();
    for (request, piece) in pieces.collect::<Vec<_>>().into_iter().cycle().take(UPLOADS) {
        let peer = peer.clone();
        calls.push(Box::pin(async move {
            peer.client.call(&request, Some(piece), 0, 10 * ANSWER).await.map(|(answer, _)| answer)
        }));
    }
    let all = std::future::poll_fn(|context| {
        calls.retain_mut(|call| match call.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(ended) => {
                let counter = if ended.is_ok() { &counts.answered } else { &counts.closed };
                counter.fetch_add(1, Ordering::Relaxed);
                false
            }
        });
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    // The end of this time is the expected one.
    let _ = timeout(MOVING, all).await;
    counts.standing.fetch_add(calls.len() as u64, Ordering::Relaxed);
    // The calls are kept, and nobody polls them.
    sleep(STANDING).await;
}
