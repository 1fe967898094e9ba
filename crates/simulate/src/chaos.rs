//! The coordinator's decisions under faults, in virtual time.
//!
//! A seed selects a small run (topology, schedule, scheme) and its faults: processes die and restart, pause and
//! continue; messages are lost, delayed, duplicated and reordered; requests are repeated with different content;
//! clocks drift; disks are slow, and a coordinator dies between two parts of a write. Workers have names, keep the states
//! of their paths, and replay leases when they take a path over. In some runs a synchronizer takes outer steps; it dies, hangs
//! and reports late. Some peers lie ([`Peers`]): they name leases of others,
//! repeat requests of others, hold leases that they never train, borrow names, upload states with wrong steps, and send
//! ids that do not exist.
//!
//! The ledger is production's ([`dipaco_ledger`]), and so are its orders, its manifest and the parts of its writes in their
//! order, the queue of answers that wait for a write, the succession of processes, and the choice of objects that pins keep.
//! Merging and momentum are production's too ([`dipaco_sync`], [`dipaco_optim`]). Network, disk and training are stand-ins.
//!
//! An audit checks these invariants on every write of the manifest and at the end:
//!
//! - The store has every object that the manifest refers to or a reader has pinned, with the right content.
//! - No contribution counts twice or is lost.
//! - Versions rise by one with each outer step, and each step was taken by whoever was asked for it last.
//! - Every outer gradient was made from the version that the ledger gave to its path.
//! - Every inner step is in the weights exactly once.
//! - No request of an honest worker is refused.
//! - The run ends after the last fault.
//! - A path that diverges for every worker goes into quarantine, and the run ends without it.
//! - A synchronous run ends with the weights of the undisturbed run, bit for bit, but for modules that only a path in
//!   quarantine trains.

mod audit;
mod case;
mod coordinator;
mod disk;
mod driver;
mod events;
mod faults;
mod lease_in_training;
mod liar;
mod messages;
mod object_store;
mod outer_step;
mod pins;
mod played_run;
mod start;
mod storing_result;
mod synchronizer;
mod toy;
mod worker;
mod world;
mod writes;

use serde::Serialize;
use thiserror::Error;

use self::case::Case;
use self::world::ChaosWorld;

/// A bug planted into the program, to test the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A contribution is merged twice.
    DoubleCount,
    /// A worker trains on old weights from its memory.
    StaleBase,
    /// A coordinator that takes over resets the momentum to zero.
    LostMomentum,
    /// Path and fencing number prove that a lease is one's own.
    ForeignLease,
    /// The name of an object does not contain its hash, and a second content of a result takes its place.
    OverwrittenObject,
    /// A path's state counts without a check of its steps.
    UncheckedState,
    /// A result counts before it is in the store.
    RecordedFirst,
    /// Objects are deleted before the manifest that does not refer to them is written.
    EarlyDelete,
    /// Objects are deleted that a reader has pinned.
    IgnoredPin,
    /// An outer step of a synchronizer that has lost its modules counts.
    OldFence,
}

/// The peers of the simulated runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// Some runs have liars, and some have none.
    #[default]
    Mixed,
    /// All peers are honest.
    Honest,
    /// In every run between one peer and half as many as the honest workers lie, rounded up: one of two peers, two of five.
    SomeLie,
}

/// Summary of a simulated run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Chaos {
    /// Crashes, pauses and partitions.
    pub faults: u64,
    /// Messages sent.
    pub messages: u64,
    /// All events.
    pub events: u64,
    /// Duration of the run in virtual seconds.
    pub virtual_seconds: f64,
}

/// The violated invariant.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("seed {seed}: {what}\n  the case: {case}")]
pub struct Violation {
    /// Seed. It repeats the run exactly.
    pub seed: u64,
    /// The violated invariant and its virtual time.
    pub what: String,
    /// Description of the run that the seed selects.
    pub case: String,
}

/// Plays the run that a seed selects among these peers.
///
/// # Errors
/// If an invariant is violated.
pub fn chaos(seed: u64, peers: Peers, bug: Option<Bug>) -> Result<Chaos, Violation> {
    let violation = |what, case: &Case| Violation { seed, what, case: case.describe() };
    let case =
        Case::of_seed(seed, peers).map_err(|what| Violation { seed, what, case: "none".to_owned() })?;
    let played = ChaosWorld::new(&case, seed, bug).play().map_err(|what| violation(what, &case))?;
    // With an overlap, chance decides which results of a diverging path arrive before it goes into quarantine.
    if case.scheme.waits() && (case.diverging.is_none() || case.schedule.overlap() == 0) {
        let calm = case.undisturbed();
        let undisturbed = ChaosWorld::new(&calm, seed, None).play().map_err(|what| violation(what, &calm))?;
        played.same_weights(&undisturbed, &case).map_err(|what| violation(what, &case))?;
    }
    Ok(played.summary)
}
