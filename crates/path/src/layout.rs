//! The place of each fragment in the flat weights of its module.

use std::ops::Range;
use std::sync::Arc;

use dipaco_model::{ModelConfig, ModuleWeights, TensorSpec, level_specs, parameters};
use dipaco_protocol::WorkerPlan;
use dipaco_sync::{FoldTensor, SyncConfig, TensorSize, cut};
use dipaco_topology::{Part, Topology};

use crate::PathError;

/// The fragments of the modules of each level. All modules of a level are cut alike.
#[derive(Clone, Debug)]
pub struct Layout {
    levels: Vec<Level>,
}

#[derive(Clone, Debug)]
struct Level {
    specs: Arc<[TensorSpec]>,
    fragments: Vec<FragmentLayout>,
}

/// A fragment of the modules of a level.
#[derive(Clone, Debug)]
pub struct FragmentLayout {
    /// Tensors of the fragment, in the order of the module.
    pub specs: Arc<[TensorSpec]>,
    /// Ranges of these tensors in the module's flat weights.
    ranges: Vec<Range<usize>>,
}

impl FragmentLayout {
    /// Number of values.
    #[must_use]
    pub fn values(&self) -> usize {
        parameters(&self.specs)
    }

    /// The tensors as merging sees them.
    #[must_use]
    pub fn fold_tensors(&self) -> Vec<FoldTensor> {
        let tensor = |spec: &TensorSpec| FoldTensor {
            values: spec.parameters(),
            embedding_row: spec.shape.last().copied().filter(|_| spec.part == Part::Embedding),
        };
        self.specs.iter().map(tensor).collect()
    }

    /// Copies the fragment out of a module's flat weights.
    #[must_use]
    pub fn gather(&self, module: &[f32]) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.values());
        for range in &self.ranges {
            values.extend_from_slice(module.get(range.clone()).unwrap_or_default());
        }
        values
    }

    /// Puts the fragment's values into a module of `length` values that may still be empty. A fragment that is the whole module in
    /// its order becomes the module, without a copy.
    pub(crate) fn place(&self, values: Arc<Vec<f32>>, length: usize, module: &mut Arc<Vec<f32>>) {
        if values.len() == length && self.ranges.is_sorted_by_key(|range| range.start) {
            *module = values;
            return;
        }
        let module = Arc::make_mut(module);
        module.resize(length, 0.0);
        self.scatter(&values, module);
    }

    /// Writes the fragment's values to their place in a module's flat weights.
    pub fn scatter(&self, values: &[f32], module: &mut [f32]) {
        let mut rest = values;
        for range in &self.ranges {
            if let (Some(target), Some((part, others))) =
                (module.get_mut(range.clone()), rest.split_at_checked(range.len()))
            {
                target.copy_from_slice(part);
                rest = others;
            }
        }
    }
}

impl Layout {
    /// Number of levels.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The layout of a model's modules under a scheme of synchronisation.
    ///
    /// # Errors
    /// When a module has too few parts.
    pub fn new(model: &ModelConfig, topology: &Topology, sync: &SyncConfig) -> Result<Self, PathError> {
        let level = |level: usize| {
            let specs: Arc<[TensorSpec]> = level_specs(model, topology, level).into();
            let group = |part: Part| match part {
                Part::Embedding => 0,
                Part::Block(block) => block + 1,
                Part::Head => model.blocks + 1,
            };
            let tensors: Vec<_> = specs
                .iter()
                .map(|spec| TensorSize {
                    name: spec.name.clone(),
                    values: spec.parameters(),
                    group: group(spec.part),
                })
                .collect();
            let begins: Vec<usize> = specs
                .iter()
                .scan(0, |next, spec| {
                    let begin = *next;
                    *next += spec.parameters();
                    Some(begin)
                })
                .collect();
            let fragment = |tensors: Vec<usize>| FragmentLayout {
                specs: tensors.iter().map(|&i| specs[i].clone()).collect(),
                ranges: tensors.iter().map(|&i| begins[i]..begins[i] + specs[i].parameters()).collect(),
            };
            let fragments = cut(&tensors, sync.fragments, sync.pattern)
                .map_err(|why| PathError::Fragments { level, why })?;
            Ok(Level { fragments: fragments.into_iter().map(fragment).collect(), specs })
        };
        Ok(Self { levels: (0..topology.levels()).map(level).collect::<Result<_, PathError>>()? })
    }

    /// The layout of the modules of a worker's plan.
    ///
    /// # Errors
    /// When a module has too few parts.
    pub fn of_plan(plan: &WorkerPlan, topology: &Topology) -> Result<Self, PathError> {
        Self::new(&plan.model, topology, &plan.sync)
    }

    /// The tensors of a whole module.
    ///
    /// # Errors
    /// When there is no such level.
    pub fn module(&self, level: u16) -> Result<Arc<[TensorSpec]>, PathError> {
        let found = self.levels.get(usize::from(level)).map(|level| level.specs.clone());
        found.ok_or_else(|| PathError::NoSuchFragment { what: format!("level {level}") })
    }

    /// The fragments of a module.
    ///
    /// # Errors
    /// When there is no such level.
    pub fn fragments(&self, level: u16) -> Result<&[FragmentLayout], PathError> {
        let found = self.levels.get(usize::from(level)).map(|level| level.fragments.as_slice());
        found.ok_or_else(|| PathError::NoSuchFragment { what: format!("level {level}") })
    }

    /// The fragments of a module that has this many files.
    ///
    /// # Errors
    /// When there is no such level, or its modules have another number of fragments.
    pub fn fragments_of(&self, level: u16, files: usize) -> Result<&[FragmentLayout], PathError> {
        let fragments = self.fragments(level)?;
        if files == fragments.len() {
            return Ok(fragments);
        }
        let what = format!("{} fragments of a module of level {level}", fragments.len());
        Err(PathError::NoSuchFragment { what })
    }

    /// A fragment of a module.
    ///
    /// # Errors
    /// When there is no such fragment.
    pub fn fragment(&self, level: u16, fragment: u32) -> Result<&FragmentLayout, PathError> {
        let level_layout = self.levels.get(usize::from(level));
        let found = level_layout.and_then(|level| level.fragments.get(fragment as usize));
        found.ok_or_else(|| PathError::NoSuchFragment {
            what: format!("fragment {fragment} of level {level}"),
        })
    }

    /// Joins the files of a module's fragments, in order, into the module.
    ///
    /// # Errors
    /// When the number of files is wrong, or a file does not fit.
    pub fn assemble<B: AsRef<[u8]>>(&self, level: u16, files: &[B]) -> Result<ModuleWeights, PathError> {
        let (specs, fragments) = (self.module(level)?, self.fragments_of(level, files.len())?);
        if let ([only], [_]) = (files, fragments) {
            return Ok(ModuleWeights::from_safetensors(only.as_ref(), specs)?);
        }
        let mut values = vec![0.0; parameters(&specs)];
        for (file, fragment) in files.iter().zip(fragments) {
            let part = ModuleWeights::from_safetensors(file.as_ref(), fragment.specs.clone())?;
            fragment.scatter(&part.values, &mut values);
        }
        Ok(ModuleWeights { specs, values })
    }
}

#[cfg(test)]
mod tests {
    use dipaco_sync::Pattern;
    use dipaco_topology::TopologyConfig;

    use super::*;

    #[test]
    fn a_module_is_its_fragments() {
        let model = ModelConfig {
            vocab_size: 5,
            hidden_size: 4,
            blocks: 3,
            heads: 1,
            head_dim: 4,
            ffn_size: 4,
            context: 8,
            ..ModelConfig::default()
        };
        let topology = Topology::new(&TopologyConfig::dense(3), 3).unwrap();
        for pattern in [Pattern::Strided, Pattern::Sequential, Pattern::Balanced] {
            let sync = SyncConfig { fragments: 3, pattern, ..SyncConfig::default() };
            let layout = Layout::new(&model, &topology, &sync).unwrap();
            let specs = layout.module(0).unwrap();
            let values: Vec<f32> = (0u16..).take(parameters(&specs)).map(f32::from).collect();
            let files: Vec<Vec<u8>> = layout
                .fragments(0)
                .unwrap()
                .iter()
                .map(|fragment| {
                    let part =
                        ModuleWeights { specs: fragment.specs.clone(), values: fragment.gather(&values) };
                    part.to_safetensors(None).unwrap()
                })
                .collect();
            assert_eq!(layout.assemble(0, &files).unwrap().values, values);
            assert!(layout.assemble(0, &files[..2]).is_err());
        }
        // Embedding, three blocks and the head stay whole.
        let sync = SyncConfig { fragments: 6, ..SyncConfig::default() };
        let error = Layout::new(&model, &topology, &sync).unwrap_err();
        assert!(matches!(error, PathError::Fragments { level: 0, .. }));
    }
}
