//! The HTTP port. Read-only, without state of its own but the history.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dipaco_telemetry::{EXPOSITION_TYPE, LiveRun, LiveSource};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{EventTail, RunHistory, metrics, page};

/// Connections at a time. A connection carries one request.
const CONNECTIONS: usize = 32;
/// Time for a request with its answer.
const REQUEST: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The page may load nothing, from nowhere. Its style stands in it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

/// The answers of the port.
pub struct Monitor {
    live: OnceLock<LiveSource>,
    history: Mutex<(EventTail, RunHistory)>,
}

impl Monitor {
    /// The monitor of a run with this event file. It is not ready yet.
    #[must_use]
    pub fn new(events: &Path) -> Arc<Self> {
        let history = Mutex::new((EventTail::new(events), RunHistory::default()));
        Arc::new(Self { live: OnceLock::new(), history })
    }

    /// Makes the monitor ready: the coordinator has taken its run over. Only the first call counts.
    pub fn watch(&self, live: LiveSource) {
        let _ = self.live.set(live);
    }

    /// The present state, and the history up to now. Blocks on the event file.
    fn look(&self) -> (Option<LiveRun>, RunHistory) {
        let live = self.live.get().and_then(|live| live());
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let (tail, sum) = &mut *history;
        let read = tail.read(|record| match record {
            Some(record) => sum.add(record),
            None => *sum = RunHistory::default(),
        });
        if let Err(error) = read {
            tracing::warn!(%error, "the event file can't be read; the page shows an older state");
        }
        (live, sum.clone())
    }
}

/// Answers on `listener` until `shutdown` is cancelled. Never fails: an error of a connection ends that connection.
pub async fn serve(listener: TcpListener, monitor: Arc<Monitor>, shutdown: CancellationToken) {
    let app = router(monitor);
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

fn router(monitor: Arc<Monitor>) -> Router {
    Router::new()
        .route("/health", get(async || "ok\n"))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics_page))
        .route("/status.json", get(status))
        .route("/", get(front))
        .with_state(monitor)
}

async fn ready(State(monitor): State<Arc<Monitor>>) -> Response {
    // Not through `look`: a probe must not wait for the event file.
    match monitor.live.get().and_then(|live| live()) {
        Some(_) => "ready\n".into_response(),
        None => {
            (StatusCode::SERVICE_UNAVAILABLE, "the coordinator has not taken its run over\n").into_response()
        }
    }
}

async fn metrics_page(State(monitor): State<Arc<Monitor>>) -> Response {
    looked(monitor, EXPOSITION_TYPE, |live, history| metrics::render(live.as_ref(), &history)).await
}

async fn status(State(monitor): State<Arc<Monitor>>) -> Response {
    looked(monitor, "application/json", |live, history| {
        serde_json::json!({ "live": live, "history": history }).to_string()
    })
    .await
}

async fn front(State(monitor): State<Arc<Monitor>>) -> Response {
    looked(monitor, "text/html; charset=utf-8", |live, history| page::render(live.as_ref(), &history)).await
}

/// An answer about the run. It is made on a thread that may block.
async fn looked(
    monitor: Arc<Monitor>,
    kind: &'static str,
    render: impl FnOnce(Option<LiveRun>, RunHistory) -> String + Send + 'static,
) -> Response {
    let text = tokio::task::spawn_blocking(move || {
        let (live, history) = monitor.look();
        render(live, history)
    });
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match text.await {
        Ok(text) => (headers, text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "the state of the run can't be shown");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
