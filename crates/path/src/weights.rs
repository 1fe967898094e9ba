//! The weights that a path trains on, and what its outer gradients are measured from.

use std::collections::BTreeMap;

use dipaco_model::ModuleWeights;
use dipaco_sync::learner::{self, Blend};
use dipaco_sync::{Ahead, FragmentId, OuterRule};
use dipaco_topology::{PathId, Topology};

use crate::PathError;
use crate::device::TrainDevice;
use crate::layout::Layout;
use crate::state::{FragmentState, PathState};
use crate::trainer::{InnerConfig, Trainer};
use dipaco_protocol::WorkerPlan;

/// A path's weights when a lease begins.
#[derive(Clone, Debug)]
pub struct PathWeights {
    topology: Topology,
    layout: Layout,
    /// What the path trains on, one module per level; taken by the trainer.
    local: Vec<ModuleWeights>,
    /// What outer gradients are measured from, one module per level.
    base: Vec<Vec<f32>>,
    /// What else there is of each fragment, by level and fragment.
    fragments: BTreeMap<(u16, u32), TrainedFragment>,
    /// Whether the path begins with the global weights as they are.
    pub(crate) global: bool,
}

/// A fragment of a path between a receive and the next send.
#[derive(Clone, Debug)]
struct TrainedFragment {
    /// Whether it has been sent and not received back.
    under_way: bool,
    /// The path's factor in the merged outer gradient.
    share: f32,
    /// What writing its outer gradients has lost.
    residual: Option<Vec<f32>>,
    /// How far the path is ahead of the global weights with eager updates.
    ahead: Option<Ahead>,
}

/// Global weights of a fragment, and whether the path takes them over now.
#[derive(Clone, Debug)]
pub struct GlobalFragment<'a> {
    /// The fragment.
    pub fragment: FragmentId,
    /// The weights.
    pub values: &'a [f32],
    /// Whether the path takes them over now. Otherwise it has taken them over before.
    pub received: bool,
    /// The path's factor in the merged outer gradient: its weight times what the mean is rescaled by.
    pub share: f32,
}

impl PathWeights {
    /// What a lease begins with: global weights of all fragments of the path, blended with the path's own where the
    /// scheme says so. `begins` says that a phase of routing begins, where the global weights count alone.
    ///
    /// # Errors
    /// When the weights do not fit the model.
    pub fn new(
        plan: &WorkerPlan,
        path: PathId,
        globals: &[GlobalFragment<'_>],
        state: &mut PathState,
        begins: bool,
    ) -> Result<Self, PathError> {
        let topology = plan.topology()?;
        let layout = Layout::of_plan(plan, &topology)?;
        let mut local = Vec::new();
        for module in topology.modules_of(path) {
            let specs = layout.module(module.level)?;
            let values = vec![0.0; dipaco_model::parameters(&specs)];
            local.push(ModuleWeights { specs, values });
        }
        let mut base: Vec<Vec<f32>> = local.iter().map(|module| module.values.clone()).collect();
        let blend = if begins { Blend::default() } else { Blend { own: plan.sync.blend } };
        let mut fragments = BTreeMap::new();
        let mut global = true;
        for GlobalFragment { fragment, values, received, share } in globals {
            let place = (fragment.module.level, fragment.index);
            let level = usize::from(fragment.module.level);
            let fragment_layout = layout.fragment(fragment.module.level, fragment.index)?;
            let FragmentState { weights, base: from, residual, ahead } = {
                let kept = state.kept.remove(&place).unwrap_or_default();
                kept.check(fragment_layout.values())?;
                kept
            };
            if values.len() != fragment_layout.values() {
                let (expected, found) = (fragment_layout.values(), values.len());
                return Err(PathError::GlobalLength { fragment: *fragment, expected, found });
            }
            let mut under_way = from.is_some();
            let mut from = from.unwrap_or_else(|| values.to_vec());
            let mut weights = weights.unwrap_or_else(|| values.to_vec());
            // The global weights with which a phase begins have everything that was sent before it.
            let ahead = ahead.filter(|_| !begins);
            if *received {
                match &ahead {
                    Some(ahead) => {
                        let mine: Vec<f32> =
                            values.iter().zip(&ahead.weights).map(|(global, ahead)| global + ahead).collect();
                        learner::receive(&mut from, &mut weights, &mine, Blend::default());
                    }
                    None => learner::receive(&mut from, &mut weights, values, blend),
                }
                under_way = false;
            }
            global &= *received && weights == *values;
            fragment_layout.scatter(&weights, &mut local[level].values);
            fragment_layout.scatter(&from, &mut base[level]);
            fragments.insert(place, TrainedFragment { under_way, share: *share, residual, ahead });
        }
        Ok(Self { topology, layout, local, base, fragments, global })
    }

    /// A trainer of the path.
    pub(crate) fn trainer(
        &mut self,
        device: &TrainDevice,
        plan: &WorkerPlan,
        state: PathState,
        config: InnerConfig,
    ) -> Result<Trainer, PathError> {
        let local = std::mem::take(&mut self.local);
        Trainer::new(device, &plan.model, &self.topology, &local, state, config)
    }

    /// The outer gradient of a fragment as it is sent; the next one begins with it.
    pub(crate) fn send(
        &mut self,
        plan: &WorkerPlan,
        path: PathId,
        fragment: FragmentId,
        local: &[ModuleWeights],
    ) -> Result<Vec<u8>, PathError> {
        let level = usize::from(fragment.module.level);
        let fragment_layout = self.layout.fragment(fragment.module.level, fragment.index)?;
        let lacks = || PathError::NoSuchFragment { what: format!("fragment {fragment}") };
        let (base, local) =
            (self.base.get_mut(level).ok_or_else(lacks)?, local.get(level).ok_or_else(lacks)?);
        let state = self.fragments.get_mut(&(fragment.module.level, fragment.index)).ok_or_else(lacks)?;
        let mut from = fragment_layout.gather(base);
        let mut gradient = learner::send(&mut from, &fragment_layout.gather(&local.values));
        fragment_layout.scatter(&from, base);
        state.under_way = true;
        let outer = &plan.outer;
        // arXiv:2508.15706: what is sent is taken off what was to be sent, and the rest is kept.
        for (value, residual) in gradient.iter_mut().zip(state.residual.iter().flatten()) {
            *value += outer.error_feedback * residual;
        }
        let wrong = |why| PathError::OuterGradient { module: fragment.module, path, why };
        let encoded = dipaco_codec::encode(&gradient, outer.compression).map_err(wrong)?;
        if outer.error_feedback > 0.0 || plan.sync.eager {
            let sent = dipaco_codec::decode(&encoded, gradient.len()).map_err(wrong)?;
            if plan.sync.eager {
                // Numbers of a configuration, exact enough in f32.
                #[allow(clippy::cast_possible_truncation)]
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

    /// What of the path its next lease, which begins at a step, does not find in the store.
    pub(crate) fn keep(
        &mut self,
        plan: &WorkerPlan,
        path: PathId,
        local: &[ModuleWeights],
        step: u64,
    ) -> Result<BTreeMap<(u16, u32), FragmentState>, PathError> {
        let mut kept = BTreeMap::new();
        let schedule = plan.schedule()?;
        if step >= schedule.total() {
            return Ok(kept);
        }
        let begins = step == schedule.begin(schedule.phase_at(step));
        let receives: BTreeMap<u32, u64> = schedule.receives(path, step).into_iter().collect();
        for (level, module) in (0u16..).zip(local) {
            for (number, fragment) in (0u32..).zip(self.layout.fragments(level)?) {
                let Some(state) = self.fragments.remove(&(level, number)) else { continue };
                // Weights that are taken over as they are replace the path's own.
                let replaced = plan.sync.dynamic_steps || receives.contains_key(&number);
                let weights =
                    (!replaced || !begins && plan.sync.blend > 0.0).then(|| fragment.gather(&module.values));
                let base = self.base.get(usize::from(level)).map(|base| fragment.gather(base));
                let base = base.filter(|_| state.under_way && !replaced);
                let ahead = state.ahead.filter(|_| !begins);
                let of_fragment = FragmentState { weights, base, residual: state.residual, ahead };
                if of_fragment != FragmentState::default() {
                    kept.insert((level, number), of_fragment);
                }
            }
        }
        Ok(kept)
    }
}
