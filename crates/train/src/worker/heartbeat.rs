//! Heartbeats of a lease.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::{SHORT_CALL_TIMEOUT, Session};
use dipaco_path::LeaseWatch;
use dipaco_protocol::{GrantedLease, Request, Response};

/// Renews a lease in the background while its holder computes or transfers.
pub(super) struct Heartbeat {
    task: tokio::task::JoinHandle<Option<String>>,
    stop: CancellationToken,
}

impl Heartbeat {
    /// Beats until it is stopped or dropped. When the lease is lost, the round that is watched is cancelled.
    pub(super) fn start(session: Arc<Session>, work: &GrantedLease, watch: Arc<LeaseWatch>) -> Self {
        let stop = CancellationToken::new();
        let (path, fence, stopped) = (work.path, work.fence, stop.clone());
        let beat = Duration::from_millis((work.lease_ms / 4).clamp(100, 1_000));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(beat);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stopped.cancelled() => return None,
                }
                let (step, loss) = watch.read();
                let request = Request::Heartbeat { path, fence, step, loss };
                let answer = tokio::select! {
                    answer = session.call(&request, None, SHORT_CALL_TIMEOUT) => answer,
                    () = stopped.cancelled() => return None,
                };
                match answer {
                    Ok(Response::Lost { reason }) => {
                        watch.cancel();
                        return Some(reason);
                    }
                    Ok(_) => {}
                    // What the round brings in the end meets the same error, and tells it.
                    Err(error) => tracing::debug!(%error, "a heartbeat did not get through"),
                }
            }
        });
        Self { task, stop }
    }

    /// Stops beating; returns why the lease was lost, if it was.
    pub(super) async fn stop(mut self) -> Option<String> {
        self.stop.cancel();
        (&mut self.task).await.unwrap_or(None)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
