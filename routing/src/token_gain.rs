//! How much the division of the text says about its tokens.

use dipaco_shards::TokenSet;

use crate::{RouterKind, RoutingError, ShardSet};

/// Below this gain in bits per token, shards are hardly different kinds of text. On text of several kinds each division of 4 and 16
/// paths that was measured with less had a better one (docs/results/short-runs.md). Text of one kind has about 0.
const LEAST_GAIN: f64 = 0.25;

/// Tokens of a shard that are read, so that the time does not grow with the corpus.
const TOKENS_PER_SHARD: u64 = 500_000;

/// Weight of all text in the token frequencies of a shard, in tokens. A small shard has seen few tokens of the vocabulary.
const COMMON_TOKENS: f64 = 1_000.0;

/// The bits per token by which a shard's own token frequencies predict its text better than the frequencies of all text.
///
/// The documents of each shard with even numbers give the frequencies, and those with odd numbers are predicted. The first
/// `prefix_tokens` tokens of a document do not count, because they chose the shard. The gain estimates the mutual
/// information between path and token. It is about 0 for random shards.
/// Returns `None` for a single shard.
///
/// # Errors
/// A shard can't be opened or does not match the manifest, as in [`ShardSet::open_shard`].
pub fn token_gain(shards: &ShardSet, prefix_tokens: usize) -> Result<Option<f64>, RoutingError> {
    if shards.shards().len() < 2 {
        return Ok(None);
    }
    gain(shards.shards().iter().map(|shard| shards.open_shard(shard.path)), prefix_tokens)
}

/// [`token_gain`] of shards that are opened one after the other. A process may have fewer memory maps than all shards
/// together have files.
fn gain(
    shards: impl Iterator<Item = Result<TokenSet, RoutingError>>,
    prefix_tokens: usize,
) -> Result<Option<f64>, RoutingError> {
    let mut counted = Vec::new();
    for shard in shards {
        let shard = shard?;
        counted.push([0, 1].map(|first| Counts::of(&shard, first, prefix_tokens)));
    }
    let mut common = Counts::default();
    for [shard, _] in &counted {
        common.add(shard);
    }
    let (mut bits, mut tokens) = (0.0, 0u64);
    for [shard, predicted] in &counted {
        for (token, &count) in predicted.of_token.iter().enumerate().filter(|(_, count)| **count > 0) {
            let everywhere = common.smoothed(token);
            let here =
                (shard.count(token) + COMMON_TOKENS * everywhere) / (shard.tokens as f64 + COMMON_TOKENS);
            bits += f64::from(count) * (here / everywhere).log2();
        }
        tokens += predicted.tokens;
    }
    Ok((tokens > 0).then(|| bits / tokens as f64))
}

/// A warning when the shards of a router of this kind are hardly different kinds of text. Random shards are meant to have
/// no gain, and a single shard has none.
#[must_use]
pub fn token_gain_warning(kind: RouterKind, gain: Option<f64>) -> Option<String> {
    let low = gain.filter(|gain| *gain < LEAST_GAIN && kind != RouterKind::Random);
    let (separates, remedy) = match kind {
        RouterKind::Labels => (
            "the labels hardly separate",
            "choose other labels (routing.labels), or a routing.kind that reads the text",
        ),
        _ => (
            "the router hardly separates",
            "compare the features \"lsa\" and \"seed\" (routing.features), or read more of a document \
             (routing.prefix_tokens)",
        ),
    };
    low.map(|gain| {
        format!(
            "{separates} kinds of text: a shard's own token frequencies predict its text only {gain:.2} bits per token better \
             than those of all text, and random shards have 0; {remedy}"
        )
    })
}

/// How often each token occurs.
#[derive(Default)]
struct Counts {
    of_token: Vec<u32>,
    tokens: u64,
}

impl Counts {
    /// Counts the tokens of every second document, from document `first`, without prefixes.
    fn of(file: &TokenSet, first: u64, prefix_tokens: usize) -> Self {
        let mut counts = Self::default();
        let mut document = first;
        while document < file.documents() && counts.tokens < TOKENS_PER_SHARD {
            for token in file.document(document).slice(prefix_tokens as u64..u64::MAX).iter() {
                let token = token as usize;
                if counts.of_token.len() <= token {
                    counts.of_token.resize(token + 1, 0);
                }
                counts.of_token[token] += 1;
                counts.tokens += 1;
            }
            document += 2;
        }
        counts
    }

    fn add(&mut self, other: &Self) {
        if self.of_token.len() < other.of_token.len() {
            self.of_token.resize(other.of_token.len(), 0);
        }
        for (sum, count) in self.of_token.iter_mut().zip(&other.of_token) {
            *sum += count;
        }
        self.tokens += other.tokens;
    }

    fn count(&self, token: usize) -> f64 {
        self.of_token.get(token).copied().map_or(0.0, f64::from)
    }

    /// Relative frequency of a token, above 0 for tokens that were never counted.
    fn smoothed(&self, token: usize) -> f64 {
        (self.count(token) + 1.0) / (self.tokens as f64 + self.of_token.len() as f64 + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::silent;
    use crate::testing::{Histogram, TOPICS, corpus};
    use crate::{FeatureExtractor, FitOrigin, RouterConfig, assign, fit_points};

    /// The gain of shards of four topics with five tokens each, by a router of this kind.
    fn gain_of(kind: RouterKind, points: &[f32], model: &dyn FeatureExtractor, paths: u32) -> Option<f64> {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 4_000);
        let config = RouterConfig { kind, ..RouterConfig::default() };
        let origin = FitOrigin {
            tokens_hash: file.content_hash().to_owned(),
            tokenizer_hash: file.tokenizer_hash().to_owned(),
            seed_hash: "seed".to_owned(),
            labels_hash: None,
            devices: Vec::new(),
        };
        let dimension = model.dimension();
        let fit = fit_points(points, dimension, &[paths], 1, origin, &config, &mut silent).unwrap();
        let shards = folder.path().join("shards");
        let assigned = assign(model, "seed", &fit.router, &file, &shards, &mut silent).unwrap();
        token_gain(&assigned.shards, 4).unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn one_shard_is_mapped_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 400);
        let config = RouterConfig::default();
        let fit = crate::fit(&Histogram, "seed", &file, &[TOPICS], 1, &config, &mut silent).unwrap();
        let out = folder.path().join("shards");
        let shards = assign(&Histogram, "seed", &fit.router, &file, &out, &mut silent).unwrap().shards;
        let place = out.canonicalize().unwrap().display().to_string();
        let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().matches(&place).count();
        let mut opened = 0;
        let one_by_one = shards.shards().iter().map(|shard| {
            assert_eq!(mapped(), 0, "before path {}", shard.path);
            let file = shards.open_shard(shard.path).unwrap();
            assert_eq!(mapped(), 1, "path {}", shard.path);
            opened += 1;
            Ok(file)
        });
        let found = gain(one_by_one, 4).unwrap();
        assert_eq!((opened, found), (TOPICS, token_gain(&shards, 4).unwrap()));
    }

    /// Features that say nothing about a document.
    struct Number;

    impl FeatureExtractor for Number {
        fn dimension(&self) -> usize {
            1
        }

        fn context(&self) -> usize {
            64
        }

        fn features(
            &self,
            tokens: &dipaco_shards::TokenRows,
            lengths: &[usize],
        ) -> Result<Vec<f32>, crate::BoxError> {
            let rows = tokens.ids().chunks_exact(tokens.time()).zip(lengths);
            Ok(rows.map(|(_, &length)| (length % 8) as f32 / 8.0).collect())
        }
    }

    #[test]
    fn shards_of_topics_gain_the_information_of_the_topic_and_other_shards_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = corpus(folder.path(), 400);
        let featurizer =
            crate::features::Featurizer { model: &Histogram, prefix_tokens: 32, batch_documents: 400 };
        let numbers: Vec<u64> = (0..400).collect();
        let points = featurizer.batch(&file, &numbers).unwrap();
        // One of four topics with equal shares is 2 bits. Every document ends with the same token, which has no topic.
        let topics = gain_of(RouterKind::KMeans, &points, &Histogram, TOPICS).unwrap();
        assert!((1.7..2.0).contains(&topics), "{topics}");
        assert_eq!(token_gain_warning(RouterKind::KMeans, Some(topics)), None);
        let even: Vec<f32> = (0u16..1000).map(|i| (f32::from(i) + 0.5) / 1000.0).collect();
        let random = gain_of(RouterKind::Random, &even, &Number, TOPICS).unwrap();
        assert!(random.abs() < 0.05, "{random}");
        let warning = token_gain_warning(RouterKind::KMeans, Some(random)).unwrap();
        assert!(warning.contains("routing.features"));
        let of_labels = token_gain_warning(RouterKind::Labels, Some(random)).unwrap();
        assert!(of_labels.contains("routing.labels"), "{of_labels}");
        assert!(!of_labels.contains("routing.features"), "labels read no features: {of_labels}");
        assert_eq!(
            token_gain_warning(RouterKind::Random, Some(random)),
            None,
            "random shards are to have no gain"
        );
        assert_eq!(gain_of(RouterKind::KMeans, &points, &Histogram, 1), None, "a single shard has all text");
    }
}
