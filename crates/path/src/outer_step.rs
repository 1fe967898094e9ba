//! The outer step of a fragment: from contributions to new global weights.

use std::sync::Arc;

use bytes::Bytes;
use dipaco_codec::{Compression, first_not_finite};
use dipaco_config::OuterConfig;
use dipaco_model::{TensorSpec, parameters, safetensors_parts};
use dipaco_optim::{
    AdamWConfig, AdamWMoments, AdamWStep, DelayedNesterov, ScheduleConfig, adamw_step, delayed_nesterov_step,
    learning_rate, nesterov_step,
};
use dipaco_protocol::WorkerPlan;

use crate::zeros::written_zeros;
use crate::{PathError, module_files};

/// State of the outer optimizer for a fragment: the momentum, or AdamW's first moment; with delayed momentum also the sum of
/// contributions since its last change; with a rounded broadcast also the rounding error; with AdamW its second moment.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterState {
    momentum: Vec<f32>,
    buffer: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    second: Option<Vec<f32>>,
}

/// The steps of AdamW that the modules take in synchronous training (arXiv:2403.10616 §4.5): those of the inner optimizer, with
/// the mean of the paths' gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct SynchronousSteps {
    adamw: AdamWConfig,
    schedule: ScheduleConfig,
    total_steps: u64,
}

impl SynchronousSteps {
    /// The steps of a run; `None` if its modules take steps of momentum.
    #[must_use]
    pub fn of_plan(plan: &WorkerPlan) -> Option<Self> {
        (!plan.outer.optimizer.is_nesterov()).then(|| Self {
            adamw: plan.train.adamw.clone(),
            schedule: plan.train.schedule.clone(),
            total_steps: plan.total_steps(),
        })
    }
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

impl OuterState {
    /// The state before the first outer step of a fragment of `values` parameters. All of its memory is written, which takes
    /// long for a large fragment.
    pub fn start(outer: &OuterConfig, values: usize) -> Self {
        Self {
            momentum: written_zeros(values),
            buffer: outer.delayed().map(|_| written_zeros(values)),
            residual: (outer.broadcast != Compression::F32).then(|| written_zeros(values)),
            second: (!outer.optimizer.is_nesterov()).then(|| written_zeros(values)),
        }
    }

    /// The parts in the order of their file.
    fn parts(&self) -> impl Iterator<Item = &Vec<f32>> {
        let others = [&self.buffer, &self.residual, &self.second];
        std::iter::once(&self.momentum).chain(others.into_iter().flatten())
    }

    /// Tensors of the file of a fragment's state: the fragment's names for the momentum, and the same names with a prefix for the
    /// other parts.
    #[must_use]
    pub fn specs(outer: &OuterConfig, fragment: &[TensorSpec]) -> Arc<[TensorSpec]> {
        let named = |prefix: &'static str| {
            fragment
                .iter()
                .map(move |spec| TensorSpec { name: format!("{prefix}{}", spec.name), ..spec.clone() })
        };
        let buffer = outer.delayed().is_some().then(|| named("buffer/")).into_iter().flatten();
        let residual =
            (outer.broadcast != Compression::F32).then(|| named("residual/")).into_iter().flatten();
        let second = (!outer.optimizer.is_nesterov()).then(|| named("second/")).into_iter().flatten();
        named("").chain(buffer).chain(residual).chain(second).collect()
    }

    /// Encodes the state as safetensors, in parts that are the memory of the values: a fragment may have gigabytes. The parts own
    /// the state together with the caller.
    pub fn encode(
        self: &Arc<Self>,
        outer: &OuterConfig,
        fragment: &[TensorSpec],
    ) -> Result<Vec<Bytes>, PathError> {
        struct StatePart(Arc<OuterState>, usize);
        impl AsRef<[f32]> for StatePart {
            fn as_ref(&self) -> &[f32] {
                self.0.parts().nth(self.1).map(Vec::as_slice).unwrap_or_default()
            }
        }
        let specs = Self::specs(outer, fragment);
        let length = parameters(fragment);
        let mut tensors = Vec::with_capacity(specs.len());
        for (part, (specs, values)) in specs.chunks(fragment.len().max(1)).zip(self.parts()).enumerate() {
            if values.len() != length {
                let what =
                    format!("a part of an outer state has {} values, its fragment {length}", values.len());
                return Err(PathError::Internal { what });
            }
            tensors.extend(module_files::tensors(specs, StatePart(self.clone(), part)));
        }
        Ok(safetensors_parts(tensors, None)?)
    }

    /// The state of the values in the file of [`encode`](Self::encode), which has the tensors [`specs`](Self::specs).
    #[must_use]
    pub fn decode(outer: &OuterConfig, fragment: &[TensorSpec], mut values: Vec<f32>) -> Self {
        // The momentum keeps its memory. It has as many tensors as each other part, so there is no part without it.
        let length = parameters(fragment).min(values.len());
        let others = values.split_off(length);
        // The state may outlive its step, and the other parts are copies.
        values.shrink_to_fit();
        let mut others = others.chunks(length.max(1)).map(<[f32]>::to_vec);
        let mut part = |there: bool| if there { others.next() } else { None };
        Self {
            momentum: values,
            buffer: part(outer.delayed().is_some()),
            residual: part(outer.broadcast != Compression::F32),
            second: part(!outer.optimizer.is_nesterov()),
        }
    }

    /// True if every value is finite.
    #[must_use]
    pub fn is_finite(&self) -> bool {
        self.parts().all(|part| first_not_finite(part).is_none())
    }

    /// Forgets the rounding error of earlier steps, so that a step of [`Merged::Nothing`] leaves the weights as they are.
    pub fn forget_rounding(&mut self) {
        if let Some(residual) = &mut self.residual {
            residual.fill(0.0);
        }
    }

    /// Takes step `number`, from 1, of synchronous training: changes the global weights of the fragment with these tensors in
    /// place. `gradient` is the mean of the paths' gradients, one value for each weight.
    pub fn synchronous_step(
        &mut self,
        steps: &SynchronousSteps,
        number: u64,
        fragment: &[TensorSpec],
        weights: &mut [f32],
        gradient: &[f32],
    ) {
        let SynchronousSteps { adamw, schedule, total_steps } = steps;
        let rate = learning_rate(number.saturating_sub(1), *total_steps, adamw.learning_rate, schedule);
        let (mut weights, mut gradient) = (weights, gradient);
        let mut first = self.momentum.as_mut_slice();
        let mut second = self.second.as_deref_mut().unwrap_or_default();
        for spec in fragment {
            let values = spec.parameters().min(weights.len()).min(gradient.len());
            let step = AdamWStep { number, learning_rate: rate, gradient_scale: 1.0, decay: spec.decay };
            let params = weights.split_off_mut(..values).unwrap_or_default();
            let of_tensor = gradient.split_off(..values).unwrap_or_default();
            let moments = AdamWMoments {
                first: first.split_off_mut(..values).unwrap_or_default(),
                second: second.split_off_mut(..values).unwrap_or_default(),
            };
            adamw_step(params, of_tensor, moments, &step, adamw);
        }
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
    use dipaco_model::{Dtype, ModuleWeights};
    use dipaco_optim::{NesterovConfig, OuterOptimizer};
    use dipaco_topology::Part;

    use super::*;

    fn outer(broadcast: Compression, delay: u32) -> OuterConfig {
        let nesterov = NesterovConfig { learning_rate: 1.0, momentum: 0.0 };
        OuterConfig { broadcast, delay, nesterov, ..OuterConfig::default() }
    }

    fn spec(name: &str, decay: bool) -> TensorSpec {
        TensorSpec { name: name.into(), shape: vec![2], part: Part::Head, decay, file_dtype: Dtype::F32 }
    }

    fn through_its_file(outer: &OuterConfig, fragment: &[TensorSpec], state: &OuterState) -> OuterState {
        let file = Arc::new(state.clone()).encode(outer, fragment).unwrap().concat();
        let read = ModuleWeights::from_safetensors(&file, OuterState::specs(outer, fragment)).unwrap();
        OuterState::decode(outer, fragment, read.values)
    }

    #[test]
    fn a_step_of_nothing_without_earlier_rounding_leaves_even_the_largest_weights_as_they_are() {
        let outer = outer(Compression::E3m0, 0);
        // The residual rounds up to 2^125, and the sum of these powers of two and another 2^125 is no finite number.
        let (largest, residual) = (2f32.powi(127) + 2f32.powi(126) + 2f32.powi(125), 0.35e38);
        let begin = || {
            (
                vec![largest, 0.0],
                OuterState { residual: Some(vec![residual, 0.0]), ..OuterState::start(&outer, 2) },
            )
        };
        let (mut weights, mut state) = begin();
        state.step(&outer, &mut weights, &Merged::Nothing).unwrap();
        assert!(!weights[0].is_finite());
        let (mut weights, mut state) = begin();
        state.forget_rounding();
        state.step(&outer, &mut weights, &Merged::Nothing).unwrap();
        assert_eq!(weights, [largest, 0.0]);
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
    fn a_synchronous_step_is_a_step_of_adamw_for_each_tensor() {
        let mut config = dipaco_config::RunConfig::default();
        config.outer.optimizer = OuterOptimizer::AdamW;
        (config.train.rounds, config.train.inner_steps) = (10, 1);
        config.train.schedule.warmup_steps = 4;
        let plan = WorkerPlan::new(&config);
        let steps = SynchronousSteps::of_plan(&plan).unwrap();
        assert!(SynchronousSteps::of_plan(&WorkerPlan::new(&dipaco_config::RunConfig::default())).is_none());
        let fragment = [spec("matrix", true), spec("norm", false)];
        let mut state = OuterState::start(&config.outer, 4);
        let mut weights = [1.0f32, -2.0, 1.0, -2.0];
        for number in 1..=3 {
            state.synchronous_step(&steps, number, &fragment, &mut weights, &[0.5, -0.5, 0.5, -0.5]);
        }
        // A constant gradient moves each weight by the rate of the step: 1/4, 2/4 and 3/4 of the peak. Decay is on top.
        let peak = config.train.adamw.learning_rate;
        let moved = 1.5 * peak;
        assert!((f64::from(weights[2]) - (1.0 - moved)).abs() < 1e-6, "{weights:?}");
        let decayed = moved * (1.0 + config.train.adamw.weight_decay);
        assert!((f64::from(weights[0]) - (1.0 - decayed)).abs() < 1e-6, "{weights:?}");
        assert!(state.is_finite());
        assert_eq!(through_its_file(&config.outer, &fragment, &state), state);
    }

    #[test]
    fn a_state_survives_its_file() {
        let fragment = [spec("a", true)];
        for (broadcast, delay) in
            [(Compression::F32, 0), (Compression::Int8, 0), (Compression::F32, 3), (Compression::Bf16, 2)]
        {
            let outer = outer(broadcast, delay);
            let mut state = OuterState::start(&outer, 2);
            state.momentum[1] = 0.5;
            state.residual.iter_mut().for_each(|residual| residual[0] = 0.25);
            assert_eq!(through_its_file(&outer, &fragment, &state), state);
        }
    }
}
