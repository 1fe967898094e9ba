//! `POST /v1/completions`.

mod answer;
mod choice;
mod request;
mod source;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use dipaco_infer::{EngineError, GenerateRequest};

use crate::State;
use crate::config;
use crate::error::ApiError;
use crate::router::RequestId;
use crate::tokenize::{encode, fields};

use answer::Answer;
use choice::Choice;
use request::{Completion, Prompt};
use source::Source;

const PATH: HeaderName = HeaderName::from_static("x-dipaco-path");
const SEED: HeaderName = HeaderName::from_static("x-dipaco-seed");
const TIMEOUT: HeaderName = HeaderName::from_static("x-dipaco-timeout");

pub(crate) async fn completions(
    Shared(state): Shared<Arc<State>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let mut completion = Completion::read(&mut fields(&state, request).await?)?;
    pin(&state, &headers, &mut completion)?;
    let deadline = deadline(&state, &headers)?;
    let seed = completion.sampling.seed.unwrap_or_else(|| state.random.seed());

    let (work, prompts) = (Arc::clone(&state), std::mem::take(&mut completion.prompts));
    if prompts.len().saturating_mul(completion.n) > state.config.max_choices {
        let message = format!(
            "{} prompts times n = {} is over the limit of {} choices of a request: send fewer prompts at a time",
            prompts.len(),
            completion.n,
            state.config.max_choices
        );
        return Err(ApiError::field("prompt", message));
    }
    let tokens = move || prompts.into_iter().map(|prompt| read(&work, prompt)).collect::<Result<Vec<_>, _>>();
    let prompts = state.blocking.run(tokens).await?;

    let (mut requests, mut choices) = (Vec::new(), Vec::new());
    let model = state.engine.model();
    for prompt in &prompts {
        let left = model.context().saturating_sub(prompt.len());
        if left == 0 && completion.max_tokens != Some(0) {
            let max_tokens = completion.max_tokens.unwrap_or(1);
            return Err(
                EngineError::Context { prompt: prompt.len(), max_tokens, context: model.context() }.into()
            );
        }
        // 16 as everywhere, or what is left of the context when nothing was asked for.
        let max_tokens = completion.max_tokens.unwrap_or(left.min(16));
        for choice in 0..completion.n {
            let request = GenerateRequest {
                path: completion.path,
                max_tokens,
                min_tokens: completion.min_tokens,
                sampling: completion.sampling.for_choice(seed, choice),
                stop: completion.stop.clone(),
                stop_token_ids: completion.stop_token_ids.clone(),
                include_stop: completion.include_stop,
                ignore_eos: completion.ignore_eos,
                log_probs: completion.log_probs,
                score_prompt: completion.echo && completion.log_probs.is_some(),
                deadline,
                ..GenerateRequest::new(Arc::clone(prompt))
            };
            let echo = completion.echo.then(|| Arc::clone(prompt));
            choices.push(Choice::new(choices.len(), Arc::clone(&state.codec), &completion, echo));
            requests.push(request);
        }
    }
    let generations = state.engine.submit(requests).inspect_err(|error| {
        if matches!(error, EngineError::Overloaded { .. }) {
            state.metrics.overloaded();
        }
    })?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let answer = Answer {
        state: Arc::clone(&state),
        id: format!("cmpl-{}", id.0),
        created,
        model: completion.path.map_or_else(|| state.run.name.clone(), |path| state.path_model(path)),
        prompt_tokens: prompts.iter().map(|prompt| prompt.len()).sum(),
        seed: completion.return_route.then_some(seed),
        choices,
        log: answer::Log { id: id.0, began: Instant::now(), outcome: "abort" },
    };
    let mut source = Source::new(generations, state.abort.clone());
    let mut response = if completion.stream {
        // The head of the answer names the path of the first prompt, and errors until then have a status of their own.
        source.wait_for_start().await?;
        let paths = if prompts.len() == 1 { source.first_path() } else { completion.path };
        let keep_alive = config::seconds(state.config.keep_alive);
        let body = stream::body(answer, source, completion.usage, keep_alive);
        let mut response = (
            [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")],
            [(HeaderName::from_static("x-accel-buffering"), "no")],
            body,
        )
            .into_response();
        if let Some(path) = paths {
            response.headers_mut().insert(PATH, HeaderValue::from(path.0));
        }
        response
    } else {
        let (body, paths) = answer.complete(source, completion.n).await?;
        let mut response = axum::Json(body).into_response();
        if let Ok(paths) = HeaderValue::from_str(&paths) {
            response.headers_mut().insert(PATH, paths);
        }
        response
    };
    response.headers_mut().insert(SEED, HeaderValue::from(seed));
    Ok(response)
}

fn read(state: &State, prompt: Prompt) -> Result<Arc<[u32]>, ApiError> {
    let tokens = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => encode(state, "prompt", &text)?,
    };
    if tokens.is_empty() { Err(EngineError::EmptyPrompt.into()) } else { Ok(tokens.into()) }
}

/// The path that the model's name, the field `path` or the header names; they must agree.
fn pin(state: &State, headers: &HeaderMap, completion: &mut Completion) -> Result<(), ApiError> {
    let named = completion.model.as_deref().map_or(Ok(None), |model| state.resolve(model))?;
    let header = match headers.get(&PATH) {
        None => None,
        Some(value) => {
            let path = value.to_str().ok().and_then(|text| text.trim().parse().ok());
            Some(path.ok_or_else(|| {
                ApiError::field("x-dipaco-path", "the header x-dipaco-path is no path: give a number")
            })?)
        }
    };
    let mut paths = [named, completion.path, header].into_iter().flatten();
    let first = paths.next();
    if let Some((one, other)) = first.zip(paths.find(|&path| Some(path) != first)) {
        let message = format!(
            "path {one} and path {other} are both asked for: name one, in `model`, `path` or the header"
        );
        return Err(ApiError::field("path", message));
    }
    completion.path = first;
    Ok(())
}

fn deadline(state: &State, headers: &HeaderMap) -> Result<Duration, ApiError> {
    let most = config::seconds(state.config.request_timeout);
    let Some(value) = headers.get(&TIMEOUT) else { return Ok(most) };
    let asked = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let asked = asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    asked.map(|asked| asked.min(most)).ok_or_else(|| {
        ApiError::field("x-dipaco-timeout", "the header x-dipaco-timeout is no number of seconds")
    })
}
