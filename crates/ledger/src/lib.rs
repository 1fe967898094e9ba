//! The coordinator's record of a run, and every decision about it, without I/O.
//!
//! [`Ledger`] decides: it grants leases ([`GrantedLease`]), says which results count, orders outer steps
//! ([`OuterStepOrder`]), assigns modules to synchronizers, keeps checkpoints, and lists the objects that nobody needs any
//! more. It contains the state machine of `dipaco-sync`, and adds the objects of the store.
//!
//! Time, randomness and messages are arguments, and writes are values: [`Ledger::poll_write`] drafts the next write of the
//! manifest ([`RunManifest`]) and gives its parts in their order ([`WritePart`]); answers wait for it ([`UntilWritten`]). This
//! package has no socket, no file, no clock and no thread. The coordinator moves the
//! bytes around it, and `dipaco-simulate` plays the same ledger in virtual time.

#![forbid(unsafe_code)]

mod dropped_objects;
mod error;
mod granted_lease;
mod known_processes;
mod lease_result;
mod ledger;
pub mod names;
mod object;
mod open_steps;
mod orders;
mod owners;
mod plan;
mod records;
mod run_manifest;
mod until_written;

pub use dropped_objects::DroppedObjects;
pub use error::{LedgerError, ResultError};
pub use granted_lease::{CompletedLease, FragmentWeights, GrantedLease, WeightChange};
pub use known_processes::{Arrival, ConnectionNumber, Departure, KnownProcesses};
pub use lease_result::{LeaseReport, LeaseResult, possible_loss};
pub use ledger::{
    ExpectedResult, FailureDecision, LeaseCompletion, Ledger, NewCheckpoint, Orders, OtherNumerics,
    PendingWrite, PhaseBoundary, Recording, ReducedGradient, SavedCheckpoint, StepRecording, StoredResult,
    StoredRun, TrainingFailure, WriteDraft, WritePart, check_shards,
};
pub use object::ObjectRef;
pub use orders::{MergeInput, OuterStepDone, OuterStepOrder};
pub use owners::Claimed;
pub use plan::LedgerPlan;
pub use run_manifest::{
    ChangeRecord, CheckpointRecord, CompletedLeaseRecord, ContributorRecord, CountRecord, EarlyStoppingBest,
    ExtensionRecord, FragmentRecord, GradientRecord, KeptVersion, ModuleRecord, PathRecord, QuarantineRecord,
    RollbackRecord, RunManifest, SeedRecord, ShardRecord, TrainingRecord,
};
pub use until_written::UntilWritten;
