//! How well the features of a sample separate its documents.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Below this separation clusters are hardly tighter than clusters of features that have nothing to do with each other.
pub(crate) const LEAST_SEPARATION: f64 = 0.1;

/// Stream of the random generator for shuffling; k-means and the sample use others.
const SHUFFLE_STREAM: u64 = u64::MAX - 1;

/// The points (N, D), row-major, with each component shuffled among the documents by itself. Components keep their
/// distributions, and lose all that they say together about a document.
pub(crate) fn shuffled(points: &[f32], dimension: usize, seed: u64) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(SHUFFLE_STREAM);
    let mut shuffled = points.to_vec();
    for component in 0..dimension {
        let mut column: Vec<f32> = points.iter().skip(component).step_by(dimension).copied().collect();
        column.shuffle(&mut random);
        for (place, value) in shuffled.iter_mut().skip(component).step_by(dimension).zip(column) {
            *place = value;
        }
    }
    shuffled
}

/// The share by which clusters of the features are tighter than clusters of the shuffled features: 0 if they are not, 1 if
/// every document is its cluster's centre.
pub(crate) fn separation(inertia: f64, shuffled_inertia: f64) -> f64 {
    if shuffled_inertia > 0.0 { (1.0 - inertia / shuffled_inertia).max(0.0) } else { 0.0 }
}

/// A warning when features hardly separate documents.
#[must_use]
pub fn separation_warning(separation: Option<f64>) -> Option<String> {
    let separation = separation.filter(|separation| *separation < LEAST_SEPARATION)?;
    Some(format!(
        "the seed's features hardly separate documents: clusters are {:.0} % tighter than clusters of shuffled features, \
         so shards are nearly random; train the seed longer (seed_model.steps), lower \
         routing.feature_blocks (0 reads token embeddings only), try routing.standardise, or read more of a document (routing.prefix_tokens)",
        separation * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_keeps_each_component_and_breaks_what_they_say_together() {
        let points: Vec<f32> = (0u16..600).flat_map(|i| [f32::from(i), f32::from(i)]).collect();
        let other = shuffled(&points, 2, 1);
        for component in 0..2 {
            let mut column: Vec<f32> = other.iter().skip(component).step_by(2).copied().collect();
            column.sort_by(f32::total_cmp);
            assert_eq!(column, (0u16..600).map(f32::from).collect::<Vec<_>>());
        }
        let equal = other.chunks_exact(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(equal < 10, "{equal}");
        assert_eq!(shuffled(&points, 2, 1), other);
        assert_ne!(shuffled(&points, 2, 2), other);
    }

    #[test]
    fn separation_is_a_share_and_little_of_it_is_said() {
        assert_eq!((separation(1.0, 4.0), separation(5.0, 4.0), separation(0.0, 0.0)), (0.75, 0.0, 0.0));
        assert_eq!(separation_warning(None), None);
        assert_eq!(separation_warning(Some(0.2)), None);
        let warning = separation_warning(Some(0.03)).unwrap();
        assert!(warning.contains("3 % tighter"), "{warning}");
    }
}
