//! How much of the time compute is busy over a link, and what link it takes (arXiv:2501.18512 §3.1).
//!
//! Each site is one compute stream; all of them take their steps at the same time. What a step sends is cut into equal
//! buckets that become ready while the backward pass goes on, and one link carries them in their order. A step that ends
//! before the last bucket it needs has arrived waits for it.

use serde::{Deserialize, Serialize};

use crate::{Scheme, SimulateError};

/// Buckets of what one step sends.
const BUCKETS: u32 = 128;
/// Inner steps that are played at least.
const STEPS: u64 = 2000;
/// The backward pass takes twice as long as the forward pass.
const FORWARD_SHARE: f64 = 1.0 / 3.0;
/// Bandwidths that are tried: this many to a factor of 10,000, evenly in their logarithm, as in the paper's tables.
const NOTCHES: u32 = 49;
/// The least bandwidth that is tried in bits per second.
const LEAST: f64 = 1e8;
/// The largest bandwidth that is tried, in notches above the least: a factor of a billion.
const MOST_NOTCHES: u32 = NOTCHES * 9 / 4;

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Parameters that are synchronised.
    pub parameters: f64,
    /// Seconds of one inner step at a site.
    pub step_seconds: f64,
    /// M, sites.
    pub sites: u32,
}

impl Training {
    fn check(&self) -> Result<(), SimulateError> {
        SimulateError::positive("parameters", self.parameters)?;
        SimulateError::positive("seconds of a step", self.step_seconds)?;
        SimulateError::positive("sites", f64::from(self.sites))
    }
}

/// The link between sites.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Bits per second.
    pub bits_per_second: f64,
    /// Seconds that each bucket takes beside its bits.
    pub latency_seconds: f64,
}

/// The share of the time that a site computes, from 0 to 1.
///
/// # Errors
///
/// [`SimulateError`] for a setting that can't be played.
pub fn utilisation(training: &Training, scheme: &Scheme, link: &Link) -> Result<f64, SimulateError> {
    training.check()?;
    scheme.check()?;
    SimulateError::positive("bits per second", link.bits_per_second)?;
    SimulateError::not_negative("seconds of latency", link.latency_seconds)?;
    // A ring sends and receives everything but its own part, twice.
    let ring = 2.0 * (1.0 - 1.0 / f64::from(training.sites));
    let bits = training.parameters * scheme.value_bits * ring / f64::from(scheme.fragments);
    let bucket_seconds = link.latency_seconds + bits / f64::from(BUCKETS) / link.bits_per_second;
    let step = training.step_seconds;
    let steps = STEPS.max(10 * u64::from(scheme.inner_steps));
    let (mut clock, mut link_free, mut waited) = (0.0f64, 0.0f64, 0.0f64);
    for number in 0..steps {
        let start = clock;
        clock += step;
        if bits == 0.0 || !scheme.sends(number) {
            continue;
        }
        for bucket in 1..=BUCKETS {
            let backward = f64::from(bucket) / f64::from(BUCKETS) * (1.0 - FORWARD_SHARE);
            let ready = start + (FORWARD_SHARE + backward) * step;
            link_free = ready.max(link_free) + bucket_seconds;
        }
        let needed = start + f64::from(scheme.overlap_steps + 1) * step;
        let wait = (link_free - needed).max(0.0);
        clock += wait;
        waited += wait;
    }
    let computed = steps as f64 * step;
    Ok(computed / (computed + waited))
}

/// The least bandwidth, in bits per second, at which a site computes for at least `share` of the time: the first that is
/// enough of 50 from 0.1 to 1,000 Gbit/s and as many more as it takes, evenly in their logarithm. `None` when none is
/// enough.
///
/// # Errors
///
/// [`SimulateError`] for a setting that can't be played.
pub fn required_bandwidth(
    training: &Training,
    scheme: &Scheme,
    latency_seconds: f64,
    share: f64,
) -> Result<Option<f64>, SimulateError> {
    let bandwidth = |notch: u32| LEAST * 10f64.powf(4.0 * f64::from(notch) / f64::from(NOTCHES));
    let enough = |notch: u32| {
        let link = Link { bits_per_second: bandwidth(notch), latency_seconds };
        Ok(utilisation(training, scheme, &link)? >= share)
    };
    // More bandwidth never makes a wait longer: the first that is enough is found by halving.
    let (mut low, mut high) = (0, MOST_NOTCHES + 1);
    while low < high {
        let middle = low.midpoint(high);
        if middle <= MOST_NOTCHES && !enough(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok((low <= MOST_NOTCHES).then(|| bandwidth(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: [f64; 5] = [0.5, 0.8, 0.9, 0.95, 0.99];

    /// arXiv:2501.18512 table 4: parameters, seconds of a step, fragments, and for data parallel, DiLoCo, streaming,
    /// streaming with overlap and that with 4 bits the Gbit/s for each of [`SHARES`].
    const TABLE: [(f64, f64, u32, [[f64; 5]; 5]); 3] = [
        (
            1e9,
            0.1,
            8,
            [
                [86.8, 152.6, 184.2, 222.3, 569.0],
                [1.4, 6.2, 13.3, 23.3, 86.8],
                [1.4, 5.2, 9.1, 16.0, 28.1],
                [1.4, 4.3, 6.2, 9.1, 11.0],
                [0.4, 0.9, 1.7, 2.0, 3.0],
            ],
        ),
        (
            1e10,
            0.8,
            16,
            [
                [104.8, 222.3, 222.3, 268.3, 471.5],
                [1.7, 7.5, 16.0, 33.9, 104.8],
                [1.7, 5.2, 9.1, 13.3, 19.3],
                [1.7, 3.6, 5.2, 6.2, 7.5],
                [0.4, 0.9, 1.4, 1.4, 1.7],
            ],
        ),
        (
            1e11,
            4.9,
            36,
            [
                [184.2, 323.8, 390.7, 390.7, 471.5],
                [3.0, 11.0, 23.3, 49.4, 184.2],
                [2.4, 6.2, 9.1, 11.0, 19.3],
                [1.7, 3.6, 4.3, 5.2, 5.2],
                [0.5, 0.9, 1.1, 1.1, 1.4],
            ],
        ),
    ];

    #[test]
    fn the_papers_table_comes_out() {
        let (mut near, mut off) = (0, Vec::new());
        for (parameters, step_seconds, fragments, rows) in TABLE {
            let training = Training { parameters, step_seconds, sites: 2 };
            let schemes = [
                Scheme::DATA_PARALLEL,
                Scheme::diloco(100),
                Scheme::streaming(100, fragments, 0, 16.0),
                Scheme::streaming(100, fragments, 1, 16.0),
                Scheme::streaming(100, fragments, 1, 4.0),
            ];
            for (scheme, row) in schemes.iter().zip(rows) {
                for (share, paper) in SHARES.into_iter().zip(row) {
                    let found = required_bandwidth(&training, scheme, 0.0, share).unwrap().unwrap() / 1e9;
                    if (found / paper).max(paper / found) <= 1.5 {
                        near += 1;
                    } else {
                        off.push((parameters, *scheme, share, found, paper));
                    }
                }
            }
        }
        // What is off is data parallel training of the smallest model at 99 %, where details of the paper's graph of
        // operations decide that it does not publish.
        assert!(near >= 74, "{near} of 75 cells are within 1.5 times; others: {off:?}");
    }

    #[test]
    fn a_link_that_is_fast_enough_costs_nothing_and_one_site_needs_none() {
        let training = Training { parameters: 1e9, step_seconds: 1.0, sites: 4 };
        let overlapped = Scheme::streaming(100, 10, 2, 16.0);
        let link = |bits_per_second| Link { bits_per_second, latency_seconds: 0.0 };
        assert!((utilisation(&training, &overlapped, &link(1e12)).unwrap() - 1.0).abs() < 1e-12);
        let alone = Training { sites: 1, ..training };
        assert!((utilisation(&alone, &Scheme::DATA_PARALLEL, &link(1.0)).unwrap() - 1.0).abs() < 1e-12);
        let slow = utilisation(&training, &overlapped, &link(1e6)).unwrap();
        assert!(slow > 0.0 && slow < 0.1, "{slow}");
    }

    #[test]
    fn what_can_not_be_played_is_refused() {
        let training = Training { parameters: 1e9, step_seconds: 1.0, sites: 2 };
        let link = Link { bits_per_second: 1e9, latency_seconds: 0.0 };
        for (training, scheme) in [
            (Training { parameters: f64::NAN, ..training }, Scheme::DATA_PARALLEL),
            (Training { step_seconds: 0.0, ..training }, Scheme::DATA_PARALLEL),
            (Training { sites: 0, ..training }, Scheme::DATA_PARALLEL),
            (training, Scheme::diloco(0)),
            (training, Scheme::streaming(10, 11, 0, 16.0)),
            (training, Scheme::streaming(10, 5, 0, -1.0)),
        ] {
            assert!(utilisation(&training, &scheme, &link).is_err(), "{training:?} {scheme:?}");
        }
        assert!(
            utilisation(&training, &Scheme::DATA_PARALLEL, &Link { bits_per_second: 0.0, ..link }).is_err()
        );
    }
}
