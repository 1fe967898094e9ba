//! A path composed of modules.

use std::sync::Arc;

use candle_core::Tensor;
use dipaco_ops::{HeadPlace, Profile, Stack, Workspace};
use dipaco_topology::Topology;

use crate::packed::block_shape;
use crate::split::places;
use crate::{ModelConfig, ModelError, Module, ModuleWeights, TensorSpec, path_specs};

/// A transformer composed of one module per level. Composing and cloning are cheap, because tensors are reference
/// counted. All methods take `&self`, and several threads may use one path at the same time.
#[derive(Clone, Debug)]
pub struct Path {
    pub(crate) config: Arc<ModelConfig>,
    specs: Arc<[TensorSpec]>,
    /// The tensors of the modules that were loaded as trainable.
    trained: Arc<[TensorSpec]>,
    /// Places of the parameters of the embedding, of each block and of the head.
    parts: Vec<Place>,
    /// Settings and buffers shared by the operations.
    pub(crate) stack: Stack,
}

/// Place of the parameters of a part: its tensors lie one after the other from `at` in the flat tensor of a module.
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
    /// The configuration is incomplete, the topology does not fit it, or a module is of another level.
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
        for (spec, tensor) in specs.iter().zip(places(config, topology, &module_specs)?) {
            // A level holds all tensors of a part in their order, so the place of the first one is the place of the
            // part.
            if last == Some(spec.part) {
                if let Some(place) = parts.last_mut() {
                    place.parameters += spec.parameters();
                }
                continue;
            }
            last = Some(spec.part);
            let at = crate::parameters(&module_specs[tensor.level][..tensor.index]);
            let flat = modules[tensor.level].flat().clone();
            parts.push(Place { flat, at, parameters: spec.parameters() });
        }
        let of_part = specs.chunk_by(|a, b| a.part == b.part).zip(&parts);
        let trained =
            of_part.filter(|(_, place)| place.trains()).flat_map(|(specs, _)| specs.iter().cloned());
        let trained = trained.collect();
        let shape = block_shape(config, config.context)?;
        let stack = Stack {
            shape,
            precision: config.dtype.into(),
            checkpointing: false,
            workspace: Workspace::default(),
            profile: Profile::default(),
        };
        Ok(Self { config: Arc::new(config.clone()), specs: specs.into(), trained, parts, stack })
    }

    /// Returns the same path with activation checkpointing on or off. If it is on, only the input of each block is kept
    /// for the backward pass: less memory, a third more time, the same bits.
    #[must_use]
    pub fn with_checkpointing(mut self, checkpointing: bool) -> Self {
        self.stack.checkpointing = checkpointing;
        self
    }

    /// Returns the same path, which adds up the time of each phase of its work in `profile`.
    #[must_use]
    pub fn with_profile(mut self, profile: Profile) -> Self {
        self.stack.profile = profile;
        self
    }

    /// Returns the shape of the path.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the tensors of the path: [`path_specs`].
    #[must_use]
    pub fn specs(&self) -> &Arc<[TensorSpec]> {
        &self.specs
    }

    /// Returns the tensors that train, in the order of [`path_specs`]: those of the modules that were loaded with
    /// [`Module::load_trainable`].
    #[must_use]
    pub fn trained_specs(&self) -> &Arc<[TensorSpec]> {
        &self.trained
    }

    /// Copies the weights of the whole path from the device.
    ///
    /// # Errors
    /// The device can't be read.
    pub fn weights(&self) -> Result<ModuleWeights, ModelError> {
        let mut values = Vec::with_capacity(crate::parameters(&self.specs));
        for place in &self.parts {
            place.with(|elements| values.extend_from_slice(elements))?;
        }
        ModuleWeights::new(self.specs.clone(), values)
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

    /// Returns the place of the final norm and, if it is not tied, of the output projection.
    pub(crate) fn head(&self) -> &Place {
        &self.parts[1 + self.config.blocks]
    }

    /// Returns the places of the head's tensors in its module. The level of a tied head also holds the embedding.
    pub(crate) fn head_place(&self) -> HeadPlace {
        let (norm, width) = (self.head().at, self.config.hidden_size);
        let projection = if self.config.tie_embeddings { self.embedding().at } else { norm + width };
        HeadPlace { norm, projection, vocabulary: self.config.head_size() }
    }
}

impl Place {
    /// True if the module of the part was loaded as trainable.
    pub(crate) fn trains(&self) -> bool {
        self.flat.is_variable()
    }

    /// Runs `f` on the parameters of the part.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&[f32]) -> R) -> Result<R, ModelError> {
        Ok(dipaco_ops::with_slice(&self.flat, |all| f(&all[self.at..self.at + self.parameters]))?)
    }
}
