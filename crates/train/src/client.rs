//! The client side of a connection: a worker's session with the coordinator, and its transfers.

mod pace;
mod routes;
mod session;
mod transfer;

pub(crate) use session::{GOODBYE_TIMEOUT, instance};
pub use session::{Identity, LONG_CALL_TIMEOUT, LeaseOffer, SHORT_CALL_TIMEOUT, Session};
pub use transfer::{LeaseKey, Transfer, answered};
