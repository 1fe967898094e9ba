//! `POST /v1/completions` and `/v1/chat/completions`.

mod answer;
mod chat;
mod choice;
mod request;
mod response;
mod stream;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use dipaco_infer::{EngineError, GenerateRequest, Submission};

use crate::ServerState;
use crate::admission::Asked;
use crate::deadline::Deadline;
use crate::error::ApiError;
use crate::fields::{BodyShare, Fields};
use crate::request_id::RequestId;

use answer::Answer;
pub(crate) use chat::{MAX_MESSAGES, list_of_messages};
use choice::{Choice, Ending};
use request::{CompletionRequest, DEFAULT_MAX_TOKENS, Form, Truncation};
pub(crate) use request::{
    MAX_LOG_PROBS, MAX_N, MAX_STOP_BYTES, MAX_STOPS, MAX_TOKEN_RULES, MAX_TOKENS, Prompt,
};
use response::UsageField;

const PATH: HeaderName = HeaderName::from_static("x-dipaco-path");
const SEED: HeaderName = HeaderName::from_static("x-dipaco-seed");

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
    let began = Instant::now();
    let headers = request.headers().clone();
    let mut fields = fields_of(&state, &id, request).await?;
    let completion = CompletionRequest::read(&mut fields)?;
    let body = fields.end();
    respond(state, id, headers, completion, body, began).await
}

pub(crate) async fn chat(
    State(state): State<Arc<ServerState>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let began = Instant::now();
    let headers = request.headers().clone();
    let mut fields = fields_of(&state, &id, request).await?;
    state.chat()?;
    let messages = chat::messages(&mut fields)?;
    let prompt = Prompt::Chat { messages, answer_begins: true };
    let mut completion = CompletionRequest::of_prompts(vec![prompt], &mut fields)?;
    let body = fields.end();
    // A chat ends with the model's answer, not after a few tokens.
    completion.default_max_tokens = usize::MAX;
    completion.form = Form::Chat;
    respond(state, id, headers, completion, body, began).await
}

/// The fields of a request, with the sampling parameters of the model where the request sets none. The id comes first: an error
/// of another field has it, too.
async fn fields_of(state: &ServerState, id: &RequestId, request: Request) -> Result<Fields, ApiError> {
    let mut fields = Fields::read(state, request).await?;
    id.read(&mut fields)?;
    if let Some(defaults) = state.sampling.get() {
        defaults.fill(&mut fields);
    }
    Ok(fields)
}

async fn respond(
    state: Arc<ServerState>,
    id: RequestId,
    headers: HeaderMap,
    mut completion: CompletionRequest,
    body: BodyShare,
    began: Instant,
) -> Result<Response, ApiError> {
    let accepted = accept(&state, &headers, &mut completion, body, began).await?;
    let Accepted { prompts, choices, submission, seeds, deadline } = accepted;
    state.metrics.admitted(completion.n);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let answer = Answer {
        form: completion.form,
        id: format!("{}-{}", if completion.form == Form::Chat { "chatcmpl" } else { "cmpl" }, id.as_str()),
        created,
        model: completion.path.map_or_else(|| state.run.name.clone(), |path| state.path_model(path)),
        prompt_tokens: prompts.iter().map(|prompt| prompt.len()).sum(),
        choices,
        choices_per_prompt: completion.n,
        submission,
        deadline,
        log: answer::Log::new(id.as_str().to_owned(), began, std::mem::take(&mut completion.unknown)),
        state,
    };
    let answered =
        if completion.stream { stream::answer(answer, completion.usage).await } else { whole(answer).await };
    // The answer has written its line when it was dropped.
    let mut response = answered.map_err(|error| ApiError { logged: true, ..error })?;
    // Several drawn seeds do not fit into a header; `return_route` shows them.
    if let [seed] = seeds[..] {
        response.headers_mut().insert(SEED, HeaderValue::from(seed));
    }
    Ok(response)
}

/// A completion that the engine has admitted.
struct Accepted {
    prompts: Vec<SharedTokens>,
    choices: Vec<Choice>,
    submission: Submission,
    /// The seed of all prompts, or one for each of several prompts.
    seeds: Vec<u64>,
    deadline: Deadline,
}

/// Checks a completion and gives its sequences to the engine, within the deadline that counts from `began`. Cheap refusals
/// come first: a refused request must cost neither a core nor time.
async fn accept(
    state: &Arc<ServerState>,
    headers: &HeaderMap,
    completion: &mut CompletionRequest,
    body: BodyShare,
    began: Instant,
) -> Result<Accepted, ApiError> {
    pin(state, headers, completion)?;
    let deadline = Deadline::of(state, headers, began)?;
    let count = completion.prompts.len().saturating_mul(completion.n);
    check_choices(state, completion, count)?;
    let client = state.keys.keys().client(headers);
    // The engine would refuse these when their prompts are tokenized.
    state.engine.check_queue(client, count)?;
    let least = completion.least(client, state.engine.model().context());
    state.admission.check(least, deadline.left())?;

    let prompts = deadline.bound(token_ids(state, completion, body)).await?;
    let seeds = match completion.sampling.seed {
        Some(seed) => vec![seed],
        // Equal prompts of a request without a seed get different texts.
        None => prompts.iter().map(|_| state.random.seed()).collect(),
    };
    let Sequences { requests, choices } = sequences(state, completion, &prompts, &seeds, client)?;
    let asked = Asked::of(&requests);
    let left = deadline.left();
    state.admission.admit(asked, left)?;
    // The engine admits all sequences of a request or none, so a completion never runs in part.
    let submission = state.engine.submit(requests, left);
    let submission = submission.inspect_err(|_| state.admission.take_back(asked))?;
    Ok(Accepted { prompts, choices, submission, seeds, deadline })
}

/// Refuses a request with more choices than a request may have, or than the engine and its queue have places.
fn check_choices(state: &ServerState, completion: &CompletionRequest, count: usize) -> Result<(), ApiError> {
    let places = state.engine.slots().saturating_add(state.config.queued_requests);
    let own = (state.config.max_choices, "serve.max_choices");
    let (limit, setting) = own.min((places, "serve.slots + serve.queued_requests"));
    if count <= limit {
        return Ok(());
    }
    let message = format!(
        "{} prompts times n = {} is over the limit of {limit} choices of a request ({setting}): lower n or send fewer prompts at \
         a time",
        completion.prompts.len(),
        completion.n
    );
    let field = if completion.n > 1 { "n" } else { "prompt" };
    Err(ApiError { code: Some("request_too_large"), ..ApiError::field(field, message) })
}

/// Refuses a request whose answer would take too much memory.
fn check_answer(
    state: &ServerState,
    completion: &CompletionRequest,
    requests: &[GenerateRequest],
) -> Result<(), ApiError> {
    let of_token = |top: Option<usize>| 1 + top.map_or(0, |top| top + 1);
    let of_request = |request: &GenerateRequest| {
        let prompt = request.prompt.len();
        let echoed = if completion.echo || completion.return_token_ids { prompt } else { 0 };
        let scored = completion.prompt_log_probs.map_or(0, |top| prompt.saturating_mul(of_token(Some(top))));
        (echoed + request.max_tokens).saturating_mul(of_token(completion.log_probs)).saturating_add(scored)
    };
    let tokens = requests.iter().map(of_request).fold(0, usize::saturating_add);
    if tokens > state.config.max_answer_tokens {
        let message = format!(
            "the answer could hold {tokens} tokens and log-probabilities, over the limit of {}: send fewer prompts at a time, \
             or lower max_tokens, n, logprobs or prompt_logprobs",
            state.config.max_answer_tokens
        );
        return Err(ApiError { code: Some("request_too_large"), ..ApiError::field("max_tokens", message) });
    }
    Ok(())
}

/// Takes the prompts out of the completion and returns their token ids. `body` is the share of their body.
async fn token_ids(
    state: &Arc<ServerState>,
    completion: &mut CompletionRequest,
    body: BodyShare,
) -> Result<Vec<SharedTokens>, ApiError> {
    let prompts = std::mem::take(&mut completion.prompts);
    let work = Arc::clone(state);
    let context = state.engine.model().context();
    let most = match completion.truncate {
        None => usize::MAX,
        Some(Truncation::Last(most)) => most,
        Some(Truncation::Fit) => {
            let asked =
                completion.max_tokens.unwrap_or(completion.default_max_tokens.min(DEFAULT_MAX_TOKENS));
            context.saturating_sub(asked).max(1)
        }
    };
    let tokens = move || {
        // Free again when the texts have become tokens: other bodies do not wait for the answer.
        let _body = body;
        let tokens = prompts.into_iter().map(|prompt| {
            let tokens = prompt.tokens(&work)?;
            Ok(tokens[tokens.len().saturating_sub(most)..].into())
        });
        tokens.collect::<Result<Vec<SharedTokens>, ApiError>>()
    };
    state.blocking.run(tokens).await
}

/// The sequences of a completion, prompt by prompt.
fn sequences(
    state: &Arc<ServerState>,
    completion: &CompletionRequest,
    prompts: &[SharedTokens],
    seeds: &[u64],
    client: u64,
) -> Result<Sequences, ApiError> {
    let context = state.engine.model().context();
    let mut sequences = Sequences::default();
    let mut ends = completion.stop_token_ids.to_vec();
    if !completion.ignore_eos {
        ends.extend(state.codec.end_tokens());
    }
    let ends: Arc<[u32]> = ends.into();
    for (prompt, &seed) in prompts.iter().zip(seeds.iter().cycle()) {
        // Without `max_tokens` a request asks for one token at least.
        let left = context.saturating_sub(prompt.len()).max(1);
        let max_tokens = completion.max_tokens.unwrap_or(left.min(completion.default_max_tokens));
        // The engine would refuse this, too. But a busy server would first say when to try again, which is of no use.
        if prompt.len().saturating_add(max_tokens) > context {
            return Err(EngineError::Context { prompt: prompt.len(), max_tokens, context }.into());
        }
        for number in 0..completion.n {
            sequences.requests.push(GenerateRequest {
                prompt: Arc::clone(prompt),
                path: completion.path,
                route_every: route_every(state, completion),
                max_tokens,
                min_tokens: completion.min_tokens,
                sampling: completion.sampling.for_choice(seed, number),
                stop: Arc::clone(&completion.stop),
                stop_token_ids: Arc::clone(&completion.stop_token_ids),
                include_stop: completion.include_stop,
                ignore_eos: completion.ignore_eos,
                log_probs: completion.log_probs,
                // An echoed prompt has the log-probabilities of the continuation. One pass serves both fields.
                prompt_log_probs: completion
                    .log_probs
                    .filter(|_| completion.echo)
                    .max(completion.prompt_log_probs),
                client,
                priority: completion.priority,
            });
            let index = sequences.choices.len();
            let ending = Ending { max_tokens, tokens: Arc::clone(&ends) };
            sequences.choices.push(Choice::new(state, index, completion, prompt, ending, seed));
        }
    }
    check_answer(state, completion, &sequences.requests)?;
    Ok(sequences)
}

/// The tokens after which the path is chosen anew. A pinned path stays, unless the request asks for both: then it is the path
/// of the start.
fn route_every(state: &ServerState, completion: &CompletionRequest) -> Option<usize> {
    let default = if completion.path.is_some() { 0 } else { state.config.route_every };
    Some(completion.route_every.unwrap_or(default)).filter(|&every| every > 0)
}

/// The answer as one JSON object.
async fn whole(mut answer: Answer) -> Result<Response, ApiError> {
    let choices = answer.complete().await?;
    let body = answer.json(choices, UsageField::Counts(answer.usage()), true);
    let body = body.inspect_err(|error| answer.log.failed(error))?;
    answer.log.begun();
    let mut response = ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    name_paths(&mut response, &answer);
    Ok(response)
}

/// Writes the path of each prompt into the head of an answer. There is no header while no path is known.
fn name_paths(response: &mut Response, answer: &Answer) {
    let paths = answer.named_paths(usize::MAX).and_then(|paths| HeaderValue::from_str(&paths).ok());
    if let Some(paths) = paths {
        response.headers_mut().insert(PATH, paths);
    }
}

/// Reads the fields of a completion or of a chat, for the test of their description.
#[cfg(test)]
pub(crate) fn read_fields(fields: &mut Fields, is_chat: bool) -> Result<(), ApiError> {
    RequestId::new("own").read(fields)?;
    if is_chat {
        chat::messages(fields)?;
        return CompletionRequest::of_prompts(vec![Prompt::Tokens(vec![1])], fields).map(drop);
    }
    CompletionRequest::read(fields).map(drop)
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
    let paths = state.engine.model().topology().paths();
    if let Some(path) = first.filter(|path| path.0 >= paths) {
        return Err(EngineError::Path { path, paths }.into());
    }
    completion.path = first;
    Ok(())
}
