//! Damages valid inputs, and gives them to decoders of foreign bytes. Only tests use this package.
//!
//! Random bytes fail at a decoder's first check of a length, a checksum or a format. A [`Campaign`] therefore begins with
//! valid inputs and damages them. It counts how far each input got, and fails if too few got past the first checks.

#![forbid(unsafe_code)]

mod campaign;
mod damage;
mod json;

pub use campaign::{Campaign, CampaignCounts, Reached};
pub use damage::damage;
pub use rand;

/// The random numbers of a case. The same case has the same numbers everywhere.
pub type CaseRng = rand_chacha::ChaCha8Rng;
