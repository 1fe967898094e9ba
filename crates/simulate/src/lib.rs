//! Simulations of large runs in virtual time: utilisation of compute, required links, and the cost of failures.
//!
//! Nothing here trains. In [`play()`] learners ask the production core of synchronisation ([`dipaco_sync`]) for
//! leases, with simulated links, chips and speeds. [`required_bandwidth()`] searches for the slowest sufficient link.
//! [`serve_traffic()`] plays a server of many paths, batched by module and by path.
//! [`chaos()`] plays small runs under faults and checks the guarantees of the core bit for bit. All are functions of
//! their arguments: the same seed gives the same numbers.

#![forbid(unsafe_code)]

mod bandwidth;
mod chaos;
mod error;
mod run;
mod scheme;
mod serving;

pub use bandwidth::required_bandwidth;
pub use chaos::{Bug, Chaos, Peers, Violation, chaos};
pub use error::SimulateError;
pub use run::{Chips, LargeRun, Link, Played, play};
pub use scheme::SimulatedScheme;
pub use serving::{Batching, Served, ServedTraffic, serve_traffic};
