//! Outer steps of a simulated run: production's orders, merging and momentum.

use dipaco_ledger::{OuterStepDone, OuterStepOrder, names};
use dipaco_optim::{NesterovConfig, nesterov_step};
use dipaco_sync::{Contribution, Fold, FoldRule, FoldTensor, FragmentId, OuterRule};
use dipaco_topology::PathId;

use super::case::{RESCALE, RULE};
use super::object_store::{Content, ObjectStore};
use super::toy::{MergedStep, ToyWeights, VALUES};

/// An ordered outer step, with the contributions that count with its outer gradients.
#[derive(Clone, Debug)]
pub(crate) struct AskedStep {
    pub(super) order: OuterStepOrder,
    pub(super) contributions: Vec<Contribution>,
}

/// A taken outer step, whose objects are in the store.
#[derive(Clone, Debug)]
pub(crate) struct TakenStep {
    pub(super) done: OuterStepDone,
    pub(super) merged: MergedStep,
}

/// Takes an ordered outer step and puts its objects into the store.
///
/// # Errors
/// When the store lacks an object of the order.
pub(crate) fn take_step(asked: &AskedStep, store: &mut ObjectStore) -> Result<TakenStep, String> {
    let AskedStep { order, contributions } = asked;
    let &OuterStepOrder { fragment, version, fence, .. } = order;
    let mut weights = store.weights(&order.weights)?.values;
    let mut momentum = match &order.momentum {
        Some(object) => store.momentum(object)?,
        None => [0.0; VALUES],
    };
    let mut gradients = Vec::new();
    for share in &order.shares {
        let object = share.gradient.as_ref().ok_or("an order that is due lacks an outer gradient")?;
        gradients.push(store.gradient(object)?);
    }
    if !gradients.is_empty() {
        let failed = |error: dipaco_sync::FoldError| format!("{fragment}: {error}");
        let places = || (0..).map(PathId);
        let shares = places().zip(order.shares.iter().map(|share| share.weight)).collect();
        let rule = FoldRule { rescale: RESCALE, ..FoldRule::default() };
        let mut fold = Fold::new(vec![FoldTensor::plain(VALUES)], shares, rule);
        for (place, gradient) in places().zip(&gradients) {
            fold.announce(place).map_err(failed)?;
            fold.merge(place, gradient.values.to_vec()).map_err(failed)?;
        }
        let merged = fold.finish().map_err(failed)?;
        let OuterRule { learning_rate, momentum: mu } = RULE;
        let config = NesterovConfig { learning_rate: learning_rate.into(), momentum: mu.into() };
        nesterov_step(&mut weights, &merged, &mut momentum, &config);
    }
    let FragmentId { module, index } = fragment;
    let mut put = |name, content: Content| {
        let object = content.under(name);
        store.put(&object, content);
        object
    };
    let weights = Content::Weights(ToyWeights { version, values: weights });
    let weights = put(names::weights(module, index, version, fence), weights);
    let momentum = put(names::momentum(module, index, version, fence), Content::Momentum(momentum));
    let done = OuterStepDone {
        fragment,
        version,
        fence,
        weights,
        momentum,
        change: None,
        norm: 0.0,
        cosine: None,
        seconds: 0.001,
    };
    let contributions = contributions.clone();
    let merged = MergedStep { fragment, version, fence, asked: None, contributions, gradients };
    Ok(TakenStep { done, merged })
}
