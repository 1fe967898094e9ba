//! The content of the requests of a load test, and their times.

use std::ops::RangeInclusive;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

/// Stream of random numbers of the arrival times. Requests have the streams of their numbers.
const ARRIVALS: u64 = u64::MAX;

/// The prompts of a load test.
#[derive(Clone, Debug)]
pub enum Prompts {
    /// Each request takes one of these texts at random.
    Texts(Vec<String>),
    /// Each request has random token ids.
    Ids {
        /// Number of ids of a prompt, at random.
        tokens: RangeInclusive<usize>,
        /// V: the ids are below it.
        vocabulary: u32,
    },
}

/// The content of the requests. It depends on the seed and on the number of a request, never on times, so two servers get
/// the same requests.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Model that the requests name; `None` leaves the field out.
    pub model: Option<String>,
    /// The prompts.
    pub prompts: Prompts,
    /// Number of tokens to generate. Each request generates exactly as many where the server knows `ignore_eos`.
    pub max_tokens: u32,
    /// Sampling temperature.
    pub temperature: f64,
    /// Number of paths, of which each request names one at random; `None` leaves the field `path` out.
    pub paths: Option<u32>,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The body of a request.
#[derive(Debug, Serialize)]
pub(super) struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    prompt: Prompt<'a>,
    max_tokens: u32,
    temperature: f64,
    seed: u32,
    ignore_eos: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<u32>,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Prompt<'a> {
    Text(&'a str),
    Ids(Vec<u32>),
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Workload {
    /// The request with this number.
    pub(super) fn request(&self, number: usize) -> Body<'_> {
        let mut random = self.random(number as u64);
        let prompt = match &self.prompts {
            Prompts::Texts(texts) if texts.is_empty() => Prompt::Text(""),
            Prompts::Texts(texts) => Prompt::Text(&texts[random.random_range(0..texts.len())]),
            Prompts::Ids { tokens, vocabulary } => {
                let count = random.random_range(tokens.clone());
                Prompt::Ids((0..count).map(|_| random.random_range(0..(*vocabulary).max(1))).collect())
            }
        };
        Body {
            model: self.model.as_deref(),
            prompt,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            path: self.paths.map(|paths| random.random_range(0..paths.max(1))),
            // Some servers read a seed as a signed number of 32 bits.
            seed: random.random::<u32>() >> 1,
            ignore_eos: true,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
        }
    }

    /// Times of arrival since the start, with exponentially distributed pauses: a Poisson process of `rate` per second.
    pub(super) fn arrivals(&self, rate: f64) -> impl Iterator<Item = Duration> {
        let (mut random, mut at) = (self.random(ARRIVALS), 0.0);
        std::iter::repeat_with(move || {
            // `random` is below 1, so the logarithm is finite.
            at -= (1.0 - random.random::<f64>()).ln() / rate;
            Duration::try_from_secs_f64(at).unwrap_or(Duration::MAX)
        })
    }

    fn random(&self, stream: u64) -> ChaCha8Rng {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        random.set_stream(stream);
        random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(seed: u64) -> Workload {
        Workload {
            model: Some("tiny".into()),
            prompts: Prompts::Ids { tokens: 3..=9, vocabulary: 50 },
            max_tokens: 8,
            temperature: 0.0,
            paths: Some(4),
            seed,
        }
    }

    #[test]
    fn requests_depend_on_the_seed_and_on_their_number_only() {
        let json = |seed, number| serde_json::to_value(workload(seed).request(number)).unwrap();
        assert_eq!(json(1, 7), json(1, 7));
        assert_ne!(json(1, 7), json(1, 8));
        assert_ne!(json(1, 7), json(2, 7));
        let mut paths = std::collections::BTreeSet::new();
        for number in 0..100 {
            let body = json(1, number);
            let ids = body["prompt"].as_array().unwrap();
            assert!((3..=9).contains(&ids.len()) && ids.iter().all(|id| id.as_u64().unwrap() < 50));
            assert_eq!((&body["stream"], &body["model"]), (&true.into(), &"tiny".into()));
            paths.insert(body["path"].as_u64().unwrap());
        }
        assert_eq!(paths.len(), 4, "every path is asked");
        let plain =
            serde_json::to_value(Workload { model: None, paths: None, ..workload(1) }.request(0)).unwrap();
        assert!(plain.get("path").is_none() && plain.get("model").is_none());
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let times: Vec<f64> = workload(3).arrivals(20.0).take(10_000).map(|at| at.as_secs_f64()).collect();
        assert!(times.is_sorted());
        let rate = times.len() as f64 / times[times.len() - 1];
        assert!((rate - 20.0).abs() < 0.6, "{rate} per second");
        let pauses: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = pauses.iter().sum::<f64>() / pauses.len() as f64;
        let variance = pauses.iter().map(|pause| (pause - mean).powi(2)).sum::<f64>() / pauses.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{}", variance.sqrt() / mean);
    }
}
