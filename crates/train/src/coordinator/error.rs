//! Errors of the coordinator.

use dipaco_ledger::LedgerError;
use thiserror::Error;

use crate::TrainError;
use crate::error::through_train_error;
use crate::host::HostError;
use crate::synchronizer::SynchronizerError;

/// An error of starting, recovering or coordinating a training run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The store has no finished seed.
    #[error("this run has no finished seed model: run `dipaco seed` first")]
    NoSeed,
    /// Training has begun and may not be continued.
    #[error(
        "the training of this run has begun ({rounds} of {of} rounds done): continue it with --resume, or use another run directory"
    )]
    AlreadyStarted {
        /// Rounds that every path has done.
        rounds: u32,
        /// Rounds of the whole run.
        of: u32,
    },
    /// The store holds the training of another configuration or other data, or held-out documents of another rule.
    #[error(
        "this run was trained with another configuration, seed model or shards, or by an earlier version of this program, which held out other documents. Going on would mix the two: undo an edit of its config.toml, continue it with its own configuration and program, or use another run directory"
    )]
    OtherTraining,
    /// The run begins with the modules of a finished run, and the topology has changed since.
    #[error(
        "this run begins with the modules of another run (`dipaco extend`), and its topology has changed since then: set topology back to what `dipaco extend` wrote"
    )]
    OtherExtension,
    /// The text could not be divided for the next phase.
    #[error(transparent)]
    Reroute {
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A checkpoint of the run can't be read. Its hash is right, so its form is that of another version.
    #[error(
        "the checkpoint of round {round} can't be read: another version of dipaco wrote it; continue the run with that version"
    )]
    CheckpointFormat {
        /// Round of the checkpoint.
        round: u32,
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// The run has no checkpoint of a round.
    #[error(
        "the run keeps no checkpoint of round {round}; it keeps {}",
        kept_rounds(kept, *finished)
    )]
    NotKept {
        /// The round.
        round: u32,
        /// Rounds whose checkpoints are kept, ascending.
        kept: Vec<u32>,
        /// True if the run is complete.
        finished: bool,
    },
    /// A checkpoint can't be the state of the run.
    #[error("the checkpoint of round {round} is damaged: go back to another round")]
    DamagedCheckpoint {
        /// Round of the checkpoint.
        round: u32,
        /// The first damaged object.
        source: dipaco_store::StoreError,
    },
    /// The store failed while the manifest of a rollback was written, and when it was read afterwards.
    #[error(
        "the store failed during the rollback, so it is not known whether the run has gone back: see `dipaco status` before you repeat the command"
    )]
    UnknownRollback {
        /// The failure of the write.
        source: dipaco_store::StoreError,
    },
    /// The caller asked to stop while the objects of the run were verified. Nothing is changed.
    #[error("interrupted; the run is as it was: repeat the command to continue")]
    Interrupted,
    /// An object that the run needs is damaged, and so is every checkpoint.
    #[error("the run can't go on, and has no undamaged checkpoint: restore its store from a copy")]
    DamagedRun {
        /// The first damaged object.
        source: dipaco_store::StoreError,
    },
    /// The configuration can't be written as JSON.
    #[error("can't write the configuration as JSON")]
    ConfigJson {
        /// The reason.
        #[source]
        source: serde_json::Error,
    },
    /// The coordinator stops, so a change does not count any more.
    #[error("the coordinator stops; every acknowledged result is kept")]
    Stopped,
    /// The ledger can't go on with the run.
    #[error(transparent)]
    Ledger(LedgerError),
    /// An outer step fails.
    #[error(transparent)]
    Synchronizer(SynchronizerError),
    /// A connection of a peer can't be served, or a result can't be received.
    #[error(transparent)]
    Host(HostError),
    /// An error that all roles share.
    #[error(transparent)]
    Core(#[from] TrainError),
}

/// The kept rounds in words.
fn kept_rounds(kept: &[u32], finished: bool) -> String {
    match kept {
        [] if finished => "none, because a complete run needs none: go back before its end".to_owned(),
        [] => "none: set train.checkpoints to keep some from now on".to_owned(),
        [one] => format!("only round {one}: give it, or set train.checkpoints to keep more from now on"),
        kept => {
            let rounds: Vec<_> = kept.iter().map(u32::to_string).collect();
            format!(
                "rounds {}: give one of them, or set train.checkpoints to keep more from now on",
                rounds.join(", ")
            )
        }
    }
}

through_train_error!(CoordinatorError);

// A shared cause is `Core`, no matter which part of the coordinator met it.
impl From<HostError> for CoordinatorError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Core(core) => Self::Core(core),
            error => Self::Host(error),
        }
    }
}

impl From<SynchronizerError> for CoordinatorError {
    fn from(error: SynchronizerError) -> Self {
        match error {
            SynchronizerError::Core(core) => Self::Core(core),
            SynchronizerError::Host(error) => error.into(),
            error => Self::Synchronizer(error),
        }
    }
}

impl From<LedgerError> for CoordinatorError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Closed => Self::Stopped,
            LedgerError::Internal { what } => Self::internal(what),
            error => Self::Ledger(error),
        }
    }
}

impl CoordinatorError {
    /// A fault of this program: the coordinator's own state contradicts itself.
    pub(super) fn internal(what: impl Into<String>) -> Self {
        TrainError::Internal { what: what.into() }.into()
    }
}
