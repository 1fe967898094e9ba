//! What large runs would do, in virtual time: how much of its time compute is busy, what link that takes, and what
//! failures cost.
//!
//! Nothing here trains. [`play()`] lets learners ask the core of synchronisation ([`dipaco_sync`]), the same that runs in
//! production, for work, and plays what their links, their chips and their speeds make of it; [`required_bandwidth()`] asks
//! it which link is enough. [`chaos()`] plays small runs to the last bit, to see whether the core holds what it promises.
//! All are functions of their arguments: the same seed gives the same numbers.

mod bandwidth;
mod chaos;
mod error;
mod run;
mod scheme;

pub use bandwidth::required_bandwidth;
pub use chaos::{Bug, Chaos, Violation, chaos};
pub use error::SimulateError;
pub use run::{Chips, LargeRun, Link, Played, play};
pub use scheme::Scheme;
