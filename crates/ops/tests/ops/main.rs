//! The public operations against plain f64 arithmetic and against candle's own differentiation.
#![allow(clippy::unwrap_used, reason = "the helpers of tests panic too")]

mod autograd;
mod blocks;
mod embedding;
mod head;
mod kernel;
mod misuse;
mod reference;
mod support;
