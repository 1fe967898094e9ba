//! Fused tensor operations of a path with their gradients.
//!
//! candle's own `rms_norm`, `rope` and `softmax` have no backward pass, so gradients through them vanish; the operations
//! here have one. Every operation works on contiguous `f32` tensors on the CPU and gives the same bits for any number of
//! threads: work is cut into chunks of a fixed size and partial sums are added in the order of the chunks.
//!
//! - The tensor functions [`embedding`], [`blocks`] and [`cross_entropy`] make up a training step; [`token_log_probs`]
//!   scores. They read a module's flat parameters and write gradients to [`GradientSlot`]s. Their memory comes from a
//!   [`Workspace`] and goes back there. Products are f32, or bf16 with f32 sums ([`Precision`]).
//! - [`PackedBlock`] runs a block on rows of many sequences, for serving. [`BlockPacker`] makes it part by part. Keys and
//!   values lie in [`KvPages`].
//! - [`PackedRows`] multiplies many blocks of rows by one matrix, which may be rounded ([`WeightFormat`]).
//! - [`kernel_choice`] gives the [`KernelSet`] that products use, and the reason for it.
//! - [`kernel`] has computations on plain slices, without a graph.
//! - [`with_slice`] and [`update_in_place`] give access to a tensor's memory.
//!
//! The tensor functions take token ids and targets as [`TokenRows`] and [`TokenBatch`], whose ids are checked where they enter.
//! They compare the size of that vocabulary with the size of their table, so no index can leave the table.
//!
//! Compared with f64, the error of a block's results and gradients is less than 4e-6 of their Euclidean norm in f32 and
//! less than 2.5e-2 with bf16 products (tests/ops).
//!
//! This package does not know the model: it holds no weights, draws no random numbers and does no I/O.

mod attention;
mod backward;
mod block;
mod blocks;
mod buffer;
mod check;
mod cross_entropy;
mod element;
mod embedding;
mod error;
mod exp;
mod format;
mod gradient_slot;
mod head;
mod huge_pages;
mod kernel_set;
mod kv_pages;
mod linear;
mod memory;
mod packed_block;
mod packed_rows;
mod product;
mod profile;
mod quantized;
mod rms_norm;
mod rope;
mod scratch;
mod swiglu;
mod vector;

pub mod kernel;

#[cfg(test)]
mod test_support;

pub use backward::Backward;
pub use block::{BlockShape, Stack};
pub use blocks::blocks;
pub use buffer::Workspace;
pub use cross_entropy::{HeadPlace, HeadSlots, cross_entropy, token_log_probs};
pub use dipaco_tokens::{IGNORE, TokenBatch, TokenError, TokenRows};
pub use element::{Precision, bf16_bits, bf16_value};
pub use embedding::{EmbeddingPlace, embedding};
pub use error::OpsError;
pub use format::WeightFormat;
pub use gradient_slot::{GradientSlot, PartGradient};
pub use head::head_rows;
pub use huge_pages::free as free_values;
pub use kernel_set::{Int8Kernels, KernelChoice, KernelSet, KernelSetError, kernel_choice};
pub use kv_pages::{KvPages, KvShape, PAGE_TOKENS, SequencePages, SequencePlace};
pub use memory::{update_in_place, with_slice};
pub use packed_block::{BlockPacker, BlockPart, PackedBlock};
pub use packed_rows::{PackedRows, Target, gated_products};
pub use product::{LONGEST_PASS, LinearProduct, product_rate, product_seconds};
pub use profile::{Phase, Phases, Profile};
pub use rope::RopeTable;
pub use vector::dispatch as with_vector_units;
