//! Choosing the next token.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Sampling;

/// Chooses the tokens of one sequence. The choices depend only on the sampling parameters, the prompt and the logits.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
    prompt: BTreeSet<u32>,
    generated: BTreeMap<u32, u32>,
}

impl Sampler {
    /// A sampler for a sequence that begins with `prompt`.
    #[must_use]
    pub fn new(sampling: Sampling, prompt: &[u32]) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(sampling.seed);
        rng.set_stream(sampling.choice);
        let repeats = sampling.repetition_penalty != 1.0;
        let prompt = prompt.iter().copied().filter(|_| repeats).collect();
        Self { sampling, rng, prompt, generated: BTreeMap::new() }
    }

    /// Chooses a token from logits (V). A `banned` token is chosen only if no other token is left. `None` when V is 0.
    ///
    /// The steps come in vLLM's order: bias, penalties, temperature, `min_p`, `top_k`, `top_p`. Each token draws one random
    /// number, unless the temperature is 0.
    pub fn choose(&mut self, logits: &[f32], banned: &[u32]) -> Option<u32> {
        let mut logits = logits.to_vec();
        self.adjust(&mut logits);
        for &token in banned {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let likeliest =
            (0u32..).zip(&logits).reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        let (mut token, max) = (likeliest.0, f64::from(*likeliest.1));
        if self.sampling.temperature > 0.0 {
            let draw: f64 = self.rng.random();
            token = self.draw(&logits, max, draw).unwrap_or(token);
        }
        *self.generated.entry(token).or_insert(0) += 1;
        Some(token)
    }

    /// Applies bias and penalties.
    fn adjust(&self, logits: &mut [f32]) {
        let Sampling { presence_penalty, frequency_penalty, repetition_penalty, .. } = self.sampling;
        for (&token, &bias) in &self.sampling.logit_bias {
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

    /// Draws from the tokens that `min_p`, `top_k` and `top_p` leave, with a uniform number `draw` in [0, 1).
    fn draw(&self, logits: &[f32], max: f64, draw: f64) -> Option<u32> {
        let Sampling { temperature, min_p, top_k, top_p, .. } = self.sampling;
        let weight = |logit: f32| ((f64::from(logit) - max) / f64::from(temperature)).exp();
        let mut weights: Vec<(u32, f64)> =
            (0u32..).zip(logits).map(|(id, &logit)| (id, weight(logit))).filter(|&(_, w)| w > 0.0).collect();
        if min_p > 0.0 {
            weights.retain(|&(_, w)| w >= f64::from(min_p));
        }
        let heavier = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if top_k > 0 && top_k < weights.len() {
            weights.select_nth_unstable_by(top_k, heavier);
            weights.truncate(top_k);
        }
        if top_p < 1.0 || top_k > 0 {
            weights.sort_unstable_by(heavier);
        }
        if top_p < 1.0 {
            let nucleus = f64::from(top_p) * weights.iter().map(|w| w.1).sum::<f64>();
            let mut reached = 0.0;
            let last = weights.iter().position(|&(_, w)| {
                reached += w;
                reached >= nucleus
            });
            weights.truncate(last.map_or(weights.len(), |last| last + 1));
        }
        let mut left = draw * weights.iter().map(|w| w.1).sum::<f64>();
        let drawn = weights.iter().find(|&&(_, w)| {
            left -= w;
            left < 0.0
        });
        drawn.or(weights.last()).map(|&(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(sampling: &Sampling, logits: &[f32], draws: u64) -> Vec<f64> {
        let mut counts = vec![0u32; logits.len()];
        for seed in 0..draws {
            let mut sampler = Sampler::new(Sampling { seed, ..sampling.clone() }, &[]);
            counts[sampler.choose(logits, &[]).unwrap() as usize] += 1;
        }
        counts.iter().map(|&count| f64::from(count) / draws as f64).collect()
    }

    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() - 7.0).collect()
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = logits(&[0.1, 0.6, 0.3]);
        let plain = frequencies(&Sampling::default(), &logits, 20_000);
        for (given, expected) in plain.iter().zip([0.1, 0.6, 0.3]) {
            assert!((given - expected).abs() < 0.015, "{plain:?}");
        }
        // Temperature 0.5 squares the odds: 1 : 36 : 9.
        let cold = frequencies(&Sampling { temperature: 0.5, ..Sampling::default() }, &logits, 20_000);
        for (given, expected) in cold.iter().zip([1.0 / 46.0, 36.0 / 46.0, 9.0 / 46.0]) {
            assert!((given - expected).abs() < 0.015, "{cold:?}");
        }
    }

    #[test]
    fn each_filter_leaves_the_expected_tokens() {
        let logits = logits(&[0.1, 0.5, 0.15, 0.25]);
        let possible = |sampling: Sampling| -> Vec<usize> {
            let found = frequencies(&sampling, &logits, 400);
            (0..found.len()).filter(|&i| found[i] > 0.0).collect()
        };
        assert_eq!(possible(Sampling { top_k: 2, ..Sampling::default() }), [1, 3]);
        assert_eq!(possible(Sampling { top_p: 0.7, ..Sampling::default() }), [1, 3]);
        assert_eq!(possible(Sampling { top_p: 0.01, ..Sampling::default() }), [1]);
        assert_eq!(possible(Sampling { min_p: 0.28, ..Sampling::default() }), [1, 2, 3]);
        assert_eq!(possible(Sampling { temperature: 0.0, ..Sampling::default() }), [1]);
        assert_eq!(possible(Sampling { temperature: 1e-30, ..Sampling::default() }), [1]);
        let bias = BTreeMap::from([(1, -100.0), (3, -100.0), (0, 100.0)]);
        assert_eq!(possible(Sampling { logit_bias: bias, ..Sampling::default() }), [0]);
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_penalties_move_it_on() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        let run = |sampling: Sampling| {
            let mut sampler = Sampler::new(sampling, &[1]);
            [0; 4].map(|_| sampler.choose(&[1.0, 1.0, 0.5], &[]).unwrap())
        };
        assert_eq!(run(greedy.clone()), [0; 4]);
        assert_eq!(run(Sampling { presence_penalty: 2.0, ..greedy.clone() }), [0, 1, 2, 0]);
        assert_eq!(run(Sampling { frequency_penalty: 0.3, ..greedy.clone() }), [0, 1, 0, 1]);
        assert_eq!(run(Sampling { repetition_penalty: 4.0, ..greedy.clone() }), [0, 2, 0, 0]);
        assert_eq!(Sampler::new(greedy, &[]).choose(&[3.0, 2.0, 1.0], &[0, 1]), Some(2));
    }

    #[test]
    fn the_seed_decides_and_choices_differ() {
        let logits = vec![0.0; 1000];
        let run = |seed, choice| {
            let mut sampler = Sampler::new(Sampling { seed, choice, ..Sampling::default() }, &[]);
            [0; 8].map(|_| sampler.choose(&logits, &[]).unwrap())
        };
        assert_eq!(run(7, 0), run(7, 0));
        assert_ne!(run(7, 0), run(8, 0));
        assert_ne!(run(7, 0), run(7, 1));
    }
}
