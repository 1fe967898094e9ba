//! The drivers of training: seed pretraining, worker, coordinator and synchronizer.
//!
//! Decisions are made by `dipaco-sync` and arithmetic by `dipaco-model` and `dipaco-optim`; this package connects
//! them to files, sockets and threads. A *run* is its store: [`open_run`] reads what is current, [`train_seed`] makes
//! the dense path that every path starts from, [`start_training`] cuts it into modules, [`coordinate`] hands paths out
//! and takes the outer steps, [`work`] trains them, and [`synchronize`] takes outer steps in another process.
//!
//! Paths are trained on a [`TrainDevice`]: the CPU, or with the feature `cuda` an NVIDIA GPU.
//!
//! There is no command line here and no choice of directories.

mod compute;
mod coordinator;
mod crowd;
mod data_per_path;
mod desk;
mod device;
mod error;
mod inner;
mod intake;
mod layout;
mod ledger;
mod module_files;
mod orders;
mod outer_step;
mod owners;
mod pace;
mod path_state;
mod path_weights;
mod plan;
mod protocol;
mod reception;
mod recover;
mod revocations;
mod round;
mod round_tally;
mod router_training;
mod routes;
mod run_progress;
mod scores;
mod scribe;
mod seed;
mod session;
mod start;
mod synchronizer;
mod synchronizer_process;
mod transfer;
mod transfer_trial;
mod uploads;
mod worker;

pub use coordinator::{CoordinatorOptions, CoordinatorSummary, Reroute, Rerouting, coordinate};
pub use crowd::{CrowdOptions, CrowdReport, crowd};
pub use data_per_path::{rising_losses, shard_repeats, small_shards};
pub use device::{DeviceChoice, TrainDevice};
pub use error::TrainError;
pub use inner::{InnerConfig, StepReport, Trainer};
pub use layout::{Fragment, Layout};
pub use orders::{OuterDone, OuterOrder, Share};
pub use path_state::{Kept, PathState};
pub use path_weights::{Global, PathWeights};
pub use plan::WorkerPlan;
pub use protocol::{
    Change, Item, PIECE_BYTES, PIECES_AT_ONCE, Report, Request, Response, SYNCHRONIZER, Source, Stretch,
    UnitWeights, WORKER, Whole, Work,
};
pub use recover::recover;
pub use revocations::Revocations;
pub use round::{OuterGradient, PathData, Round, RoundResult, RoundWatch, train_round};
pub use router_training::{RouterStep, RouterTraining, TrainedRouter, train_router};
pub use scores::{score_header, write_scores};
pub use seed::{SeedOptions, SeedSummary, adopt_seed, train_seed};
pub use start::{Started, open_run, start_training, training_origin};
pub use synchronizer_process::{SynchronizerOptions, SynchronizerSummary, synchronize};
pub use transfer_trial::{TrialWorker, serve_trial};
pub use worker::{WorkerOptions, WorkerSummary, work};
