//! The toy training of chaos runs: a few values per fragment. Each inner step moves them towards targets from its
//! data.

use std::ops::Range;

use dipaco_sync::{Ahead, Contribution, FragmentId, learner};
use dipaco_topology::PathId;

use super::case::{Case, RULE};

/// Values of a fragment.
pub(crate) const VALUES: usize = 3;

/// The weights of a fragment.
pub(crate) type Values = [f32; VALUES];

/// Global weights of a fragment, with their version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ToyWeights {
    pub(crate) version: u32,
    pub(crate) values: Values,
}

/// An outer step with the merged outer gradients.
#[derive(Clone, Debug)]
pub(crate) struct MergedStep {
    pub(crate) fragment: FragmentId,
    pub(crate) version: u32,
    /// Fencing number under which the step was taken.
    pub(crate) fence: u64,
    /// Fencing number of whoever was asked last for the step when it was reported.
    pub(crate) asked: Option<u64>,
    pub(crate) contributions: Vec<Contribution>,
    /// One outer gradient for each contribution.
    pub(crate) gradients: Vec<ToyGradient>,
}

/// State of a path that a worker keeps between leases. Lists have an entry for each fragment, in the order of the
/// path's fragments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToyPathState {
    pub(crate) step: u64,
    pub(crate) local: Vec<Values>,
    pub(crate) base: Vec<Values>,
    moment: Vec<Values>,
    /// Version of each base, according to the worker.
    pub(crate) seen: Vec<u32>,
    /// Lead over the global weights of each fragment, with eager updates.
    ahead: Vec<Ahead>,
    /// Inner steps of the path at its last send, per fragment: the next outer gradient begins after them.
    sent_at: Vec<u64>,
}

/// An outer gradient with its origin, according to its worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToyGradient {
    pub(crate) values: Values,
    /// Version of the weights that the path had received.
    pub(crate) seen: u32,
    /// Inner steps in it.
    pub(crate) steps: Range<u64>,
}

/// The beginning of a lease.
#[derive(Clone, Copy)]
pub(crate) struct Beginning<'a> {
    pub(crate) path: PathId,
    /// Inner steps of the path before the lease.
    pub(crate) from: u64,
    pub(crate) trains: bool,
    /// True if a phase of routing begins with the lease.
    pub(crate) begins_phase: bool,
    /// The weights of the path's fragments, in order.
    pub(crate) weights: &'a [InputWeights],
}

/// Global weights of a fragment, as a lease names them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputWeights {
    pub(crate) fragment: FragmentId,
    pub(crate) weights: ToyWeights,
    /// True if the path takes over the weights now.
    pub(crate) received: bool,
    /// Factor of the path in the merged outer gradient.
    pub(crate) share: f32,
}

/// A hash of the words, as a number between -1 and 1.
fn datum(words: [u64; 4]) -> f32 {
    let mut hash = 0x9E37_79B9_7F4A_7C15u64;
    for word in words {
        hash = (hash ^ word).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash ^= hash >> 29;
    }
    // The upper 24 bits, because an f32 has 24 bits of precision.
    (hash >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

/// Global weights of a fragment before its first outer step: a seed's weights, equal in all modules of a level.
pub(crate) fn seed(fragment: FragmentId) -> Values {
    std::array::from_fn(|i| {
        datum([u64::from(fragment.module.level), u64::from(fragment.index), 77, i as u64])
    })
}

impl ToyPathState {
    pub(crate) fn start(fragments: &[FragmentId]) -> Self {
        let seeds: Vec<Values> = fragments.iter().map(|&fragment| seed(fragment)).collect();
        Self {
            step: 0,
            local: seeds.clone(),
            base: seeds,
            moment: vec![[0.0; VALUES]; fragments.len()],
            ahead: vec![Ahead::start(VALUES); fragments.len()],
            seen: vec![0; fragments.len()],
            sent_at: vec![0; fragments.len()],
        }
    }

    /// The same state after another number of steps, for a lease that only measures.
    pub(crate) fn at(self, step: u64) -> Self {
        Self { step, ..self }
    }

    /// Moves the path on to a step over rounds in which it rested.
    pub(crate) fn rest(&mut self, case: &Case, path: PathId, to: u64) {
        if self.step < to && case.schedule.trained(path, self.step, to) == 0 {
            self.step = to;
            self.sent_at.fill(to);
        }
    }

    /// Takes over global weights at the start of a lease.
    pub(crate) fn take_over(&mut self, case: &Case, beginning: &Beginning<'_>) {
        let &Beginning { path, from, trains, begins_phase, weights } = beginning;
        // A phase begins with the global weights only, without a share of the path's own weights.
        let blend = if begins_phase || !trains { learner::Blend::default() } else { case.blend };
        for (slot, input) in weights.iter().enumerate().filter(|(_, input)| input.received) {
            let mut values = input.weights.values;
            if begins_phase {
                self.ahead[slot] = Ahead::start(VALUES);
            } else if case.eager && trains {
                values.iter_mut().zip(&self.ahead[slot].weights).for_each(|(value, ahead)| *value += ahead);
            }
            let keeps_own = case.schedule.keeps_own(path, input.fragment.index, from);
            let blend = if keeps_own && trains { learner::Blend { own: 1.0 } } else { blend };
            learner::receive(&mut self.base[slot], &mut self.local[slot], &values, blend);
            self.seen[slot] = input.weights.version;
        }
    }

    /// Trains up to a step. Fragments of a frozen level keep their values.
    pub(crate) fn train(&mut self, case: &Case, path: PathId, to: u64) {
        let fragments = case.schedule.fragments().max(1) as usize;
        while self.step < to {
            // The update of a fragment depends on all fragments, as in a network.
            let mean = self.local.iter().flatten().sum::<f32>() / (self.local.len() * VALUES) as f32;
            let state = self.local.iter_mut().zip(&mut self.moment).enumerate();
            for (slot, (local, moment)) in state.filter(|(slot, _)| case.topology.trains(slot / fragments)) {
                for (i, (value, moment)) in local.iter_mut().zip(moment).enumerate() {
                    let target = datum([u64::from(path.0), self.step, slot as u64, i as u64]);
                    *moment = 0.9 * *moment + (*value + 0.1 * mean - target);
                    *value -= 0.05 * *moment;
                }
            }
            self.step += 1;
        }
    }

    /// The outer gradient of a fragment at the path's current step.
    pub(crate) fn send(&mut self, case: &Case, slot: usize, share: f32) -> ToyGradient {
        let gradient = learner::send(&mut self.base[slot], self.local[slot].to_vec());
        if case.eager {
            self.ahead[slot].send(&gradient, share, RULE);
        }
        let steps = std::mem::replace(&mut self.sent_at[slot], self.step)..self.step;
        ToyGradient { values: std::array::from_fn(|i| gradient[i]), seen: self.seen[slot], steps }
    }
}

/// Sequence numbers of all outer gradients of a path to a fragment; `None` if they depend on time.
pub(crate) fn sends(case: &Case, path: PathId, fragment: FragmentId) -> Option<Vec<u32>> {
    let (schedule, fragment) = (&case.schedule, fragment.index);
    let numbers = 1..=schedule.sent_through(fragment, schedule.total());
    let sent = numbers.filter(|&number| !schedule.absent(path, fragment, number));
    (!case.scheme.dynamic_steps()).then(|| sent.map(|n| u32::try_from(n).unwrap_or(u32::MAX)).collect())
}

impl ToyGradient {
    /// Euclidean norm.
    pub(crate) fn norm(&self) -> f64 {
        self.values.iter().map(|value| f64::from(value * value)).sum::<f64>().sqrt()
    }
}
