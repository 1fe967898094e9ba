//! `POST /v1/completions`.

mod answer;
mod choice;
mod request;
mod response;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use dipaco_infer::{EngineError, GenerateRequest};
use dipaco_topology::PathId;

use crate::ServerState;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request_id::RequestId;
use crate::settings;

use answer::Answer;
use choice::Choice;
use request::CompletionRequest;
pub(crate) use request::Prompt;

const PATH: HeaderName = HeaderName::from_static("x-dipaco-path");
const SEED: HeaderName = HeaderName::from_static("x-dipaco-seed");
const TIMEOUT: HeaderName = HeaderName::from_static("x-dipaco-timeout");

/// Tokens generated without `max_tokens`, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Token ids of a prompt, shared by its choices.
type SharedTokens = Arc<[u32]>;

/// The sequences of a completion: one engine request and one choice for each prompt and number 0 to n - 1.
#[derive(Default)]
struct Sequences {
    requests: Vec<GenerateRequest>,
    choices: Vec<Choice>,
}

pub(crate) async fn completions(
    State(state): State<Arc<ServerState>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let mut completion = CompletionRequest::read(&mut Fields::read(&state, request).await?)?;
    pin(&state, &headers, &mut completion)?;
    let deadline = deadline(&state, &headers)?;
    let seed = completion.sampling.seed.unwrap_or_else(|| state.random.seed());

    let prompts = token_ids(&state, &mut completion).await?;
    let Sequences { requests, choices } = sequences(&state, &completion, &prompts, seed)?;
    // The engine admits all sequences of a request or none, so a completion never runs in part.
    let submission = state.engine.submit(requests, deadline).inspect_err(|error| {
        if matches!(error, EngineError::Overloaded { .. }) {
            state.metrics.overloaded();
        }
    })?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let answer = Answer {
        id: format!("cmpl-{}", id.0),
        created,
        model: completion.path.map_or_else(|| state.run.name.clone(), |path| state.path_model(path)),
        prompt_tokens: prompts.iter().map(|prompt| prompt.len()).sum(),
        choices,
        choices_per_prompt: completion.n,
        submission,
        log: answer::Log { id: id.0, began: Instant::now(), outcome: "abort" },
        state,
    };
    let mut response =
        if completion.stream { streamed(&completion, answer).await? } else { whole(answer).await? };
    response.headers_mut().insert(SEED, HeaderValue::from(seed));
    Ok(response)
}

/// Takes the prompts out of the completion and returns their token ids.
async fn token_ids(
    state: &Arc<ServerState>,
    completion: &mut CompletionRequest,
) -> Result<Vec<SharedTokens>, ApiError> {
    let prompts = std::mem::take(&mut completion.prompts);
    // Checked before tokenizing: a request that is refused must not cost a core.
    if prompts.len().saturating_mul(completion.n) > state.config.max_choices {
        let message = format!(
            "{} prompts times n = {} is over the limit of {} choices of a request: send fewer prompts at a time",
            prompts.len(),
            completion.n,
            state.config.max_choices
        );
        return Err(ApiError::field("prompt", message));
    }
    let codec = Arc::clone(&state.codec);
    let tokens = move || {
        let tokens = prompts.into_iter().map(|prompt| Ok(prompt.tokens(codec.as_ref())?.into()));
        tokens.collect::<Result<Vec<SharedTokens>, ApiError>>()
    };
    state.blocking.run(tokens).await
}

/// The sequences of a completion, prompt by prompt.
fn sequences(
    state: &Arc<ServerState>,
    completion: &CompletionRequest,
    prompts: &[SharedTokens],
    seed: u64,
) -> Result<Sequences, ApiError> {
    let context = state.engine.model().context();
    let mut sequences = Sequences::default();
    for prompt in prompts {
        let left = context.saturating_sub(prompt.len());
        // The engine accepts a prompt that fills the context, because it can be scored. Generating needs room.
        if left == 0 && completion.max_tokens != Some(0) {
            let max_tokens = completion.max_tokens.unwrap_or(1);
            return Err(EngineError::Context { prompt: prompt.len(), max_tokens, context }.into());
        }
        let max_tokens = completion.max_tokens.unwrap_or(left.min(DEFAULT_MAX_TOKENS));
        for number in 0..completion.n {
            sequences.requests.push(GenerateRequest {
                path: completion.path,
                max_tokens,
                min_tokens: completion.min_tokens,
                sampling: completion.sampling.for_choice(seed, number),
                stop: completion.stop.clone(),
                stop_token_ids: completion.stop_token_ids.clone(),
                include_stop: completion.include_stop,
                ignore_eos: completion.ignore_eos,
                log_probs: completion.log_probs,
                score_prompt: completion.echo && completion.log_probs.is_some(),
                ..GenerateRequest::new(Arc::clone(prompt))
            });
            let index = sequences.choices.len();
            sequences.choices.push(Choice::new(state, index, completion, prompt, seed));
        }
    }
    Ok(sequences)
}

/// The answer as server-sent events.
async fn streamed(completion: &CompletionRequest, mut answer: Answer) -> Result<Response, ApiError> {
    // The first event starts a choice. The head of the answer names its path, and an error before the head still has its
    // own status.
    let first = answer.next().await?;
    let one_prompt = answer.choices.len() == answer.choices_per_prompt;
    let path = if one_prompt { answer.paths().next().flatten() } else { completion.path };
    let keep_alive = settings::seconds(answer.state.config.keep_alive);
    let body = stream::body(answer, first, completion.usage, keep_alive);
    let mut response = (
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")],
        // Proxies such as nginx would otherwise collect the events of a stream.
        [(HeaderName::from_static("x-accel-buffering"), "no")],
        body,
    )
        .into_response();
    if let Some(path) = path {
        response.headers_mut().insert(PATH, HeaderValue::from(path.0));
    }
    Ok(response)
}

/// The answer as one JSON object.
async fn whole(mut answer: Answer) -> Result<Response, ApiError> {
    let choices = answer.complete().await?;
    let mut response = axum::Json(answer.body(&choices, Some(answer.usage()))).into_response();
    let shown = |path: Option<PathId>| path.map(|path| path.to_string()).unwrap_or_default();
    let paths: Vec<String> = answer.paths().map(shown).collect();
    if let Ok(paths) = HeaderValue::from_str(&paths.join(",")) {
        response.headers_mut().insert(PATH, paths);
    }
    Ok(response)
}

/// Sets the completion's path from the model's name, the field `path` or the header, which must agree.
fn pin(state: &ServerState, headers: &HeaderMap, completion: &mut CompletionRequest) -> Result<(), ApiError> {
    let named = completion.model.as_deref().map_or(Ok(None), |model| state.resolve(model))?;
    let header = match headers.get(&PATH) {
        None => None,
        Some(value) => {
            let path = value.to_str().ok().and_then(|text| text.trim().parse().ok());
            Some(path.ok_or_else(|| {
                ApiError::field("x-dipaco-path", "the header x-dipaco-path is not a path: give a number")
            })?)
        }
    };
    let mut paths = [named, completion.path, header].into_iter().flatten();
    let first = paths.next();
    if let Some((one, other)) = first.zip(paths.find(|&path| Some(path) != first)) {
        let message = format!(
            "the request names path {one} and path {other}: name one path, in `model`, `path` or the header"
        );
        return Err(ApiError::field("path", message));
    }
    completion.path = first;
    Ok(())
}

/// The time of the request: the header `x-dipaco-timeout`, at most `serve.request_timeout`.
fn deadline(state: &ServerState, headers: &HeaderMap) -> Result<Duration, ApiError> {
    let most = settings::seconds(state.config.request_timeout);
    let Some(value) = headers.get(&TIMEOUT) else { return Ok(most) };
    let asked = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let asked = asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    asked.map(|asked| asked.min(most)).ok_or_else(|| {
        ApiError::field("x-dipaco-timeout", "the header x-dipaco-timeout is not a number of seconds")
    })
}
