//! The slowest link that keeps compute busy (arXiv:2501.18512 §3.1).

use crate::{LargeRun, Link, SimulateError, play};

/// Number of tried bandwidths per factor of 10,000, evenly spaced in their logarithm, as in the paper's tables.
const NOTCHES: u32 = 49;
/// Smallest tried bandwidth in bits per second.
const LEAST: f64 = 1e8;
/// Largest tried bandwidth, in notches above the smallest: a factor of a billion.
const MOST_NOTCHES: u32 = NOTCHES * 9 / 4;

/// Returns the smallest bandwidth, in bits per second, at which learners train for at least `share` of the time. The
/// search tries 50 bandwidths from 0.1 to 1,000 Gbit/s and further ones above, evenly spaced in their logarithm.
/// Returns `None` if no bandwidth is sufficient. The latency of a bucket is that of the run's link.
///
/// # Errors
///
/// [`SimulateError`] if a setting is invalid or the run does not end.
pub fn required_bandwidth(run: &LargeRun, share: f64) -> Result<Option<f64>, SimulateError> {
    let bandwidth = |notch: u32| LEAST * 10f64.powf(4.0 * f64::from(notch) / f64::from(NOTCHES));
    let latency_seconds = run.link.map_or(0.0, |link| link.latency_seconds);
    let enough = |notch: u32| {
        let link = Some(Link { bits_per_second: bandwidth(notch), latency_seconds });
        Ok::<_, SimulateError>(play(&LargeRun { link, ..run.clone() })?.utilisation >= share)
    };
    // More bandwidth never makes a wait longer, so bisection finds the smallest sufficient bandwidth.
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
mod tests;
