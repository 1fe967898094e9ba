//! The numbers of a tensor of a GGUF file.

use std::borrow::Cow;

use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;

use super::header::{Header, TensorInfo};
use crate::import::weights::{bf16_numbers, f16_numbers, f32_numbers};

/// How the numbers of a tensor lie in its bytes.
enum Layout {
    F32,
    F16,
    Bf16,
    Blocks(GgmlDType),
}

impl Layout {
    /// The layout that GGML's number of a type stands for. The error says what the type is.
    fn of(kind: u32) -> Result<Self, String> {
        Ok(Self::Blocks(match kind {
            0 => return Ok(Self::F32),
            1 => return Ok(Self::F16),
            30 => return Ok(Self::Bf16),
            2 => GgmlDType::Q4_0,
            3 => GgmlDType::Q4_1,
            6 => GgmlDType::Q5_0,
            7 => GgmlDType::Q5_1,
            8 => GgmlDType::Q8_0,
            10 => GgmlDType::Q2K,
            11 => GgmlDType::Q3K,
            12 => GgmlDType::Q4K,
            13 => GgmlDType::Q5K,
            14 => GgmlDType::Q6K,
            other => {
                let name = name_of(other).map_or_else(|| format!("the unknown type {other}"), str::to_owned);
                return Err(format!(
                    "is of {name}: only F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K are read"
                ));
            }
        }))
    }
}

/// The name of a type that is not read, as GGML has it (`ggml.h`).
fn name_of(kind: u32) -> Option<&'static str> {
    Some(match kind {
        9 => "type Q8_1",
        15 => "type Q8_K",
        16 => "type IQ2_XXS",
        17 => "type IQ2_XS",
        18 => "type IQ3_XXS",
        19 => "type IQ1_S",
        20 => "type IQ4_NL",
        21 => "type IQ3_S",
        22 => "type IQ2_S",
        23 => "type IQ4_XS",
        24 => "type I8",
        25 => "type I16",
        26 => "type I32",
        27 => "type I64",
        28 => "type F64",
        29 => "type IQ1_M",
        34 => "type TQ1_0",
        35 => "type TQ2_0",
        39 => "type MXFP4",
        _ => return None,
    })
}

/// Returns the number of bytes of a tensor. The error says what is wrong with the tensor.
pub(super) fn length(tensor: &TensorInfo) -> Result<usize, String> {
    let layout = Layout::of(tensor.kind)?;
    let count = count(tensor)?;
    let bytes = match layout {
        Layout::F32 => count.checked_mul(4),
        Layout::F16 | Layout::Bf16 => count.checked_mul(2),
        Layout::Blocks(dtype) => {
            let block = dtype.block_size();
            if !tensor.shape.last().is_some_and(|columns| columns.is_multiple_of(block)) {
                return Err(format!("is {:?}, but {dtype:?} has rows of multiples of {block}", tensor.shape));
            }
            (count / block).checked_mul(dtype.type_size())
        }
    };
    bytes.ok_or_else(too_large)
}

fn count(tensor: &TensorInfo) -> Result<usize, String> {
    let count = tensor.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    count.ok_or_else(too_large)
}

fn too_large() -> String {
    "has more numbers than a memory can hold".to_owned()
}

/// Returns the numbers of a tensor as f32. The error says what is wrong with the tensor.
pub(super) fn numbers(header: &Header<'_>, tensor: &TensorInfo) -> Result<Vec<f32>, String> {
    let found = header.data(tensor, length(tensor)?);
    let bytes =
        found.ok_or_else(|| format!("is {:?}, and the file ends before its last byte", tensor.shape))?;
    let dtype = match Layout::of(tensor.kind)? {
        Layout::F32 => return Ok(f32_numbers(bytes)),
        Layout::F16 => return Ok(f16_numbers(bytes)),
        Layout::Bf16 => return Ok(bf16_numbers(bytes)),
        Layout::Blocks(dtype) => dtype,
    };
    // candle takes blocks at addresses of their alignment only, and a file may put a tensor anywhere.
    let mut aligned = vec![0u64; bytes.len().div_ceil(size_of::<u64>())];
    let aligned = bytemuck::cast_slice_mut::<u64, u8>(&mut aligned);
    let aligned = &mut aligned[..bytes.len()];
    aligned.copy_from_slice(bytes);
    match dtype.from_data(Cow::Borrowed(aligned)).dequantize(count(tensor)?) {
        Ok(CpuStorage::F32(values)) => Ok(values),
        Ok(_) => Err("was dequantised to another type than f32".to_owned()),
        Err(error) => Err(format!("can't be dequantised: {error}")),
    }
}
