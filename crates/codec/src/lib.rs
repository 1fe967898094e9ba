//! Outer gradients as bytes, from half a bit to four bytes a value.
//!
//! A worker encodes the outer gradient of a path; the synchronizer decodes it and adds it up in f32. The bytes hold the
//! values one after the other. Both sides know their tensors, so the bytes do not name them.
//!
//! ```
//! use dipaco_codec::{Compression, decode, encode};
//!
//! let bytes = encode(&[1.0, -0.5, 0.1], Compression::E3m0)?;
//! assert_eq!(decode(&bytes, 3)?, [1.0, -0.5, 0.125]);
//! # Ok::<(), dipaco_codec::CodecError>(())
//! ```

#![forbid(unsafe_code)]

mod blocks;
mod compression;
mod e3m0;
mod error;
mod finite;
mod format;
mod top_k;

pub use compression::Compression;
pub use error::CodecError;
pub use finite::first_not_finite;
pub use format::{Decoder, decode, encode, encoded_len};
