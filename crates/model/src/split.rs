//! Cutting the weights of a path into modules, and joining them.

use dipaco_topology::Topology;

use crate::{ModelConfig, ModelError, ModuleWeights, TensorSpec, level_specs, path_specs};

/// Cuts the weights of a whole path into one module per level.
///
/// # Errors
/// The tensors are not the tensors of a path of this configuration, or the topology does not fit it.
pub fn split(
    config: &ModelConfig,
    topology: &Topology,
    path: &ModuleWeights,
) -> Result<Vec<ModuleWeights>, ModelError> {
    config.check_topology(topology)?;
    path.view().check()?;
    require_specs(&path.specs, &path_specs(config))?;
    let level = |level| {
        let parts = topology.parts(level);
        let own = path.tensors().filter(|(spec, _)| parts.contains(&spec.part));
        let values = own.flat_map(|(_, values)| values.iter().copied()).collect();
        ModuleWeights::new(level_specs(config, topology, level).into(), values)
    };
    (0..topology.levels()).map(level).collect()
}

/// Joins one module per level into the weights of a whole path.
///
/// # Errors
/// The number of modules is not the number of levels, or a module is of another level.
pub fn join(
    config: &ModelConfig,
    topology: &Topology,
    modules: &[ModuleWeights],
) -> Result<ModuleWeights, ModelError> {
    let specs: Vec<&[TensorSpec]> = modules.iter().map(|module| &*module.specs).collect();
    let places = places(config, topology, &specs)?;
    let mut tensors = Vec::with_capacity(modules.len());
    for module in modules {
        module.view().check()?;
        tensors.push(module.tensors().map(|(_, values)| values).collect::<Vec<_>>());
    }
    let values = places.iter().flat_map(|place| tensors[place.level][place.index].iter().copied()).collect();
    ModuleWeights::new(path_specs(config).into(), values)
}

/// Place of a tensor of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorPlace {
    /// Level of the module.
    pub(crate) level: usize,
    /// Index among the tensors of the module.
    pub(crate) index: usize,
}

/// Returns the place of each tensor of a path, in the order of [`path_specs`].
pub(crate) fn places(
    config: &ModelConfig,
    topology: &Topology,
    modules: &[&[TensorSpec]],
) -> Result<Vec<TensorPlace>, ModelError> {
    config.check_topology(topology)?;
    if modules.len() != topology.levels() {
        let problem = format!("{} modules were given for {} levels", modules.len(), topology.levels());
        return Err(ModelError::Compose { problem });
    }
    for (level, specs) in modules.iter().enumerate() {
        require_specs(specs, &level_specs(config, topology, level))?;
    }
    let place = |spec: &TensorSpec| {
        let mut places = modules.iter().enumerate().filter_map(|(level, specs)| {
            specs.iter().position(|own| own.name == spec.name).map(|index| TensorPlace { level, index })
        });
        places
            .next()
            .ok_or_else(|| ModelError::Compose { problem: format!("no level holds `{}`", spec.name) })
    };
    path_specs(config).iter().map(place).collect()
}

/// Checks that the tensors are equal to the expected tensors.
pub(crate) fn require_specs(found: &[TensorSpec], expected: &[TensorSpec]) -> Result<(), ModelError> {
    for (found, expected) in found.iter().zip(expected) {
        if found != expected {
            let problem =
                format!("expected `{}` {:?} here, found {:?}", expected.name, expected.shape, found.shape);
            return Err(ModelError::Weights { tensor: found.name.clone(), problem });
        }
    }
    if found.len() != expected.len() {
        let problem = format!("{} tensors were given, but {} are expected", found.len(), expected.len());
        return Err(ModelError::Compose { problem });
    }
    Ok(())
}
