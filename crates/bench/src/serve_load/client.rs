//! One request of a load test, and the reading of its stream.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::time::Instant;

use super::ServeLoadOptions;
use super::workload::Body;
use crate::BenchError;

/// Longest line of a stream in bytes. A longer one is no stream of tokens.
const LONGEST_LINE: usize = 1 << 20;
/// Longest body of an error in bytes. A longer one is no error of OpenAI's form.
const LONGEST_ERROR: usize = 64 << 10;
/// Most characters of an error's code that a failure shows.
const LONGEST_CODE: usize = 80;

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum LoadOutcome {
    /// The stream came to its end.
    Completed(Completed),
    /// The server refused the request with 429 or 503.
    Refused {
        /// Time until the end of the answer.
        took: Duration,
    },
    /// The server refused the request with another status from 400 to 499, which it would do again.
    Invalid(String),
    /// Anything else, with the reason.
    Failed(String),
}

/// A complete stream.
#[derive(Debug)]
pub(super) struct Completed {
    /// Tokens of the prompt, as the server counts them.
    pub(super) prompt_tokens: u64,
    /// Generated tokens, as the server counts them, or else the pieces of text.
    pub(super) generated_tokens: u64,
    /// Time until the first piece of text.
    pub(super) first_token: Duration,
    /// Times between pieces of text.
    pub(super) gaps: Vec<Duration>,
    /// Time until the end of the stream.
    pub(super) total: Duration,
}

impl Completed {
    /// Mean time of a token after the first; `None` for a single token.
    pub(super) fn per_token(&self) -> Option<Duration> {
        let later = u32::try_from(self.generated_tokens.saturating_sub(1)).ok().filter(|later| *later > 0)?;
        Some(self.gaps.iter().sum::<Duration>() / later)
    }
}

impl LoadOutcome {
    /// A request that the generator had no connection for.
    pub(super) fn not_sent() -> Self {
        Self::Failed("not sent: the load generator has too many requests in flight".into())
    }
}

/// Sends requests, each over a connection of its own.
pub(super) struct LoadClient {
    pool: Pool<HttpConnector, Full<Bytes>>,
    uri: Uri,
    authorization: Option<HeaderValue>,
    timeout: Duration,
}

/// An event of a stream, as far as the generator reads it.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

impl LoadClient {
    pub(super) fn new(options: &ServeLoadOptions) -> Result<Self, BenchError> {
        let wrong = |why: String| BenchError::Url { url: options.url.clone(), why };
        let base = options.url.trim_end_matches('/');
        let base = base.strip_suffix("/v1/completions").unwrap_or(base);
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let uri: Uri = format!("{base}/v1/completions")
            .parse()
            .map_err(|error: hyper::http::uri::InvalidUri| wrong(error.to_string()))?;
        if uri.scheme_str() != Some("http") || uri.host().is_none() {
            return Err(wrong("it is not an address of the form http://HOST:PORT".into()));
        }
        let authorization =
            options.api_key.as_ref().map(|key| HeaderValue::from_str(&format!("Bearer {key}")));
        let authorization = authorization
            .transpose()
            .map_err(|_| wrong("the API key has characters that a header can't have".into()))?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // Some servers close a connection after each stream, and a request on such a connection would fail.
        let pool = Pool::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(Self { pool, uri, authorization, timeout: options.timeout })
    }

    /// Sends a request and reads its answer. Latencies count from `began`.
    pub(super) async fn exchange(&self, body: Body<'_>, began: Instant) -> LoadOutcome {
        let work = async {
            let request = self.request(&body)?;
            let response = self.pool.request(request).await.map_err(|error| chain(&error))?;
            read(response, began).await
        };
        match tokio::time::timeout(self.timeout, work).await {
            Ok(Ok(exchange)) => exchange,
            Ok(Err(why)) => LoadOutcome::Failed(why),
            Err(_) => LoadOutcome::Failed(format!("no end within {} s", self.timeout.as_secs_f64())),
        }
    }

    fn request(&self, body: &Body<'_>) -> Result<Request<Full<Bytes>>, String> {
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())
    }
}

async fn read(response: Response<Incoming>, began: Instant) -> Result<LoadOutcome, String> {
    let status = response.status();
    let mut body = response.into_body();
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::SERVICE_UNAVAILABLE {
        while let Some(frame) = body.frame().await {
            frame.map_err(|error| chain(&error))?;
        }
        return Ok(LoadOutcome::Refused { took: began.elapsed() });
    }
    if status != StatusCode::OK {
        let code = error_code(body).await.map(|code| format!(" ({code})")).unwrap_or_default();
        let why = format!("status {}{code}", status.as_u16());
        let outcome = if status.is_client_error() { LoadOutcome::Invalid } else { LoadOutcome::Failed };
        return Ok(outcome(why));
    }
    let mut stream = Stream::new(began);
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| chain(&error))?;
        let Some(data) = frame.data_ref() else { continue };
        let now = Instant::now();
        rest.extend_from_slice(data);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            stream.line(&rest.split_to(end + 1), now)?;
        }
        if rest.len() > LONGEST_LINE {
            return Err(format!("the stream has a line of more than {LONGEST_LINE} bytes"));
        }
    }
    stream.end()
}

/// The code of an error of OpenAI's form. Nothing of a body that breaks off: the status says enough.
async fn error_code(mut body: Incoming) -> Option<String> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.ok()?;
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
        if bytes.len() > LONGEST_ERROR {
            return None;
        }
    }
    code_in(&bytes)
}

/// The code in the body of an error. It comes from any server, so it is cut and has no control characters.
fn code_in(body: &[u8]) -> Option<String> {
    let error = serde_json::from_slice::<Event>(body).ok()?.error?;
    let code = error.get("code")?.as_str()?;
    let code: String = code.chars().filter(|c| !c.is_control()).take(LONGEST_CODE).collect();
    (!code.is_empty()).then_some(code)
}

/// The state of a stream that is being read.
struct Stream {
    began: Instant,
    /// Time of the first and of the last piece of text.
    first: Option<Instant>,
    last: Instant,
    /// Time of the first chunk of a choice, which may have no text.
    chunk: Option<Instant>,
    gaps: Vec<Duration>,
    usage: Option<Usage>,
    done: bool,
}

impl Stream {
    fn new(began: Instant) -> Self {
        Self { began, first: None, last: began, chunk: None, gaps: Vec::new(), usage: None, done: false }
    }

    /// Reads a line that arrived at `now`.
    fn line(&mut self, line: &[u8], now: Instant) -> Result<(), String> {
        let Some(data) = line.strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Event = serde_json::from_slice(data)
            .map_err(|error| format!("an event of the stream is no chunk: {error}"))?;
        if let Some(error) = event.error {
            let code = error.get("code").and_then(|code| code.as_str());
            return Err(format!("an error in the stream: {}", code.unwrap_or("without a code")));
        }
        if !event.choices.is_empty() {
            self.chunk.get_or_insert(now);
        }
        if event.choices.iter().any(|choice| choice.text.as_ref().is_some_and(|text| !text.is_empty())) {
            if self.first.is_some() {
                self.gaps.push(now - self.last);
            }
            self.first.get_or_insert(now);
            self.last = now;
        }
        self.usage = event.usage.or(self.usage.take());
        Ok(())
    }

    fn end(self) -> Result<LoadOutcome, String> {
        if !self.done {
            return Err("the stream broke off".into());
        }
        // Tokens that end inside of a character have no text, and a short stream may have only such tokens.
        let first = self.first.or(self.chunk).ok_or("the stream has no choice")?;
        let pieces = self.gaps.len() as u64 + 1;
        let (prompt_tokens, generated_tokens) =
            self.usage.map_or((0, pieces), |usage| (usage.prompt_tokens, usage.completion_tokens));
        Ok(LoadOutcome::Completed(Completed {
            prompt_tokens,
            generated_tokens,
            first_token: first - self.began,
            gaps: self.gaps,
            total: self.began.elapsed(),
        }))
    }
}

/// An error with its causes. Errors of connections say the cause in the last one.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(lines: &[(&str, u64)]) -> Result<LoadOutcome, String> {
        let began = Instant::now();
        let mut stream = Stream::new(began);
        for (line, milliseconds) in lines {
            stream.line(line.as_bytes(), began + Duration::from_millis(*milliseconds))?;
        }
        stream.end()
    }

    const A: &str = r#"data: {"choices":[{"text":"a","finish_reason":null}]}"#;

    #[test]
    fn the_code_of_an_error_is_short_and_printable() {
        let body = |code: &str| serde_json::json!({"error": {"message": "no", "code": code}}).to_string();
        let code = |text: &str| code_in(text.as_bytes());
        assert_eq!(code(&body("path_not_found")).as_deref(), Some("path_not_found"));
        assert_eq!(code(&body("a\x1b[2Jb\n")).as_deref(), Some("a[2Jb"));
        assert_eq!(code(&body(&"é".repeat(500))), Some("é".repeat(LONGEST_CODE)));
        for other in ["", "<html>", "[]", r#"{"error":"no"}"#, r#"{"error":{"code":null}}"#, &body("\n")] {
            assert_eq!(code(other), None, "{other}");
        }
    }

    #[test]
    fn latencies_are_times_between_pieces_of_text() {
        let usage =
            r#"data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}"#;
        let empty = r#"data: {"choices":[{"text":"","finish_reason":"length"}],"usage":null}"#;
        let found = stream(&[
            (": keep-alive", 1),
            (A, 10),
            ("", 10),
            (A, 14),
            (A, 30),
            (empty, 31),
            (usage, 32),
            ("data: [DONE]", 33),
        ]);
        let Ok(LoadOutcome::Completed(found)) = found else { panic!("{found:?}") };
        let milliseconds = Duration::from_millis;
        assert_eq!(found.first_token, milliseconds(10));
        assert_eq!(found.gaps, [milliseconds(4), milliseconds(16)]);
        assert_eq!((found.prompt_tokens, found.generated_tokens), (5, 5));
        assert_eq!(found.per_token(), Some(milliseconds(5)), "tokens without text count");
    }

    #[test]
    fn a_stream_that_breaks_off_or_fails_is_no_completion() {
        assert_eq!(stream(&[(A, 1)]).unwrap_err(), "the stream broke off");
        let error = r#"data: {"error":{"code":"deadline_exceeded","message":"x"}}"#;
        assert!(
            stream(&[(A, 1), (error, 2), ("data: [DONE]", 3)]).unwrap_err().contains("deadline_exceeded")
        );
        assert!(stream(&[("data: {", 1)]).unwrap_err().contains("no chunk"));
    }
}
