//! Answers while the run is loaded.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::random::Random;
use crate::request_id::RequestId;
use crate::serve::answer_all;
use crate::unread::discard;

/// Connections at a time. Only probes come this early.
const CONNECTIONS: usize = 64;
/// Time that a client has for its request, and for reading its answer.
const CLIENT_TIME: Duration = Duration::from_secs(5);

/// How much of a run is loaded. Clones share their numbers.
#[derive(Clone, Debug, Default)]
pub struct LoadProgress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    loaded: AtomicUsize,
    modules: AtomicUsize,
}

impl LoadProgress {
    /// States the number of modules that are loaded before the server answers.
    pub fn expect(&self, modules: usize) {
        self.0.modules.store(modules, Ordering::Relaxed);
    }

    /// Counts a module that is loaded.
    pub fn loaded(&self) {
        self.0.loaded.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of loaded modules, and of all that are expected; 0 while that is not known.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let modules = self.0.modules.load(Ordering::Relaxed);
        (self.0.loaded.load(Ordering::Relaxed).min(modules), modules)
    }

    /// The answer to every request `seconds` after the start: an error with the numbers, also as fields.
    fn answer(&self, seconds: u64) -> Response {
        let (loaded, modules) = self.counts();
        let error = ApiError::loading(loaded, modules, seconds);
        let mut body = error.body();
        body["loading"] = json!({"modules_loaded": loaded, "modules": modules, "seconds": seconds});
        let retry_after = error.retry_after.unwrap_or(1).to_string();
        (error.status, [(header::RETRY_AFTER, retry_after)], Json(body)).into_response()
    }
}

/// Awaits `work` and meanwhile answers every request on `listener` with 503, `progress` and the seconds since the start, so
/// that probes and load balancers do not hang. Returns `None` as soon as `shutdown` is cancelled.
pub async fn while_loading<T>(
    listener: &TcpListener,
    work: impl Future<Output = T>,
    progress: &LoadProgress,
    shutdown: &CancellationToken,
) -> Option<T> {
    let (began, loaded) = (Instant::now(), CancellationToken::new());
    let (progress, random) = (progress.clone(), Arc::new(Random::default()));
    let app = Router::new().fallback(async move |request: Request| {
        let id = RequestId::of(request.headers(), &random);
        discard(request.into_body(), CLIENT_TIME).await;
        let mut answer = progress.answer(began.elapsed().as_secs());
        id.name(&mut answer);
        answer
    });
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    let answering = answer_all(listener, &room, &app, CLIENT_TIME, &loaded, &mut connections);
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
