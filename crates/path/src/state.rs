//! The state that a path carries from lease to lease besides the global weights of its modules.

use std::borrow::Cow;
use std::collections::BTreeMap;

use dipaco_model::{Dtype, TensorSpec, file_bytes, file_order, parameters, safetensors_header, tensors_of};
use dipaco_ops::{bf16_bits, bf16_value, with_vector_units};
use dipaco_sync::{Ahead, Schedule};
use dipaco_topology::PathId;
use rayon::prelude::*;

use crate::state_header::{self, PARTS, kept_spec};
use crate::zeros::written_zeros;
use crate::{MomentSpecs, PathError};

/// Values that are rounded, or written to a file, at a time.
const CHUNK: usize = 1 << 16;

/// The optimizer's moments, the step and the data position of a path, and those of its weights that the store does not
/// hold.
///
/// Training draws random numbers only for the order of its data, which is a function of the run's seed and the
/// position. So a path needs only these fields and its modules to continue bit for bit. The moments stay with the path
/// from round to round and are never averaged (arXiv:2311.08105 §6.1).
#[derive(Clone, Debug, PartialEq)]
pub struct PathState {
    /// Inner steps taken since the start of the run.
    pub step: u64,
    /// Sequences drawn from the shard since the start of the phase.
    pub position: u64,
    /// AdamW's first moments and Muon's momentum, flat, in the order of [`MomentSpecs::first`].
    pub first: Vec<f32>,
    /// AdamW's second moments, flat, in the order of [`MomentSpecs::second`].
    pub second: Vec<f32>,
    /// State of the path's fragments, by level and fragment. A fragment that is absent starts from the global weights.
    pub kept: BTreeMap<(u16, u32), FragmentState>,
}

/// State of a fragment of a path besides its global weights. All vectors have the fragment's length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FragmentState {
    /// The path's own weights, if its next lease does not start from the weights of the store.
    pub weights: Option<Vec<f32>>,
    /// The base of the next outer gradient, if the path has sent the fragment and not received it back. Otherwise the
    /// base is the global weights that the path took over last, with its lead over them.
    pub base: Option<Vec<f32>>,
    /// Loss of encoding earlier outer gradients; it joins the next one (error feedback).
    pub residual: Option<Vec<f32>>,
    /// Lead of the path over the global weights, with eager updates.
    pub ahead: Option<Ahead>,
}

impl FragmentState {
    /// The present parts, by name.
    pub(crate) fn parts(&self) -> Vec<(&'static str, &Vec<f32>)> {
        let ahead = self.ahead.as_ref();
        let parts = [
            self.weights.as_ref(),
            self.base.as_ref(),
            self.residual.as_ref(),
            ahead.map(|ahead| &ahead.weights),
            ahead.map(|ahead| &ahead.momentum),
            ahead.map(|ahead| &ahead.sent),
        ];
        PARTS.into_iter().zip(parts).filter_map(|(name, part)| Some((name, part?))).collect()
    }

    /// Builds the state from its parts. The three parts of the lead are present together or not at all.
    pub(crate) fn of_parts(mut parts: BTreeMap<&'static str, Vec<f32>>) -> Option<Self> {
        let mut take = |place: usize| PARTS.get(place).and_then(|name| parts.remove(name));
        let (weights, base, residual) = (take(0), take(1), take(2));
        let ahead = match (take(3), take(4), take(5)) {
            (Some(weights), Some(momentum), Some(sent)) => Some(Ahead { weights, momentum, sent }),
            (None, None, None) => None,
            _ => return None,
        };
        Some(Self { weights, base, residual, ahead })
    }

    /// Checks that every part has the length of its fragment.
    ///
    /// # Errors
    /// When a part has another length.
    pub(crate) fn check(&self, expected: usize) -> Result<(), PathError> {
        match self.parts().into_iter().map(|(_, part)| part.len()).find(|&found| found != expected) {
            Some(found) => Err(PathError::FragmentStateLength { expected, found }),
            None => Ok(()),
        }
    }
}

impl PathState {
    /// The state before the first step of a path with these moments. All of its memory is written, which takes long for a
    /// large path.
    #[must_use]
    pub fn start(moments: &MomentSpecs) -> Self {
        Self {
            step: 0,
            position: 0,
            first: written_zeros(parameters(moments.first())),
            second: written_zeros(parameters(moments.second())),
            kept: BTreeMap::new(),
        }
    }

    /// Moves the path on to inner step `to` over rounds in which it rested. The phase of routing of `to` begins after
    /// `phase_step` inner steps. A state from which the path has to train first stays as it is.
    pub fn rest(&mut self, schedule: &Schedule, path: PathId, to: u64, phase_step: u64) {
        if self.step >= to || schedule.trained(path, self.step, to) > 0 {
            return;
        }
        // A path that rests at the beginning of a phase may stand at the end of the phase before.
        if self.step <= phase_step {
            // Another shard, from its beginning.
            self.position = 0;
        }
        self.step = to;
    }

    /// Rounds the moments to the type that they have between two leases. Each lease ends with this, wherever its state goes:
    /// to the store, to the disk or memory of its worker, or into the repetition of the next lease. So no bit
    /// depends on that. A moment beyond the largest number of the type becomes infinite. Uses all threads of the current pool.
    pub fn round_moments(&mut self, dtype: Dtype) {
        if dtype.is_f32() {
            return;
        }
        for moments in [&mut self.first, &mut self.second] {
            moments.par_chunks_mut(CHUNK).for_each(|moments| {
                with_vector_units(
                    #[inline(always)]
                    || moments.iter_mut().for_each(|moment| *moment = bf16_value(bf16_bits(*moment))),
                );
            });
        }
    }

    /// Encodes the state as safetensors: `first/NAME` and `second/NAME` for each tensor with the moment, and
    /// `PART/LEVEL/FRAGMENT` for each part of a fragment's state.
    ///
    /// # Errors
    /// When the number of moments is another.
    pub fn encode(&self, moments: &MomentSpecs) -> Result<Vec<u8>, PathError> {
        Ok(self.encoded_parts(moments)?.collect::<Vec<_>>().concat())
    }

    /// The parts of [`encode`](Self::encode) in order: a state is twice as large as the weights, so f32 stay where they lie, and
    /// a few values at a time become bf16.
    ///
    /// # Errors
    /// When the number of moments is another.
    pub fn encoded_parts(
        &self,
        moments: &MomentSpecs,
    ) -> Result<impl Iterator<Item = Cow<'_, [u8]>>, PathError> {
        let found = self.first.len() + self.second.len();
        if [self.first.len(), self.second.len()] != [moments.first(), moments.second()].map(parameters) {
            return Err(PathError::StateLength { expected: moments.values(), found });
        }
        let named = moments.named();
        let (first, second) = named.split_at(moments.first().len());
        let kept: Vec<(TensorSpec, &[f32])> = self
            .kept
            .iter()
            .flat_map(|(&(level, fragment), kept)| {
                let parts = kept.parts().into_iter();
                parts.map(move |(name, part)| (kept_spec(name, level, fragment, part.len()), part.as_slice()))
            })
            .collect();
        let tensors = tensors_of(first, &self.first).chain(tensors_of(second, &self.second));
        let mut tensors: Vec<_> = tensors.chain(kept.iter().map(|(spec, values)| (spec, *values))).collect();
        tensors.sort_by(|(left, _), (right, _)| file_order(left, right));
        let place = state_header::place(self.step, self.position)?;
        let lengths = tensors.iter().map(|(spec, _)| (*spec, spec.file_bytes()));
        let header = safetensors_header(lengths, Some((state_header::PLACE, &place)))?;
        let parts: Vec<_> = tensors.into_iter().map(|(spec, values)| (spec.file_dtype, values)).collect();
        let bytes = parts
            .into_iter()
            .flat_map(|(dtype, values)| values.chunks(CHUNK).map(move |values| file_bytes(values, dtype)));
        Ok(std::iter::once(Cow::Owned(header)).chain(bytes))
    }
}

#[cfg(test)]
mod tests {
    use dipaco_model::ModelConfig;
    use dipaco_optim::Optimizer;
    use dipaco_sync::Rests;

    use super::*;
    use crate::StateReader;

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

    fn moments() -> MomentSpecs {
        MomentSpecs::whole(&model(), Optimizer::AdamW)
    }

    fn state() -> PathState {
        let mut state = PathState::start(&moments());
        for (i, value) in state.first.iter_mut().chain(&mut state.second).enumerate() {
            *value = f32::from_bits(0x3f00_0000 + i as u32);
        }
        state
            .kept
            .insert((0, 2), FragmentState { weights: Some(vec![1.5, 2.5]), ..FragmentState::default() });
        let ahead = Ahead { weights: vec![6.5], momentum: vec![7.5], sent: vec![8.5] };
        let (weights, base, residual) = (Some(vec![3.5]), Some(vec![4.5]), Some(vec![5.5]));
        state.kept.insert((1, 0), FragmentState { weights, base, residual, ahead: Some(ahead) });
        PathState { step: 7, position: u64::MAX, ..state }
    }

    #[test]
    fn a_state_survives_its_file() {
        let bytes = state().encode(&moments()).unwrap();
        assert_eq!(PathState::decode(&bytes, &moments()).unwrap(), state());
        let moments = moments();
        for length in 1..=bytes.len() {
            let mut reader = StateReader::new(&moments, bytes.len());
            bytes.chunks(length).for_each(|piece| reader.read(piece).unwrap());
            assert_eq!(reader.finish().unwrap(), state(), "pieces of {length} bytes");
        }
        let mut reader = StateReader::new(&moments, bytes.len());
        reader.read(&bytes).unwrap();
        assert!(reader.read(b"x").is_err(), "more bytes than the file has");
    }

    #[test]
    fn moments_in_bf16_survive_their_file_once_they_are_rounded() {
        let (exact, rounded) = (moments(), moments().stored_as(Dtype::Bf16));
        let [f32, bf16] = [&exact, &rounded].map(|moments| state().encode(moments).unwrap());
        let values = exact.values();
        assert_eq!((exact.file_bytes(), rounded.file_bytes()), (4 * values as u64, 2 * values as u64));
        // The headers differ by the names of types and the digits of places.
        assert!(bf16.len().abs_diff(f32.len() - 2 * values) < 256, "{} and {} bytes", bf16.len(), f32.len());
        let (before, mut state) = (state(), state());
        state.round_moments(Dtype::F32);
        assert_eq!(state, before);
        state.round_moments(Dtype::Bf16);
        assert_ne!(state, before);
        let moments_of = |state: &PathState| [&state.first[..], &state.second].concat();
        for (rounded, value) in moments_of(&state).into_iter().zip(moments_of(&before)) {
            assert!(rounded.to_bits() & 0xffff == 0 && (rounded - value).abs() <= value / 256.0, "{rounded}");
        }
        assert_eq!(state.kept, before.kept, "own weights, bases, rounding errors and leads stay f32");
        // A state that is not rounded has the same file.
        assert_eq!(state.encode(&rounded).unwrap(), bf16);
        for length in 1..=bf16.len() {
            let mut reader = StateReader::new(&rounded, bf16.len());
            bf16.chunks(length).for_each(|piece| reader.read(piece).unwrap());
            assert_eq!(reader.finish().unwrap(), state, "pieces of {length} bytes");
        }
        for (bytes, moments, why) in [
            (&bf16, &exact, "is BF16 in the file: only F32"),
            (&f32, &rounded, "is F32 in the file: only BF16"),
        ] {
            let error = PathState::decode(bytes, moments).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_moment_beyond_the_largest_bf16_becomes_infinite() {
        let mut state = state();
        (state.first[3], state.second[5], state.first[6]) = (f32::MIN, f32::MAX, f32::NAN);
        state.round_moments(Dtype::Bf16);
        assert_eq!((state.first[3], state.second[5]), (f32::NEG_INFINITY, f32::INFINITY));
        assert!(state.first[6].is_nan());
    }

    #[test]
    fn a_path_that_rests_into_a_phase_begins_its_shard_at_the_beginning() {
        // Six rounds of two steps, in two phases. The path trains in the third round, the last one of a phase.
        let rests = [false, true, false, true, false];
        let schedule = |seed| {
            let schedule = Schedule::new(2, 1, 0, vec![6, 12]).unwrap();
            schedule.resting(Rests::new(seed, 0..2, 1)).unwrap()
        };
        let fits = |schedule: &Schedule| {
            (0u64..).zip(rests).all(|(round, rests)| schedule.rests_after(PathId(0), 2 * round) == rests)
        };
        let (schedule, start) = ((0..).map(schedule).find(fits).unwrap(), PathState::start(&moments()));
        let rested = |step, position, to, phase_step| {
            let mut state = PathState { step, position, ..start.clone() };
            state.rest(&schedule, PathId(0), to, phase_step);
            // Once more changes nothing.
            state.rest(&schedule, PathId(0), to, phase_step);
            (state.step, state.position)
        };
        assert_eq!(rested(6, 5, 8, 6), (8, 0));
        // It rests within a phase in which it has trained, or does not rest.
        assert_eq!(rested(2, 5, 4, 0), (4, 5));
        assert_eq!(rested(4, 5, 6, 0), (4, 5));
        assert_eq!(rested(6, 5, 6, 6), (6, 5));
    }

    #[test]
    fn a_state_of_another_model_is_refused() {
        let bytes = state().encode(&moments()).unwrap();
        let wider = MomentSpecs::whole(&ModelConfig { ffn_size: 8, ..model() }, Optimizer::AdamW);
        assert!(matches!(PathState::decode(&bytes, &wider), Err(PathError::Model(_))));
        assert!(state().encode(&wider).is_err());
    }

    #[test]
    fn muon_keeps_no_second_moments_of_matrices_of_blocks() {
        let muon = MomentSpecs::whole(&model(), Optimizer::Muon);
        let second: Vec<&str> = muon.second().iter().map(|spec| spec.name.as_str()).collect();
        let expected = [
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.post_attention_layernorm.weight",
            "model.norm.weight",
            "lm_head.weight",
        ];
        assert_eq!(second, expected);
        assert_eq!(muon.first(), moments().first());
        let state = PathState { step: 3, position: 5, ..PathState::start(&muon) };
        let bytes = state.encode(&muon).unwrap();
        assert_eq!(PathState::decode(&bytes, &muon).unwrap(), state);
        // A worker that reads the state of another optimizer would train with the wrong moments.
        assert!(PathState::decode(&bytes, &moments()).is_err());
    }

    #[test]
    fn a_cut_state_is_refused() {
        let bytes = state().encode(&moments()).unwrap();
        for length in 0..bytes.len() {
            assert!(PathState::decode(&bytes[..length], &moments()).is_err(), "{length} bytes");
        }
    }
}
