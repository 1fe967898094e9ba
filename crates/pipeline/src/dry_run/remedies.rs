//! Settings with which a training needs less memory.

use dipaco_model::{Dtype, ModelConfig, StepShape};
use serde::Serialize;

/// Upper bound on a proposed micro-batch.
const MOST_MICRO_BATCHES: usize = 4096;

/// A setting that needs less memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remedy {
    /// The setting, as in `train.micro_batch=1`.
    pub set: String,
    /// Memory of all workers with the setting, in bytes.
    pub all_workers: u64,
    /// True if the workers then fit.
    pub fits: bool,
}

/// Settings that need less memory: each by itself, and all together if none is enough. `needs` computes the memory of
/// all workers. `alone` is the memory of one worker, if there are more. The configuration has the settings of the step in
/// `section`.
pub(super) fn remedies(
    section: &str,
    model: &ModelConfig,
    shape: &StepShape,
    available: u64,
    needs: &dyn Fn(&ModelConfig, &StepShape) -> u64,
    alone: Option<u64>,
) -> Vec<Remedy> {
    let now = needs(model, shape);
    let remedy = |set: String, all_workers| Remedy { set, all_workers, fits: all_workers <= available };
    let mut changes: Vec<(String, ModelConfig, StepShape)> = Vec::new();
    if shape.at_once() > 1 {
        // The largest that fits, because small micro-batches are slower.
        let divisors = (1..shape.at_once().min(MOST_MICRO_BATCHES))
            .rev()
            .filter(|part| shape.batch.is_multiple_of(*part));
        let with = |micro_batch| StepShape { micro_batch, ..*shape };
        let part = divisors.clone().find(|&part| needs(model, &with(part)) <= available).unwrap_or(1);
        changes.push((format!("{section}.micro_batch={part}"), model.clone(), with(part)));
    }
    if !shape.activation_checkpointing {
        let with = StepShape { activation_checkpointing: true, ..*shape };
        changes.push((format!("{section}.activation_checkpointing=true"), model.clone(), with));
    }
    if model.dtype == Dtype::F32 {
        let with = ModelConfig { dtype: Dtype::Bf16, ..model.clone() };
        changes.push(("model.dtype=bf16".to_owned(), with, *shape));
    }
    let each = changes.iter().map(|(set, model, shape)| remedy(set.clone(), needs(model, shape)));
    let mut remedies: Vec<Remedy> = each.filter(|remedy| remedy.all_workers < now).collect();
    if remedies.len() > 1 && !remedies.iter().any(|remedy| remedy.fits) {
        let model = changes.last().map_or(model, |(_, model, _)| model);
        let micro_batch = if shape.at_once() > 1 { 1 } else { shape.micro_batch };
        let every = StepShape { micro_batch, activation_checkpointing: true, ..*shape };
        let set: Vec<&str> = changes.iter().map(|(set, _, _)| set.as_str()).collect();
        remedies.push(remedy(set.join(" "), needs(model, &every)));
    }
    remedies.extend(alone.map(|bytes| remedy("--workers 1".to_owned(), bytes)));
    remedies
}
