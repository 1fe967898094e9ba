//! Reading a module file piece by piece into one vector.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{ModelError, ModuleWeights, TensorSpec, WeightStream, parameters};

/// Reads a safetensors file of f32 tensors piece by piece. The file is not in memory beside its values.
#[derive(Debug)]
pub struct WeightReader {
    stream: WeightStream,
    specs: Arc<[TensorSpec]>,
    /// Place of the first value of each tensor.
    places: HashMap<String, usize>,
    values: Vec<f32>,
}

impl WeightReader {
    /// Begins a file of `length` bytes with exactly these tensors, in any order.
    #[must_use]
    pub fn new(specs: Arc<[TensorSpec]>, length: usize) -> Self {
        let mut end = 0;
        let place = |spec: &TensorSpec| {
            let begin = end;
            end += spec.parameters();
            (spec.name.clone(), begin)
        };
        let places = specs.iter().map(place).collect();
        Self { stream: WeightStream::new(specs.clone(), length), specs, places, values: Vec::new() }
    }

    /// Reads the next piece of the file.
    ///
    /// # Errors
    /// The bytes are damaged or more than the length of the file. A tensor is missing, unknown, of another shape or not f32.
    pub fn read(&mut self, piece: &[u8]) -> Result<(), ModelError> {
        let Self { stream, specs, places, values } = self;
        stream.read_values(piece, |spec, first, found| {
            // Not `vec![0.0; n]`: the allocator would take fresh pages from the system for zeros. The header has been read.
            if values.is_empty() {
                values.reserve_exact(parameters(specs));
                values.resize(parameters(specs), 0.0);
            }
            let begin = places.get(&spec.name).copied().unwrap_or_default() + first;
            if let Some(place) = values.get_mut(begin..begin + found.len()) {
                place.copy_from_slice(found);
            }
            Ok(())
        })
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Bytes are missing.
    pub fn finish(self) -> Result<ModuleWeights, ModelError> {
        self.stream.finish()?;
        Ok(ModuleWeights { specs: self.specs, values: self.values })
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::Part;

    use super::*;

    #[test]
    fn pieces_of_any_length_make_the_module() {
        let spec = |name: &str, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            part: Part::Block(0),
            decay: false,
        };
        // Not in the order of the file.
        let specs: Arc<[_]> = [spec("c", &[2, 3]), spec("a", &[5]), spec("b", &[0]), spec("aa", &[1])].into();
        let module =
            ModuleWeights { specs: specs.clone(), values: (0..12).map(|value| value as f32).collect() };
        let file = module.to_safetensors(None).unwrap();
        for length in 1..=file.len() {
            let mut reader = WeightReader::new(specs.clone(), file.len());
            file.chunks(length).for_each(|piece| reader.read(piece).unwrap());
            assert_eq!(reader.finish().unwrap(), module, "pieces of {length} bytes");
        }
        let mut reader = WeightReader::new(specs, file.len());
        reader.read(&file[..file.len() - 1]).unwrap();
        assert!(reader.finish().is_err());
    }
}
