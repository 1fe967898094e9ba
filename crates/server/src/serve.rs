//! Accepting connections, and ending in an orderly way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::router::router;
use crate::{ServerError, State, config};

/// How long streams have to write their last event once they are cancelled.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long to wait after a failed `accept`, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Answers on `listener` until `shutdown` is cancelled and what runs has ended.
///
/// From then on `/health` says 503 and new work is refused with 503. Running requests have `serve.drain_timeout` to
/// finish; after it streams end with an error event, other requests with 503, and connections that do not take their
/// answer are cut. axum's own graceful shutdown waits for open streams without a limit, hence this loop.
///
/// # Errors
/// None at present: what goes wrong with a connection ends that connection.
pub async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    shutdown: CancellationToken,
) -> Result<(), ServerError> {
    let app = router(Arc::clone(&state));
    let room = Arc::new(Semaphore::new(state.config.max_connections));
    let timeout = config::seconds(state.config.read_timeout);
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            stream = accept(&listener, &room) => stream,
        };
        if let Some((stream, permit)) = stream {
            let connection = connection(stream, app.clone(), timeout, shutdown.clone());
            connections.spawn(async move {
                connection.await;
                drop(permit);
            });
        }
        while connections.try_join_next().is_some() {}
    }

    state.drain();
    tracing::info!(running = state.engine.load().running, "shutting down: waiting for running requests");
    let late = async {
        // Those who look after the server learn here that it is going away.
        let mut late = JoinSet::new();
        loop {
            if let Some((stream, permit)) = accept(&listener, &room).await {
                let connection = connection(stream, app.clone(), timeout, CancellationToken::new());
                late.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            while late.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = finish(&state, &mut connections) => {}
        () = late => {}
    }
    Ok(())
}

/// Waits for connections to end, then makes them.
async fn finish(state: &State, connections: &mut JoinSet<()>) {
    let all = async |connections: &mut JoinSet<()>| while connections.join_next().await.is_some() {};
    let drained =
        tokio::time::timeout(config::seconds(state.config.drain_timeout), all(connections)).await.is_ok();
    if !drained {
        tracing::warn!(
            connections = connections.len(),
            "the time to finish is over: cancelling what still runs"
        );
    }
    state.abort.cancel();
    state.engine.abort();
    if !drained && tokio::time::timeout(LAST_WORDS, all(connections)).await.is_err() {
        connections.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            tracing::warn!(%error, "can't accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn connection(stream: TcpStream, app: Router, timeout: Duration, shutdown: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection without TCP_NODELAY: its streams may stutter");
    }
    let used = AtomicBool::new(false);
    let app = TowerToHyperService::new(app);
    let service = service_fn(|request| {
        used.store(true, Ordering::Relaxed);
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            if !used.load(Ordering::Relaxed) {
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}
