//! Hosting peers: what coordinator and synchronizer share in serving connections and receiving results.

mod connections;
mod results;
mod revocations;
mod uploads;

pub(crate) use connections::{Answer, Peer, RequestHandler, Role, refused, serve_peers};
pub(crate) use results::{ResultIntake, piece};
pub use revocations::Revocations;
pub use uploads::{CompleteUpload, PieceOutcome, ReceivedContent, Uploads};
