//! The Llama-shaped transformer cut into modules: composition of a path, steps of serving, import and export.
//!
//! A *module* is one copy of a level's parameters. It exists as flat numbers ([`ModuleWeights`], the form in which it
//! is stored, sent and averaged) or on the device ([`Module`], shared by all paths through it). A [`Path`] is composed
//! of one module per level and computes losses, gradients and features. For serving, modules are packed ([`PackedModule`])
//! and a [`Stepper`] runs rows of many sequences on many paths. Tensor names are the names
//! of Hugging Face's Llama, so a path is a Llama checkpoint: rotate-half RoPE, RMSNorm in f32, SwiGLU, no biases,
//! explicit head size.
//!
//! ```
//! use dipaco_model::{Device, ModelConfig, Module, Path, TokenRows, init, split};
//! use dipaco_topology::{Topology, TopologyConfig};
//!
//! let config = ModelConfig { vocab_size: 96, hidden_size: 32, blocks: 2, heads: 2, head_dim: 16, ffn_size: 48, ..ModelConfig::default() };
//! let topology = Topology::new(&TopologyConfig::dense(2), 2)?;
//! let modules = split(&config, &topology, &init(&config, 7)?)?;
//! let modules = modules.iter().map(|m| Ok(Module::load(m, &Device::Cpu)?.into())).collect::<Result<Vec<_>, dipaco_model::ModelError>>()?;
//! let path = Path::compose(&config, &topology, &modules)?;
//! let logits = path.position_logits(&TokenRows::new([1, 2, 3], 1, 96)?, &[2])?;
//! assert_eq!(logits.len(), 96);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Token ids and the vocabulary
//!
//! Token ids are checked against the vocabulary once, where they enter the program. Functions on batches take a
//! [`TokenBatch`] or [`TokenRows`], and building these types is the check. For training, routing and evaluation
//! `dipaco-shards` builds them from token files. [`Stepper::step`] takes plain ids and checks them itself.
//!
//! This package starts no threads, logs nothing and reads no files. It has no optimizer and no tokenizer.

#![forbid(unsafe_code)]

mod config;
mod error;
mod export;
mod file_values;
mod forward;
mod gguf;
mod gradients;
mod import;
mod init;
mod memory;
mod module;
mod packed;
mod packer;
mod path;
mod specs;
mod split;
mod step;
mod step_pages;
mod weight_reader;
mod weight_stream;
mod weights;

pub use candle_core::{Device, Tensor};
pub use config::{Dtype, ModelConfig};
pub use dipaco_ops::kernel::{exp_scaled, sum_exp};
pub use dipaco_ops::{
    IGNORE, Int8Kernels, KernelChoice, KernelSet, KernelSetError, OpsError, PAGE_TOKENS, Phase, Phases,
    Precision, Profile, TokenBatch, TokenError, TokenRows, WeightFormat, kernel_choice, product_rate,
};
pub use error::{BoxError, ModelError};
pub use export::{SpecialTokens, export_llama, export_model, import_llama};
pub use file_values::{append_file_values, file_bytes, into_little_endian, little_endian};
pub use forward::Loss;
pub use gguf::{GgufTokens, GgufVocabulary, VocabularyError, export_gguf};
pub use gradients::Gradients;
pub use import::{GgufModel, ImportError, PretrainedSettings, PretrainedWeights, TensorIndex, untie};
pub use init::init;
pub use memory::{OptimizerMemory, StepMemory, StepShape, step_memory};
pub use module::Module;
pub use packed::PackedModule;
pub use packer::{ModulePacker, packing_bytes};
pub use path::Path;
pub use specs::{TensorSpec, backward_blocks, level_specs, parameters, path_specs, trained_specs};
pub use split::{join, split};
pub use step::{Positions, StepSequence, Stepper};
pub use step_pages::StepPages;
pub use weight_reader::WeightReader;
pub use weight_stream::{WeightStream, take_bytes};
pub use weights::{ModuleView, ModuleWeights, file_order, safetensors_header, safetensors_parts, tensors_of};
