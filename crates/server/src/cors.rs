//! Cross-origin requests: scripts of other web pages that use the server.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// The router with answers to the questions of browsers, for the origins of `serve.allowed_origins`.
pub(crate) fn allow(router: Router, origins: &[String]) -> Router {
    if origins.is_empty() { router } else { router.layer(layer(origins)) }
}

fn layer(origins: &[String]) -> CorsLayer {
    let origins = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    let own = ["x-request-id", "x-dipaco-path", "x-dipaco-seed"].map(HeaderName::from_static);
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // Clients send headers of their own, such as the `x-stainless-os` of OpenAI's. The server ignores those.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(own.into_iter().chain([header::RETRY_AFTER]).collect::<Vec<_>>())
}
