//! Training of one path.
//!
//! [`Trainer`] takes inner steps on a [`TrainDevice`]: AdamW, Muon, or plain descent in synchronous training.
//! [`PathWeights`] joins the global fragments of a lease with the path's own [`PathState`]. [`train_lease`] trains a lease
//! from its first to its last inner step and makes the outer gradients. [`PathReader`] computes features and scores of a
//! path without training it. [`OuterState`] takes the outer step of a fragment. [`Layout`] says where fragments lie in
//! modules.
//!
//! This package has no runtime, no network and no run store: functions compute on the thread of their caller.

#![forbid(unsafe_code)]

mod compute;
mod data;
mod device;
mod error;
mod held_out;
mod inner_step;
mod kept_parts;
mod layout;
mod lease;
pub mod module_files;
mod moment_bounds;
mod moment_specs;
mod numerics;
mod outer_step;
mod piece_cursor;
mod pieced_file;
mod reader;
mod state;
mod state_check;
mod state_header;
mod state_reader;
mod trained_state;
mod trainer;
mod trainer_memory;
mod weights;
mod zeros;

pub use data::{PathData, mean_loss};
pub use device::{DeviceChoice, DeviceChoiceError, TrainDevice};
pub use error::PathError;
pub use held_out::HELD_OUT_RULE;
pub use inner_step::{InnerConfig, StepReport};
pub use kept_parts::KeptParts;
pub use layout::{FragmentLayout, Layout};
pub use lease::{LeaseTraining, LeaseWatch, OuterGradient, TrainedLease, TrainingStage, train_lease};
pub use moment_specs::MomentSpecs;
pub use numerics::numerics;
pub use outer_step::{Merged, OuterState, SynchronousSteps};
pub use pieced_file::PiecedFile;
pub use reader::{PathReader, ReaderSize};
pub use state::{FragmentState, PathState};
pub use state_check::{check_state, longest_state};
pub use state_reader::StateReader;
pub use trainer::Trainer;
pub use trainer_memory::TrainerMemory;
pub use weights::{GlobalFragment, PathWeights};
