//! Tests of the synchronisation core under faults, in virtual time.
//!
//! A seed selects a small run (topology, schedule, scheme) and its faults: processes die and restart, pause and
//! continue; messages are lost, delayed, duplicated and reordered; requests are repeated with different content;
//! clocks drift; disks are slow. In half of the runs some peers lie: they name leases of others with guessed secrets,
//! hold leases that they never train, borrow names, and send ids that do not exist. As in production a result is in the
//! store before it counts, and objects without a reference are deleted after the write of the manifest. Leases, contributions, merging, outer steps, sends and receives are production code
//! ([`dipaco_sync`], [`dipaco_optim`]). Network, disk and training are stand-ins.
//!
//! An audit checks these invariants on every write to the disk and at the end:
//!
//! - No contribution counts twice or is lost.
//! - The store has the content of every result that counts.
//! - Versions rise by one.
//! - Every outer gradient was made from the version that the core gave to its path.
//! - Every inner step is in the weights exactly once.
//! - The run ends after the last fault.
//! - A synchronous run ends with the weights of the undisturbed run, bit for bit.

mod audit;
mod case;
mod coordinator;
mod liar;
mod object_store;
mod results;
mod toy;
mod worker;
mod world;

use serde::Serialize;
use thiserror::Error;

use self::audit::Audit;
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

/// Plays the run that a seed selects.
///
/// # Errors
/// If an invariant is violated.
pub fn chaos(seed: u64, bug: Option<Bug>) -> Result<Chaos, Violation> {
    let violation = |what, case: &Case| Violation { seed, what, case: case.describe() };
    let case = Case::of_seed(seed).map_err(|what| Violation { seed, what, case: "none".to_owned() })?;
    let (disk, summary) = ChaosWorld::new(&case, seed, bug).play().map_err(|what| violation(what, &case))?;
    if case.scheme.waits() {
        let calm = case.undisturbed();
        let (undisturbed, _) =
            ChaosWorld::new(&calm, seed, None).play().map_err(|what| violation(what, &calm))?;
        Audit::same_weights(&case, &disk, &undisturbed).map_err(|what| violation(what, &case))?;
    }
    Ok(summary)
}
