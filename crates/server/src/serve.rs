//! Accepting connections, and shutting down in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::router::{metrics_router, router};
use crate::write_limit::WriteLimit;
use crate::{ServerError, ServerState, settings};

/// Time that cancelled streams have to write their last event.
const LAST_EVENT_TIME: Duration = Duration::from_secs(2);

/// Connections at a time of the listener for metrics.
const METRICS_CONNECTIONS: usize = 64;

/// Pause after a failed `accept`. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Pause before the next look at a client that has sent bytes which nobody reads yet.
const UNREAD_PAUSE: Duration = Duration::from_millis(50);

/// Answers on `listener` until `shutdown` is cancelled and the running requests have ended.
///
/// After the cancellation, `/health` answers with 503 and new requests are refused with 503. Running requests have
/// `serve.drain_timeout` to finish. After that time streams end with an error event and other requests with 503, and
/// connections that do not read their answer are closed. Until then the API keys follow their file. axum's graceful shutdown would wait for open streams without a
/// limit.
///
/// # Errors
/// [`ServerError::Engine`] when the engine ended by a bug. All requests have their answers then. An error on a connection ends
/// only that connection.
pub async fn serve(
    listener: TcpListener,
    state: Arc<ServerState>,
    shutdown: CancellationToken,
) -> Result<(), ServerError> {
    let app = router(Arc::clone(&state));
    let room = Arc::new(Semaphore::new(state.config.max_connections));
    let timeout = settings::seconds(state.config.read_timeout);
    let mut connections = JoinSet::new();
    let ending = shutdown.child_token();
    // Ends with this function.
    let mut following = JoinSet::new();
    following.spawn(Arc::clone(&state.keys).follow());
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        // No request can be answered any more. Whoever started the process may start it again.
        () = state.engine.failed() => ending.cancel(),
        () = answer_all(&listener, &room, &app, timeout, &ending, &mut connections) => {}
    }

    state.drain();
    match state.engine.load().running {
        0 => tracing::info!("shutting down"),
        running => tracing::info!(running, "shutting down: waiting for running requests"),
    }
    // The listener stays open so that load balancers and health checks see the 503.
    let (mut late, never) = (JoinSet::new(), CancellationToken::new());
    tokio::select! {
        () = finish(&state, &mut connections) => {}
        () = answer_all(&listener, &room, &app, timeout, &never, &mut late) => {}
    }
    state.engine.failure().map_or(Ok(()), |source| Err(ServerError::Engine { source }))
}

/// Answers `/metrics` and `/health` on a listener of its own, until the future is dropped. API keys count as with [`serve`].
pub async fn serve_metrics(listener: TcpListener, state: Arc<ServerState>) {
    let app = metrics_router(Arc::clone(&state));
    let room = Arc::new(Semaphore::new(METRICS_CONNECTIONS));
    let timeout = settings::seconds(state.config.read_timeout);
    answer_all(&listener, &room, &app, timeout, &CancellationToken::new(), &mut JoinSet::new()).await;
}

/// Accepts connections for ever and answers each in a task of `connections`. They end in order when `ending` is cancelled.
pub(crate) async fn answer_all(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    app: &Router,
    timeout: Duration,
    ending: &CancellationToken,
    connections: &mut JoinSet<()>,
) {
    loop {
        if let Some((stream, permit)) = accept(listener, room).await {
            let connection = connection(stream, app.clone(), timeout, ending.clone());
            connections.spawn(async move {
                connection.await;
                drop(permit);
            });
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Waits `serve.drain_timeout` for the connections to end, then ends them.
async fn finish(state: &ServerState, connections: &mut JoinSet<()>) {
    let all = async |connections: &mut JoinSet<()>| while connections.join_next().await.is_some() {};
    let drained =
        tokio::time::timeout(settings::seconds(state.config.drain_timeout), all(connections)).await.is_ok();
    if !drained {
        tracing::warn!(
            connections = connections.len(),
            "the drain timeout is over: cancelling the running requests"
        );
    }
    // Streams end with an error event.
    state.engine.abort();
    if !drained && tokio::time::timeout(LAST_EVENT_TIME, all(connections)).await.is_err() {
        connections.shutdown().await;
    }
}

/// Accepts a connection when there is room for it.
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

/// Answers the requests of one connection.
async fn connection(mut stream: TcpStream, app: Router, timeout: Duration, shutdown: CancellationToken) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "can't set TCP_NODELAY on a connection: its streams may stutter");
    }
    let (used, answer_waits) = (AtomicBool::new(false), AtomicBool::new(false));
    let app = TowerToHyperService::new(app);
    let service = service_fn(|request| {
        used.store(true, Ordering::Relaxed);
        app.call(request)
    });
    let (reading, writing) = stream.split();
    let socket: &TcpStream = reading.as_ref();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .serve_connection(TokioIo::new(WriteLimit::new(socket, writing, timeout, &answer_waits)), service);
    let mut connection = std::pin::pin!(connection);
    let answered = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = shutdown.cancelled() => {
                // A graceful shutdown would wait for the first request of a connection that has sent none.
                if !used.load(Ordering::Relaxed) {
                    return Ok(());
                }
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        // What needs no wait is answered, also to a client that has already gone.
        biased;
        ended = answered => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
            }
        }
        () = client_leaves(socket, &answer_waits) => tracing::debug!("a client left before its answer"),
    }
}

/// Waits until the client has closed the connection, or only its sending side, and takes all of the answer that is there.
///
/// hyper ends such a connection too, but it does not look while it holds bytes behind a request.
async fn client_leaves(socket: &TcpStream, answer_waits: &AtomicBool) {
    while let Ok(ready) = socket.ready(Interest::READABLE).await {
        if ready.is_read_closed() && !answer_waits.load(Ordering::Relaxed) {
            return;
        }
        // Unread bytes would end the next wait at once. There are none if hyper has read them since.
        if !ready.is_empty() {
            tokio::time::sleep(UNREAD_PAUSE).await;
        }
    }
}
