//! What a path carries from lease to lease besides the global weights of its modules.

use std::collections::BTreeMap;

use dipaco_model::{ModelConfig, ModuleWeights, TensorSpec, parameters, path_specs};
use dipaco_topology::Part;
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
        let mut specs = moment_specs(model);
        let mut values = [self.first.as_slice(), self.second.as_slice()].concat();
        for (&place, own) in &self.own {
            specs.extend(own_specs(place, own.weights.len(), own.base.as_ref().map(Vec::len)));
            values.extend(own.weights.iter().chain(own.base.iter().flatten()));
        }
        let place = Place { format: FORMAT.to_owned(), step: self.step, position: self.position };
        let place = serde_json::to_string(&place).map_err(|source| TrainError::Json { source })?;
        Ok(ModuleWeights { specs: specs.into(), values }.to_safetensors(Some((PLACE, &place)))?)
    }

    /// Decodes what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// When the bytes are damaged, or belong to another model.
    pub fn decode(bytes: &[u8], model: &ModelConfig) -> Result<Self, TrainError> {
        let damaged = || TrainError::PathStateFormat { expected: FORMAT };
        let (_, header) = safetensors::SafeTensors::read_metadata(bytes).map_err(|_| damaged())?;
        let place = header.metadata().as_ref();
        let place = place.and_then(|metadata| serde_json::from_str(metadata.get(PLACE)?).ok());
        let Some(Place { step, position, .. }) = place.filter(|place: &Place| place.format == FORMAT) else {
            return Err(damaged());
        };
        let tensors = header.tensors();
        let length = |name: &str| tensors.get(name).map(|info| info.shape.iter().product::<usize>());
        let mut specs = moment_specs(model);
        let mut places = BTreeMap::new();
        for name in tensors.keys() {
            // A name that is not written like this one is unknown to what reads the tensors.
            let place = name.strip_prefix("own/").and_then(|place| place.split_once('/'));
            let place =
                place.and_then(|(level, fragment)| Some((level.parse().ok()?, fragment.parse().ok()?)));
            if let Some((level, fragment)) = place {
                let base = length(&format!("base/{level}/{fragment}"));
                places.insert((level, fragment), (length(name).unwrap_or(0), base));
            }
        }
        specs.extend(places.iter().flat_map(|(&place, &(weights, base))| own_specs(place, weights, base)));
        let mut values = ModuleWeights::from_safetensors(bytes, specs.into())?.values.into_iter();
        let mut take = |count| values.by_ref().take(count).collect::<Vec<f32>>();
        let moments = parameters(&path_specs(model));
        let (first, second) = (take(moments), take(moments));
        let mut own = BTreeMap::new();
        for (place, (weights, base)) in places {
            let weights = take(weights);
            own.insert(place, Own { weights, base: base.map(&mut take) });
        }
        Ok(Self { step, position, first, second, own })
    }
}

fn moment_specs(model: &ModelConfig) -> Vec<TensorSpec> {
    let specs = path_specs(model);
    let named = |prefix: &'static str| {
        specs.iter().map(move |spec| TensorSpec { name: format!("{prefix}/{}", spec.name), ..spec.clone() })
    };
    named("first").chain(named("second")).collect()
}

/// The tensors of a path's own weights of a fragment, and of their base if there is one; with their lengths in values.
fn own_specs(
    (level, fragment): (u16, u32),
    weights: usize,
    base: Option<usize>,
) -> impl Iterator<Item = TensorSpec> {
    let flat = move |prefix: &str, values| TensorSpec {
        name: format!("{prefix}/{level}/{fragment}"),
        shape: vec![values],
        // Neither is asked for where states are read and written.
        part: Part::Block(0),
        decay: false,
    };
    std::iter::once(flat("own", weights)).chain(base.map(|values| flat("base", values)))
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
