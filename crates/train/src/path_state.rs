//! What a path carries from lease to lease besides the global weights of its modules.

use std::collections::BTreeMap;
use std::sync::Arc;

use dipaco_model::{ModelConfig, TensorSpec, parameters, path_specs};
use serde::{Deserialize, Serialize};

use crate::TrainError;

/// AdamW's moments, the step and the data position of a path, and what of its weights is nowhere else.
///
/// Training draws no random numbers but the order of its data, and that is a function of the run's seed and the
/// position: these fields and the modules are all that a path needs to continue bit for bit. The moments stay with the
/// path from round to round and are never averaged (arXiv:2311.08105 §6.1).
#[derive(Clone, Debug, PartialEq)]
pub struct PathState {
    /// Inner steps taken since the start of the run.
    pub step: u64,
    /// Sequences drawn from the shard since the start of the phase.
    pub position: u64,
    /// AdamW's first moments, flat, in the order of [`path_specs`].
    pub first: Vec<f32>,
    /// AdamW's second moments, flat, in the same order.
    pub second: Vec<f32>,
    /// The path's own weights of the fragments that it does not begin its next lease with as they are in the store, by
    /// level and fragment.
    pub own: BTreeMap<(u16, u32), Own>,
}

/// A path's own weights of a fragment.
#[derive(Clone, Debug, PartialEq)]
pub struct Own {
    /// The weights.
    pub weights: Vec<f32>,
    /// What the next outer gradient is measured from, when that is not the global weights that the path took over last:
    /// what the path has sent and not received back.
    pub base: Option<Vec<f32>>,
}

const FORMAT: &str = "dipaco-path-state/2";
/// The entry of the file's metadata that holds a [`Place`] as JSON.
const PLACE: &str = "dipaco";

/// How far the path is.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    format: String,
    step: u64,
    position: u64,
}

impl PathState {
    /// The state before the first step of a path with this many parameters.
    #[must_use]
    pub fn start(parameters: usize) -> Self {
        Self {
            step: 0,
            position: 0,
            first: vec![0.0; parameters],
            second: vec![0.0; parameters],
            own: BTreeMap::new(),
        }
    }

    /// Encodes the state as safetensors: `first/NAME` and `second/NAME` for every tensor of the path, and
    /// `own/LEVEL/FRAGMENT` and `base/LEVEL/FRAGMENT` for its own weights.
    ///
    /// # Errors
    /// When the moments do not have the path's size.
    pub fn encode(&self, model: &ModelConfig) -> Result<Vec<u8>, TrainError> {
        let specs = path_specs(model);
        let expected = parameters(&specs);
        for found in [self.first.len(), self.second.len()] {
            if found != expected {
                return Err(TrainError::PathStateLength { expected, found });
            }
        }
        let mut tensors: Vec<(String, Values<'_>)> = Vec::new();
        for (prefix, values) in [("first", &self.first), ("second", &self.second)] {
            let mut rest = values.as_slice();
            for spec in &specs {
                let (values, others) = rest.split_at(spec.parameters());
                tensors
                    .push((format!("{prefix}/{}", spec.name), Values { shape: spec.shape.clone(), values }));
                rest = others;
            }
        }
        for ((level, fragment), own) in &self.own {
            let flat = |values| Values { shape: vec![<[f32]>::len(values)], values };
            tensors.push((format!("own/{level}/{fragment}"), flat(&own.weights)));
            tensors.extend(own.base.iter().map(|base| (format!("base/{level}/{fragment}"), flat(base))));
        }
        let place = Place { format: FORMAT.to_owned(), step: self.step, position: self.position };
        let place = serde_json::to_string(&place).map_err(|source| TrainError::Json { source })?;
        safetensors::serialize(tensors, Some([(PLACE.to_owned(), place)].into()))
            .map_err(|source| TrainError::PathStateEncoding { source })
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// When the bytes are damaged, or belong to another model.
    pub fn decode(bytes: &[u8], model: &ModelConfig) -> Result<Self, TrainError> {
        let damaged = || TrainError::PathStateFormat { expected: FORMAT };
        let header = safetensors::SafeTensors::read_metadata(bytes).ok();
        let metadata = header.as_ref().and_then(|(_, header)| header.metadata().as_ref());
        let place = metadata.and_then(|metadata| serde_json::from_str(metadata.get(PLACE)?).ok());
        let Some(Place { step, position, .. }) = place.filter(|place: &Place| place.format == FORMAT) else {
            return Err(damaged());
        };
        let file = safetensors::SafeTensors::deserialize(bytes).map_err(|_| damaged())?;
        let specs: Arc<[TensorSpec]> = path_specs(model).into();
        let total = parameters(&specs);
        let (mut first, mut second) = (Vec::with_capacity(total), Vec::with_capacity(total));
        for spec in specs.iter() {
            for (prefix, moments) in [("first", &mut first), ("second", &mut second)] {
                let name = format!("{prefix}/{}", spec.name);
                let tensor = file.tensor(&name).ok().filter(|tensor| tensor.shape() == spec.shape);
                read(&tensor.ok_or(TrainError::PathStateTensor { name })?, moments)?;
            }
        }
        let mut own = BTreeMap::new();
        for (name, tensor) in file.iter() {
            let place = |prefix: &str| {
                let (level, fragment) = name.strip_prefix(prefix)?.split_once('/')?;
                Some((level.parse().ok()?, fragment.parse().ok()?))
            };
            if let Some(place) = place("own/") {
                let mut weights = Vec::new();
                read(&tensor, &mut weights)?;
                let mut base = None;
                if let Ok(tensor) = file.tensor(&format!("base/{}/{}", place.0, place.1)) {
                    let mut values = Vec::new();
                    read(&tensor, &mut values)?;
                    base = Some(values);
                }
                own.insert(place, Own { weights, base });
            }
        }
        Ok(Self { step, position, first, second, own })
    }
}

/// A tensor to be written.
struct Values<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
}

impl safetensors::View for Values<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        safetensors::Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}

/// Appends the values of a tensor.
fn read(tensor: &safetensors::tensor::TensorView<'_>, values: &mut Vec<f32>) -> Result<(), TrainError> {
    if tensor.dtype() != safetensors::Dtype::F32 {
        return Err(TrainError::PathStateFormat { expected: FORMAT });
    }
    let (chunks, _) = tensor.data().as_chunks();
    values.extend(chunks.iter().copied().map(f32::from_le_bytes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model() -> ModelConfig {
        ModelConfig {
            vocab_size: 5,
            hidden_size: 4,
            blocks: 1,
            heads: 1,
            head_dim: 4,
            ffn_size: 4,
            context: 8,
            ..ModelConfig::default()
        }
    }

    fn state() -> PathState {
        let values = parameters(&path_specs(&model()));
        let mut state = PathState::start(values);
        for (i, value) in state.first.iter_mut().chain(&mut state.second).enumerate() {
            *value = f32::from_bits(0x3f00_0000 + i as u32);
        }
        state.own.insert((0, 2), Own { weights: vec![1.5, 2.5], base: None });
        state.own.insert((1, 0), Own { weights: vec![3.5], base: Some(vec![4.5]) });
        PathState { step: 7, position: u64::MAX, ..state }
    }

    #[test]
    fn a_state_survives_its_file() {
        let bytes = state().encode(&model()).unwrap();
        assert_eq!(PathState::decode(&bytes, &model()).unwrap(), state());
    }

    #[test]
    fn a_state_of_another_model_is_refused() {
        let bytes = state().encode(&model()).unwrap();
        let wider = ModelConfig { ffn_size: 8, ..model() };
        assert!(matches!(PathState::decode(&bytes, &wider), Err(TrainError::PathStateTensor { .. })));
        assert!(state().encode(&wider).is_err());
    }

    #[test]
    fn a_cut_state_is_refused() {
        let bytes = state().encode(&model()).unwrap();
        for length in 0..bytes.len() {
            assert!(PathState::decode(&bytes[..length], &model()).is_err(), "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(PathState::decode(&bytes, &model()).is_err());
        }

        #[test]
        fn a_damaged_header_never_panics(at in 0usize..400, value in any::<u8>()) {
            let mut bytes = state().encode(&model()).unwrap();
            bytes[at] = value;
            let _ = PathState::decode(&bytes, &model());
        }
    }
}
