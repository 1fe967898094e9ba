//! Metrics in the text format of Prometheus. They have vLLM's names with the prefix `dipaco_`, where promtool accepts them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use dipaco_infer::{Load, ModuleMemory, Observer, Outcome, PAGE_TOKENS, RequestSummary, StepSummary};
use dipaco_settings::KvType;
use dipaco_telemetry::{Exposition, Histogram, MetricKind, label};
use dipaco_topology::PathId;

use crate::ServedRun;

const TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0,
    50_000.0, 100_000.0,
];

/// The engine of a server at one moment.
#[derive(Clone, Debug)]
pub struct EngineState {
    /// Its load.
    pub load: Load,
    /// The memory of its modules.
    pub weights: ModuleMemory,
    /// Fingerprint of the weights that new requests use.
    pub fingerprint: String,
    /// Number type of keys and values.
    pub kv_type: KvType,
    /// Number of waiting sequences of each path.
    pub waiting: BTreeMap<PathId, usize>,
}

/// Counts of one server since its start.
#[derive(Debug)]
pub struct Metrics {
    /// Labels of every line.
    labels: String,
    /// Labels of the program: its version and commit.
    program: String,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    outcomes: [AtomicU64; OUTCOMES.len()],
    overloaded: AtomicU64,
    refused: AtomicU64,
    routed: Vec<AtomicU64>,
    cache_queries: AtomicU64,
    cache_hits: AtomicU64,
    preemptions: AtomicU64,
    reroutes: AtomicU64,
    inter_token: Histogram,
    choices: Histogram,
    step_tokens: Histogram,
    http_seconds: Histogram,
    histograms: Vec<Histogram>,
    http: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    in_flight: AtomicU64,
}

const OUTCOMES: [(Outcome, &str, &str); 6] = [
    (Outcome::Stop, "success", "stop"),
    (Outcome::Length, "success", "length"),
    (Outcome::Abort, "success", "abort"),
    (Outcome::Deadline, "failure", "deadline"),
    (Outcome::ShuttingDown, "failure", "shutdown"),
    (Outcome::Error, "failure", "error"),
];

/// Name, help text, bounds of the buckets, and the value of a request.
type RequestHistogram = (&'static str, &'static str, &'static [f64], fn(&RequestSummary) -> Option<f64>);

/// Histograms over finished requests, each with the value that it takes from a request's summary.
const REQUEST_HISTOGRAMS: &[RequestHistogram] = &[
    ("time_to_first_token_seconds", "From admission to the first token.", FIRST_TOKEN_SECONDS, |s| {
        s.first_token.map(|t| t.as_secs_f64())
    }),
    ("e2e_request_latency_seconds", "From admission to the end.", REQUEST_SECONDS, |s| {
        Some(s.total.as_secs_f64())
    }),
    ("request_queue_time_seconds", "In the queue.", REQUEST_SECONDS, |s| Some(s.queued.as_secs_f64())),
    ("request_prefill_time_seconds", "Routing and reading the prompt.", REQUEST_SECONDS, |s| {
        s.prefill.map(|t| t.as_secs_f64())
    }),
    ("request_decode_time_seconds", "From the first token to the end.", REQUEST_SECONDS, |s| {
        s.first_token.map(|t| s.total.saturating_sub(t).as_secs_f64())
    }),
    ("request_inference_time_seconds", "In a slot.", REQUEST_SECONDS, |s| {
        Some(s.total.saturating_sub(s.queued).as_secs_f64())
    }),
    ("router_seconds", "Picking the path.", FIRST_TOKEN_SECONDS, |s| s.routing.map(|t| t.as_secs_f64())),
    ("request_prompt_tokens", "Tokens of a prompt.", TOKENS, |s| Some(s.prompt_tokens as f64)),
    ("request_generation_tokens", "Tokens generated.", TOKENS, |s| Some(s.generated_tokens as f64)),
    ("request_params_max_tokens", "Largest number of tokens that a request allows.", TOKENS, |s| {
        Some(s.max_tokens as f64)
    }),
];

impl Metrics {
    /// Metrics of a server for a run with `paths` paths.
    #[must_use]
    pub fn new(run: &ServedRun, paths: u32) -> Self {
        let histogram = |&(name, help, bounds, _): &RequestHistogram| Histogram::new(name, help, bounds);
        Self {
            labels: label("model_name", &run.name),
            program: [label("version", &run.version), label("git", &run.commit)].join(","),
            prompt_tokens: AtomicU64::default(),
            generated_tokens: AtomicU64::default(),
            outcomes: Default::default(),
            overloaded: AtomicU64::default(),
            refused: AtomicU64::default(),
            routed: (0..paths).map(|_| AtomicU64::default()).collect(),
            cache_queries: AtomicU64::default(),
            cache_hits: AtomicU64::default(),
            preemptions: AtomicU64::default(),
            reroutes: AtomicU64::default(),
            inter_token: Histogram::new("inter_token_latency_seconds", "Between two tokens.", TOKEN_SECONDS),
            choices: Histogram::new("request_params_n", "Choices of each prompt of a request (n).", TOKENS),
            step_tokens: Histogram::new("iteration_tokens", "Tokens of a step of the engine.", TOKENS),
            http_seconds: Histogram::new(
                "http_request_duration_seconds",
                "From a request to the beginning of its answer.",
                FIRST_TOKEN_SECONDS,
            ),
            histograms: REQUEST_HISTOGRAMS.iter().map(histogram).collect(),
            http: Mutex::default(),
            in_flight: AtomicU64::default(),
        }
    }

    /// Counts a request that was refused with the `code` of its answer: because there is no room for it (429), because the
    /// server ends (503) or its engine has ended by a bug (503, too), or for another reason.
    pub(crate) fn refused(&self, status: StatusCode, code: Option<&str>) {
        let counter = match status {
            _ if code == Some("engine_failed") => return self.ended(Outcome::Error),
            StatusCode::SERVICE_UNAVAILABLE => return self.ended(Outcome::ShuttingDown),
            StatusCode::TOO_MANY_REQUESTS => &self.overloaded,
            _ => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a sequence, or of a request that has the same reason.
    fn ended(&self, outcome: Outcome) {
        for ((counted, ..), counter) in OUTCOMES.iter().zip(&self.outcomes) {
            counter.fetch_add(u64::from(*counted == outcome), Ordering::Relaxed);
        }
    }

    /// Counts a completion that the engine has admitted, with `n` choices of each prompt.
    pub(crate) fn admitted(&self, n: usize) {
        self.choices.observe(n as f64);
    }

    /// Counts an HTTP request whose answer has not begun.
    pub(crate) fn http_began(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an HTTP request whose answer begins, or whose client left (status 499).
    pub(crate) fn http_ended(
        &self,
        method: &'static str,
        handler: &'static str,
        status: u16,
        took: Duration,
    ) {
        self.http_seconds.observe(took.as_secs_f64());
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        *http.entry((method, handler, status)).or_insert(0) += 1;
    }

    /// Writes what describes the program, its weights and its queue.
    fn engine_gauges(&self, out: &mut Exposition, engine: &EngineState) {
        use MetricKind::{Counter, Gauge};
        let EngineState { load, weights, .. } = engine;
        let build = format!("{},{}", self.program, label("checkpoint", &engine.fingerprint));
        let help = "The program and its commit, and the weights that new requests use.";
        out.metric("build_info", Gauge, help, [(build, 1)]);
        let cache = [
            label("block_size", PAGE_TOKENS),
            label("cache_dtype", if engine.kv_type == KvType::F32 { "f32" } else { "bf16" }),
            label("num_blocks", load.pages),
        ];
        let help = "The pages of keys and values: their tokens, number type and number.";
        out.metric("cache_config_info", Gauge, help, [(cache.join(","), 1)]);
        let waiting = engine.waiting.iter().map(|(path, count)| (label("path", path), *count));
        let help = "Sequences in the queue whose path is known, of each path that has any.";
        out.metric("path_queue_depth", Gauge, help, waiting);
        out.value("weight_bytes", Gauge, "Memory of the loaded modules.", weights.bytes);
        let help = "Largest memory of modules (serve.memory); 0 for no limit.";
        out.value("weight_limit_bytes", Gauge, help, weights.limit.unwrap_or(0));
        out.value("modules_loaded", Gauge, "Modules in memory.", weights.modules);
        out.value("module_loads_total", Counter, "Modules read from the store.", weights.loads);
        let help = "Modules that left the memory to make room for others.";
        out.value("module_evictions_total", Counter, help, weights.evictions);
        out.value("num_requests_running", Gauge, "Sequences that hold a slot.", load.running);
        out.value("num_requests_waiting", Gauge, "Sequences in the queue.", load.waiting);
    }

    /// The metrics as text for Prometheus.
    #[must_use]
    pub fn render(&self, engine: &EngineState) -> String {
        use MetricKind::{Counter, Gauge};
        let EngineState { load, .. } = engine;
        let mut out = Exposition::new(self.labels.clone());
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed);
        self.engine_gauges(&mut out, engine);
        let usage = load.used_pages as f64 / load.pages.max(1) as f64;
        let help = "Share of the pages of keys and values in use, 0 to 1.";
        out.value("kv_cache_usage_perc", Gauge, help, usage);
        let help = "Sequences that lost their pages and were computed again.";
        out.value("num_preemptions_total", Counter, help, count(&self.preemptions));
        let help = "Changes of paths within sequences.";
        out.value("reroutes_total", Counter, help, count(&self.reroutes));
        let help = "Prompt tokens that were looked up in the prefix cache.";
        out.value("prefix_cache_queries_total", Counter, help, count(&self.cache_queries));
        let help = "Prompt tokens that the prefix cache had.";
        out.value("prefix_cache_hits_total", Counter, help, count(&self.cache_hits));
        out.value("num_tokens_waiting", Gauge, "Prompt tokens in the queue.", load.waiting_tokens);
        out.value(
            "prompt_tokens_total",
            Counter,
            "Prompt tokens that were read for finished requests. A prompt counts once, whatever its number of choices.",
            count(&self.prompt_tokens),
        );
        out.value("generation_tokens_total", Counter, "Tokens generated.", count(&self.generated_tokens));
        let outcomes = |wanted: &str, name: &str| {
            let all = OUTCOMES.iter().zip(&self.outcomes).filter(|((_, kind, _), _)| *kind == wanted);
            all.map(|((_, _, outcome), value)| (label(name, outcome), count(value))).collect::<Vec<_>>()
        };
        let successes = outcomes("success", "finished_reason");
        out.metric("request_success_total", Counter, "Sequences that ended.", successes);
        let mut failures = outcomes("failure", "reason");
        failures.push((label("reason", "overloaded"), count(&self.overloaded)));
        failures.push((label("reason", "refused"), count(&self.refused)));
        out.metric(
            "request_failure_total",
            Counter,
            "Sequences that failed, and refused requests: overloaded (429), shutdown or error (503), refused (others).",
            failures,
        );
        let routed = self.routed.iter().enumerate().map(|(path, value)| (label("path", path), count(value)));
        let routed = routed.filter(|(_, value)| *value > 0);
        out.metric("routed_requests_total", Counter, "Sequences of each path that ran at least one.", routed);
        out.value(
            "http_requests_in_flight",
            Gauge,
            "Requests whose answer has not begun.",
            count(&self.in_flight),
        );
        let http = self.http.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let line = |((method, handler, status), value): ((&str, &str, u16), u64)| {
            let labels = [label("method", method), label("handler", handler), label("status", status)];
            (labels.join(","), value)
        };
        out.metric(
            "http_requests_total",
            Counter,
            "Answers by status; 499 is a client that left.",
            http.into_iter().map(line),
        );
        let own = [&self.inter_token, &self.choices, &self.step_tokens, &self.http_seconds];
        for histogram in self.histograms.iter().chain(own) {
            out.histogram(histogram);
        }
        out.finish()
    }
}

impl Observer for Metrics {
    fn token(&self, interval: Duration) {
        self.inter_token.observe(interval.as_secs_f64());
    }

    fn step(&self, step: &StepSummary) {
        self.step_tokens.observe(step.tokens as f64);
        self.preemptions.fetch_add(step.preempted as u64, Ordering::Relaxed);
    }

    fn finished(&self, summary: &RequestSummary) {
        // A request that left the queue unread has cost nothing.
        if summary.prefill.is_some() {
            // The choices of a prompt count it once, as the usage of an answer does.
            if !summary.shares_prompt {
                self.prompt_tokens.fetch_add(summary.prompt_tokens as u64, Ordering::Relaxed);
            }
            if summary.reads_cache {
                self.cache_queries.fetch_add(summary.prompt_tokens as u64, Ordering::Relaxed);
                self.cache_hits.fetch_add(summary.cached_tokens as u64, Ordering::Relaxed);
            }
        }
        self.reroutes.fetch_add(summary.reroutes as u64, Ordering::Relaxed);
        self.generated_tokens.fetch_add(summary.generated_tokens as u64, Ordering::Relaxed);
        self.ended(summary.outcome);
        if let Some(counter) = summary.path.and_then(|path| self.routed.get(path.index())) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        for (histogram, (.., value)) in self.histograms.iter().zip(REQUEST_HISTOGRAMS) {
            if let Some(value) = value(summary) {
                histogram.observe(value);
            }
        }
    }
}
