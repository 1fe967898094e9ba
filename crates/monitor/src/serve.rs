//! The HTTP port of a process. Read-only.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dipaco_telemetry::EXPOSITION_TYPE;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Connections at a time. A connection carries one request.
const CONNECTIONS: usize = 32;
/// Time for a request with its answer.
const REQUEST: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The page may load nothing, from nowhere. Its style stands in it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

/// What a port shows of its process.
pub trait Watched: Send + Sync + 'static {
    /// Why the process is not ready; `None` when it is. Never blocks: a probe must not wait for a file.
    fn not_ready(&self) -> Option<&'static str>;
    /// The metrics for Prometheus. May block.
    fn metrics(&self) -> String;
    /// The present state as JSON. May block.
    fn status(&self) -> String;
    /// A page for people; `None` for a process without one. May block.
    fn page(&self) -> Option<String>;
}

/// Answers on `listener` until `shutdown` is cancelled. Never fails: an error of a connection ends that connection.
pub async fn serve(listener: TcpListener, watched: Arc<dyn Watched>, shutdown: CancellationToken) {
    let app = router(watched);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let app = app.clone();
                tokio::spawn(async move {
                    answer(stream, app).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "can't accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, app: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    match tokio::time::timeout(REQUEST, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended with an error"),
        Err(_) => tracing::debug!("a connection took too long"),
    }
}

fn router(watched: Arc<dyn Watched>) -> Router {
    Router::new()
        .route("/health", get(async || "ok\n"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .route("/status.json", get(status))
        .route("/", get(front))
        .with_state(watched)
}

async fn ready(State(watched): State<Arc<dyn Watched>>) -> Response {
    match watched.not_ready() {
        None => "ready\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(watched): State<Arc<dyn Watched>>) -> Response {
    looked(EXPOSITION_TYPE, move || Some(watched.metrics())).await
}

async fn status(State(watched): State<Arc<dyn Watched>>) -> Response {
    looked("application/json", move || Some(watched.status())).await
}

async fn front(State(watched): State<Arc<dyn Watched>>) -> Response {
    looked("text/html; charset=utf-8", move || watched.page()).await
}

/// An answer about the process. It is made on a thread that may block.
async fn looked(kind: &'static str, render: impl FnOnce() -> Option<String> + Send + 'static) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match tokio::task::spawn_blocking(render).await {
        Ok(Some(text)) => (headers, text).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => {
            tracing::warn!(%error, "the state of the run can't be shown");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
