//! Measured speeds of workers.

use std::collections::{BTreeMap, BTreeSet};

use crate::ProcessId;

/// Speed up to which a worker counts as the fastest, as a multiple of the median speed.
const FASTEST: f64 = 16.0;

/// Inner steps per second of each measured worker. The fastest and the median are known without a look at all.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    of: BTreeMap<ProcessId, f64>,
    /// The slower half by speed, with the median as its last. It has as many as `faster`, or one more.
    slower: BTreeSet<(u64, ProcessId)>,
    /// The faster half.
    faster: BTreeSet<(u64, ProcessId)>,
}

impl Speeds {
    /// Notes the speed of a worker. Only a positive and finite speed counts.
    pub(crate) fn note(&mut self, worker: &ProcessId, speed: f64) {
        if !speed.is_finite() || speed <= 0.0 {
            return;
        }
        self.forget(worker);
        let place = (order(speed), worker.clone());
        if self.slower.last().is_none_or(|median| place <= *median) {
            self.slower.insert(place);
        } else {
            self.faster.insert(place);
        }
        self.of.insert(worker.clone(), speed);
        self.balance();
    }

    /// Forgets a worker.
    pub(crate) fn forget(&mut self, worker: &ProcessId) {
        if let Some((worker, speed)) = self.of.remove_entry(worker) {
            let place = (order(speed), worker);
            if !self.slower.remove(&place) {
                self.faster.remove(&place);
            }
            self.balance();
        }
    }

    /// Speed of a worker; `None` if it has not been measured.
    pub(crate) fn of(&self, worker: &ProcessId) -> Option<f64> {
        self.of.get(worker).copied()
    }

    /// Speed of the fastest worker, and at most [`FASTEST`] times the median; 1 without a measured worker. Workers state
    /// their seconds themselves: an impossible speed must not shorten the leases of all others to one step.
    pub(crate) fn fastest(&self) -> f64 {
        match (self.median(), last(&self.faster)) {
            (Some(median), Some(fastest)) => fastest.min(FASTEST * median),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => 1.0,
        }
    }

    /// The median speed, the lower one of an even number; `None` without a measured worker.
    pub(crate) fn median(&self) -> Option<f64> {
        last(&self.slower)
    }

    /// Moves workers between the halves until each has its size.
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

/// The highest speed of a half.
fn last(half: &BTreeSet<(u64, ProcessId)>) -> Option<f64> {
    half.last().map(|&(bits, _)| f64::from_bits(bits))
}

/// A number whose order is that of positive speeds: their bits.
fn order(speed: f64) -> u64 {
    speed.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drops::hash;

    /// The definition, by a look at all speeds.
    fn fastest(speeds: &BTreeMap<ProcessId, f64>) -> f64 {
        let mut speeds: Vec<f64> = speeds.values().copied().collect();
        speeds.sort_by(f64::total_cmp);
        let median = speeds.get(speeds.len().saturating_sub(1) / 2).copied();
        speeds.last().map_or(1.0, |&fastest| median.map_or(fastest, |median| fastest.min(FASTEST * median)))
    }

    #[test]
    fn the_fastest_is_that_of_a_look_at_all_after_any_changes() {
        let mut speeds = Speeds::default();
        let mut all = BTreeMap::new();
        for draw in 0..3_000 {
            let state = hash([5, draw]);
            let worker = ProcessId::local(&((state >> 33) % 24).to_string());
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
    fn a_speed_that_is_none_does_not_count() {
        let mut speeds = Speeds::default();
        for none in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            speeds.note(&ProcessId::local("w"), none);
        }
        assert_eq!((speeds.of(&ProcessId::local("w")), speeds.fastest()), (None, 1.0));
    }
}
