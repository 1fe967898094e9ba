//! The weights that a path trains on, and what its outer gradients are measured from.

use std::collections::BTreeMap;

use dipaco_model::ModuleWeights;
use dipaco_sync::Unit;
use dipaco_sync::learner::{self, Blend};
use dipaco_topology::{PathId, Topology};

use crate::TrainError;
use crate::device::TrainDevice;
use crate::inner::{InnerConfig, Trainer};
use crate::layout::Layout;
use crate::path_state::{Own, PathState};
use crate::plan::WorkerPlan;

/// A path's weights when a lease begins.
#[derive(Clone, Debug)]
pub struct PathWeights {
    topology: Topology,
    layout: Layout,
    /// What the path trains on, one module per level; taken by the trainer.
    local: Vec<ModuleWeights>,
    /// What outer gradients are measured from, one module per level.
    base: Vec<Vec<f32>>,
    /// The fragments, by level and fragment, that have been sent and not received back.
    under_way: BTreeMap<(u16, u32), bool>,
    /// Whether the path begins with the global weights as they are.
    pub(crate) global: bool,
}

/// Global weights of a fragment, and whether the path takes them over now.
#[derive(Clone, Debug)]
pub struct Global<'a> {
    /// The fragment.
    pub unit: Unit,
    /// The weights.
    pub values: &'a [f32],
    /// Whether the path takes them over now. Otherwise it has taken them over before.
    pub received: bool,
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
        globals: &[Global<'_>],
        state: &mut PathState,
        begins: bool,
    ) -> Result<Self, TrainError> {
        let topology = plan.topology()?;
        let layout = plan.layout(&topology)?;
        let mut local = Vec::new();
        for module in topology.modules_of(path) {
            let specs = layout.module(module.level)?;
            let values = vec![0.0; dipaco_model::parameters(&specs)];
            local.push(ModuleWeights { specs, values });
        }
        let mut base: Vec<Vec<f32>> = local.iter().map(|module| module.values.clone()).collect();
        let blend = if begins { Blend::default() } else { Blend { own: plan.sync.blend } };
        let mut under_way = BTreeMap::new();
        let mut global = true;
        for Global { unit, values, received } in globals {
            let place = (unit.module.level, unit.fragment);
            let level = usize::from(unit.module.level);
            let fragment = layout.fragment(unit.module.level, unit.fragment)?;
            let own = state.own.remove(&place);
            let lengths = own.iter().flat_map(|own| [Some(&own.weights), own.base.as_ref()]).flatten();
            let wrong =
                lengths.map(Vec::len).chain([values.len()]).find(|&length| length != fragment.values());
            if let Some(found) = wrong {
                return Err(TrainError::PathStateLength { expected: fragment.values(), found });
            }
            let (mut weights, mut from) = match own {
                Some(Own { weights, base }) => {
                    under_way.insert(place, base.is_some());
                    (weights, base.unwrap_or_else(|| values.to_vec()))
                }
                None => (values.to_vec(), values.to_vec()),
            };
            if *received {
                learner::receive(&mut from, &mut weights, values, blend);
                under_way.insert(place, false);
            }
            global &= *received && weights == *values;
            fragment.scatter(&weights, &mut local[level].values);
            fragment.scatter(&from, &mut base[level]);
        }
        Ok(Self { topology, layout, local, base, under_way, global })
    }

    /// A trainer of the path.
    pub(crate) fn trainer(
        &mut self,
        device: &TrainDevice,
        plan: &WorkerPlan,
        state: PathState,
        config: InnerConfig,
    ) -> Result<Trainer, TrainError> {
        let local = std::mem::take(&mut self.local);
        Trainer::new(device, &plan.model, &self.topology, &local, state, config)
    }

    /// The outer gradient of a fragment, which begins the next one.
    pub(crate) fn send(&mut self, unit: Unit, local: &[ModuleWeights]) -> Result<Vec<f32>, TrainError> {
        let level = usize::from(unit.module.level);
        let fragment = self.layout.fragment(unit.module.level, unit.fragment)?;
        let lacks = || TrainError::ManifestLacks { what: format!("level {level}") };
        let (base, local) =
            (self.base.get_mut(level).ok_or_else(lacks)?, local.get(level).ok_or_else(lacks)?);
        let mut from = fragment.gather(base);
        let gradient = learner::send(&mut from, &fragment.gather(&local.values));
        fragment.scatter(&from, base);
        self.under_way.insert((unit.module.level, unit.fragment), true);
        Ok(gradient)
    }

    /// What of the path's weights its next lease, which begins at a step, does not find in the store.
    pub(crate) fn own(
        &self,
        plan: &WorkerPlan,
        local: &[ModuleWeights],
        step: u64,
    ) -> Result<BTreeMap<(u16, u32), Own>, TrainError> {
        let mut own = BTreeMap::new();
        let schedule = plan.schedule()?;
        if step >= schedule.total() {
            return Ok(own);
        }
        let begins = step == schedule.begin(schedule.phase_at(step));
        let receives: BTreeMap<u32, u64> = schedule.receives(step).into_iter().collect();
        for (level, module) in (0u16..).zip(local) {
            for (number, fragment) in (0u32..).zip(self.layout.fragments(level)?) {
                // Weights that are taken over as they are replace the path's own.
                let replaced = plan.sync.dynamic_steps || receives.contains_key(&number);
                if replaced && (begins || plan.sync.blend == 0.0) {
                    continue;
                }
                let base = self.base.get(usize::from(level)).map(|base| fragment.gather(base));
                let under_way = self.under_way.get(&(level, number)).copied().unwrap_or(false) && !replaced;
                let weights = fragment.gather(&module.values);
                own.insert((level, number), Own { weights, base: base.filter(|_| under_way) });
            }
        }
        Ok(own)
    }
}
