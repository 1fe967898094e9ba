//! `POST /v1/completions`.

mod answer;
mod choice;
mod request;
mod source;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use dipaco_infer::{EngineError, GenerateRequest};

use crate::ServerState;
use crate::error::ApiError;
use crate::request_id::RequestId;
use crate::settings;
use crate::tokenize::{encode, fields};

use answer::Answer;
use choice::Choice;
use request::{Completion, Prompt};
use source::Source;

const PATH: HeaderName = HeaderName::from_static("x-dipaco-path");
const SEED: HeaderName = HeaderName::from_static("x-dipaco-seed");
const TIMEOUT: HeaderName = HeaderName::from_static("x-dipaco-timeout");

/// Tokens generated without `max_tokens`, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Token ids of a prompt, shared by its choices.
type Tokens = Arc<[u32]>;

/// Parameters of a completion that its body alone does not determine.
struct RequestParams {
    /// Seed of the request, its own or a random one.
    seed: u64,
    /// Time from admission to the last token.
    deadline: Duration,
}

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
    let mut completion = Completion::read(&mut fields(&state, request).await?)?;
    pin(&state, &headers, &mut completion)?;
    let seed = completion.sampling.seed.unwrap_or_else(|| state.random.seed());
    let params = RequestParams { seed, deadline: deadline(&state, &headers)? };

    let prompts = token_ids(&state, &mut completion).await?;
    let Sequences { requests, choices } = sequences(&state, &completion, &prompts, &params)?;
    // The engine admits all sequences of a request or none, so a completion never runs in part.
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
    let source = Source::new(generations, state.abort.clone());
    let mut response = if completion.stream {
        streamed(&state, &completion, answer, source).await?
    } else {
        whole(&completion, answer, source).await?
    };
    response.headers_mut().insert(SEED, HeaderValue::from(seed));
    Ok(response)
}

/// Takes the prompts out of the completion and returns their token ids.
async fn token_ids(state: &Arc<ServerState>, completion: &mut Completion) -> Result<Vec<Tokens>, ApiError> {
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
    let work = Arc::clone(state);
    let tokens = move || prompts.into_iter().map(|prompt| read(&work, prompt)).collect();
    state.blocking.run(tokens).await
}

fn read(state: &ServerState, prompt: Prompt) -> Result<Tokens, ApiError> {
    let tokens = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => encode(state, "prompt", &text)?,
    };
    if tokens.is_empty() { Err(EngineError::EmptyPrompt.into()) } else { Ok(tokens.into()) }
}

/// The sequences of a completion, prompt by prompt.
fn sequences(
    state: &ServerState,
    completion: &Completion,
    prompts: &[Tokens],
    params: &RequestParams,
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
                sampling: completion.sampling.for_choice(params.seed, number),
                stop: completion.stop.clone(),
                stop_token_ids: completion.stop_token_ids.clone(),
                include_stop: completion.include_stop,
                ignore_eos: completion.ignore_eos,
                log_probs: completion.log_probs,
                score_prompt: completion.echo && completion.log_probs.is_some(),
                deadline: params.deadline,
                ..GenerateRequest::new(Arc::clone(prompt))
            });
            let echo = completion.echo.then(|| Arc::clone(prompt));
            let index = sequences.choices.len();
            sequences.choices.push(Choice::new(index, Arc::clone(&state.codec), completion, echo));
        }
    }
    Ok(sequences)
}

/// The answer as server-sent events.
async fn streamed(
    state: &ServerState,
    completion: &Completion,
    answer: Answer,
    mut source: Source,
) -> Result<Response, ApiError> {
    let prompts = answer.choices.len() / completion.n.max(1);
    // The head of the answer names the path of the first prompt, and an error before the head still has its own status.
    source.wait_for_start().await?;
    let path = if prompts == 1 { source.first_path() } else { completion.path };
    let keep_alive = settings::seconds(state.config.keep_alive);
    let body = stream::body(answer, source, completion.usage, keep_alive);
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
async fn whole(completion: &Completion, answer: Answer, source: Source) -> Result<Response, ApiError> {
    let answer::Whole { body, paths } = answer.complete(source, completion.n).await?;
    let mut response = axum::Json(body).into_response();
    if let Ok(paths) = HeaderValue::from_str(&paths) {
        response.headers_mut().insert(PATH, paths);
    }
    Ok(response)
}

/// Sets the completion's path from the model's name, the field `path` or the header, which must agree.
fn pin(state: &ServerState, headers: &HeaderMap, completion: &mut Completion) -> Result<(), ApiError> {
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
