//! An honest peer that measures its waits.

use std::time::{Duration, Instant};

use dipaco_net::JoinToken;
use dipaco_protocol::{Request, Response};
use serde_json::{Value, json};

use crate::{Connected, Failure, own_numerics};

/// Pause between two leases.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes a lease, renews it, and gives it back, again and again.
pub(crate) async fn take_leases(token: JoinToken, duration: Duration) -> Result<Value, Failure> {
    let peer = Connected::join(&token, "honest", &own_numerics()?).await?;
    let (mut leases, mut waits, mut beats) = (Vec::new(), Vec::new(), Vec::new());
    let started = Instant::now();
    while started.elapsed() < duration {
        let asked = Instant::now();
        let lease = peer.lease().await?;
        let taken = asked.elapsed().as_secs_f64() * 1e3;
        if let Some(lease) = lease {
            leases.push(taken);
            let beat = Request::Heartbeat { lease: lease.key(), step: 0, repeated: 0, loss: None };
            let asked = Instant::now();
            let answer = peer.ask(&beat, None).await?;
            beats.push(asked.elapsed().as_secs_f64() * 1e3);
            if answer != Response::Done {
                return Err(format!("an honest heartbeat was answered with {answer:?}").into());
            }
            peer.ask(&Request::Release, None).await?;
        } else {
            waits.push(taken);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(
        json!({ "leases_ms": percentiles(leases), "waits_ms": percentiles(waits), "heartbeats_ms": percentiles(beats) }),
    )
}

fn percentiles(mut found: Vec<f64>) -> Value {
    found.sort_by(f64::total_cmp);
    let at =
        |share: f64| found.get(((found.len() as f64 * share) as usize).min(found.len().saturating_sub(1)));
    json!({ "count": found.len(), "p50": at(0.5), "p99": at(0.99), "most": found.last() })
}
