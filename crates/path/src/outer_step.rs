//! The outer step of a fragment: from contributions to new global weights.

use std::sync::Arc;

use dipaco_codec::Compression;
use dipaco_config::OuterConfig;
use dipaco_model::{ModuleWeights, TensorSpec, parameters, safetensors_of};
use dipaco_optim::{DelayedNesterov, delayed_nesterov_step, nesterov_step};

use crate::PathError;

/// State of the outer optimizer for a fragment: the momentum; with delayed momentum also the sum of contributions
/// since its last change; with a rounded broadcast also the rounding error.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterState {
    momentum: Vec<f32>,
    buffer: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
}

/// The input of an outer step.
#[derive(Clone, Debug, PartialEq)]
pub enum Merged {
    /// No contribution: the schedule drops all of them.
    Nothing,
    /// The merged contributions.
    Mean(Vec<f32>),
    /// Each contribution, multiplied by its weight and the number of learners, and the number of contributions applied
    /// earlier.
    Each(Vec<Vec<f32>>, u64),
}

/// Tensors of the state's file: the fragment's names for the momentum, and the same names with a prefix for the other
/// parts.
fn specs(outer: &OuterConfig, fragment: &[TensorSpec]) -> Arc<[TensorSpec]> {
    let named = |prefix: &'static str| {
        fragment.iter().map(move |spec| TensorSpec { name: format!("{prefix}{}", spec.name), ..spec.clone() })
    };
    let buffer = outer.delayed().is_some().then(|| named("buffer/")).into_iter().flatten();
    let residual = (outer.broadcast != Compression::F32).then(|| named("residual/")).into_iter().flatten();
    named("").chain(buffer).chain(residual).collect()
}

impl OuterState {
    /// The state before the first outer step of a fragment of `values` parameters.
    pub fn start(outer: &OuterConfig, values: usize) -> Self {
        Self {
            momentum: vec![0.0; values],
            buffer: outer.delayed().map(|_| vec![0.0; values]),
            residual: (outer.broadcast != Compression::F32).then(|| vec![0.0; values]),
        }
    }

    /// Encodes the state as safetensors.
    pub fn encode(&self, outer: &OuterConfig, fragment: &[TensorSpec]) -> Result<bytes::Bytes, PathError> {
        let specs = specs(outer, fragment);
        let parts =
            [Some(&self.momentum), self.buffer.as_ref(), self.residual.as_ref()].into_iter().flatten();
        let length = parameters(fragment);
        let mut tensors = Vec::with_capacity(specs.len());
        // Written from where the parts lie: a fragment may have gigabytes.
        for (specs, mut rest) in specs.chunks(fragment.len().max(1)).zip(parts.map(Vec::as_slice)) {
            if rest.len() != length {
                let what =
                    format!("a part of an outer state has {} values, its fragment {length}", rest.len());
                return Err(PathError::Internal { what });
            }
            for spec in specs {
                let (tensor, after) = rest.split_at(spec.parameters());
                tensors.push((spec, tensor));
                rest = after;
            }
        }
        Ok(safetensors_of(tensors, None)?.into())
    }

    /// Decodes the bytes of [`encode`](Self::encode).
    pub fn decode(outer: &OuterConfig, fragment: &[TensorSpec], bytes: &[u8]) -> Result<Self, PathError> {
        let mut momentum = ModuleWeights::from_safetensors(bytes, specs(outer, fragment))?.values;
        // The momentum keeps its memory. It has as many tensors as each other part, so there is no part without it.
        let length = parameters(fragment).min(momentum.len());
        let others = momentum.split_off(length);
        let mut others = others.chunks(length.max(1)).map(<[f32]>::to_vec);
        Ok(Self { momentum, buffer: outer.delayed().and_then(|_| others.next()), residual: others.next() })
    }

    /// True if every value is finite.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        let parts = [Some(&self.momentum), self.buffer.as_ref(), self.residual.as_ref()];
        parts.into_iter().flatten().flatten().all(|value| value.is_finite())
    }

    /// Takes the outer step: changes the global weights in place. With a rounded broadcast it returns the encoded
    /// change for workers.
    ///
    /// With a rounded broadcast the step starts from the weights plus the rounding error of earlier steps. The change
    /// is rounded, and the new weights are the old weights plus the rounded change. So the sum that workers compute
    /// equals the weights in the store, bit for bit.
    pub fn step(
        &mut self,
        outer: &OuterConfig,
        weights: &mut [f32],
        merged: &Merged,
    ) -> Result<Option<Vec<u8>>, dipaco_codec::CodecError> {
        let before = self.residual.as_ref().map(|_| weights.to_vec());
        for (weight, residual) in weights.iter_mut().zip(self.residual.iter().flatten()) {
            *weight += residual;
        }
        match merged {
            Merged::Nothing => {}
            Merged::Mean(gradient) => nesterov_step(weights, gradient, &mut self.momentum, &outer.nesterov),
            Merged::Each(gradients, received) => {
                if let (Some(config), Some(buffer)) = (outer.delayed(), &mut self.buffer) {
                    let momentum = std::mem::take(&mut self.momentum);
                    let mut state =
                        DelayedNesterov { momentum, buffer: std::mem::take(buffer), received: *received };
                    for gradient in gradients {
                        delayed_nesterov_step(weights, gradient, &mut state, &config);
                    }
                    self.momentum = state.momentum;
                    *buffer = state.buffer;
                }
            }
        }
        let (Some(before), Some(residual)) = (before, &mut self.residual) else { return Ok(None) };
        let change: Vec<f32> = weights.iter().zip(&before).map(|(after, before)| after - before).collect();
        let encoded = dipaco_codec::encode(&change, outer.broadcast)?;
        let rounded = dipaco_codec::decode(&encoded, change.len())?;
        for (((weight, before), rounded), residual) in
            weights.iter_mut().zip(&before).zip(&rounded).zip(residual)
        {
            let published = before + rounded;
            *residual = *weight - published;
            *weight = published;
        }
        Ok(Some(encoded))
    }
}

#[cfg(test)]
mod tests {
    use dipaco_optim::NesterovConfig;
    use dipaco_topology::Part;

    use super::*;

    fn outer(broadcast: Compression, delay: u32) -> OuterConfig {
        let nesterov = NesterovConfig { learning_rate: 1.0, momentum: 0.0 };
        OuterConfig { broadcast, delay, nesterov, ..OuterConfig::default() }
    }

    #[test]
    fn what_workers_add_up_is_what_the_store_holds_and_rounding_is_made_up_for() {
        let outer = outer(Compression::E3m0, 0);
        let mut weights = vec![0.0, 0.0];
        let mut state = OuterState::start(&outer, 2);
        let mut added = [0.0f32; 2];
        for _ in 0..50 {
            let gradient = Merged::Mean(vec![-1.0, -0.3]);
            let change = state.step(&outer, &mut weights, &gradient).unwrap().unwrap();
            for (sum, change) in added.iter_mut().zip(dipaco_codec::decode(&change, 2).unwrap()) {
                *sum += change;
            }
            assert_eq!(weights, added);
        }
        // 0.3 has no code: the steps alternate around it.
        assert!((weights[0] - 50.0).abs() < 1e-3 && (weights[1] - 15.0).abs() < 0.3, "{weights:?}");
    }

    #[test]
    fn contributions_one_by_one_move_as_far_as_their_mean() {
        let (each, mean) = (outer(Compression::F32, 4), outer(Compression::F32, 0));
        let gradients = [0.3, -0.2, 0.9, 0.5];
        let (mut one, mut other) = (vec![1.0], vec![1.0]);
        let mut state = OuterState::start(&each, 1);
        for (received, gradient) in (0..).zip(gradients) {
            state.step(&each, &mut one, &Merged::Each(vec![vec![gradient]], received)).unwrap();
        }
        OuterState::start(&mean, 1).step(&mean, &mut other, &Merged::Mean(vec![0.375])).unwrap();
        assert!((one[0] - other[0]).abs() < 1e-6, "{one:?} {other:?}");
    }

    #[test]
    fn a_state_survives_its_file() {
        let fragment = [TensorSpec { name: "a".into(), shape: vec![2], part: Part::Head, decay: true }];
        for (broadcast, delay) in
            [(Compression::F32, 0), (Compression::Int8, 0), (Compression::F32, 3), (Compression::Bf16, 2)]
        {
            let outer = outer(broadcast, delay);
            let mut state = OuterState::start(&outer, 2);
            state.momentum[1] = 0.5;
            state.residual.iter_mut().for_each(|residual| residual[0] = 0.25);
            let file = state.encode(&outer, &fragment).unwrap();
            assert_eq!(OuterState::decode(&outer, &fragment, &file).unwrap(), state);
        }
    }
}
