//! Errors of encoding and decoding.

use thiserror::Error;

/// Error of encoding or decoding values.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodecError {
    /// A value is NaN or infinite.
    #[error("value {position} is not finite: training diverged; a lower learning rate may help")]
    NotFinite {
        /// Position of the first such value.
        position: usize,
    },
    /// The bytes have another format.
    #[error("these bytes are not an outer gradient: they do not begin with its signature")]
    Foreign,
    /// The format has another version, or the compression is unknown.
    #[error(
        "can't read version {version} of the format with compression {code}: run the same program on both sides"
    )]
    Unknown {
        /// Version of the format.
        version: u32,
        /// Code of the compression.
        code: u32,
    },
    /// The number of values is not the expected number.
    #[error("{found} values for a module of {expected}")]
    Count {
        /// Expected number of values.
        expected: u64,
        /// Number of values in the header.
        found: u64,
    },
    /// The length does not fit the number of values.
    #[error("{found} bytes instead of {expected}: they were cut, or other bytes follow them")]
    Length {
        /// Length of the encoded values.
        expected: u64,
        /// Length of the given bytes.
        found: u64,
    },
}
