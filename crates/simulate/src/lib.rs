//! What large runs would do, in virtual time: how much bandwidth between sites keeps compute busy, and how much of it
//! failures cost.
//!
//! Nothing here trains. [`utilisation()`] plays the messages of a synchronisation scheme over one link, bucket by bucket;
//! [`goodput()`] plays failures of chips, event by event. Both are functions of their arguments: the same seed gives the
//! same numbers.

mod bandwidth;
mod chaos;
mod error;
mod goodput;
mod scheme;

pub use bandwidth::{Link, Training, required_bandwidth, utilisation};
pub use chaos::{Bug, Chaos, Violation, chaos};
pub use error::SimulateError;
pub use goodput::{Fleet, Goodput, goodput};
pub use scheme::Scheme;
