//! Measured speeds of workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ProcessId;

/// Speed up to which a worker counts as the fastest, as a multiple of the median speed.
const FASTEST: f64 = 16.0;

/// Inner steps per second of each measured worker. The fastest and the median are known without a look at all.
///
/// The median is that of the tokens, each with the median of its workers: whoever holds one token may work under any number
/// of names, and has one voice.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    of: BTreeMap<ProcessId, f64>,
    /// All workers by speed.
    all: BTreeSet<(u64, ProcessId)>,
    /// The workers of each token.
    of_tokens: BTreeMap<String, Halves<ProcessId>>,
    /// The tokens by the median of their workers.
    tokens: Halves<String>,
}

impl Speeds {
    /// Notes the speed of a worker. Only a positive and finite speed counts.
    pub(crate) fn note(&mut self, worker: &ProcessId, speed: f64) {
        if !speed.is_finite() || speed <= 0.0 {
            return;
        }
        self.forget(worker);
        self.of.insert(worker.clone(), speed);
        self.all.insert((order(speed), worker.clone()));
        self.change_token(&worker.token, |workers| workers.insert(order(speed), worker.clone()));
    }

    /// Forgets a worker.
    pub(crate) fn forget(&mut self, worker: &ProcessId) {
        if let Some(speed) = self.of.remove(worker) {
            let place = (order(speed), worker.clone());
            self.all.remove(&place);
            self.change_token(&worker.token, |workers| workers.remove(&place));
        }
    }

    /// Changes the workers of a token, and moves the token to its new place.
    fn change_token(&mut self, token: &str, change: impl FnOnce(&mut Halves<ProcessId>)) {
        let workers = self.of_tokens.entry(token.to_owned()).or_default();
        let before = workers.median();
        change(workers);
        let after = workers.median();
        if after.is_none() {
            self.of_tokens.remove(token);
        }
        if before == after {
            return;
        }
        if let Some(speed) = before {
            self.tokens.remove(&(speed, token.to_owned()));
        }
        if let Some(speed) = after {
            self.tokens.insert(speed, token.to_owned());
        }
    }

    /// Speed of a worker; `None` if it has not been measured.
    pub(crate) fn of(&self, worker: &ProcessId) -> Option<f64> {
        self.of.get(worker).copied()
    }

    /// Speed of the fastest worker, and at most [`FASTEST`] times the median; 1 without a measured worker. Workers state
    /// their seconds themselves: an impossible speed must not shorten the leases of all others to one step.
    pub(crate) fn fastest(&self) -> f64 {
        let fastest = self.all.last().map(|&(bits, _)| f64::from_bits(bits));
        match (self.median(), fastest) {
            (Some(median), Some(fastest)) => fastest.min(FASTEST * median),
            _ => 1.0,
        }
    }

    /// Time that these inner steps take at least: with [`FASTEST`] times the median speed. Zero without a measured worker.
    pub(crate) fn least_time(&self, steps: f64) -> Duration {
        let seconds = self.median().map_or(0.0, |median| steps / (FASTEST * median));
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// The median speed, for a limit on the workers with `token`. `None` while another token is the only measured one: what it
    /// states must not end the leases of others, because no other token would ever be measured.
    pub(crate) fn median_for(&self, token: &str) -> Option<f64> {
        self.median().filter(|_| self.of_tokens.len() > 1 || self.of_tokens.contains_key(token))
    }

    /// The median speed of the tokens, the lower one of an even number; `None` without a measured worker.
    pub(crate) fn median(&self) -> Option<f64> {
        self.tokens.median().map(f64::from_bits)
    }
}

/// Speeds in order, divided in the middle.
#[derive(Debug)]
struct Halves<K> {
    /// The slower half, with the median as its last. It has as many as `faster`, or one more.
    slower: BTreeSet<(u64, K)>,
    faster: BTreeSet<(u64, K)>,
}

impl<K> Default for Halves<K> {
    fn default() -> Self {
        Self { slower: BTreeSet::new(), faster: BTreeSet::new() }
    }
}

impl<K: Ord> Halves<K> {
    fn insert(&mut self, speed: u64, key: K) {
        let place = (speed, key);
        if self.slower.last().is_none_or(|median| place <= *median) {
            self.slower.insert(place);
        } else {
            self.faster.insert(place);
        }
        self.balance();
    }

    fn remove(&mut self, place: &(u64, K)) {
        if !self.slower.remove(place) {
            self.faster.remove(place);
        }
        self.balance();
    }

    /// The median, the lower one of an even number; `None` without speeds.
    fn median(&self) -> Option<u64> {
        self.slower.last().map(|&(speed, _)| speed)
    }

    /// Moves speeds between the halves until each has its size.
    fn balance(&mut self) {
        while self.slower.len() > self.faster.len() + 1
            && let Some(place) = self.slower.pop_last()
        {
            self.faster.insert(place);
        }
        while self.faster.len() > self.slower.len()
            && let Some(place) = self.faster.pop_first()
        {
            self.slower.insert(place);
        }
    }
}

/// A number whose order is that of positive speeds: their bits.
fn order(speed: f64) -> u64 {
    speed.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::hash;
    use crate::median::lower_median;

    /// The definition, by a look at all speeds.
    fn fastest(speeds: &BTreeMap<ProcessId, f64>) -> f64 {
        let mut of_tokens = BTreeMap::<_, Vec<f64>>::new();
        speeds.iter().for_each(|(worker, &speed)| of_tokens.entry(&worker.token).or_default().push(speed));
        let medians: Vec<f64> = of_tokens.values().filter_map(|speeds| lower_median(speeds)).collect();
        let median = lower_median(&medians);
        let fastest = speeds.values().copied().max_by(f64::total_cmp);
        fastest.map_or(1.0, |fastest| median.map_or(fastest, |median| fastest.min(FASTEST * median)))
    }

    fn worker(token: &str, name: &str) -> ProcessId {
        ProcessId { token: token.into(), ..ProcessId::local(name) }
    }

    #[test]
    fn the_fastest_is_that_of_a_look_at_all_after_any_changes() {
        let mut speeds = Speeds::default();
        let mut all = BTreeMap::new();
        for draw in 0..3_000 {
            let state = hash([5, draw]);
            let worker = worker(&((state >> 20) % 5).to_string(), &((state >> 33) % 8).to_string());
            if (state >> 40).is_multiple_of(3) {
                speeds.forget(&worker);
                all.remove(&worker);
            } else {
                // Equal speeds, and speeds of very different size.
                let speed = 2.0_f64.powi(i32::try_from((state >> 45) % 12).unwrap_or(0) - 4);
                speeds.note(&worker, speed);
                all.insert(worker.clone(), speed);
            }
            assert_eq!(speeds.fastest().to_bits(), fastest(&all).to_bits(), "{all:?}");
            assert_eq!(speeds.of(&worker), all.get(&worker).copied());
        }
        assert!(!all.is_empty());
    }

    #[test]
    fn the_names_of_one_token_have_one_voice() {
        let mut speeds = Speeds::default();
        for (token, speed) in [("a", 1.0), ("b", 2.0)] {
            speeds.note(&worker(token, "honest"), speed);
        }
        for name in 0..1_000 {
            speeds.note(&worker("liar", &name.to_string()), 1e12);
        }
        assert_eq!((speeds.median(), speeds.fastest()), (Some(2.0), 2.0 * FASTEST));
        for name in 0..1_000 {
            speeds.forget(&worker("liar", &name.to_string()));
        }
        assert_eq!((speeds.median(), speeds.fastest()), (Some(1.0), 2.0));
        assert_eq!(speeds.of_tokens.len(), 2, "tokens without measured workers take no room");
    }

    #[test]
    fn the_only_measured_token_limits_no_other() {
        let mut speeds = Speeds::default();
        assert_eq!(speeds.median_for("liar"), None);
        speeds.note(&worker("liar", "w"), 1e300);
        assert_eq!((speeds.median_for("liar"), speeds.median_for("honest")), (Some(1e300), None));
        speeds.note(&worker("honest", "w"), 2.0);
        for token in ["liar", "honest", "new"] {
            assert_eq!(speeds.median_for(token), Some(2.0));
        }
    }

    #[test]
    fn a_speed_that_is_none_does_not_count() {
        let mut speeds = Speeds::default();
        for none in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            speeds.note(&ProcessId::local("w"), none);
        }
        assert_eq!((speeds.of(&ProcessId::local("w")), speeds.fastest()), (None, 1.0));
    }
}
