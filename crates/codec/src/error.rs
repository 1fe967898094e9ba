//! Why values can't be written or read.

use thiserror::Error;

/// Why values can't be written or read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodecError {
    /// A NaN or an infinity.
    #[error("value {position} is not finite: training diverged; a lower learning rate may help")]
    NotFinite {
        /// Where the first such value is.
        position: usize,
    },
    /// Bytes that are no values of this format.
    #[error("these bytes are no outer gradient: they begin with something else")]
    Foreign,
    /// Another version of the format, or a way of writing that this program does not know.
    #[error(
        "version {version}, way of writing {code}: this program can't read that; run the same program on both sides"
    )]
    Unknown {
        /// Version of the format.
        version: u32,
        /// Number of the way of writing.
        code: u32,
    },
    /// Another number of values than the module has.
    #[error("{found} values for a module of {expected}")]
    Count {
        /// Values of the module.
        expected: u64,
        /// Values that the bytes promise.
        found: u64,
    },
    /// More or fewer bytes than so many values take.
    #[error("{found} bytes where {expected} belong: they were cut or have something behind them")]
    Length {
        /// Bytes that the values take.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
}
