//! The mean of all paths as one model.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_model::{Device, Module, ModuleWeights, Path};

use crate::error::PipelineError;
use crate::weights::{ModuleVersion, PathModule, Weights};

/// A module with the number of paths that go through it.
struct Ingredient<'a> {
    module: PathModule<'a>,
    paths: u32,
}

impl Weights {
    /// The uniform mean of the weights of all paths (a weight soup), a model that needs no router. A module counts once for
    /// each path through it. One module is in memory at a time, beside the sum. Blocks on the store.
    ///
    /// # Errors
    /// [`PipelineError::NotTrained`], and the errors of the store.
    pub fn soup(&self) -> Result<Path, PipelineError> {
        let mut levels: Vec<BTreeMap<ModuleVersion, Ingredient<'_>>> = Vec::new();
        levels.resize_with(self.topology().levels(), BTreeMap::new);
        for path in self.topology().path_ids() {
            for (level, module) in levels.iter_mut().zip(self.modules_of(path)?) {
                let version = module.version.clone();
                level.entry(version).or_insert(Ingredient { module, paths: 0 }).paths += 1;
            }
        }
        let means = levels.iter().zip(0_u16..).map(|(level, number)| self.mean(number, level.values()));
        self.compose(&means.collect::<Result<Vec<_>, _>>()?)
    }

    /// The mean of the modules of a level.
    fn mean<'a>(
        &self,
        level: u16,
        ingredients: impl Iterator<Item = &'a Ingredient<'a>>,
    ) -> Result<Arc<Module>, PipelineError> {
        // In f64, so that the order of the paths does not count.
        let mut sum: Vec<f64> = Vec::new();
        let mut paths = 0;
        let mut specs = None;
        for Ingredient { module, paths: share } in ingredients {
            let weights = self.assemble(level, &module.objects)?;
            sum.resize(weights.values.len(), 0.0);
            for (sum, value) in sum.iter_mut().zip(&weights.values) {
                *sum += f64::from(*value) * f64::from(*share);
            }
            paths += share;
            specs = Some(weights.specs);
        }
        let values = sum.iter().map(|sum| (sum / f64::from(paths)) as f32).collect();
        let mean = ModuleWeights::new(specs.unwrap_or_else(|| Vec::new().into()), values)?;
        Ok(Arc::new(Module::load(&mean, &Device::Cpu)?))
    }
}
