//! Errors of training one path.

use std::path::PathBuf;

use dipaco_sync::FragmentId;
use dipaco_topology::{ModuleId, PathId};
use thiserror::Error;

/// A path that cannot be trained, or data of a path that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PathError {
    /// The shard of a path holds no documents.
    #[error(
        "path {path} has no documents to train on: use fewer paths, more text, or another router seed (`--set router.seed=…`), and route again"
    )]
    EmptyShard {
        /// The path.
        path: PathId,
    },
    /// A shard differs from the shard with which the run started.
    #[error(
        "{} is not the shard with which this run started: its content differs; restore it, or route again into another run directory",
        file.display()
    )]
    WrongShard {
        /// The token file.
        file: PathBuf,
    },
    /// The loss or the gradient is not finite.
    #[error(
        "training of path {path} diverged at inner step {step} (loss {loss}): lower the learning rate, or clip gradients"
    )]
    Diverged {
        /// The path.
        path: PathId,
        /// The inner step, counted from 0 over the run.
        step: u64,
        /// The loss of that step, in nats per token.
        loss: f32,
    },
    /// The loss and the gradients are finite, but weights or moments that follow from them are not, or are larger than those
    /// of any path that trains.
    #[error(
        "training of path {path} diverged in inner step {step} or before: {problem}; lower the learning rate, or clip gradients"
    )]
    DivergedResult {
        /// The path.
        path: PathId,
        /// The last inner step, counted from 0 over the run.
        step: u64,
        /// The value, and where it is.
        problem: String,
    },
    /// The header of a path's state is missing, or has another version.
    #[error(
        "the file is no path state of version {expected}: another version of dipaco wrote it, or it is damaged"
    )]
    StateFormat {
        /// The version that this program reads.
        expected: &'static str,
    },
    /// The header of a path's state cannot be written.
    #[error("the header of the path's state cannot be written as JSON")]
    StateHeader(#[source] serde_json::Error),
    /// A path's state belongs to a model of another size.
    #[error(
        "the path's state holds {found} moments, its configuration asks for {expected}: it belongs to another configuration"
    )]
    StateLength {
        /// Moments of the path's configuration.
        expected: usize,
        /// Moments in the state.
        found: usize,
    },
    /// A path's state holds values of a fragment that has another size.
    #[error(
        "the path's state holds {found} values of a fragment of {expected} parameters: it belongs to another configuration"
    )]
    FragmentStateLength {
        /// Parameters of the fragment.
        expected: usize,
        /// Values in the state.
        found: usize,
    },
    /// The global weights of a fragment have another size than the fragment.
    #[error(
        "the global weights of fragment {fragment} hold {found} values, the model's fragment has {expected}: they belong to another configuration"
    )]
    GlobalLength {
        /// The fragment.
        fragment: FragmentId,
        /// Parameters of the fragment.
        expected: usize,
        /// Values of the weights.
        found: usize,
    },
    /// A value of a path's state is NaN or infinite: a moment, or part of a fragment that the path keeps.
    #[error("value {position} of {tensor} in the path's state is not finite: training diverged")]
    NotFinite {
        /// Name of the tensor in the state.
        tensor: String,
        /// Position of the first such value in the tensor.
        position: usize,
    },
    /// A path's state has a step, a position or tensors that no lease of this run leaves.
    #[error("the path's state is not the state at the end of the lease: {problem}")]
    OtherState {
        /// The difference.
        problem: String,
    },
    /// The modules of a level cannot be cut into the configured number of fragments.
    #[error("sync.fragments does not fit the modules of level {level}: {why}")]
    Fragments {
        /// The level.
        level: usize,
        /// The reason.
        why: dipaco_sync::FragmentsError,
    },
    /// The model has no such level or fragment.
    #[error("this run's model has no {what}: the file or message belongs to another run")]
    NoSuchFragment {
        /// The level or the fragment.
        what: String,
    },
    /// An outer gradient cannot be written or read. Peers are told this in one line.
    #[error("the outer gradient of module {module} from path {path}: {why}")]
    OuterGradient {
        /// The module.
        module: ModuleId,
        /// The path.
        path: PathId,
        /// The reason.
        why: dipaco_codec::CodecError,
    },
    /// A module file cannot be read.
    #[error("{name} is not a module file of this model")]
    ModuleFile {
        /// Name of the file.
        name: String,
        /// The reason.
        #[source]
        source: dipaco_model::ModelError,
    },
    /// A fault of this program.
    #[error("internal fault of dipaco: {what}; please report it")]
    Internal {
        /// The assumption that does not hold.
        what: String,
    },
    /// The plan of the run does not fit together.
    #[error(transparent)]
    Plan(#[from] dipaco_protocol::PlanError),
    /// Levels and model do not fit.
    #[error(transparent)]
    Topology(#[from] dipaco_topology::TopologyError),
    /// The model cannot be composed or run.
    #[error(transparent)]
    Model(#[from] dipaco_model::ModelError),
    /// A token file cannot be read.
    #[error(transparent)]
    Shards(#[from] dipaco_shards::ShardsError),
    /// The user asks for a GPU, and this program cannot use one.
    #[error("this dipaco can't use a GPU: build it with --features cuda, or give --device cpu")]
    BuiltWithoutCuda,
    /// A GPU does not train with this setting.
    #[cfg(feature = "cuda")]
    #[error("a GPU does not train with {setting}: give --device cpu, or leave the setting out")]
    NotOnGpu {
        /// The setting.
        setting: String,
    },
    /// A path cannot be put on the GPU, because a thread failed while it used the GPU.
    #[cfg(feature = "cuda")]
    #[error("the GPU is not used further, because a computation on it failed")]
    GpuGivenUp,
    /// A file that is checked can't be read.
    #[error("it can't be read")]
    Unread(#[source] std::io::Error),
    /// A GPU cannot be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] dipaco_cuda::CudaError),
}

impl PathError {
    /// The inner step, counted from 0 over the run, in which the training of a path diverged; `None` for any other error.
    #[must_use]
    pub fn diverged_at(&self) -> Option<u64> {
        match *self {
            Self::Diverged { step, .. } | Self::DivergedResult { step, .. } => Some(step),
            _ => None,
        }
    }

    /// True if the machine has no GPU that is new enough, or no driver for one, as opposed to a GPU that fails.
    #[must_use]
    pub fn is_no_gpu(&self) -> bool {
        #[cfg(feature = "cuda")]
        if let Self::Cuda(error) = self {
            use dipaco_cuda::CudaError;
            return matches!(
                error,
                CudaError::NoLibrary { library: "libcuda", .. }
                    | CudaError::NoDevice { .. }
                    | CudaError::Capability { .. }
            );
        }
        false
    }

    /// True if there is a GPU, and it is too old.
    #[must_use]
    pub fn is_old_gpu(&self) -> bool {
        #[cfg(feature = "cuda")]
        if let Self::Cuda(error) = self {
            return matches!(error, dipaco_cuda::CudaError::Capability { .. });
        }
        false
    }
}
