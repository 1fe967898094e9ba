//! The numbers of a tensor of a GGUF file.

use std::borrow::Cow;

use candle_core::CpuStorage;
use candle_core::quantized::GgmlDType;

use super::header::{Header, TensorInfo};
use crate::import::weights::{bf16_numbers, f16_numbers, f32_numbers};

/// Returns the numbers of a tensor as f32. The error says what is wrong with the tensor.
pub(super) fn numbers(header: &Header<'_>, tensor: &TensorInfo) -> Result<Vec<f32>, String> {
    let count = tensor.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
    let count = count.ok_or("has more numbers than a memory can hold")?;
    let plain = |width: usize| data(header, tensor, count.checked_mul(width));
    let quantised = match tensor.kind {
        0 => return Ok(f32_numbers(plain(4)?)),
        1 => return Ok(f16_numbers(plain(2)?)),
        30 => return Ok(bf16_numbers(plain(2)?)),
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
            return Err(format!(
                "is of GGML's type {other}: only F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K are read"
            ));
        }
    };
    let block = quantised.block_size();
    if !tensor.shape.last().is_some_and(|columns| columns.is_multiple_of(block)) {
        return Err(format!("is {:?}, but {quantised:?} has rows of multiples of {block}", tensor.shape));
    }
    let bytes = data(header, tensor, (count / block).checked_mul(quantised.type_size()))?;
    // candle takes blocks at addresses of their alignment only, and a file may put a tensor anywhere.
    let mut aligned = vec![0u64; bytes.len().div_ceil(size_of::<u64>())];
    let aligned = bytemuck::cast_slice_mut::<u64, u8>(&mut aligned);
    let aligned = &mut aligned[..bytes.len()];
    aligned.copy_from_slice(bytes);
    match quantised.from_data(Cow::Borrowed(aligned)).dequantize(count) {
        Ok(CpuStorage::F32(values)) => Ok(values),
        Ok(_) => Err("was dequantised to another type than f32".to_owned()),
        Err(error) => Err(format!("can't be dequantised: {error}")),
    }
}

fn data<'a>(header: &Header<'a>, tensor: &TensorInfo, length: Option<usize>) -> Result<&'a [u8], String> {
    let found = length.and_then(|length| header.data(tensor, length));
    found.ok_or_else(|| format!("is {:?}, and the file ends before its last byte", tensor.shape))
}
