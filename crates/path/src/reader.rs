//! A path that is read and not trained, on any device: features for routing, and scores of documents.

#[cfg(feature = "cuda")]
use std::sync::Mutex;

use dipaco_model::{Path, TokenBatch, TokenRows};

use crate::PathError;
use crate::device::TrainDevice;

/// Size of the batches that a reader takes at once. It bounds the memory on a GPU. The CPU takes a batch as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderSize {
    /// Rows of a pass. A larger batch takes several passes.
    pub sequences: usize,
    /// Largest number of tokens of a row, at most the model's context.
    pub tokens: usize,
}

/// A path on a device for forward passes.
#[derive(Debug)]
pub struct PathReader {
    place: Place,
    device: String,
    hidden_size: usize,
}

#[derive(Debug)]
enum Place {
    Cpu(Path),
    /// One thread at a time uses the path's memory on the GPU.
    #[cfg(feature = "cuda")]
    Cuda(Box<Mutex<dipaco_cuda::CudaReader>>),
}

impl PathReader {
    /// Puts a path on a device. The CPU uses the path where it is.
    ///
    /// # Errors
    /// The GPU does not support the model's shape, has too little memory, or fails.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(unused_variables, reason = "only a GPU needs the size before a batch")
    )]
    pub fn new(device: &TrainDevice, path: Path, size: ReaderSize) -> Result<Self, PathError> {
        let (name, hidden_size) = (device.name()?, path.config().hidden_size);
        let place = match device {
            TrainDevice::Cpu => Place::Cpu(path),
            #[cfg(feature = "cuda")]
            TrainDevice::Cuda(gpu) => {
                let config = crate::device::shape_for_rows(path.config(), size.tokens);
                let weights = path.weights()?.values;
                let reader = dipaco_cuda::CudaReader::new(gpu, config, size.sequences, &weights)?;
                Place::Cuda(Box::new(Mutex::new(reader)))
            }
        };
        Ok(Self { place, device: name, hidden_size })
    }

    /// The device's name for records ([`TrainDevice::name`]).
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// D, the number of components of a feature.
    #[must_use]
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Features after the first `blocks` blocks (B, D), as [`Path::early_features`] has them. A GPU gives them up to
    /// rounding.
    ///
    /// # Errors
    /// As [`Path::early_features`], or the GPU fails.
    pub fn early_features(
        &self,
        blocks: usize,
        tokens: &TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, PathError> {
        match &self.place {
            Place::Cpu(path) => Ok(path.early_features(blocks, tokens, lengths)?),
            #[cfg(feature = "cuda")]
            Place::Cuda(reader) => {
                let mut reader = reader.lock().map_err(|_| PathError::GpuGivenUp)?;
                Ok(reader.features(blocks, tokens, lengths)?)
            }
        }
    }

    /// `ln p(target)` in nats of each position (B, T), as [`Path::token_log_probs`] has it. A GPU gives it up to rounding.
    ///
    /// # Errors
    /// As [`Path::token_log_probs`], or the GPU fails.
    pub fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, PathError> {
        match &self.place {
            Place::Cpu(path) => Ok(path.token_log_probs(batch)?),
            #[cfg(feature = "cuda")]
            Place::Cuda(reader) => {
                let mut reader = reader.lock().map_err(|_| PathError::GpuGivenUp)?;
                Ok(reader.token_log_probs(batch)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dipaco_model::{Device, ModelConfig, Module, init, kernel_choice};
    use dipaco_topology::{Topology, TopologyConfig};

    use super::*;

    #[test]
    fn on_the_cpu_a_reader_gives_the_bits_of_the_path_and_names_the_kernels() {
        let config = ModelConfig {
            vocab_size: 11,
            hidden_size: 8,
            blocks: 2,
            heads: 1,
            head_dim: 8,
            ffn_size: 8,
            context: 8,
            ..ModelConfig::default()
        };
        let dense = Topology::new(&TopologyConfig::dense(2), 2).unwrap();
        let module = Arc::new(Module::load(&init(&config, 1).unwrap(), &Device::Cpu).unwrap());
        let path = Path::compose(&config, &dense, &[module]).unwrap();
        let size = ReaderSize { sequences: 1, tokens: 4 };
        let reader = PathReader::new(&TrainDevice::Cpu, path.clone(), size).unwrap();
        assert_eq!(reader.device(), format!("cpu-{}", kernel_choice().unwrap().set));

        let tokens = TokenRows::new((0..8).collect::<Vec<u32>>(), 2, 11).unwrap();
        for blocks in 0..=2 {
            let found = reader.early_features(blocks, &tokens, &[4, 2]).unwrap();
            assert_eq!(found, path.early_features(blocks, &tokens, &[4, 2]).unwrap());
        }
        assert!(reader.early_features(3, &tokens, &[4, 2]).is_err());
        let batch = TokenBatch::new(tokens, (1..9).collect::<Vec<u32>>(), 11).unwrap();
        assert_eq!(reader.token_log_probs(&batch).unwrap(), path.token_log_probs(&batch).unwrap());
    }
}
