//! The client side of a connection: a worker's or synchronizer's session with the coordinator, and a worker's transfers.

mod backoff;
mod content;
mod error;
mod links;
mod pace;
mod routes;
mod session;
mod token_source;
mod token_url;
pub(crate) mod transfer;
mod upload;

pub(crate) use content::ContentFile;
pub use content::UploadContent;
pub use dipaco_sync::LeaseKey;
pub use error::ClientError;
pub(crate) use session::{GOODBYE_TIMEOUT, instance};
pub use session::{Identity, LONG_CALL_TIMEOUT, LeaseOffer, NextIdentity, SHORT_CALL_TIMEOUT, Session};
pub use token_source::{TokenPlace, TokenPlaceError, TokenSource};
pub use token_url::{TokenUrl, TokenUrlError, is_loopback};
pub use transfer::{Moved, Transfer, expect_done};
