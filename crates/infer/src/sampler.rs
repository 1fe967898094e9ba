//! Choosing the next token.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use dipaco_model::exp_scaled;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::SamplingParams;

/// Chooses the tokens of one sequence. The choices depend only on the sampling parameters, the prompt and the logits.
#[derive(Clone, Debug)]
pub struct TokenSampler {
    sampling: SamplingParams,
    rng: ChaCha8Rng,
    prompt: BTreeSet<u32>,
    generated: BTreeMap<u32, u32>,
}

/// Memory for the choice of a token. All samplers of a thread share it: a sequence alone keeps much less.
struct Scratch {
    /// The logits (V) after bias and penalties.
    adjusted: Vec<f32>,
    /// The tokens that can still be drawn with their weights.
    weights: Vec<WeightedToken>,
    /// The weights of all tokens (V).
    all: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { adjusted: Vec::new(), weights: Vec::new(), all: Vec::new() }) };
}

/// A token that can be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WeightedToken {
    id: u32,
    /// Proportional to its probability.
    weight: f64,
}

impl TokenSampler {
    /// A sampler for a sequence that begins with `prompt`.
    #[must_use]
    pub fn new(sampling: SamplingParams, prompt: &[u32]) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        rng.set_stream(sampling.choice);
        let repeats = sampling.repetition_penalty != 1.0;
        let prompt = prompt.iter().copied().filter(|_| repeats).collect();
        Self { sampling, rng, prompt, generated: BTreeMap::new() }
    }

    /// Bytes that a thread keeps for choosing tokens of a vocabulary.
    #[must_use]
    pub fn thread_bytes(vocabulary: usize) -> usize {
        vocabulary * (2 * size_of::<f32>() + size_of::<WeightedToken>())
    }

    /// Chooses a token from logits (V). A `banned` token is chosen only if no other token is left.
    ///
    /// Returns `None` when the logits are not a distribution: V is 0, or they hold a NaN, a +∞, or only -∞.
    ///
    /// The steps come in vLLM's order: bias, penalties, temperature, `min_p`, `top_k`, `top_p`. Each token draws one random
    /// number, unless the temperature is 0.
    pub fn choose(&mut self, logits: &[f32], banned: &[u32]) -> Option<u32> {
        SCRATCH.with_borrow_mut(|scratch| self.choose_with(scratch, logits, banned))
    }

    fn choose_with(&mut self, scratch: &mut Scratch, logits: &[f32], banned: &[u32]) -> Option<u32> {
        // Checked before bias and penalties, which could hide the fault.
        let finite = |logit: &f32| *logit < f32::INFINITY;
        if !logits.iter().all(finite) || !logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
            return None;
        }
        scratch.adjusted.clear();
        scratch.adjusted.extend_from_slice(logits);
        self.adjust(&mut scratch.adjusted);
        for &token in banned {
            if let Some(logit) = scratch.adjusted.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let likeliest =
            (0u32..).zip(&scratch.adjusted).reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        let (mut token, max) = (likeliest.0, *likeliest.1);
        if self.sampling.temperature > 0.0 {
            let draw: f64 = self.rng.random();
            token = self.draw(scratch, max, draw).unwrap_or(token);
        }
        *self.generated.entry(token).or_insert(0) += 1;
        Some(token)
    }

    /// Applies bias and penalties to logits (V).
    fn adjust(&self, logits: &mut [f32]) {
        let SamplingParams { presence_penalty, frequency_penalty, repetition_penalty, .. } = self.sampling;
        for (&token, &bias) in self.sampling.logit_bias.iter() {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if repetition_penalty != 1.0 {
            let fresh = self.generated.keys().filter(|token| !self.prompt.contains(token));
            for &token in self.prompt.iter().chain(fresh) {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit =
                        if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
                }
            }
        }
        for (&token, &times) in &self.generated {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit -= presence_penalty + frequency_penalty * times as f32;
            }
        }
    }

    /// Draws from the tokens that `min_p`, `top_k` and `top_p` leave, with a uniform number `draw` in [0, 1). `max` is the
    /// largest adjusted logit.
    fn draw(&self, scratch: &mut Scratch, max: f32, draw: f64) -> Option<u32> {
        let SamplingParams { temperature, min_p, top_k, top_p, .. } = self.sampling;
        let Scratch { adjusted, weights, all } = scratch;
        all.resize(adjusted.len(), 0.0);
        exp_scaled(adjusted, max, temperature, all);
        weights.clear();
        // A vector that grows by itself takes up to twice as much.
        weights.reserve_exact(adjusted.len());
        let possible = (0u32..).zip(&*all).zip(&*adjusted);
        let possible =
            possible.filter(|((_, weight), logit)| **weight >= min_p && **logit > f32::NEG_INFINITY);
        weights.extend(possible.map(|((id, &weight), _)| WeightedToken { id, weight: f64::from(weight) }));
        if top_k > 0 && top_k < weights.len() {
            weights.select_nth_unstable_by(top_k, heavier);
            weights.truncate(top_k);
        }
        if top_p < 1.0 {
            keep_nucleus(weights, f64::from(top_p));
        } else if top_k > 0 {
            weights.sort_unstable_by(heavier);
        }
        let mut left = draw * weights.iter().map(|token| token.weight).sum::<f64>();
        let drawn = weights.iter().find(|token| {
            left -= token.weight;
            left < 0.0
        });
        drawn.or(weights.last()).map(|token| token.id)
    }
}

/// Heavier tokens first, lower ids first among equals.
fn heavier(a: &WeightedToken, b: &WeightedToken) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

/// Keeps the smallest set of heaviest tokens that has the fraction `top_p` of the weight, heaviest first. Usually these are
/// few of many, so only a few are sorted.
fn keep_nucleus(weights: &mut Vec<WeightedToken>, top_p: f64) {
    let nucleus = top_p * weights.iter().map(|token| token.weight).sum::<f64>();
    let mut sorted = 64;
    loop {
        let some = sorted.min(weights.len());
        if some < weights.len() {
            weights.select_nth_unstable_by(some, heavier);
        }
        weights[..some].sort_unstable_by(heavier);
        let mut reached = 0.0;
        let last = weights[..some].iter().position(|token| {
            reached += token.weight;
            reached >= nucleus
        });
        match last {
            Some(last) => return weights.truncate(last + 1),
            None if some == weights.len() => return,
            None => sorted *= 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: &SamplingParams, logits: &[f32], draws: u64) -> Vec<f64> {
        let mut counts = vec![0u32; logits.len()];
        for seed in 0..draws {
            let mut sampler = TokenSampler::new(SamplingParams { seed, ..sampling.clone() }, &[]);
            counts[sampler.choose(logits, &[]).unwrap() as usize] += 1;
        }
        counts.iter().map(|&count| f64::from(count) / draws as f64).collect()
    }

    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() - 7.0).collect()
    }

    #[test]
    fn a_thread_keeps_as_many_bytes_as_it_says_however_many_sequences_it_has() {
        let vocabulary = 1000;
        let logits = vec![0.0; vocabulary];
        // A thread of its own: others have the memory of their tests.
        let kept = std::thread::spawn(move || {
            for seed in 0..3 {
                let sampling = SamplingParams { seed, ..SamplingParams::default() };
                TokenSampler::new(sampling, &[]).choose(&logits, &[]).unwrap();
            }
            let bytes = |Scratch { adjusted, weights, all }: &mut Scratch| {
                size_of::<f32>() * (adjusted.capacity() + all.capacity())
                    + size_of::<WeightedToken>() * weights.capacity()
            };
            SCRATCH.with_borrow_mut(bytes)
        });
        assert_eq!(kept.join().unwrap(), TokenSampler::thread_bytes(vocabulary));
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = logits(&[0.1, 0.6, 0.3]);
        let plain = frequencies(&SamplingParams::default(), &logits, 20_000);
        for (given, expected) in plain.iter().zip([0.1, 0.6, 0.3]) {
            assert!((given - expected).abs() < 0.015, "{plain:?}");
        }
        // Temperature 0.5 squares the odds: 1 : 36 : 9.
        let cold =
            frequencies(&SamplingParams { temperature: 0.5, ..SamplingParams::default() }, &logits, 20_000);
        for (given, expected) in cold.iter().zip([1.0 / 46.0, 36.0 / 46.0, 9.0 / 46.0]) {
            assert!((given - expected).abs() < 0.015, "{cold:?}");
        }
    }

    #[test]
    fn each_filter_leaves_the_expected_tokens() {
        let logits = logits(&[0.1, 0.5, 0.15, 0.25]);
        let possible = |sampling: SamplingParams| -> Vec<usize> {
            let found = frequencies(&sampling, &logits, 400);
            (0..found.len()).filter(|&i| found[i] > 0.0).collect()
        };
        assert_eq!(possible(SamplingParams { top_k: 2, ..SamplingParams::default() }), [1, 3]);
        assert_eq!(possible(SamplingParams { top_p: 0.7, ..SamplingParams::default() }), [1, 3]);
        assert_eq!(possible(SamplingParams { top_p: 0.01, ..SamplingParams::default() }), [1]);
        assert_eq!(possible(SamplingParams { min_p: 0.28, ..SamplingParams::default() }), [1, 2, 3]);
        assert_eq!(possible(SamplingParams { temperature: 0.0, ..SamplingParams::default() }), [1]);
        assert_eq!(possible(SamplingParams { temperature: 1e-30, ..SamplingParams::default() }), [1]);
        let bias = BTreeMap::from([(1, -100.0), (3, -100.0), (0, 100.0)]);
        assert_eq!(possible(SamplingParams { logit_bias: bias.into(), ..SamplingParams::default() }), [0]);
    }

    #[test]
    fn a_nucleus_of_many_tokens_is_that_of_a_full_sort() {
        // Weights that fall slowly, so that the nucleus is larger than the first sorted part.
        let token = |id| WeightedToken { id, weight: 1.0 / f64::from(id * 7919 % 3000 + 100) };
        let all: Vec<WeightedToken> = (0..3000).map(token).collect();
        for top_p in [0.001, 0.3, 0.9, 0.999_999] {
            let mut sorted = all.clone();
            sorted.sort_unstable_by(heavier);
            let total: f64 = all.iter().map(|token| token.weight).sum();
            let mut reached = 0.0;
            let count = sorted.iter().take_while(|w| {
                let before = reached < top_p * total;
                reached += w.weight;
                before
            });
            let count = count.count();
            let mut kept = all.clone();
            keep_nucleus(&mut kept, top_p);
            assert_eq!(kept, sorted[..count], "{top_p}");
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_penalties_move_it_on() {
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let run = |sampling: SamplingParams| {
            let mut sampler = TokenSampler::new(sampling, &[1]);
            [0; 4].map(|_| sampler.choose(&[1.0, 1.0, 0.5], &[]).unwrap())
        };
        assert_eq!(run(greedy.clone()), [0; 4]);
        assert_eq!(run(SamplingParams { presence_penalty: 2.0, ..greedy.clone() }), [0, 1, 2, 0]);
        assert_eq!(run(SamplingParams { frequency_penalty: 0.3, ..greedy.clone() }), [0, 1, 0, 1]);
        assert_eq!(run(SamplingParams { repetition_penalty: 4.0, ..greedy.clone() }), [0, 2, 0, 0]);
        assert_eq!(TokenSampler::new(greedy, &[]).choose(&[3.0, 2.0, 1.0], &[0, 1]), Some(2));
    }

    #[test]
    fn logits_that_are_no_distribution_choose_nothing() {
        let (inf, low) = (f32::INFINITY, f32::NEG_INFINITY);
        for temperature in [0.0, 1.0] {
            let sampling = SamplingParams { temperature, ..SamplingParams::default() };
            let choose = |logits: &[f32]| TokenSampler::new(sampling.clone(), &[]).choose(logits, &[]);
            for bad in [&[][..], &[f32::NAN], &[0.0, f32::NAN], &[inf, 0.0], &[0.0, inf], &[low; 3]] {
                assert_eq!(choose(bad), None, "{bad:?}");
                // The same logits have no log-probabilities.
                assert_eq!(crate::score(bad, 0, 1), None, "{bad:?}");
            }
            assert_eq!(choose(&[low, 0.0]), Some(1));
        }
    }

    #[test]
    fn the_seed_decides_and_choices_differ() {
        let logits = vec![0.0; 1000];
        let run = |seed, choice| {
            let mut sampler =
                TokenSampler::new(SamplingParams { seed, choice, ..SamplingParams::default() }, &[]);
            [0; 8].map(|_| sampler.choose(&logits, &[]).unwrap())
        };
        assert_eq!(run(7, 0), run(7, 0));
        assert_ne!(run(7, 0), run(8, 0));
        assert_ne!(run(7, 0), run(7, 1));
    }
}
