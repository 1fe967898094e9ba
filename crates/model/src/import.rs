//! Import of a pretrained Llama in Hugging Face's format: its settings, its index of files and its weights.
//!
//! The files may come from anywhere. Nothing here allocates memory by a number in a file before the number is compared with
//! the bytes that are really there.

mod error;
mod index;
mod settings;
mod weights;

pub use error::ImportError;
pub use index::TensorIndex;
pub use settings::PretrainedSettings;
pub use weights::{PretrainedWeights, untie};
