//! The core of synchronisation under faults, in virtual time.
//!
//! A seed stands for a small run (topology, schedule, scheme) and for what happens to it: processes die and come back,
//! stop and go on, messages are lost, delayed, doubled and overtaken, answers come twice with another content, clocks
//! run apart, disks are slow. Leases, contributions, merging, outer steps and what paths make of the weights are the
//! product's own code ([`dipaco_sync`], [`dipaco_optim`]); network, disk and the training are stand-ins.
//!
//! What must hold is checked on everything that reaches the disk: no contribution counts twice or is lost, versions rise
//! by one, no outer step is taken from a base that is not the one that was given out, every inner step is in the weights
//! exactly once, the run ends once the faults do, and the weights of a synchronous run are those of the undisturbed one
//! bit for bit.

mod audit;
mod case;
mod coordinator;
mod toy;
mod worker;
mod world;

use serde::Serialize;
use thiserror::Error;

use self::audit::Audit;
use self::case::Case;
use self::world::World;

/// A fault of the program that is planted, to see whether it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A contribution is merged twice.
    DoubleCount,
    /// A worker trains on weights that it has kept from before.
    StaleBase,
    /// A coordinator that takes over begins with a momentum of zero.
    LostMomentum,
}

/// What was played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Chaos {
    /// Crashes, pauses and partitions.
    pub faults: u64,
    /// Messages sent.
    pub messages: u64,
    /// Events in all.
    pub events: u64,
    /// How long the run took, in virtual seconds.
    pub virtual_seconds: f64,
}

/// What did not hold.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("seed {seed}: {what}\n  the case: {case}")]
pub struct Violation {
    /// The seed, which plays the same again.
    pub seed: u64,
    /// What did not hold, and when.
    pub what: String,
    /// What the seed stands for.
    pub case: String,
}

/// Plays the case of a seed.
///
/// # Errors
/// When something does not hold that must hold.
pub fn chaos(seed: u64, bug: Option<Bug>) -> Result<Chaos, Violation> {
    let of_case = |what, case: &Case| Violation { seed, what, case: case.describe() };
    let case = Case::of_seed(seed).map_err(|what| Violation { seed, what, case: "none".to_owned() })?;
    let (disk, told) = World::new(&case, seed, bug).play().map_err(|what| of_case(what, &case))?;
    if case.scheme.waits() {
        let calm = case.undisturbed();
        let (undisturbed, _) = World::new(&calm, seed, None).play().map_err(|what| of_case(what, &calm))?;
        Audit::same_weights(&case, &disk, &undisturbed).map_err(|what| of_case(what, &case))?;
    }
    Ok(told)
}
