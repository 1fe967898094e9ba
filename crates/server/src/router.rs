//! The HTTP routes and their handlers, and the steps common to all answers.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use tracing::Instrument;

use crate::client_text::shortened;
use crate::error::{ApiError, CLIENT_LEFT, LEFT, Refusal};
use crate::request_id::RequestId;
use crate::unread::{SharedBody, discard};
use crate::{ServerState, completions, cors, info, models, openapi, route, settings, tokenize};

pub(crate) fn router(state: Arc<ServerState>) -> Router {
    let router = Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(completions::chat))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/v1/route", post(route::route))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/tokenizer_info", get(tokenize::info))
        .route("/info", get(info::info))
        .route("/openapi.json", get(openapi::openapi))
        .route("/docs", get(openapi::docs))
        .route("/health", get(info::health))
        .route("/v1/health", get(info::health))
        .route("/ready", get(info::health))
        .route("/ping", get(info::health));
    let router = if state.metrics_apart() { router } else { router.route("/metrics", get(info::metrics)) };
    let router = router
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&state), common))
        .with_state(Arc::clone(&state));
    // Outside of the API keys: browsers send no key with the question whether a page may send one.
    let router = cors::allow(router, &state.config.allowed_origins);
    router.layer(from_fn_with_state(state, named))
}

/// The routes of the listener for metrics.
pub(crate) fn metrics_router(state: Arc<ServerState>) -> Router {
    Router::new()
        .route("/metrics", get(info::metrics))
        .route("/health", get(info::health))
        .fallback(unknown_beside_metrics)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&state), common))
        .with_state(Arc::clone(&state))
        .layer(from_fn_with_state(state, named))
}

async fn unknown_beside_metrics(request: Request) -> ApiError {
    let message =
        format!("{} does not exist here: this address has /metrics and /health", request.uri().path());
    ApiError { code: Some("not_found"), ..ApiError::new(StatusCode::NOT_FOUND, message) }
}

async fn unknown(request: Request) -> ApiError {
    let message = format!(
        "{} {} does not exist on this server: see /info, or POST /v1/completions",
        request.method(),
        request.uri().path()
    );
    ApiError { code: Some("not_found"), ..ApiError::new(StatusCode::NOT_FOUND, message) }
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    ApiError { code: Some("method_not_allowed"), ..ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message) }
}

/// Gives every request its id, and names it in the head of the answer.
async fn named(State(state): State<Arc<ServerState>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers(), &state.random);
    request.extensions_mut().insert(id.clone());
    let mut answer = next.run(request).await;
    id.name(&mut answer);
    answer
}

/// Steps common to all answers but those to the questions of browsers: API keys, refusals during shutdown, bodies of
/// refused requests, and counts.
async fn common(
    State(state): State<Arc<ServerState>>,
    Extension(id): Extension<RequestId>,
    mut request: Request,
    next: Next,
) -> Response {
    let body = SharedBody::of(&mut request);

    let handler = handler(request.uri().path());
    // The label of an unknown path says nothing about it.
    let path = (handler == UNKNOWN).then(|| shortened(request.uri().path()));
    let mut counted = Counted::new(&state, method(request.method()), handler);
    let public = handler == "/health";
    let refused = if public { Ok(()) } else { state.keys.keys().check(request.headers()) };
    let refused = refused.and_then(|()| {
        let open = public || handler == "/metrics";
        state.closed().filter(|_| !open).map_or(Ok(()), Err)
    });
    // The reason of a failure goes to the log only, with the id that the client knows.
    let span = tracing::info_span!("request", id = id.as_str());
    let mut response = match refused {
        Ok(()) => next.run(request).instrument(span).await,
        Err(error) => error.into_response(),
    };
    counted.status = response.status().as_u16();
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>()
        && !public
    {
        let Refusal { param, code } = refusal;
        let (id, status) = (id.as_str(), counted.status);
        if code == Some(CLIENT_LEFT) {
            counted.status = LEFT;
            tracing::debug!(id, handler, status = LEFT, "a client left while it sent its body");
        } else if matches!(status, 500 | 504) {
            tracing::info!(id, handler, status, code, param, "a request ended with an error");
        } else {
            state.metrics.refused(response.status(), code);
            tracing::info!(id, handler, path, status, code, param, "a request was refused");
        }
    }
    if response.status().is_client_error() || response.status().is_server_error() {
        let time = settings::seconds(state.config.read_timeout).saturating_sub(counted.began.elapsed());
        discard(Body::new(body), time).await;
    }
    response
}

/// Counts a request when it is dropped: with the status of its answer, or with [`LEFT`] if the client left before the answer.
struct Counted<'a> {
    state: &'a ServerState,
    method: &'static str,
    handler: &'static str,
    status: u16,
    began: Instant,
}

impl<'a> Counted<'a> {
    fn new(state: &'a ServerState, method: &'static str, handler: &'static str) -> Self {
        state.metrics.http_began();
        Self { state, method, handler, status: LEFT, began: Instant::now() }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        self.state.metrics.http_ended(self.method, self.handler, self.status, took);
    }
}

/// The metrics label of all unknown paths.
const UNKNOWN: &str = "other";

/// The metrics label of a URL path. Unknown paths share one label, so clients can't create new metrics.
fn handler(path: &str) -> &'static str {
    const KNOWN: [&str; 11] = [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/v1/route",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/info",
        "/openapi.json",
        "/docs",
        "/metrics",
    ];
    match path {
        "/health" | "/v1/health" | "/ready" | "/ping" => "/health",
        _ if path.starts_with("/v1/models/") => "/v1/models/{name}",
        _ => KNOWN.into_iter().find(|known| *known == path).unwrap_or(UNKNOWN),
    }
}

fn method(method: &Method) -> &'static str {
    let known = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"];
    known.into_iter().find(|known| method.as_str() == *known).unwrap_or("other")
}
