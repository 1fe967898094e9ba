//! What a path carries from round to round besides the weights of its modules.

use std::sync::Arc;

use dipaco_model::{ModelConfig, ModuleWeights, TensorSpec, path_specs};
use serde::{Deserialize, Serialize};

use crate::TrainError;

/// AdamW's moments, the step and the data position of a path.
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
}

const FORMAT: &str = "dipaco-path-state/1";
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
        Self { step: 0, position: 0, first: vec![0.0; parameters], second: vec![0.0; parameters] }
    }

    /// Encodes the state as safetensors: `first/NAME` and `second/NAME` for every tensor of the path.
    ///
    /// # Errors
    /// When the moments do not have the path's size.
    pub fn encode(&self, model: &ModelConfig) -> Result<Vec<u8>, TrainError> {
        let values = [self.first.as_slice(), self.second.as_slice()].concat();
        let place = Place { format: FORMAT.to_owned(), step: self.step, position: self.position };
        let place = serde_json::to_string(&place).map_err(|source| TrainError::Json { source })?;
        Ok(ModuleWeights { specs: moment_specs(model), values }.to_safetensors(Some((PLACE, &place)))?)
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// When the bytes are damaged, or belong to another model.
    pub fn decode(bytes: &[u8], model: &ModelConfig) -> Result<Self, TrainError> {
        let header = safetensors::SafeTensors::read_metadata(bytes).ok();
        let metadata = header.as_ref().and_then(|(_, header)| header.metadata().as_ref());
        let place = metadata.and_then(|metadata| serde_json::from_str(metadata.get(PLACE)?).ok());
        let Some(Place { step, position, .. }) = place.filter(|place: &Place| place.format == FORMAT) else {
            return Err(TrainError::PathStateFormat { expected: FORMAT });
        };
        let mut first = ModuleWeights::from_safetensors(bytes, moment_specs(model))?.values;
        let second = first.split_off(first.len() / 2);
        Ok(Self { step, position, first, second })
    }
}

fn moment_specs(model: &ModelConfig) -> Arc<[TensorSpec]> {
    let specs = path_specs(model);
    let named = |prefix: &'static str| {
        specs.iter().map(move |spec| TensorSpec { name: format!("{prefix}/{}", spec.name), ..spec.clone() })
    };
    named("first").chain(named("second")).collect()
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
        let parameters = dipaco_model::parameters(&path_specs(&model()));
        let mut state = PathState::start(parameters);
        for (i, value) in state.first.iter_mut().chain(&mut state.second).enumerate() {
            *value = f32::from_bits(0x3f00_0000 + i as u32);
        }
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
        assert!(matches!(PathState::decode(&bytes, &wider), Err(TrainError::Model(_))));
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
