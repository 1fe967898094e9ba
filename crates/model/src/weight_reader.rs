//! Reading a safetensors file piece by piece into vectors.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{ModelError, ModuleWeights, TensorSpec, WeightStream};

/// Reads a safetensors file piece by piece. The file is not in memory beside its values.
#[derive(Debug)]
pub struct WeightReader {
    stream: WeightStream,
    specs: Arc<[TensorSpec]>,
    /// The vector of each tensor, and the place of its first value there.
    places: HashMap<String, (usize, usize)>,
    /// Number of values of each vector.
    lengths: Vec<usize>,
    /// None before the first value.
    vectors: Vec<Vec<f32>>,
}

impl WeightReader {
    /// Begins a file of `length` bytes with exactly these tensors, in any order.
    #[must_use]
    pub fn new(specs: Arc<[TensorSpec]>, length: usize) -> Self {
        let all = specs.len();
        Self::in_vectors(specs, [all], length)
    }

    /// [`new`](Self::new) into several vectors: the first of `counts` tensors have their values in the first vector, the next in
    /// the second, and so on.
    #[must_use]
    pub fn in_vectors(
        specs: Arc<[TensorSpec]>,
        counts: impl IntoIterator<Item = usize>,
        length: usize,
    ) -> Self {
        let (mut places, mut lengths, mut rest) = (HashMap::new(), Vec::new(), specs.iter());
        for (vector, count) in counts.into_iter().enumerate() {
            let mut end = 0;
            for spec in rest.by_ref().take(count) {
                places.insert(spec.name.clone(), (vector, end));
                end += spec.parameters();
            }
            lengths.push(end);
        }
        Self { stream: WeightStream::new(specs.clone(), length), specs, places, lengths, vectors: Vec::new() }
    }

    /// Reads the next piece of the file.
    ///
    /// # Errors
    /// The bytes are damaged or more than the length of the file. A tensor is missing, unknown, or of another shape or type.
    pub fn read(&mut self, piece: &[u8]) -> Result<(), ModelError> {
        let Self { stream, places, lengths, vectors, .. } = self;
        stream.read_values(piece, |spec, first, found| {
            if vectors.is_empty() {
                // Not before the first value: by now the header agrees with the length of the file. And not `vec![0.0; n]`: the
                // allocator would take fresh pages from the system for zeros.
                vectors.extend(lengths.iter().map(|&length| {
                    let mut vector = Vec::with_capacity(length);
                    vector.resize(length, 0.0);
                    vector
                }));
            }
            let place = places.get(&spec.name).and_then(|&(vector, begin)| {
                let begin = begin + first;
                vectors.get_mut(vector)?.get_mut(begin..begin + found.len())
            });
            if let Some(place) = place {
                place.copy_from_slice(found);
            }
            Ok(())
        })
    }

    /// Ends the file of a module.
    ///
    /// # Errors
    /// Bytes are missing.
    pub fn finish(self) -> Result<ModuleWeights, ModelError> {
        let specs = self.specs.clone();
        let values = self.finish_vectors()?.into_iter().next().unwrap_or_default();
        Ok(ModuleWeights { specs, values })
    }

    /// Ends the file; returns the vectors, or none for a file without values.
    ///
    /// # Errors
    /// Bytes are missing.
    pub fn finish_vectors(self) -> Result<Vec<Vec<f32>>, ModelError> {
        self.stream.finish()?;
        Ok(self.vectors)
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::Part;

    use super::*;
    use crate::Dtype;

    #[test]
    fn pieces_of_any_length_make_the_module() {
        let spec = |name: &str, shape: &[usize], file_dtype| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            part: Part::Block(0),
            decay: false,
            file_dtype,
        };
        for dtype in [Dtype::F32, Dtype::Bf16] {
            // Not in the order of the file.
            let specs = [
                spec("c", &[2, 3], dtype),
                spec("a", &[5], dtype),
                spec("b", &[0], Dtype::F32),
                spec("aa", &[1], Dtype::F32),
            ];
            pieces_make(specs.into());
        }
    }

    fn pieces_make(specs: Arc<[TensorSpec]>) {
        let module =
            ModuleWeights { specs: specs.clone(), values: (0..12).map(|value| value as f32).collect() };
        let file = module.to_safetensors(None).unwrap();
        for length in 1..=file.len() {
            let mut reader = WeightReader::new(specs.clone(), file.len());
            file.chunks(length).for_each(|piece| reader.read(piece).unwrap());
            assert_eq!(reader.finish().unwrap(), module, "pieces of {length} bytes");
            let mut reader = WeightReader::in_vectors(specs.clone(), [1, 0, 2, 1], file.len());
            file.chunks(length).for_each(|piece| reader.read(piece).unwrap());
            let (first, rest) = module.values.split_at(6);
            let (third, last) = rest.split_at(5);
            assert_eq!(
                reader.finish_vectors().unwrap(),
                [first, &[], third, last],
                "pieces of {length} bytes"
            );
        }
        let mut reader = WeightReader::new(specs, file.len());
        reader.read(&file[..file.len() - 1]).unwrap();
        assert!(reader.finish().is_err());
    }
}
