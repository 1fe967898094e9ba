//! The weights that a path trains, and the base of its outer gradients.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_model::{ModuleView, TensorSpec};
use dipaco_protocol::WorkerPlan;
use dipaco_sync::learner::{self, Blend};
use dipaco_sync::{Ahead, FragmentId, OuterRule};
use dipaco_topology::{PathId, Topology};

use crate::PathError;
use crate::kept_parts::{KeptParts, beyond_largest};
use crate::layout::Layout;
use crate::state::{FragmentState, PathState};
use crate::trainer::Trainer;

/// The weights of a path at the start of a lease.
#[derive(Clone, Debug)]
pub struct PathWeights {
    pub(crate) topology: Topology,
    layout: Layout,
    /// The weights to train, one module per level. The trainer copies them.
    pub(crate) local: Vec<LocalModule>,
    /// The path's fragments that train, by level and fragment.
    fragments: BTreeMap<(u16, u32), TrainedFragment>,
    /// True if the path starts from unchanged global weights.
    pub(crate) global: bool,
}

/// The weights with which a path begins to train a module.
#[derive(Clone, Debug)]
pub(crate) struct LocalModule {
    specs: Arc<[TensorSpec]>,
    values: Arc<Vec<f32>>,
}

impl LocalModule {
    pub(crate) fn view(&self) -> ModuleView<'_> {
        ModuleView { specs: &self.specs, values: &self.values }
    }
}

/// A fragment of a path between a receive and the next send.
#[derive(Clone, Debug)]
struct TrainedFragment {
    /// The weights from which the next outer gradient is measured; `None` after the last one of a lease whose weights the next
    /// lease does not use. Global weights lie where the caller has them.
    base: Option<Arc<Vec<f32>>>,
    /// True from a send to the next receive.
    under_way: bool,
    /// Factor of the path in the merged outer gradient.
    share: f32,
    /// Loss of encoding the path's outer gradients so far.
    residual: Option<Vec<f32>>,
    /// Lead of the path over the global weights, with eager updates.
    ahead: Option<Ahead>,
}

/// Global weights of a fragment.
#[derive(Clone, Debug)]
pub struct GlobalFragment {
    /// The fragment.
    pub fragment: FragmentId,
    /// The weights.
    pub values: Arc<Vec<f32>>,
    /// True if the path takes over these weights now; false if it took them over earlier.
    pub received: bool,
    /// Factor of the path in the merged outer gradient: its weight times the rescaling of the mean.
    pub share: f32,
}

impl PathWeights {
    /// Joins the global weights of all fragments of a path with the path's own state, blended where the scheme says so.
    /// `begins` is true at the start of a phase of routing, where only the global weights count.
    ///
    /// # Errors
    /// When the weights or the state do not fit the model.
    pub fn new(
        plan: &WorkerPlan,
        path: PathId,
        globals: &[GlobalFragment],
        state: &mut PathState,
        begins: bool,
    ) -> Result<Self, PathError> {
        let topology = plan.topology()?;
        let layout = Layout::of_plan(plan, &topology)?;
        let mut local = Vec::new();
        for module in topology.modules_of(path) {
            let specs = layout.module(module.level)?;
            // Filled below. Zeros would touch every page once more.
            local.push(LocalModule { specs, values: Arc::default() });
        }
        let schedule = plan.schedule()?;
        let step = state.step;
        let blend = |fragment: u32| match (begins, schedule.keeps_own(path, fragment, step)) {
            (true, _) => Blend::default(),
            (false, true) => Blend { own: 1.0 },
            (false, false) => Blend { own: plan.sync.blend },
        };
        let mut fragments = BTreeMap::new();
        let mut unchanged = true;
        for global in globals {
            let (level, index) = (global.fragment.module.level, global.fragment.index);
            let fragment_layout = layout.fragment(level, index)?;
            if global.values.len() != fragment_layout.values() {
                let (expected, found) = (fragment_layout.values(), global.values.len());
                return Err(PathError::GlobalLength { fragment: global.fragment, expected, found });
            }
            let LocalModule { specs, values: target } = &mut local[usize::from(level)];
            let module = dipaco_model::parameters(specs);
            if !topology.trains(level.into()) {
                // Frozen weights are always global, and no outer gradient needs a base.
                fragment_layout.place(global.values.clone(), module, target);
                continue;
            }
            let mut kept = state.kept.remove(&(level, index)).unwrap_or_default();
            kept.check(fragment_layout.values())?;
            // The global weights at the start of a phase contain everything that the path sent before it.
            kept.ahead = kept.ahead.filter(|_| !begins);
            let (trained, weights) = start_fragment(global, kept, blend(index));
            unchanged &= weights.as_ref().is_none_or(|weights| global.received && *weights == *global.values);
            let weights = weights.map_or_else(|| global.values.clone(), Arc::new);
            fragment_layout.place(weights, module, target);
            fragments.insert((level, index), trained);
        }
        Ok(Self { topology, layout, local, fragments, global: unchanged })
    }

    /// Encodes the outer gradient of a fragment. If `another` follows before the path takes over global weights, the trainer's
    /// weights become its base.
    ///
    /// # Errors
    /// When the path has diverged, or does not train the fragment.
    pub(crate) fn send(
        &mut self,
        plan: &WorkerPlan,
        path: PathId,
        fragment: FragmentId,
        trainer: &mut Trainer,
        another: bool,
    ) -> Result<Vec<u8>, PathError> {
        let (level, index) = (fragment.module.level, fragment.index);
        let lacks = || PathError::NoSuchFragment { what: format!("fragment {fragment}") };
        let fragment_layout = self.layout.fragment(level, index)?;
        let local = trainer.fragment(level.into(), fragment_layout)?.ok_or_else(lacks)?;
        let state = self.fragments.get_mut(&(level, index)).ok_or_else(lacks)?;
        let base = state.base.take().ok_or_else(lacks)?;
        let mut gradient = if another {
            let mut base = Arc::unwrap_or_clone(base);
            let gradient = learner::send(&mut base, local);
            state.base = Some(Arc::new(base));
            gradient
        } else {
            learner::last_send(&base, local)
        };
        state.under_way = true;
        let outer = &plan.outer.of_level(level);
        // arXiv:2508.15706: the loss of earlier encodings joins this outer gradient, and the loss of this one is kept.
        for (value, residual) in gradient.iter_mut().zip(state.residual.iter().flatten()) {
            *value += outer.error_feedback * residual;
        }
        // The step after which a weight is too large or not finite still has a finite loss and gradient.
        if let Some((at, value)) = beyond_largest(&gradient) {
            let problem = format!("value {at} of the outer gradient of fragment {fragment} is {value:e}");
            return Err(PathError::DivergedResult { path, step: trainer.steps().saturating_sub(1), problem });
        }
        let wrong = |why| PathError::OuterGradient { module: fragment.module, path, why };
        let encoded = dipaco_codec::encode(&gradient, outer.compression).map_err(wrong)?;
        if outer.error_feedback > 0.0 || plan.sync.eager {
            // Peers see only the decoded values, so lead and loss are measured from those.
            let sent = dipaco_codec::decode(&encoded, gradient.len()).map_err(wrong)?;
            if plan.sync.eager {
                let rule = OuterRule {
                    learning_rate: outer.nesterov.learning_rate as f32,
                    momentum: outer.nesterov.momentum as f32,
                };
                let ahead = state.ahead.get_or_insert_with(|| Ahead::start(sent.len()));
                ahead.send(&sent, state.share, rule);
            }
            if outer.error_feedback > 0.0 {
                gradient.iter_mut().zip(&sent).for_each(|(value, sent)| *value -= sent);
                state.residual = Some(gradient);
            }
        }
        Ok(encoded)
    }

    /// The part of the path's fragments that its next lease, which begins at `step`, does not find in the store.
    pub(crate) fn keep(
        &mut self,
        plan: &WorkerPlan,
        path: PathId,
        trainer: &mut Trainer,
        step: u64,
    ) -> Result<BTreeMap<(u16, u32), FragmentState>, PathError> {
        let mut kept = BTreeMap::new();
        let schedule = plan.schedule()?;
        if step >= schedule.total() {
            return Ok(kept);
        }
        for ((level, index), fragment) in std::mem::take(&mut self.fragments) {
            let parts = KeptParts::of(plan, &schedule, path, step, index);
            let fragment_layout = self.layout.fragment(level, index)?;
            let weights = if parts.own { trainer.fragment(level.into(), fragment_layout)? } else { None };
            let base = fragment.base.filter(|_| fragment.under_way && parts.base).map(Arc::unwrap_or_clone);
            let ahead = fragment.ahead.filter(|_| parts.ahead);
            let state = FragmentState { weights, base, residual: fragment.residual, ahead };
            if state != FragmentState::default() {
                kept.insert((level, index), state);
            }
        }
        Ok(kept)
    }
}

/// Starts a fragment. Returns it and the weights with which the path trains it; `None` for the global weights, which the
/// path takes over.
fn start_fragment(
    global: &GlobalFragment,
    kept: FragmentState,
    blend: Blend,
) -> (TrainedFragment, Option<Vec<f32>>) {
    let &GlobalFragment { ref values, received, share, .. } = global;
    let FragmentState { weights, base, residual, ahead } = kept;
    if received && ahead.is_none() && blend.own == 0.0 {
        // The usual case: the path's own weights and base give way to the global weights where they lie.
        let base = Some(values.clone());
        let fragment = TrainedFragment { base, under_way: false, share, residual, ahead };
        return (fragment, None);
    }
    let mut under_way = base.is_some();
    // Without a base of its own the path has sent nothing since its last take-over. It began there with its lead, which holds
    // what it had sent before.
    let mut base =
        base.unwrap_or_else(|| ahead.as_ref().map_or_else(|| values.to_vec(), |ahead| ahead.over(values)));
    let mut weights = weights.unwrap_or_else(|| values.to_vec());
    if received {
        match &ahead {
            Some(ahead) => {
                learner::receive(&mut base, &mut weights, &ahead.over(values), Blend::default());
            }
            None => learner::receive(&mut base, &mut weights, values, blend),
        }
        under_way = false;
    }
    (TrainedFragment { base: Some(Arc::new(base)), under_way, share, residual, ahead }, Some(weights))
}

#[cfg(test)]
mod tests;
