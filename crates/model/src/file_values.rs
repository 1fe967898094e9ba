//! Values as bytes of a file, in little-endian order.

use std::borrow::Cow;

use bytes::Bytes;
use dipaco_ops::{bf16_bits, bf16_value, with_vector_units};

use crate::Dtype;

/// The bytes of values in a file. Where numbers lie in memory as in the file, as on most processors, they are not copied.
#[must_use]
pub fn little_endian(values: &[f32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(values))
    } else {
        Cow::Owned(values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }
}

/// [`little_endian`] of values that the bytes own.
#[must_use]
pub fn into_little_endian(values: impl AsRef<[f32]> + Send + 'static) -> Bytes {
    struct Floats<T>(T);
    impl<T: AsRef<[f32]>> AsRef<[u8]> for Floats<T> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(self.0.as_ref())
        }
    }
    if cfg!(target_endian = "little") {
        Bytes::from_owner(Floats(values))
    } else {
        little_endian(values.as_ref()).into_owned().into()
    }
}

/// The bytes of values in a file of numbers of this type: [`little_endian`], or the nearest bf16, ties to even.
#[must_use]
pub fn file_bytes(values: &[f32], dtype: Dtype) -> Cow<'_, [u8]> {
    match dtype {
        Dtype::F32 => little_endian(values),
        Dtype::Bf16 => {
            let mut bytes = vec![0; values.len() * dtype.bytes()];
            with_vector_units(
                #[inline(always)]
                || {
                    for (place, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                        *place = bf16_bits(*value).to_le_bytes();
                    }
                },
            );
            Cow::Owned(bytes)
        }
    }
}

/// Appends the values of the numbers of this type in a part of a file. Bytes after the last whole number are left out.
pub fn append_file_values(values: &mut Vec<f32>, bytes: &[u8], dtype: Dtype) {
    match dtype {
        Dtype::F32 => values.extend(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))),
        Dtype::Bf16 => {
            values.extend(bytes.as_chunks().0.iter().map(|&bytes| bf16_value(u16::from_le_bytes(bytes))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_nearest_numbers() {
        let values = [1.0, -2.5, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, -0.0];
        let rounded = [1.0, -2.5, 1.0, 1.0 + 4.0 / 256.0, f32::INFINITY, -0.0];
        for (dtype, expected) in [(Dtype::F32, values), (Dtype::Bf16, rounded)] {
            let bytes = file_bytes(&values, dtype);
            assert_eq!(bytes.len(), values.len() * dtype.bytes());
            let mut found = vec![7.0];
            append_file_values(&mut found, &bytes, dtype);
            assert_eq!(
                found[1..].iter().map(|value| value.to_bits()).collect::<Vec<_>>(),
                expected.map(f32::to_bits)
            );
            append_file_values(&mut found, &bytes[..dtype.bytes() - 1], dtype);
            assert_eq!(found.len(), 1 + values.len(), "a part of a number is none");
        }
        assert_eq!(file_bytes(&[1.0, -1.0], Dtype::Bf16).as_ref(), [0x80, 0x3f, 0x80, 0xbf]);
    }
}
