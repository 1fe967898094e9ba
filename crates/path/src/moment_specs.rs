//! The tensors of which a path keeps moments.

use dipaco_model::{Dtype, ModelConfig, OptimizerMemory, TensorSpec, parameters, path_specs, trained_specs};
use dipaco_optim::{MuonStep, Optimizer};
use dipaco_protocol::WorkerPlan;
use dipaco_topology::{Part, Topology};

use crate::PathError;
use crate::moment_bounds::MomentKind;

/// Beginning of the name of a first moment in a state's file.
pub(crate) const FIRST: &str = "first/";
/// Beginning of the name of a second moment.
pub(crate) const SECOND: &str = "second/";

/// The tensors of which the optimizer keeps moments, in the order of [`path_specs`]. Tensors of frozen levels have
/// none, Muon's matrices have no second moment, and synchronous training keeps its moments with the modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MomentSpecs {
    first: Vec<TensorSpec>,
    second: Vec<TensorSpec>,
    optimizer: Optimizer,
    /// Type of the moments between two leases.
    dtype: Dtype,
}

/// Rows and columns of a tensor that takes Muon's steps: with Muon the matrices of blocks. `None` for AdamW's tensors.
pub(crate) fn muon_matrix(optimizer: Optimizer, spec: &TensorSpec) -> Option<(usize, usize)> {
    match (optimizer, spec.part, spec.shape.as_slice()) {
        (Optimizer::Muon, Part::Block(_), &[rows, columns]) => Some((rows, columns)),
        _ => None,
    }
}

impl MomentSpecs {
    /// The moments of a path over the levels of `topology`, in f32.
    #[must_use]
    pub fn new(model: &ModelConfig, topology: &Topology, optimizer: Optimizer) -> Self {
        Self::of_specs(trained_specs(model, topology), optimizer)
    }

    /// The moments of a path that trains all of its tensors, such as a seed, in f32.
    #[must_use]
    pub fn whole(model: &ModelConfig, optimizer: Optimizer) -> Self {
        Self::of_specs(path_specs(model), optimizer)
    }

    fn of_specs(trained: Vec<TensorSpec>, optimizer: Optimizer) -> Self {
        let first = if optimizer == Optimizer::Gradient { Vec::new() } else { trained };
        let second = first.iter().filter(|spec| muon_matrix(optimizer, spec).is_none()).cloned().collect();
        Self { first, second, optimizer, dtype: Dtype::F32 }
    }

    /// The same moments with this type between two leases (`train.state_dtype`).
    #[must_use]
    pub fn stored_as(self, dtype: Dtype) -> Self {
        Self { dtype, ..self }
    }

    /// The moments of the paths of a worker's plan.
    ///
    /// # Errors
    /// When the levels do not fit the model.
    pub fn of_plan(plan: &WorkerPlan) -> Result<Self, PathError> {
        Ok(Self::of_plan_over(plan, &plan.topology()?))
    }

    /// [`MomentSpecs::of_plan`], where the topology is known.
    pub(crate) fn of_plan_over(plan: &WorkerPlan, topology: &Topology) -> Self {
        let optimizer = plan.outer.optimizer.inner(plan.train.optimizer);
        Self::new(&plan.model, topology, optimizer).stored_as(plan.train.state_dtype)
    }

    /// Type of the moments between two leases. In a lease they are f32.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The tensors with a first moment: all that train, and none in synchronous training.
    #[must_use]
    pub fn first(&self) -> &[TensorSpec] {
        &self.first
    }

    /// The tensors with a second moment.
    #[must_use]
    pub fn second(&self) -> &[TensorSpec] {
        &self.second
    }

    /// The kind of the first moments of a tensor.
    pub(crate) fn kind_of_first(&self, spec: &TensorSpec) -> MomentKind {
        if muon_matrix(self.optimizer, spec).is_some() { MomentKind::Momentum } else { MomentKind::First }
    }

    /// Number of moments of both kinds.
    #[must_use]
    pub fn values(&self) -> usize {
        parameters(&self.first) + parameters(&self.second)
    }

    /// Bytes of the moments in a state's file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        (self.values() as u64).saturating_mul(self.dtype.bytes() as u64)
    }

    /// The memory of the optimizer besides weights and gradients.
    #[must_use]
    pub fn memory(&self) -> OptimizerMemory {
        let bytes = |values: usize| (values as u64).saturating_mul(4);
        let matrices = self.first.iter().filter_map(|spec| muon_matrix(self.optimizer, spec));
        let scratch = matrices.map(|(rows, columns)| MuonStep::scratch(rows, columns)).max();
        OptimizerMemory { moments: bytes(self.values()), scratch: bytes(scratch.unwrap_or(0)) }
    }

    /// The tensors of a state's file that hold the moments.
    pub(crate) fn named(&self) -> Vec<TensorSpec> {
        let named = |prefix: &'static str, specs: &[TensorSpec]| -> Vec<TensorSpec> {
            let named = |spec: &TensorSpec| TensorSpec {
                name: format!("{prefix}{}", spec.name),
                file_dtype: self.dtype,
                ..spec.clone()
            };
            specs.iter().map(named).collect()
        };
        [named(FIRST, &self.first), named(SECOND, &self.second)].concat()
    }
}
