//! Synchronisation schemes: the schedule of sends, and the contributions for which an outer step waits.

use dipaco_sync::{Schedule, SyncConfig};
use serde::Serialize;

use crate::SimulateError;

/// Largest number of inner steps between two synchronisations of a fragment.
const MOST_STEPS: u32 = 1 << 16;
/// Inner steps of a path; no simulation reaches this end.
const ENDLESS: u64 = 1 << 40;

/// A synchronisation scheme: section `[sync]` of a run, its H, and the length of its values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulatedScheme {
    /// H, inner steps between two synchronisations of the same parameters; 1 sends gradients in every step.
    pub inner_steps: u32,
    /// Bits of each value on the wire.
    pub value_bits: f64,
    /// F, τ, K and the grace period, as in production.
    pub sync: SyncConfig,
}

impl SimulatedScheme {
    /// Gradients in every step, 16 bits.
    #[must_use]
    pub fn data_parallel() -> Self {
        Self::diloco(1)
    }

    /// DiLoCo (arXiv:2311.08105): whole modules every `inner_steps`, 16 bits.
    #[must_use]
    pub fn diloco(inner_steps: u32) -> Self {
        Self { inner_steps, value_bits: 16.0, sync: SyncConfig::default() }
    }

    /// Streaming DiLoCo (arXiv:2501.18512): one fragment after another, with `overlap_steps` inner steps between send
    /// and receive.
    #[must_use]
    pub fn streaming(inner_steps: u32, fragments: u32, overlap_steps: u32, value_bits: f64) -> Self {
        let overlap_steps = u64::from(overlap_steps);
        let sync = SyncConfig { fragments, overlap_steps, ..SyncConfig::default() };
        Self { inner_steps, value_bits, sync }
    }

    /// Eager updates (arXiv:2502.12996): whole modules, and each outer step takes effect one round after its sends.
    #[must_use]
    pub fn eager(inner_steps: u32, value_bits: f64) -> Self {
        let streaming = Self::streaming(inner_steps, 1, inner_steps, value_bits);
        Self { sync: SyncConfig { eager: true, ..streaming.sync }, ..streaming }
    }

    /// Decoupled DiLoCo (arXiv:2604.21428): streaming without waiting. An outer step merges the existing contributions
    /// after the first contribution and a grace period of at most `grace_seconds`.
    #[must_use]
    pub fn decoupled(inner_steps: u32, fragments: u32, overlap_steps: u32, grace_seconds: f64) -> Self {
        let streaming = Self::streaming(inner_steps, fragments, overlap_steps, 16.0);
        Self { sync: SyncConfig { quorum: 1, grace_seconds, ..streaming.sync }, ..streaming }
    }

    /// Schedule of sends and receives, in a run without a reachable end.
    pub(crate) fn schedule(&self) -> Result<Schedule, SimulateError> {
        let (steps, fragments) = (self.inner_steps, self.sync.fragments);
        for (what, value) in [("inner steps", steps), ("fragments", fragments)] {
            if value == 0 || value > MOST_STEPS {
                let problem = "must be at least 1 and at most 65536";
                return Err(SimulateError::Setting { what, value: f64::from(value), problem });
            }
        }
        if fragments > steps {
            let problem = "must be at most the number of inner steps, because each fragment is sent after a different step";
            return Err(SimulateError::Setting { what: "fragments", value: f64::from(fragments), problem });
        }
        SimulateError::positive("bits of a value", self.value_bits)?;
        if let Some((key, problem)) = self.sync.check().into_iter().next() {
            return Err(SimulateError::Sync { key, problem });
        }
        let schedule = Schedule::new(u64::from(steps), fragments, self.sync.overlap_steps, vec![ENDLESS])?;
        Ok(schedule.eager(self.sync.eager))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_is_sent_once_in_h_steps() {
        for (h, p) in [(1, 1), (100, 1), (100, 8), (100, 36), (24, 24), (7, 3)] {
            let schedule = SimulatedScheme::streaming(h, p, 0, 4.0).schedule().unwrap();
            for cycle in 0..3 {
                let first = cycle * u64::from(h);
                let sent = schedule.sends(first, first + u64::from(h));
                let mut fragments: Vec<u32> = sent.iter().map(|point| point.fragment).collect();
                fragments.sort_unstable();
                assert_eq!(fragments, (0..p).collect::<Vec<_>>(), "H = {h}, P = {p}");
            }
        }
        let sends = SimulatedScheme::diloco(100).schedule().unwrap().sends(0, 300);
        assert_eq!(sends.iter().map(|point| point.step).collect::<Vec<_>>(), [100, 200, 300]);
    }

    #[test]
    fn invalid_schedules_are_refused_by_name() {
        let error = |scheme: SimulatedScheme| scheme.schedule().unwrap_err().to_string();
        assert!(error(SimulatedScheme::diloco(0)).starts_with("inner steps = 0:"));
        assert!(error(SimulatedScheme::streaming(10, 11, 0, 16.0)).starts_with("fragments = 11:"));
        assert!(error(SimulatedScheme::streaming(10, 5, 11, 16.0)).contains("an overlap of 11 steps"));
        assert!(error(SimulatedScheme::streaming(10, 5, 0, -1.0)).starts_with("bits of a value = -1:"));
        assert!(error(SimulatedScheme::decoupled(10, 5, 2, -1.0)).starts_with("sync.grace_seconds is -1:"));
    }
}
