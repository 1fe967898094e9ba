//! The slowest link that keeps compute busy (arXiv:2501.18512 §3.1).

use crate::{LargeRun, Link, SimulateError, play};

/// Number of tried bandwidths per factor of 10,000, evenly spaced in their logarithm, as in the paper's tables.
const NOTCHES: i32 = 49;
/// Bandwidth of notch 0, in bits per second: the smallest one of the paper's tables.
const ORIGIN: f64 = 1e8;
/// Largest tried notch: a factor of a billion above notch 0.
const MOST: i32 = NOTCHES * 9 / 4;
/// Notches of a factor of about ten.
const TENFOLD: i32 = NOTCHES / 4;
/// Smallest tried notch: about a bit per second.
const LEAST: i32 = -8 * TENFOLD;

/// Returns the smallest bandwidth, in bits per second, at which learners train for at least `share` of the time. The
/// search tries 50 bandwidths from 0.1 to 1,000 Gbit/s and further ones above and below, evenly spaced in their
/// logarithm. Returns `None` if no bandwidth is sufficient, and 0 for one learner, which sends nothing. The latency of a
/// bucket is that of the run's link.
///
/// # Errors
///
/// [`SimulateError`] if a setting is invalid or the run does not end.
pub fn required_bandwidth(run: &LargeRun, share: f64) -> Result<Option<f64>, SimulateError> {
    if run.learners == 1 {
        return Ok((play(run)?.utilisation >= share).then_some(0.0));
    }
    let bandwidth = |notch: i32| ORIGIN * 10f64.powf(4.0 * f64::from(notch) / f64::from(NOTCHES));
    let latency_seconds = run.link.map_or(0.0, |link| link.latency_seconds);
    let enough = |notch: i32| {
        let link = Some(Link { bits_per_second: bandwidth(notch), latency_seconds });
        Ok::<_, SimulateError>(play(&LargeRun { link, ..run.clone() })?.utilisation >= share)
    };
    // More bandwidth never makes a wait longer, so bisection finds the smallest sufficient bandwidth.
    let first = |mut low: i32, mut high: i32| {
        while low < high {
            let middle = low + (high - low) / 2;
            if middle <= MOST && !enough(middle)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok::<_, SimulateError>(low)
    };
    let mut lowest = 0;
    let mut found = first(lowest, MOST + 1)?;
    // A far too slow link makes a long simulation. So the search goes down by a factor of ten at a time.
    while found == lowest && lowest > LEAST {
        lowest -= TENFOLD;
        found = first(lowest, found)?;
    }
    Ok((found <= MOST).then(|| bandwidth(found)))
}

#[cfg(test)]
mod tests;
