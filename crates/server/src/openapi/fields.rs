//! The fields of all requests.

use serde_json::{Value, json};

use super::Field;
use crate::completions::{
    MAX_LOG_PROBS, MAX_MESSAGES, MAX_N, MAX_STOP_BYTES, MAX_STOPS, MAX_TOKEN_RULES, MAX_TOKENS,
};
use crate::request_id::MAX_ID;

/// Name, fields and required fields of each request.
pub(super) fn requests() -> Vec<(&'static str, Vec<Field>, &'static [&'static str])> {
    vec![
        ("CompletionRequest", completion(), &["prompt"]),
        ("ChatRequest", chat(), &["messages"]),
        ("RouteRequest", route(), &["prompt"]),
        ("TokenizeRequest", tokenize(), &[]),
        ("DetokenizeRequest", detokenize(), &["tokens"]),
    ]
}

fn field(name: &'static str, schema: Value, text: &'static str) -> Field {
    Field { name, schema, text }
}

fn text(name: &'static str, text: &'static str) -> Field {
    field(name, json!({"type": ["string", "null"]}), text)
}

fn flag(name: &'static str, text: &'static str) -> Field {
    field(name, json!({"type": ["boolean", "null"], "default": false}), text)
}

fn number(name: &'static str, low: f64, high: f64, default: f64, text: &'static str) -> Field {
    let schema = json!({"type": ["number", "null"], "minimum": low, "maximum": high, "default": default});
    field(name, schema, text)
}

fn count(name: &'static str, low: i64, high: u32, text: &'static str) -> Field {
    field(name, json!({"type": ["integer", "null"], "minimum": low, "maximum": high}), text)
}

fn ids() -> Value {
    json!({"type": "array", "items": {"type": "integer", "minimum": 0}})
}

pub(super) fn completion() -> Vec<Field> {
    let forms = json!([{"type": "string"}, {"type": "array", "items": {"type": "string"}}, ids(), {"type": "array", "items": ids()}]);
    let mut fields = vec![
        field(
            "prompt",
            json!({"anyOf": forms}),
            "A text, a list of texts, a list of token ids, or a list of such lists.",
        ),
        count(
            "logprobs",
            0,
            MAX_LOG_PROBS,
            "Number of likeliest tokens with their log-probabilities. They are of the raw distribution.",
        ),
        count(
            "prompt_logprobs",
            0,
            MAX_LOG_PROBS,
            "Number of likeliest tokens at each token of the prompt, with their log-probabilities. Not in a stream.",
        ),
    ];
    fields.extend(common());
    fields
}

fn messages() -> Value {
    let message = json!({
        "type": "object",
        "properties": {"role": {"type": "string"}, "content": {"type": ["string", "array", "null"]}},
        "required": ["role"],
    });
    json!({"type": "array", "items": message, "minItems": 1, "maxItems": MAX_MESSAGES})
}

pub(super) fn chat() -> Vec<Field> {
    let refused = json!({"type": ["array", "null"], "maxItems": 0});
    let mut fields = vec![
        field("messages", messages(), "The chat so far. Contents are texts."),
        count("max_completion_tokens", 0, MAX_TOKENS, "The same as max_tokens."),
        flag("logprobs", "Adds the log-probabilities of the answer's tokens."),
        count(
            "top_logprobs",
            0,
            MAX_LOG_PROBS,
            "Number of likeliest tokens with their log-probabilities. Needs logprobs.",
        ),
        field(
            "response_format",
            json!({"type": ["object", "null"], "properties": {"type": {"const": "text"}}}),
            "Only text.",
        ),
        field("tools", refused.clone(), "Not supported: only an empty list is accepted."),
        field("functions", refused.clone(), "Not supported: only an empty list is accepted."),
        field("audio", refused.clone(), "Not supported: only an empty list is accepted."),
        field("prediction", refused.clone(), "Not supported: only an empty list is accepted."),
        field("prompt_logprobs", refused, "Not supported: only an empty list is accepted."),
    ];
    fields.extend(common());
    fields
}

/// Fields of completions and chats.
fn common() -> Vec<Field> {
    let mut fields = sampling();
    fields.extend([
        text("model", "The run, or one of its paths as NAME/path-N. Absent: the run."),
        count("max_tokens", 0, MAX_TOKENS, "Largest number of tokens to generate. Completions take 16 if it is absent, chats fill the context."),
        count("min_tokens", 0, MAX_TOKENS, "Tokens before which nothing ends the text."),
        count("n", 1, MAX_N, "Choices of each prompt."),
        count("best_of", 1, 1, "Not supported: only 1 is accepted."),
        flag("echo", "Begins each choice with its prompt, with log-probabilities if logprobs is given."),
        flag("stream", "Sends the answer as server-sent events."),
        field("stream_options", json!({
            "type": ["object", "null"],
            "properties": {"include_usage": {"type": "boolean"}, "continuous_usage_stats": {"type": "boolean"}},
        }), "Where a stream has the counts of tokens. Needs stream."),
        field("stop", stops(), "Texts that end a choice. They are left out of it."),
        field("stop_token_ids", stop_tokens(), "Tokens that end a choice."),
        flag("include_stop_str_in_output", "Keeps the stop text or stop token in the text."),
        flag("ignore_eos", "Treats the end-of-text token like any other."),
        count("truncate_prompt_tokens", -1, u32::MAX, "Keeps this many last tokens of a prompt; -1 keeps as many as leave room for max_tokens."),
        text("user", "Without effect. It is not kept."),
        field("request_id", json!({"type": ["string", "null"], "maxLength": MAX_ID}), "The id of the request, in place of the header x-request-id."),
        flag("return_token_ids", "Adds the token ids of prompts and choices."),
        flag("return_tokens_as_token_ids", "Writes tokens as token_id:N in log-probabilities."),
        flag("add_special_tokens", "Without effect: no token is added to a prompt."),
        flag("skip_special_tokens", "Without effect: special tokens have no text."),
        count("path", 0, u32::MAX, "The path to run. The header x-dipaco-path does the same."),
        count(
            "route_every",
            0,
            MAX_TOKENS,
            "Tokens after which the router of serve.reroute_by chooses the path anew, again and again. 0 keeps the first path.",
        ),
        field(
            "priority",
            json!({"type": ["integer", "null"], "minimum": i32::MIN, "maximum": i32::MAX, "default": 0}),
            "Place among the waiting requests of the same API key: lower numbers first.",
        ),
        flag("return_route", "Adds the path, its modules, the seed and the changes of the path to each choice."),
        field("suffix", json!({"enum": [null, "", false]}), "Not supported."),
        field("use_beam_search", json!({"enum": [null, "", false]}), "Not supported."),
    ]);
    fields
}

fn stops() -> Value {
    // The server counts bytes, and no text has more characters than bytes.
    let stop = json!({"type": "string", "maxLength": MAX_STOP_BYTES});
    let list = json!({"type": "array", "items": stop, "maxItems": MAX_STOPS});
    json!({"anyOf": [stop, list, {"type": "null"}]})
}

fn stop_tokens() -> Value {
    let mut list = ids();
    list["maxItems"] = MAX_TOKEN_RULES.into();
    json!({"anyOf": [list, {"type": "null"}]})
}

fn sampling() -> Vec<Field> {
    let bias = json!({
        "type": ["object", "null"], "maxProperties": MAX_TOKEN_RULES,
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    });
    vec![
        field(
            "seed",
            json!({"type": ["integer", "null"]}),
            "Seed of the random draws. Absent or -1: each prompt gets a random one.",
        ),
        number("temperature", 0.0, 2.0, 1.0, "Divides the logits; 0 takes the likeliest token."),
        number(
            "top_p",
            0.0,
            1.0,
            1.0,
            "Draws from the smallest set of likeliest tokens with this share of the probability.",
        ),
        count("top_k", -1, u32::MAX, "Draws from this many likeliest tokens; 0 and -1 turn it off."),
        number(
            "min_p",
            0.0,
            1.0,
            0.0,
            "Draws from tokens with at least this fraction of the largest probability.",
        ),
        number(
            "presence_penalty",
            -2.0,
            2.0,
            0.0,
            "Subtracted from the logits of tokens that were generated.",
        ),
        number(
            "frequency_penalty",
            -2.0,
            2.0,
            0.0,
            "Subtracted from a token's logit for each time that it was generated.",
        ),
        number(
            "repetition_penalty",
            0.01,
            100.0,
            1.0,
            "Divides positive logits of tokens of prompt and text, and multiplies negative ones.",
        ),
        field("logit_bias", bias, "Added to the logits of these token ids."),
    ]
}

pub(super) fn route() -> Vec<Field> {
    vec![
        text("model", "The run."),
        field("prompt", json!({"anyOf": [{"type": "string"}, ids()]}), "A text or token ids."),
    ]
}

pub(super) fn tokenize() -> Vec<Field> {
    vec![
        text("model", "The run, or one of its paths."),
        field("prompt", json!({"type": "string"}), "The text."),
        field("messages", messages(), "The messages of a chat, in place of a text."),
        field(
            "add_generation_prompt",
            json!({"type": ["boolean", "null"], "default": true}),
            "Ends a chat with the beginning of the answer, as the prompt of a chat.",
        ),
        flag("add_special_tokens", "Without effect: no token is added."),
        flag("return_token_strs", "Adds the text of each token."),
    ]
}

pub(super) fn detokenize() -> Vec<Field> {
    vec![text("model", "The run, or one of its paths."), field("tokens", ids(), "The token ids.")]
}
