//! Hosting peers: serving connections and receiving results, shared by coordinator and synchronizer.

mod connections;
mod error;
mod gradient_check;
mod link_issuer;
mod peer;
mod reception;
mod results;
mod revocations;
mod uploads;
mod verified_gradients;

pub(crate) use connections::{RequestHandler, serve_peers};
pub use error::HostError;
pub(crate) use link_issuer::LinkIssuer;
pub(crate) use peer::{Answer, OTHER_ROLE, Peer, Role, refused};
pub(crate) use reception::{Reception, Registration};
pub(crate) use results::{Admission, ResultIntake, ResultReceiver, read_piece};
pub use revocations::Revocations;
pub use uploads::{
    AdmittedUpload, CompleteUpload, PieceOutcome, ReceivedContent, Upload, UploadKey, UploadedPiece, Uploads,
};
pub(crate) use verified_gradients::VerifiedGradients;
