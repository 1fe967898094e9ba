//! The measurement of a load test of a server.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::client::{Completed, LoadOutcome};
use super::{Arrivals, ServeLoadOptions};
use crate::BenchError;
use crate::percentiles::Percentiles;

/// Most reasons that an error names.
const SHOWN_REASONS: usize = 4;

/// Latencies that a useful answer may have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyBounds {
    /// Longest time until the first token; `None` accepts any.
    pub first_token: Option<Duration>,
    /// Longest mean time of a token after the first; `None` accepts any.
    pub per_token: Option<Duration>,
}

impl LatencyBounds {
    fn are_kept_by(&self, completed: &Completed) -> bool {
        let within = |value: Option<Duration>, bound: Option<Duration>| {
            bound.is_none_or(|bound| value.is_none_or(|value| value <= bound))
        };
        within(Some(completed.first_token), self.first_token) && within(completed.per_token(), self.per_token)
    }
}

/// Completed requests within the latency bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Bound on the time until the first token, in milliseconds.
    pub first_token_ms: Option<f64>,
    /// Bound on the mean time of a later token, in milliseconds.
    pub per_token_ms: Option<f64>,
    /// Requests per second within the bounds.
    pub requests_per_s: f64,
    /// Their share of all requests.
    pub share: f64,
}

/// The measurement of a load test of a server. Latencies are in milliseconds and are those of completed requests.
#[derive(Clone, Debug, Serialize)]
pub struct ServeLoadReport {
    /// Address of the server.
    pub url: String,
    /// Number of clients of a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<usize>,
    /// Mean arrivals per second of an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Tokens asked of each request.
    pub max_tokens: u32,
    /// Number of paths that the requests name.
    pub paths: Option<u32>,
    /// Seed of the workload.
    pub seed: u64,
    /// Seconds from the first request to the end of the last.
    pub seconds: f64,
    /// Requests whose stream came to its end.
    pub completed: usize,
    /// Requests that the server refused with 429 or 503.
    pub refused: usize,
    /// Other requests, by reason.
    pub failures: BTreeMap<String, usize>,
    /// Those of them that the server refused as invalid, by reason.
    #[serde(skip)]
    pub invalid: BTreeMap<String, usize>,
    /// Tokens of the prompts of completed requests.
    pub prompt_tokens: u64,
    /// Generated tokens of completed requests.
    pub generated_tokens: u64,
    /// Completed requests per second.
    pub requests_per_s: f64,
    /// Generated tokens of completed requests per second.
    pub tokens_per_s: f64,
    /// Time until the first piece of text.
    pub first_token_ms: Percentiles,
    /// Time between two pieces of text.
    pub inter_token_ms: Percentiles,
    /// Mean time of a token after the first, per request.
    pub per_token_ms: Percentiles,
    /// Time until the end of the stream.
    pub request_ms: Percentiles,
    /// Time until a refusal has arrived.
    pub refusal_ms: Percentiles,
    /// Completed requests within the latency bounds.
    pub goodput: Goodput,
}

impl ServeLoadReport {
    pub(super) fn new(options: &ServeLoadOptions, exchanges: &[LoadOutcome], took: Duration) -> Self {
        let mut completed = Vec::new();
        let mut refusals = Vec::new();
        let (mut failures, mut invalid) = (BTreeMap::new(), BTreeMap::new());
        for exchange in exchanges {
            match exchange {
                LoadOutcome::Completed(found) => completed.push(found),
                LoadOutcome::Refused { took } => refusals.push(milliseconds(*took)),
                LoadOutcome::Invalid(why) => {
                    *failures.entry(why.clone()).or_insert(0) += 1;
                    *invalid.entry(why.clone()).or_insert(0) += 1;
                }
                LoadOutcome::Failed(why) => *failures.entry(why.clone()).or_insert(0) += 1,
            }
        }
        let of = |value: &dyn Fn(&Completed) -> Duration| {
            Percentiles::of(completed.iter().map(|found| milliseconds(value(found))).collect())
        };
        let sum = |value: &dyn Fn(&Completed) -> u64| completed.iter().map(|found| value(found)).sum::<u64>();
        let seconds = took.as_secs_f64();
        let generated_tokens = sum(&|found| found.generated_tokens);
        let good = completed.iter().filter(|found| options.bounds.are_kept_by(found)).count() as f64;
        let (clients, rate) = match options.arrivals {
            Arrivals::Closed { clients } => (Some(clients), None),
            Arrivals::Open { rate } => (None, Some(rate)),
        };
        Self {
            url: options.url.clone(),
            clients,
            rate,
            max_tokens: options.workload.max_tokens,
            paths: options.workload.paths,
            seed: options.workload.seed,
            seconds,
            completed: completed.len(),
            refused: refusals.len(),
            failures,
            invalid,
            prompt_tokens: sum(&|found| found.prompt_tokens),
            generated_tokens,
            requests_per_s: completed.len() as f64 / seconds,
            tokens_per_s: generated_tokens as f64 / seconds,
            first_token_ms: of(&|found| found.first_token),
            inter_token_ms: Percentiles::of(
                completed.iter().flat_map(|found| found.gaps.iter().copied().map(milliseconds)).collect(),
            ),
            per_token_ms: Percentiles::of(
                completed.iter().filter_map(|found| found.per_token().map(milliseconds)).collect(),
            ),
            request_ms: of(&|found| found.total),
            refusal_ms: Percentiles::of(refusals),
            goodput: Goodput {
                first_token_ms: options.bounds.first_token.map(milliseconds),
                per_token_ms: options.bounds.per_token.map(milliseconds),
                requests_per_s: good / seconds,
                share: good / exchanges.len().max(1) as f64,
            },
        }
    }

    /// Checks that the server refused no request as invalid: such a measurement is not the one that was asked for.
    ///
    /// # Errors
    /// [`BenchError::Invalid`] with the reasons.
    pub fn check(&self) -> Result<(), BenchError> {
        let refused: usize = self.invalid.values().sum();
        if refused == 0 {
            return Ok(());
        }
        let of = self.completed + self.refused + self.failures.values().sum::<usize>();
        let why = self.invalid.keys().take(SHOWN_REASONS).cloned().collect::<Vec<_>>().join(", ");
        Err(BenchError::Invalid { refused, of, why })
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::super::{Prompts, Workload};
    use super::*;

    #[test]
    fn goodput_counts_what_keeps_both_bounds() {
        let milliseconds = Duration::from_millis;
        let completed = |first, gap| {
            LoadOutcome::Completed(Completed {
                prompt_tokens: 3,
                generated_tokens: 3,
                first_token: milliseconds(first),
                gaps: vec![milliseconds(gap); 2],
                total: milliseconds(first + 2 * gap),
            })
        };
        let options = ServeLoadOptions {
            url: "http://x".into(),
            api_key: None,
            arrivals: Arrivals::Closed { clients: 2 },
            requests: 5,
            warm_up: 0,
            workload: Workload {
                model: None,
                prompts: Prompts::Texts(vec!["a".into()]),
                max_tokens: 3,
                temperature: 0.0,
                paths: None,
                seed: 0,
            },
            timeout: milliseconds(1),
            bounds: LatencyBounds { first_token: Some(milliseconds(50)), per_token: Some(milliseconds(10)) },
        };
        let exchanges = [
            completed(50, 10),
            completed(51, 1),
            completed(1, 11),
            LoadOutcome::Refused { took: milliseconds(2) },
            LoadOutcome::Failed("status 500".into()),
        ];
        let report = ServeLoadReport::new(&options, &exchanges, Duration::from_secs(2));
        report.check().unwrap();
        assert_eq!((report.completed, report.refused, report.failures["status 500"]), (3, 1, 1));
        assert_eq!((report.goodput.requests_per_s, report.goodput.share), (0.5, 0.2));
        assert_eq!((report.generated_tokens, report.tokens_per_s), (9, 4.5));
        assert_eq!(
            (report.refusal_ms.p99, report.first_token_ms.p50, report.inter_token_ms.most),
            (2.0, 50.0, 11.0)
        );
        let invalid = ["status 404 (path_not_found)", "status 400", "status 400"];
        let invalid = invalid.map(|why| LoadOutcome::Invalid(why.into()));
        let exchanges: Vec<_> = exchanges.into_iter().chain(invalid).collect();
        let report = ServeLoadReport::new(&options, &exchanges, Duration::from_secs(2));
        assert_eq!((report.failures["status 500"], report.failures["status 400"]), (1, 2));
        let error = report.check().unwrap_err().to_string();
        let said = "3 of 8 requests were refused as invalid: status 400, status 404 (path_not_found); ";
        assert!(error.starts_with(said), "{error}");
    }
}
