//! A path composed of modules.

use std::sync::Arc;

use candle_core::Tensor;
use dipaco_ops::{BlockShape, HeadPlace, Precision, Profile, RopeTable, Stack, Workspace};
use dipaco_topology::Topology;

use crate::split::places;
use crate::{
    Dtype, Gradients, KvCache, ModelConfig, ModelError, Module, ModuleWeights, TensorSpec, path_specs,
};

/// One module per level, put together to a transformer. Cheap to make and to clone: tensors are reference counted.
/// All methods take `&self`, and several threads may use one path at the same time.
#[derive(Clone, Debug)]
pub struct Path {
    pub(crate) config: Arc<ModelConfig>,
    specs: Arc<[TensorSpec]>,
    /// The embedding, the blocks and the head: where the parameters of each are.
    parts: Vec<Place>,
    /// What the operations share.
    pub(crate) stack: Stack,
}

/// Where a part's parameters are: its tensors lie one after the other from `at` in a module's flat tensor.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) flat: Tensor,
    pub(crate) at: usize,
    pub(crate) parameters: usize,
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
        let specs = path_specs(config);
        let mut parts: Vec<Place> = Vec::new();
        let mut last = None;
        for (spec, (level, index)) in specs.iter().zip(places(config, topology, &module_specs)?) {
            // The first tensor of a part says where it begins; a level holds all tensors of a part in their order.
            if last == Some(spec.part) {
                if let Some(place) = parts.last_mut() {
                    place.parameters += spec.parameters();
                }
                continue;
            }
            last = Some(spec.part);
            let at = crate::parameters(&module_specs[level][..index]);
            parts.push(Place { flat: modules[level].flat().clone(), at, parameters: spec.parameters() });
        }
        let shape = BlockShape {
            width: config.hidden_size,
            heads: config.heads,
            ffn: config.ffn_size,
            epsilon: config.rms_norm_eps as f32,
            rope: RopeTable::new(config.context, config.head_dim, config.rope_theta)?,
        };
        let precision = match config.dtype {
            Dtype::F32 => Precision::F32,
            Dtype::Bf16 => Precision::Bf16,
        };
        let stack = Stack {
            shape,
            precision,
            checkpointing: false,
            workspace: Workspace::default(),
            profile: Profile::default(),
        };
        Ok(Self { config: Arc::new(config.clone()), specs: specs.into(), parts, stack })
    }

    /// The same path, keeping only each block's input for the backward pass or not: less memory, a third more time, the
    /// same bits.
    #[must_use]
    pub fn with_checkpointing(mut self, checkpointing: bool) -> Self {
        self.stack.checkpointing = checkpointing;
        self
    }

    /// The same path, adding up in `profile` where its time goes.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.stack.profile = profile;
        self
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
        for place in &self.parts {
            place.with(|elements| values.extend_from_slice(elements))?;
        }
        ModuleWeights::new(self.specs.clone(), values)
    }

    /// An empty KV cache for one sequence of this path.
    #[must_use]
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.config)
    }

    /// Changes the parameters in place: `f` gets each tensor's index in [`path_specs`], its spec, its elements and its
    /// gradient's, in order. Every path that shares a module sees the change; no copy is made.
    ///
    /// # Errors
    /// When the device can't be written, or a part of the path has no gradient.
    pub fn update(
        &self,
        gradients: &Gradients,
        mut f: impl FnMut(usize, &TensorSpec, &mut [f32], &[f32]),
    ) -> Result<(), ModelError> {
        let mut index = 0;
        for (place, slot) in self.parts.iter().zip(&gradients.slots) {
            index = slot.with(|gradient| {
                let Some(mut gradient) = gradient else {
                    return Err(ModelError::NoGradient { tensor: self.specs[index].name.clone() });
                };
                let mut index = index;
                dipaco_ops::update_in_place(&place.flat, |all| {
                    let mut values = &mut all[place.at..place.at + place.parameters];
                    while let Some(spec) = self.specs.get(index).filter(|_| !values.is_empty()) {
                        let (own, rest) = std::mem::take(&mut values).split_at_mut(spec.parameters());
                        let (own_gradient, rest_of_gradient) = gradient.split_at(spec.parameters());
                        f(index, spec, own, own_gradient);
                        (values, gradient, index) = (rest, rest_of_gradient, index + 1);
                    }
                })?;
                Ok(index)
            })?;
        }
        Ok(())
    }

    pub(crate) fn embedding(&self) -> &Place {
        &self.parts[0]
    }

    pub(crate) fn blocks(&self) -> &[Place] {
        &self.parts[1..=self.config.blocks]
    }

    pub(crate) fn parts(&self) -> &[Place] {
        &self.parts
    }

    /// The final norm and, unless it is the embedding, the output projection.
    pub(crate) fn head(&self) -> &Place {
        &self.parts[1 + self.config.blocks]
    }

    /// Where the head's parts are in its module: the level that holds a tied head holds the embedding too.
    pub(crate) fn head_place(&self) -> HeadPlace {
        let (norm, width) = (self.head().at, self.config.hidden_size);
        let projection = if self.config.tie_embeddings { self.embedding().at } else { norm + width };
        HeadPlace { norm, projection, vocabulary: self.config.head_size() }
    }
}

impl Place {
    /// Runs `f` on the part's parameters.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&[f32]) -> R) -> Result<R, ModelError> {
        Ok(dipaco_ops::with_slice(&self.flat, |all| f(&all[self.at..self.at + self.parameters]))?)
    }
}
