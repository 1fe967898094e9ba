//! The weights of a pretrained Llama in safetensors files.

use std::collections::HashMap;
use std::sync::Arc;

use half::f16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::{ImportError, PretrainedSettings, TensorIndex};
use crate::{ModelConfig, ModuleWeights, TensorSpec, path_specs};

/// Name of the output projection. A tied model has none, or a copy of the embedding.
const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";
/// Most characters of a tensor's name in a message.
const LONGEST_NAME: usize = 200;
/// Tensors of every block, and tensors of the rest of a tied model.
const TENSORS_OF_A_BLOCK: usize = 9;
const OTHER_TENSORS: usize = 2;

/// The weights of a model that is being imported, file by file.
#[derive(Debug)]
pub struct PretrainedWeights {
    specs: Arc<[TensorSpec]>,
    /// Place of each tensor among `values`, by name.
    places: HashMap<String, usize>,
    values: Vec<Option<Vec<f32>>>,
    /// True if the files of a tied model can have a copy of the embedding.
    copy: bool,
    index: Option<TensorIndex>,
}

impl PretrainedWeights {
    /// Expects the tensors of a model. `tensors` is the number of tensors that the index or the only file has; `index` is
    /// absent for a model in one file.
    ///
    /// # Errors
    /// There are fewer tensors than the settings demand.
    pub fn new(
        settings: &PretrainedSettings,
        tensors: usize,
        index: Option<TensorIndex>,
    ) -> Result<Self, ImportError> {
        let model = &settings.model;
        // The list of tensors grows with the number of blocks, which a stranger wrote.
        let expected = model.blocks.saturating_mul(TENSORS_OF_A_BLOCK).saturating_add(OTHER_TENSORS);
        if tensors < expected {
            return Err(ImportError::Value {
                file: "config.json".to_owned(),
                key: "num_hidden_layers".to_owned(),
                problem: format!(
                    "is {}, which makes at least {expected} tensors, but the files have {tensors}",
                    model.blocks
                ),
            });
        }
        let mut names: Vec<TensorSpec> = path_specs(model);
        let specs: Arc<[TensorSpec]> = names.clone().into();
        if model.tie_embeddings {
            let spec = names[0].clone();
            names.push(TensorSpec { name: HEAD.to_owned(), ..spec });
        }
        let places = names.iter().enumerate().map(|(place, spec)| (spec.name.clone(), place)).collect();
        let copy = model.tie_embeddings && tensors > specs.len();
        Ok(Self { specs, places, values: vec![None; names.len()], copy, index })
    }

    /// Returns the number of values in f32 that an import has in memory at most, besides the files: the parameters of the
    /// model, and one tensor more, which is still being read or is no longer needed. A tied model whose files have its output
    /// projection takes as much again as the embedding.
    #[must_use]
    pub fn values_in_memory(&self) -> u64 {
        let size =
            |spec: &TensorSpec| spec.shape.iter().fold(1u64, |all, &size| all.saturating_mul(size as u64));
        let parameters = self.specs.iter().map(size).fold(0, u64::saturating_add);
        let largest = self.specs.iter().map(size).max().unwrap_or_default();
        let copy = self.specs.first().filter(|_| self.copy).map_or(0, size);
        parameters.saturating_add(largest).saturating_add(copy)
    }

    /// Returns the number of tensors of a safetensors file; errors call it `file`.
    ///
    /// # Errors
    /// The bytes are no safetensors file.
    pub fn tensors_of(bytes: &[u8], file: &str) -> Result<usize, ImportError> {
        Ok(open(bytes, file)?.len())
    }

    /// Takes the tensors of a file; errors call it `file`.
    ///
    /// # Errors
    /// The file is damaged, or one of its tensors is unknown, was there before, belongs into another file, or is of another
    /// shape or type.
    pub fn read(&mut self, bytes: &[u8], file: &str) -> Result<(), ImportError> {
        for (name, view) in open(bytes, file)?.tensors() {
            // Older programs saved this buffer. It follows from the settings.
            if name.ends_with(".rotary_emb.inv_freq") {
                continue;
            }
            if let Some(index) = &self.index
                && index.file_of(&name) != Some(file)
            {
                let problem = "is here, but the index has it elsewhere or not at all".to_owned();
                return Err(ImportError::Tensor { file: file.to_owned(), tensor: shown(&name), problem });
            }
            self.take(&name, view.shape(), file, || numbers(&view))?;
        }
        Ok(())
    }

    /// Takes a tensor of a file. `values` reads its numbers, or says what is wrong with it.
    pub(super) fn take(
        &mut self,
        name: &str,
        shape: &[usize],
        file: &str,
        values: impl FnOnce() -> Result<Vec<f32>, String>,
    ) -> Result<(), ImportError> {
        let wrong = |problem| ImportError::Tensor { file: file.to_owned(), tensor: shown(name), problem };
        let Some(&place) = self.places.get(name) else {
            let biases = if name.ends_with(".bias") { ": biases are not supported" } else { "" };
            return Err(wrong(format!("is not part of a Llama with these settings{biases}")));
        };
        let spec = self.specs.get(place).unwrap_or(&self.specs[0]);
        if shape != spec.shape {
            return Err(wrong(format!("is {shape:?}, but the settings demand {:?}", spec.shape)));
        }
        if self.values[place].is_some() {
            return Err(wrong("is in two files".to_owned()));
        }
        self.values[place] = Some(values().map_err(wrong)?);
        Ok(())
    }

    /// The names of the tensors of a path.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().map(|spec| spec.name.as_str())
    }

    /// Returns the weights when all files have been read.
    ///
    /// # Errors
    /// A tensor is missing, has a number that is not finite, or the head of a tied model differs from the embedding.
    pub fn finish(mut self) -> Result<ModuleWeights, ImportError> {
        let wrong = |tensor: &str, problem: String| ImportError::Tensor {
            file: "the model".to_owned(),
            tensor: tensor.to_owned(),
            problem,
        };
        // A tied model has one place more than tensors.
        let tied = self.values.len() > self.specs.len();
        let copy = if tied { self.values.pop().flatten() } else { None };
        let total: usize = self.values.iter().flatten().map(Vec::len).sum();
        // [`untie`] appends the embedding. A longer vector elsewhere would take the memory of all weights once more, while
        // room that nobody writes to takes none.
        let room = self.values.first().filter(|_| tied).and_then(Option::as_ref).map_or(0, Vec::len);
        let mut values = Vec::with_capacity(total.saturating_add(room));
        for (spec, tensor) in self.specs.iter().zip(self.values) {
            let tensor = tensor.ok_or_else(|| wrong(&spec.name, "is missing from the files".to_owned()))?;
            if let Some(place) = tensor.iter().position(|value| !value.is_finite()) {
                return Err(wrong(&spec.name, format!("has {} at place {place}", tensor[place])));
            }
            values.extend_from_slice(&tensor);
        }
        if copy.is_some_and(|copy| values.get(..copy.len()) != Some(&copy[..])) {
            let problem = format!("differs from {EMBEDDING}, but tie_word_embeddings is true");
            return Err(wrong(HEAD, problem));
        }
        Ok(ModuleWeights::new(self.specs, values)?)
    }
}

/// Returns the weights of a tied model with an output projection of its own, which begins as a copy of the embedding.
/// `config` has `tie_embeddings = false`.
///
/// # Errors
/// The weights are not those of the tied model.
pub fn untie(config: &ModelConfig, tied: ModuleWeights) -> Result<ModuleWeights, ImportError> {
    let mut values = tied.values;
    let embedding = tied.specs.first().map_or(0, TensorSpec::parameters).min(values.len());
    // The output projection is the last tensor of a path.
    values.extend_from_within(..embedding);
    Ok(ModuleWeights::new(path_specs(config).into(), values)?)
}

/// The beginning of a name, which a stranger may have made as long as a file.
fn shown(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

fn open<'a>(bytes: &'a [u8], file: &str) -> Result<SafeTensors<'a>, ImportError> {
    SafeTensors::deserialize(bytes)
        .map_err(|source| ImportError::Safetensors { file: file.to_owned(), source })
}

/// The elements of a tensor as f32. The error says why they can't be read.
fn numbers(view: &TensorView<'_>) -> Result<Vec<f32>, String> {
    match view.dtype() {
        Dtype::F32 => Ok(f32_numbers(view.data())),
        Dtype::F16 => Ok(f16_numbers(view.data())),
        Dtype::BF16 => Ok(bf16_numbers(view.data())),
        other => Err(format!("is of type {other:?}: only F32, F16 and BF16 are read")),
    }
}

pub(super) fn f32_numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

pub(super) fn f16_numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<2>().0.iter().map(|&two| f16::from_bits(u16::from_le_bytes(two)).to_f32()).collect()
}

pub(super) fn bf16_numbers(bytes: &[u8]) -> Vec<f32> {
    // A bf16 is the upper half of an f32.
    let upper = |two| f32::from_bits(u32::from(u16::from_le_bytes(two)) << 16);
    bytes.as_chunks::<2>().0.iter().map(|&two| upper(two)).collect()
}
