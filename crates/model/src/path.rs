//! A path composed of modules.

use std::sync::Arc;

use candle_core::Tensor;
use dipaco_ops::RopeTable;
use dipaco_topology::Topology;

use crate::forward::Loss;
use crate::specs::PER_BLOCK;
use crate::split::places;
use crate::{Gradients, KvCache, ModelConfig, ModelError, Module, ModuleWeights, TensorSpec, path_specs};

/// One module per level, put together to a transformer. Cheap to make and to clone: tensors are reference counted.
/// All methods take `&self`, and several threads may use one path at the same time.
#[derive(Clone, Debug)]
pub struct Path {
    pub(crate) config: Arc<ModelConfig>,
    specs: Arc<[TensorSpec]>,
    /// In the order of `specs`.
    tensors: Vec<Tensor>,
    pub(crate) rope: RopeTable,
}

/// The tensors of a block, in the order of [`path_specs`].
pub(crate) struct Block<'a> {
    pub(crate) input_norm: &'a Tensor,
    pub(crate) q: &'a Tensor,
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) o: &'a Tensor,
    pub(crate) post_norm: &'a Tensor,
    pub(crate) gate: &'a Tensor,
    pub(crate) up: &'a Tensor,
    pub(crate) down: &'a Tensor,
}

impl Path {
    /// Composes a path of one module per level.
    ///
    /// # Errors
    /// When the configuration is incomplete, the topology does not fit it, or a module is not of its level.
    pub fn compose(
        config: &ModelConfig,
        topology: &Topology,
        modules: &[Arc<Module>],
    ) -> Result<Self, ModelError> {
        config.check_complete()?;
        let module_specs: Vec<&[TensorSpec]> = modules.iter().map(|module| &**module.specs()).collect();
        let places = places(config, topology, &module_specs)?;
        let tensors = places.iter().map(|&(level, index)| modules[level].tensors()[index].clone()).collect();
        let rope = RopeTable::new(config.context, config.head_dim, config.rope_theta)?;
        Ok(Self { config: Arc::new(config.clone()), specs: path_specs(config).into(), tensors, rope })
    }

    /// The path's shape.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The path's tensors: [`path_specs`].
    #[must_use]
    pub fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    /// Copies the weights of the whole path from the device.
    ///
    /// # Errors
    /// When the device can't be read.
    pub fn weights(&self) -> Result<ModuleWeights, ModelError> {
        let mut values = Vec::with_capacity(crate::parameters(&self.specs));
        for tensor in &self.tensors {
            dipaco_ops::with_slice(tensor, |elements| values.extend_from_slice(elements))?;
        }
        ModuleWeights::new(self.specs.clone(), values)
    }

    /// An empty KV cache for one sequence of this path.
    #[must_use]
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.config)
    }

    /// The gradient of a loss for every parameter.
    ///
    /// # Errors
    /// When a parameter has none, because its module was not loaded as trainable.
    pub fn backward(&self, loss: &Loss) -> Result<Gradients, ModelError> {
        let mut store = loss.tensor.backward()?;
        let mut gradients = Vec::with_capacity(self.tensors.len());
        for (spec, tensor) in self.specs.iter().zip(&self.tensors) {
            let Some(gradient) = tensor.is_variable().then(|| store.remove(tensor)).flatten() else {
                return Err(ModelError::NoGradient { tensor: spec.name.clone() });
            };
            gradients.push(gradient.contiguous()?);
        }
        Ok(Gradients::new(gradients))
    }

    /// Changes the parameters in place: `f` gets each tensor's index in [`path_specs`], its spec, its elements and its
    /// gradient's, in order. Every path that shares a module sees the change; no copy is made.
    ///
    /// # Errors
    /// When the device can't be written.
    pub fn update(
        &self,
        gradients: &Gradients,
        mut f: impl FnMut(usize, &TensorSpec, &mut [f32], &[f32]),
    ) -> Result<(), ModelError> {
        let tensors = self.specs.iter().zip(&self.tensors).zip(gradients.tensors());
        for (index, ((spec, tensor), gradient)) in tensors.enumerate() {
            dipaco_ops::update_in_place(tensor, gradient, |values, gradient| {
                f(index, spec, values, gradient);
            })?;
        }
        Ok(())
    }

    /// The same path for computations that need no gradient: they keep no graph.
    pub(crate) fn detached(&self) -> Self {
        let tensors = self.tensors.iter().map(Tensor::detach).collect();
        Self { tensors, ..self.clone() }
    }

    pub(crate) fn embedding(&self) -> &Tensor {
        &self.tensors[0]
    }

    pub(crate) fn block(&self, block: usize) -> Block<'_> {
        let first = 1 + block * PER_BLOCK;
        let tensor = |i: usize| &self.tensors[first + i];
        Block {
            input_norm: tensor(0),
            q: tensor(1),
            k: tensor(2),
            v: tensor(3),
            o: tensor(4),
            post_norm: tensor(5),
            gate: tensor(6),
            up: tensor(7),
            down: tensor(8),
        }
    }

    pub(crate) fn final_norm(&self) -> &Tensor {
        &self.tensors[1 + self.config.blocks * PER_BLOCK]
    }

    /// The output projection: the embedding when tied.
    pub(crate) fn head(&self) -> &Tensor {
        if self.config.tie_embeddings {
            &self.tensors[0]
        } else {
            &self.tensors[2 + self.config.blocks * PER_BLOCK]
        }
    }
}
