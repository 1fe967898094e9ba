//! Biases that make a router choose each path in a wanted share of the documents.

use rayon::prelude::*;

/// Largest number of logits that biases are calibrated on: 64 MiB.
const MOST: usize = 1 << 24;

/// Rows of a group of sums; fixed, so that the number of threads changes no bit.
const CHUNK: usize = 1024;
/// Softness of the last soft choice: nearly all weight on the largest logit.
const LEAST_SOFTNESS: f64 = 0.03125;
/// Largest number of corrections at each softness.
const SOFT_STEPS: usize = 25;
/// Corrections below this value end a softness, in units of ln share.
const SETTLED: f64 = 0.02;
/// Corrections of the hard choice; the best biases are kept.
const HARD_STEPS: usize = 60;

/// Stride of the rows that biases are calibrated on, for `rows` rows of `paths` logits.
pub(crate) fn stride(rows: usize, paths: usize) -> usize {
    (rows * paths).div_ceil(MOST).max(1)
}

/// The shares (P) of documents with `sizes` (P), none below `least` of an equal share. Small paths get exactly that, and the
/// others divide the rest by their sizes. `least` is 0 to 1, and some size is not 0.
pub(crate) fn wanted_shares(sizes: &[u64], least: f64) -> Vec<f64> {
    let floor = least / sizes.len() as f64;
    let mut raised = vec![false; sizes.len()];
    // Each raised path leaves less to the others, of which some may then be below the floor as well.
    loop {
        let count = raised.iter().filter(|&&raised| raised).count();
        let rest: u64 =
            sizes.iter().zip(&raised).filter(|&(_, &raised)| !raised).map(|(&size, _)| size).sum();
        let share = |size: u64| size as f64 / rest as f64 * (1.0 - count as f64 * floor);
        let small: Vec<usize> =
            (0..sizes.len()).filter(|&path| !raised[path] && share(sizes[path]) < floor).collect();
        if small.is_empty() {
            return sizes
                .iter()
                .zip(&raised)
                .map(|(&size, &raised)| if raised { floor } else { share(size) })
                .collect();
        }
        for path in small {
            raised[path] = true;
        }
    }
}

/// Biases (P) to add to the logits (N, P), row-major, so that path p has the largest sum in a share `wanted[p]` of the
/// rows, as nearly as possible.
///
/// Except for ties such biases always exist: they minimise the mean of the rows' largest entries less Σ wanted · bias,
/// which is convex (semi-discrete optimal transport). The choices of the rows start soft, so soft that each path has a
/// part in most rows, and become ever harder. At a given softness, adding softness · ln(wanted / found) is Sinkhorn's
/// iteration, which converges.
pub(crate) fn calibrate(logits: &[f32], wanted: &[f64]) -> Vec<f64> {
    let paths = wanted.len();
    let rows = logits.len() / paths;
    // A wanted share of 0 would mean a bias of -∞.
    let least = 0.01 / rows.max(1) as f64;
    let mut biases = vec![0f64; paths];
    let mut softness = mean_spread(logits, paths).max(1.0);
    while softness >= LEAST_SOFTNESS {
        for _ in 0..SOFT_STEPS {
            let found = soft_shares(logits, &biases, softness);
            let mut largest = 0f64;
            for path in 0..paths {
                let correction = (wanted[path].max(least) / found[path].max(least * 1e-6)).ln();
                largest = largest.max(correction.abs());
                biases[path] += softness * correction;
            }
            if largest < SETTLED {
                break;
            }
        }
        softness *= 0.5;
    }
    // Soft shares only approach the hard choice, so the last corrections count choices. They need not converge: steps
    // shrink, and the best biases win.
    let mut best = (f64::INFINITY, biases.clone());
    let mut step = LEAST_SOFTNESS * 4.0;
    for _ in 0..HARD_STEPS {
        let counts = choices(logits, &biases);
        // Pearson's χ²: a rare path without documents weighs more than a large path that is slightly off.
        let off: f64 = counts
            .iter()
            .zip(wanted)
            .map(|(&count, wanted)| (count as f64 - wanted * rows as f64, wanted * rows as f64))
            .map(|(off, wanted)| off * off / wanted.max(0.01))
            .sum();
        if off < best.0 {
            best = (off, biases.clone());
        }
        for path in 0..paths {
            // Half a document on both sides keeps the ratio of an unchosen path finite.
            let ratio = (wanted[path] * rows as f64 + 0.5) / (counts[path] as f64 + 0.5);
            biases[path] += step * ratio.ln();
        }
        step *= 0.93;
    }
    best.1
}

/// Mean over the rows of the difference between the largest and the smallest entry.
fn mean_spread(logits: &[f32], paths: usize) -> f64 {
    let partial: Vec<f64> = logits
        .par_chunks(CHUNK * paths)
        .map(|rows| {
            let spread = |row: &[f32]| {
                let ends = |(low, high): (f32, f32), &logit: &f32| (low.min(logit), high.max(logit));
                let (low, high) = row.iter().fold((f32::INFINITY, f32::NEG_INFINITY), ends);
                f64::from(high) - f64::from(low)
            };
            rows.chunks_exact(paths).map(spread).sum()
        })
        .collect();
    partial.into_iter().sum::<f64>() / (logits.len() / paths).max(1) as f64
}

/// Number of rows in which each path (P) has the largest sum, the lowest path of equal ones.
fn choices(logits: &[f32], biases: &[f64]) -> Vec<u64> {
    let paths = biases.len();
    let partial: Vec<Vec<u64>> = logits
        .par_chunks(CHUNK * paths)
        .map(|rows| {
            let mut counts = vec![0u64; paths];
            for row in rows.chunks_exact(paths) {
                let mut best = (0, f64::NEG_INFINITY);
                for (path, (&logit, bias)) in row.iter().zip(biases).enumerate() {
                    let score = f64::from(logit) + bias;
                    if score > best.1 {
                        best = (path, score);
                    }
                }
                counts[best.0] += 1;
            }
            counts
        })
        .collect();
    sum(partial, paths)
}

/// Mean over the rows of the softmax (P) of (logits + biases) / softness.
fn soft_shares(logits: &[f32], biases: &[f64], softness: f64) -> Vec<f64> {
    let paths = biases.len();
    let rows = (logits.len() / paths) as f64;
    let partial: Vec<Vec<f64>> = logits
        .par_chunks(CHUNK * paths)
        .map(|rows| {
            let mut shares = vec![0f64; paths];
            let mut scores = vec![0f64; paths];
            for row in rows.chunks_exact(paths) {
                let mut largest = f64::NEG_INFINITY;
                for ((score, &logit), bias) in scores.iter_mut().zip(row).zip(biases) {
                    *score = (f64::from(logit) + bias) / softness;
                    largest = largest.max(*score);
                }
                let mut sum = 0.0;
                for score in &mut scores {
                    *score = (*score - largest).exp();
                    sum += *score;
                }
                shares.iter_mut().zip(&scores).for_each(|(share, score)| *share += score / sum);
            }
            shares
        })
        .collect();
    sum(partial, paths).into_iter().map(|share: f64| share / rows).collect()
}

fn sum<T: Copy + Default + std::ops::AddAssign>(partial: Vec<Vec<T>>, paths: usize) -> Vec<T> {
    let mut total = vec![T::default(); paths];
    for partial in partial {
        total.iter_mut().zip(partial).for_each(|(total, value)| *total += value);
    }
    total
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn no_wanted_share_is_below_the_least_one() {
        // A quarter of an equal share is 0.0625. The first two are below it, and the third is when they are raised.
        let shares = wanted_shares(&[0, 10, 630, 9360], 0.25);
        assert_eq!(shares[..3], [0.0625; 3]);
        assert!((shares[3] - 0.8125).abs() < 1e-12, "{shares:?}");
        assert_eq!(wanted_shares(&[0, 7, 90, 3], 1.0), [0.25; 4]);
        assert_eq!(wanted_shares(&[0, 1, 3], 0.0), [0.0, 0.25, 0.75]);
        let shares = wanted_shares(&[40, 10, 50, 0], 0.4);
        let expected = [0.8 * 4.0 / 9.0, 0.1, 0.8 * 5.0 / 9.0, 0.1];
        assert!(
            shares.iter().zip(expected).all(|(share, wanted)| (share - wanted).abs() < 1e-12),
            "{shares:?}"
        );
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{shares:?}");
    }

    #[test]
    fn the_wanted_shares_are_met() {
        const PATHS: usize = 7;
        let mut random = ChaCha8Rng::seed_from_u64(3);
        // Path 0 is favoured in nearly every row, and the others unevenly.
        let logits: Vec<f32> = (0..5000 * PATHS)
            .map(|i| random.random::<f32>() * 3.0 + [9.0, 1.0, 0.0, 0.0, -2.0, -4.0, -40.0][i % PATHS])
            .collect();
        let wanted = [0.02, 0.3, 0.2, 0.2, 0.1, 0.1, 0.08];
        assert!(choices(&logits, &[0.0; PATHS])[0] > 4900);
        let counts = choices(&logits, &calibrate(&logits, &wanted));
        for (count, wanted) in counts.iter().zip(wanted) {
            assert!((*count as f64 - wanted * 5000.0).abs() <= 10.0, "{counts:?}");
        }
    }

    #[test]
    fn a_wanted_share_of_zero_is_met() {
        let logits: Vec<f32> = (0..300).flat_map(|i| [1.0, (i % 10) as f32 * 0.1, 0.5]).collect();
        let counts = choices(&logits, &calibrate(&logits, &[0.5, 0.5, 0.0]));
        assert_eq!(counts[2], 0);
        assert_eq!(counts[0] + counts[1], 300);
        assert!((120..=180).contains(&counts[0]), "{counts:?}");
    }
}
