//! Import of a pretrained Llama in Hugging Face's format (settings, index of files, weights) or in a GGUF file.
//!
//! The files may come from anywhere. Nothing here allocates memory by a number in a file before the number is compared with
//! the bytes that are really there.

mod error;
mod gguf;
mod index;
mod settings;
mod weights;

pub use error::ImportError;
pub use gguf::GgufModel;
pub use index::TensorIndex;
pub use settings::PretrainedSettings;
pub use weights::{PretrainedWeights, untie};
