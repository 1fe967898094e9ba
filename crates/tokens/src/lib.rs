//! Batches of token ids that are checked against a vocabulary once.
//!
//! Token ids enter the program from token files and requests. [`TokenRows::new`] and [`TokenBatch::new`] are the check,
//! and the only ways to build these types. An operation that takes them indexes its tables without a check of each id. It
//! compares one number: [`TokenRows::vocabulary`] or [`TokenBatch::outputs`] with the size of its table.
//!
//! ```
//! use dipaco_tokens::{IGNORE, TokenBatch, TokenError, TokenRows};
//!
//! // Two rows of three tokens in a vocabulary of 10; the last position of each row has no target.
//! let tokens = TokenRows::new(vec![1, 2, 3, 4, 5, 0], 2, 10)?;
//! let batch = TokenBatch::new(tokens, vec![2, 3, IGNORE, 5, 0, IGNORE], 10)?;
//! assert_eq!((batch.rows(), batch.time(), batch.counted()), (2, 3, 4));
//!
//! let refused = TokenRows::new(vec![1, 10], 1, 10);
//! assert_eq!(refused, Err(TokenError::Outside { id: 10, at: 1, vocabulary: 10 }));
//! # Ok::<(), TokenError>(())
//! ```

#![forbid(unsafe_code)]

mod batch;
mod error;

pub use batch::{IGNORE, TokenBatch, TokenRows};
pub use error::TokenError;
