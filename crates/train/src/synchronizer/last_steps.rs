//! Weights and outer states of fragments, kept from one outer step to the next.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dipaco_model::ModuleWeights;
use dipaco_path::OuterState;
use dipaco_protocol::{OuterStepDone, OuterStepOrder};
use dipaco_sync::FragmentId;

/// Memory for all that is kept, in bytes: weights and momentum of as many values as the orders have that are carried out at a
/// time. A longer fragment is kept alone, so the bound is this memory or the longest fragment, whichever is more.
const ROOM: u64 = 512 << 20;

/// What the last outer steps of this process made, by fragment.
///
/// The next step of a fragment begins with it only if its order names exactly these objects: their names hold module, fragment
/// and version, and their hashes the content. All else is read from the store, so this bounds memory and never decides a result.
pub(super) struct LastSteps {
    room: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    steps: BTreeMap<FragmentId, LastStep>,
    /// True if this process steps several fragments longer than all room. Each would drop the other's values before they are
    /// used, so none of these is kept.
    several_long: bool,
}

struct LastStep {
    done: OuterStepDone,
    weights: ModuleWeights,
    state: OuterState,
}

impl Default for LastSteps {
    fn default() -> Self {
        Self::within(ROOM)
    }
}

impl LastSteps {
    fn within(room: u64) -> Self {
        Self { room, kept: Mutex::default() }
    }

    /// Takes weights and state with which an order begins; `None` if it names other objects than the last step made.
    pub(super) fn take(&self, order: &OuterStepOrder) -> Option<(ModuleWeights, OuterState)> {
        let mut kept = self.kept();
        let named = |last: &LastStep| {
            last.done.weights == order.weights && order.momentum.as_ref() == Some(&last.done.momentum)
        };
        if let Some(LastStep { weights, state, .. }) = kept.steps.remove(&order.fragment).filter(named) {
            return Some((weights, state));
        }
        // A state is at least as long as its weights. The step of a fragment longer than all room takes the memory itself.
        let length = order.momentum.as_ref().unwrap_or(&order.weights).bytes;
        if order.weights.bytes.saturating_add(length) > self.room {
            kept.several_long |= kept.steps.values().any(|last| length_of(&last.done) > self.room);
            kept.steps.clear();
        }
        None
    }

    /// Keeps what a step made, if there is room. What others have kept stays: if all fragments together outgrow the room, some
    /// begin in memory in every round. If the oldest gave way, none would.
    pub(super) fn keep(&self, done: OuterStepDone, weights: ModuleWeights, state: OuterState) {
        let mut kept = self.kept();
        let Kept { steps, several_long } = &mut *kept;
        steps.remove(&done.fragment);
        if *several_long && length_of(&done) > self.room {
            return;
        }
        let of_all = |steps: &BTreeMap<FragmentId, LastStep>| {
            steps.values().fold(length_of(&done), |sum, last| sum.saturating_add(length_of(&last.done)))
        };
        while of_all(steps) > self.room
            && let Some((&fragment, last)) = steps.iter().min_by_key(|(_, last)| last.done.version)
        {
            // Fragments that this process steps are one version apart at most in most schemes. One that is further behind may
            // have gone to another process, and would have the room for ever.
            if last.done.version.saturating_add(1) >= done.version {
                return;
            }
            steps.remove(&fragment);
        }
        steps.insert(done.fragment, LastStep { done, weights, state });
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of weights and momentum.
fn length_of(done: &OuterStepDone) -> u64 {
    done.weights.bytes.saturating_add(done.momentum.bytes)
}

#[cfg(test)]
mod tests {
    use dipaco_config::OuterConfig;
    use dipaco_store::{ObjectRef, names};
    use dipaco_topology::ModuleId;

    use super::*;

    /// Bytes of each object of a step.
    const BYTES: u64 = 100;

    fn fragment(index: u32) -> FragmentId {
        FragmentId { module: ModuleId { level: 0, index }, index: 0 }
    }

    /// A step whose objects have so many bytes each.
    fn step(index: u32, version: u32, bytes: u64) -> OuterStepDone {
        let FragmentId { module, index } = fragment(index);
        let object = |name: String| ObjectRef { bytes, ..ObjectRef::of(name, &[]) };
        OuterStepDone {
            fragment: FragmentId { module, index },
            version,
            fence: 7,
            weights: object(names::weights(module, index, version, 7)),
            momentum: object(names::momentum(module, index, version, 7)),
            change: None,
            norm: 0.0,
            cosine: None,
            seconds: 0.0,
        }
    }

    fn order_after(done: &OuterStepDone) -> OuterStepOrder {
        OuterStepOrder {
            fragment: done.fragment,
            version: done.version + 1,
            fence: done.fence,
            weights: done.weights.clone(),
            momentum: Some(done.momentum.clone()),
            shares: Vec::new(),
            applied: 0,
            due: true,
        }
    }

    fn keep(last: &LastSteps, done: &OuterStepDone) {
        let weights = ModuleWeights { specs: [].into(), values: Vec::new() };
        last.keep(done.clone(), weights, OuterState::start(&OuterConfig::default(), 0));
    }

    fn is_kept(last: &LastSteps, done: &OuterStepDone) -> bool {
        last.kept().steps.get(&done.fragment).is_some_and(|last| last.done == *done)
    }

    #[test]
    fn an_order_takes_what_it_names_once_and_nothing_else() {
        let last = LastSteps::within(2 * BYTES);
        let done = step(0, 3, BYTES);
        let right = order_after(&done);
        keep(&last, &done);
        assert!(last.take(&right).is_some());
        assert!(last.take(&right).is_none(), "the step has changed it");
        let hash = "0".repeat(64);
        let earlier = step(0, 2, BYTES);
        for other in [
            OuterStepOrder {
                weights: ObjectRef { hash: hash.clone(), ..done.weights.clone() },
                ..right.clone()
            },
            OuterStepOrder { weights: earlier.weights, ..right.clone() },
            OuterStepOrder { momentum: Some(ObjectRef { hash, ..done.momentum.clone() }), ..right.clone() },
            OuterStepOrder { momentum: Some(earlier.momentum), ..right.clone() },
            OuterStepOrder { momentum: None, ..right.clone() },
            OuterStepOrder { fragment: fragment(1), ..right },
        ] {
            keep(&last, &done);
            assert!(last.take(&other).is_none(), "{other:?}");
        }
    }

    #[test]
    fn what_has_no_room_is_not_kept_and_takes_nobodys_place() {
        let last = LastSteps::within(4 * BYTES);
        for version in 1..=3 {
            let steps = [0, 1, 2].map(|index| step(index, version, BYTES));
            steps.iter().for_each(|done| keep(&last, done));
            assert_eq!(steps.each_ref().map(|done| is_kept(&last, done)), [true, true, false], "{version}");
        }
    }

    #[test]
    fn a_fragment_that_others_step_gives_its_place_up() {
        let last = LastSteps::within(4 * BYTES);
        let gone = step(0, 1, BYTES);
        keep(&last, &gone);
        for version in 1..=3 {
            let steps = [1, 2].map(|index| step(index, version, BYTES));
            steps.iter().for_each(|done| keep(&last, done));
            let found = [&gone, &steps[0], &steps[1]].map(|done| is_kept(&last, done));
            let expected = if version < 3 { [true, true, false] } else { [false, true, true] };
            assert_eq!(found, expected, "{version}");
        }
    }

    #[test]
    fn a_fragment_longer_than_the_room_is_kept_alone_and_leaves_before_another_such_step() {
        let last = LastSteps::within(4 * BYTES);
        let [short, long, other] = [step(0, 1, BYTES), step(1, 1, 3 * BYTES), step(2, 1, 3 * BYTES)];
        let found = || [&short, &long, &other].map(|done| is_kept(&last, done));
        keep(&last, &short);
        // The first order has no momentum yet.
        assert!(last.take(&OuterStepOrder { momentum: None, ..order_after(&long) }).is_none());
        assert_eq!(found(), [false; 3]);
        keep(&last, &long);
        keep(&last, &short);
        assert_eq!(found(), [false, true, false]);
        assert!(last.take(&order_after(&short)).is_none());
        assert_eq!(found(), [false, true, false], "a short step leaves it");
        let after_long = step(1, 2, 3 * BYTES);
        assert!(last.take(&order_after(&long)).is_some());
        keep(&last, &after_long);
        assert!(is_kept(&last, &after_long));
        assert!(last.take(&order_after(&other)).is_none());
        assert!(!is_kept(&last, &after_long));
        keep(&last, &other);
        assert!(!is_kept(&last, &other), "the step of the other long fragment would drop it");
        keep(&last, &short);
        assert_eq!(found(), [true, false, false]);
    }
}
