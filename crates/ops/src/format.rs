//! Number types of the matrices that serving multiplies.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

use crate::OpsError;
use crate::error::shape;

/// Number type of the matrices of a served or exported path. Norms are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightFormat {
    /// 32 bits: exactly the trained weights.
    #[default]
    F32,
    /// 16 bits.
    Bf16,
    /// 8.5 bits: blocks of 32 weights with a scale, as in llama.cpp.
    Q8_0,
    /// 4.5 bits: blocks of 32 weights with a scale, as in llama.cpp. Embedding and head have 8.5 bits, because errors
    /// there cost most.
    Q4_0,
}

impl WeightFormat {
    /// The format of the embedding and the head of a path in this format.
    #[must_use]
    pub fn of_ends(self) -> Self {
        if self == Self::Q4_0 { Self::Q8_0 } else { self }
    }

    /// Number of neighbouring weights that share a scale; 1 if there are no scales.
    #[must_use]
    pub fn block(self) -> usize {
        self.ggml().block_size()
    }

    fn ggml(self) -> GgmlDType {
        match self {
            Self::F32 => GgmlDType::F32,
            Self::Bf16 => GgmlDType::BF16,
            Self::Q8_0 => GgmlDType::Q8_0,
            Self::Q4_0 => GgmlDType::Q4_0,
        }
    }

    /// Checks that rows of `columns` numbers are whole blocks.
    pub(crate) fn check_columns(self, columns: usize) -> Result<(), OpsError> {
        if columns.is_multiple_of(self.block()) {
            return Ok(());
        }
        let problem = format!(
            "rows have {columns} numbers, and {self} takes multiples of {}: use f32 or bf16",
            self.block()
        );
        Err(shape("weight format", problem))
    }

    /// Rounds a tensor to this format. Serving and export use this function, so they have the same weights.
    ///
    /// # Errors
    /// The rows of the tensor are no multiple of a block, or `values` does not have the tensor's shape.
    pub fn quantize(self, values: &[f32], dimensions: &[usize]) -> Result<QTensor, OpsError> {
        self.check_columns(dimensions.last().copied().unwrap_or(1))?;
        let tensor = Tensor::from_slice(values, dimensions, &Device::Cpu)?;
        Ok(QTensor::quantize(&tensor, self.ggml())?)
    }
}

impl std::fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        })
    }
}
