//! The processes of a training run: worker, coordinator and synchronizer, and the pretraining of seed and routers.
//!
//! `dipaco-sync` decides and `dipaco-path` computes. This package connects them to files, sockets and threads. A *run*
//! is its store: [`open_run`] reads the current manifest, [`train_seed`] trains the dense path from which every path
//! starts, [`start_training`] cuts it into modules, [`take_over`] shuts out a coordinator that still runs, [`coordinate`]
//! hands out leases and takes outer steps, [`work`] trains paths, and [`synchronize`] takes outer steps in another process.
//!
//! A store with [`store_patience`] lets these processes outlive a disk or a line that fails for some minutes. This package has
//! no command line and chooses no directories.

#![forbid(unsafe_code)]

/// Version of the program and hash of its sources. Processes of a run have the same build, because other sources may
/// compute other bits.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), "+", env!("DIPACO_BUILD"));

mod blocking;
pub mod client;
mod coordinator;
mod error;
mod extension;
pub mod host;
mod open_run;
mod patience;
mod router;
mod seed;
mod stored_modules;
mod synchronizer;
mod worker;

pub use coordinator::{
    CoordinatorError, CoordinatorOptions, CoordinatorSummary, FragmentContributions, Observe,
    PathContributions, RenewToken, Reroute, Rerouting, TokenContributions, contributions_of, coordinate,
    recover, roll_back, start_training, take_over, training_origin,
};
pub use dipaco_ledger::LedgerError;
pub use error::TrainError;
pub use extension::{ExtensionError, ExtensionOptions, check_finished, extend_run};
pub use host::{HostError, Revocations};
pub use open_run::{OpenRun, open_run};
pub use patience::store_patience;
pub use router::{
    RouterError, RouterStep, RouterTraining, TrainedRouter, rising_losses, score_header, shard_repeats,
    small_shards, train_router, write_scores,
};
pub use seed::{
    OpenedSeed, SeedError, SeedOptions, SeedSummary, adopt_seed, import_seed, open_seed, train_seed,
};
pub use synchronizer::{
    ObserveSynchronizer, SynchronizerError, SynchronizerOptions, SynchronizerSummary, synchronize,
};
pub use worker::{
    LeaseMoment, LeaseObserver, LeaseStage, WEIGHTS_IN_MEMORY, WorkerError, WorkerOptions, WorkerSummary,
    work,
};
