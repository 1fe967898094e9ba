//! Answers while the run is loaded.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::serve::{accept, connection};

/// Connections at a time. Only probes come this early.
const CONNECTIONS: usize = 64;
/// Time that a client has for its request, and for reading its answer.
const CLIENT_TIME: Duration = Duration::from_secs(5);

/// Awaits `work` and meanwhile answers every request on `listener` with 503 and the seconds since the start, so that
/// probes and load balancers do not hang. Returns `None` as soon as `shutdown` is cancelled.
pub async fn while_loading<T>(
    listener: &TcpListener,
    work: impl Future<Output = T>,
    shutdown: &CancellationToken,
) -> Option<T> {
    let (began, loaded) = (Instant::now(), CancellationToken::new());
    let app = Router::new().fallback(async move || ApiError::loading(began.elapsed().as_secs()));
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let answering = async {
        loop {
            if let Some((stream, permit)) = accept(listener, &room).await {
                let connection = connection(stream, app.clone(), CLIENT_TIME, loaded.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            while connections.try_join_next().is_some() {}
        }
    };
    let done = tokio::select! {
        biased;
        () = shutdown.cancelled() => None,
        done = work => Some(done),
        () = answering => None,
    };
    // Answers on their way arrive. Connections do not stay: their next request shall find the run.
    loaded.cancel();
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLIENT_TIME, ended).await.is_err() {
        connections.abort_all();
    }
    done
}
