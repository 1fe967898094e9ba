//! The training of a lease in a simulated run.

use std::collections::BTreeSet;
use std::time::Duration;

use dipaco_ledger::{GrantedLease, LeaseResult};
use dipaco_sync::ScheduledSend;

use super::case::Case;
use super::messages::{ChaosLease, ChaosRequest};
use super::object_store::Content;
use super::toy::{InputWeights, ToyPathState};

/// A lease that a worker trains, or whose results it uploads.
#[derive(Debug)]
pub(super) struct LeaseInTraining {
    pub(super) lease: GrantedLease,
    pub(super) weights: Vec<InputWeights>,
    pub(super) state: ToyPathState,
    pub(super) begun: Duration,
    /// Inner steps of earlier leases that the worker repeated for this lease.
    pub(super) repeated: u64,
    /// Requests of uploaded results without an acknowledgement.
    pub(super) open: BTreeSet<u64>,
    /// Results that wait for the completion of the previous lease.
    pub(super) waiting: Vec<ChaosRequest>,
    /// True after the last inner step.
    pub(super) trained: bool,
    /// The following lease.
    pub(super) following: Option<ChaosLease>,
    pub(super) completing: bool,
    /// Number of the lease at its worker. Events of earlier leases are stale.
    pub(super) serial: u64,
}

impl LeaseInTraining {
    /// Trains up to a step. Returns the outer gradients of that step.
    pub(super) fn train(&mut self, case: &Case, to: u64) -> Vec<ChaosRequest> {
        let lease = &self.lease;
        self.state.train(case, lease.path, to);
        let uploads = send(case, &mut self.state, &self.weights, &lease.sends, to);
        let key = lease.key();
        let upload = |(item, content)| ChaosRequest::Upload { lease: key, item, content };
        uploads.into_iter().map(upload).collect()
    }

    /// The next step at which the lease sends, or its end.
    pub(super) fn next_stop(&self) -> u64 {
        let later = self.lease.sends.iter().map(|send| send.step).filter(|&step| step > self.state.step);
        later.min().unwrap_or(self.lease.to).min(self.lease.to)
    }
}

/// The outer gradients that a path sends after a step.
pub(super) fn send(
    case: &Case,
    state: &mut ToyPathState,
    weights: &[InputWeights],
    sends: &[ScheduledSend],
    step: u64,
) -> Vec<(LeaseResult, Content)> {
    let mut sent = Vec::new();
    for &ScheduledSend { fragment, number, .. } in sends.iter().filter(|send| send.step == step) {
        if let Some(slot) = weights.iter().position(|input| input.fragment == fragment) {
            let gradient = state.send(case, slot, weights[slot].share);
            let tokens = 10 * (gradient.steps.end - gradient.steps.start);
            let item = LeaseResult::OuterGradient { fragment, number, tokens };
            sent.push((item, Content::Gradient(gradient)));
        }
    }
    sent
}
