//! Heartbeats, which renew a lease.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::client::{SHORT_CALL_TIMEOUT, Session};
use dipaco_path::LeaseWatch;
use dipaco_protocol::{GrantedLease, Request, Response};

/// Renews a lease in the background while the worker trains or transfers.
pub(super) struct Heartbeat {
    task: tokio::task::JoinHandle<Option<String>>,
    stop: CancellationToken,
}

impl Heartbeat {
    /// Sends heartbeats until it is stopped or dropped. When the lease is lost, it cancels the training through `watch`.
    pub(super) fn start(session: Arc<Session>, lease: &GrantedLease, watch: Arc<LeaseWatch>) -> Self {
        let stop = CancellationToken::new();
        let (lease_ms, lease, stopped) = (lease.lease_ms, lease.key(), stop.clone());
        // Four heartbeats within the lease's time: one or two may get lost. Once a second suffices to show progress.
        let interval = Duration::from_millis((lease_ms / 4).clamp(100, 1_000));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(interval);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stopped.cancelled() => return None,
                }
                let (step, loss) = watch.read();
                let request = Request::Heartbeat { lease, step, repeated: watch.repeated(), loss };
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
                    // The session keeps connecting. An upload of results meets a lasting error too, and reports it.
                    Err(error) => tracing::debug!(%error, "a heartbeat did not get through"),
                }
            }
        });
        Self { task, stop }
    }

    /// Stops the heartbeats. Returns the coordinator's reason if the lease was lost.
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
