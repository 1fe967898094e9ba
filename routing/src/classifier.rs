//! Discriminative routing (arXiv:2403.10616 §2.4.2, §7.2.1): a linear classifier of the path that scores a document best.

mod lbfgs;
mod objective;

use dipaco_topology::PathId;
use rayon::prelude::*;

use self::lbfgs::Minimum;
use self::objective::{Objective, Scaling};
use crate::advice::dominance_warning;
use crate::config::ClassifierConfig;
use crate::fit::FitOrigin;
use crate::progress::{ProgressFn, RoutingProgress, report};
use crate::router::{FittedOn, Router, TargetsFrom};
use crate::{RouterConfig, RouterKind, RoutingError, calibrate};

/// One document in this many is held out of the fits that choose the penalty.
const HELD_OUT: usize = 5;

/// A discriminative router and the quality of its fit.
#[derive(Clone, Debug)]
pub struct Discriminative {
    /// The router.
    pub router: Router,
    /// Documents that each path is the target of (P).
    pub target_sizes: Vec<u64>,
    /// Documents that the router sends to each path (P).
    pub sizes: Vec<u64>,
    /// Documents that the router would send to each path (P) without calibrated biases.
    pub uncalibrated_sizes: Vec<u64>,
    /// Share of the documents that go to their target.
    pub accuracy: f64,
    /// The chosen penalty.
    pub penalty: f64,
    /// Mean over the held-out documents of -ln of the probability of their target; none if there was only one penalty to
    /// choose.
    pub held_out_loss: Option<f64>,
    /// Iterations of the fit.
    pub iterations: usize,
}

/// The path that scores each document best (N), the lowest of equal ones. `scores` (N, P), row-major, are sums of the
/// tokens' log-likelihoods.
///
/// # Errors
///
/// [`RoutingError::Shape`] without P scores for each document, [`RoutingError::NotFinite`] for a NaN or an
/// infinity.
pub fn targets_of(scores: &[f64], paths: u32) -> Result<Vec<PathId>, RoutingError> {
    let width = paths as usize;
    if width == 0 || !scores.len().is_multiple_of(width) {
        let expected = scores.len().next_multiple_of(width.max(1));
        return Err(RoutingError::Shape { what: "scores of documents", expected, actual: scores.len() });
    }
    if let Some(place) = scores.iter().position(|score| !score.is_finite()) {
        let (index, component) = ((place / width) as u64, place % width);
        return Err(RoutingError::NotFinite { what: "scores of document", index, component });
    }
    let best = |row: &[f64]| {
        let mut best = (0u32, f64::NEG_INFINITY);
        for (path, &score) in (0u32..).zip(row) {
            if score > best.1 {
                best = (path, score);
            }
        }
        PathId(best.0)
    };
    Ok(scores.chunks_exact(width).map(best).collect())
}

/// Gives targets to the paths that are best for no document. A classifier has the same weights for all paths without a target,
/// so one of them would get all documents that belong to any of them.
///
/// Such a path becomes the target of the documents that it scores nearest to their best path: `least_share` of an equal share,
/// and at least one. They come from paths that keep as many. With fewer documents than paths, some paths stay without a target.
/// `targets` are those of [`targets_of`] for these `scores`.
pub fn raise_targets(targets: &mut [PathId], scores: &[f64], paths: u32, least_share: f64) {
    let mut sizes = histogram(targets, paths);
    warn_of_rare_targets(&sizes);
    let least = ((least_share * targets.len() as f64 / f64::from(paths)) as u64).max(1);
    for path in (0..paths).map(PathId) {
        if sizes[path.index()] > 0 {
            continue;
        }
        for document in nearest(path, targets, scores, paths) {
            if sizes[path.index()] >= least {
                break;
            }
            let from = targets[document].index();
            if sizes[from] > least {
                sizes[from] -= 1;
                sizes[path.index()] += 1;
                targets[document] = path;
            }
        }
    }
}

/// All documents, first those that `path` scores nearest to their targets; equally near ones by number.
fn nearest(path: PathId, targets: &[PathId], scores: &[f64], paths: u32) -> Vec<usize> {
    let behind = |(target, row): (&PathId, &[f64])| row[target.index()] - row[path.index()];
    let rows = targets.iter().zip(scores.chunks_exact(paths as usize));
    let mut order: Vec<(f64, usize)> = rows.map(behind).zip(0..).collect();
    order.par_sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    order.into_iter().map(|(_, document)| document).collect()
}

/// Documents whose best paths are known.
#[derive(Clone, Copy, Debug)]
pub struct ScoredDocuments<'a> {
    /// Features of the documents (N, D), row-major.
    pub features: &'a [f32],
    /// Components of a feature (D).
    pub dimension: usize,
    /// The path to which each document should go (N): the one that scores it best, from [`targets_of`] and [`raise_targets`].
    pub targets: &'a [PathId],
    /// Number of paths (P).
    pub paths: u32,
}

/// Fits a router that sends a document to the path with the highest probability to score it best.
///
/// A multinomial logistic regression on standardised features is fitted with L-BFGS. The penalty on its weights is the
/// penalty of `config.classifier.penalties` that predicts a fifth of the documents best after fitting the others. Then
/// biases are calibrated until each path is chosen as often as it is a target. Without them a classifier chooses rare
/// targets even more rarely, and paths get no text. A path that is hardly ever a target gets `config.least_share` of an
/// equal share. Of several paths that are never a target only one gets text: see [`raise_targets`]. The same inputs give the
/// same router, bit for bit.
///
/// # Errors
///
/// [`RoutingError::Targets`] for fewer documents than paths or a target beyond the paths, [`RoutingError::Shape`] and
/// [`RoutingError::NotFinite`] for unusable features, [`RoutingError::Config`] for a bad setting,
/// [`RoutingError::Identical`] if all features are equal, [`RoutingError::Cancelled`].
pub fn fit_discriminative(
    documents: &ScoredDocuments<'_>,
    origin: FitOrigin,
    from: TargetsFrom,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Discriminative, RoutingError> {
    config.check()?;
    documents.check()?;
    let &ScoredDocuments { features, dimension, targets, paths } = documents;
    let count = targets.len();
    let target_sizes = histogram(targets, paths);

    let scaling = Scaling::of(features, dimension);
    if scaling.is_constant() && count > 1 {
        return Err(RoutingError::Identical { points: count });
    }
    let objective = Objective { features, targets, scaling: &scaling, paths: paths as usize };
    let mut fitter = Fitter { objective, settings: &config.classifier, progress };
    let ChosenPenalty { penalty, held_out_loss } = fitter.choose_penalty()?;
    let found = fitter.fit(penalty, &|_| true)?;
    tracing::debug!(penalty, iterations = found.iterations, "classifier");

    let objective = fitter.objective;
    let fitted_on = FittedOn {
        tokens_hash: origin.tokens_hash,
        tokenizer_hash: origin.tokenizer_hash,
        seed_hash: origin.seed_hash,
        labels_hash: None,
        devices: origin.devices,
        documents: count as u64,
        loss: objective.evaluate(&found.place, 0.0, &|_| true, None),
        targets: Some(from),
        config: config.clone(),
    };
    let logits = objective.logits(&found.place, calibrate::stride(count, paths as usize));
    let corrections =
        calibrate::calibrate(&logits, &calibrate::wanted_shares(&target_sizes, config.least_share));
    // Freed before all features are read again.
    drop(logits);
    let (weights, biases) = scaling.unfold(&found.place, paths as usize);
    let router_with = |corrections: &[f64], fitted_on| {
        let biases: Vec<f32> =
            biases.iter().zip(corrections).map(|(bias, more)| (bias + more) as f32).collect();
        Router::discriminative(dimension, weights.clone(), &biases, fitted_on)
    };
    // For the report only: the division of the text without the calibration.
    let uncalibrated = choices(&router_with(&vec![0.0; paths as usize], fitted_on.clone())?, features)?;
    let router = router_with(&corrections, fitted_on)?;
    let choices = choices(&router, features)?;
    let right = choices.iter().zip(targets).filter(|(choice, target)| choice == target).count();
    let sizes = histogram(&choices, paths);
    if let Some(warning) = dominance_warning(&sizes, RouterKind::Discriminative, config.features) {
        tracing::warn!("{warning}");
    }
    Ok(Discriminative {
        router,
        target_sizes,
        sizes,
        uncalibrated_sizes: histogram(&uncalibrated, paths),
        accuracy: right as f64 / count as f64,
        penalty,
        held_out_loss,
        iterations: found.iterations,
    })
}

/// Fits classifiers with different penalties on different rows.
struct Fitter<'a, 'p> {
    objective: Objective<'a>,
    settings: &'a ClassifierConfig,
    progress: &'a mut ProgressFn<'p>,
}

/// A penalty and the reason for its choice.
struct ChosenPenalty {
    penalty: f64,
    /// Loss of the held-out documents; none without a comparison.
    held_out_loss: Option<f64>,
}

impl Fitter<'_, '_> {
    /// Fits a classifier with a penalty on the rows for which `chosen` is true.
    fn fit(&mut self, penalty: f64, chosen: &dyn Fn(usize) -> bool) -> Result<Minimum, RoutingError> {
        let Self { objective, settings, progress } = self;
        let mut evaluation = 0;
        // The loss is convex, so the start decides only the time, and zeros are the classifier that knows nothing.
        let start = vec![0.0; objective.parameters()];
        lbfgs::minimise(start, settings.iterations, settings.tolerance, &mut |place, gradient| {
            let loss = objective.evaluate(place, penalty, chosen, Some(gradient));
            report(progress, RoutingProgress::Classifier { penalty, evaluation, loss })?;
            evaluation += 1;
            Ok(loss)
        })
    }

    /// Chooses the penalty that predicts the held-out documents best after a fit on the others.
    fn choose_penalty(&mut self) -> Result<ChosenPenalty, RoutingError> {
        let first = self.settings.penalties.first().copied().unwrap_or(1.0);
        let mut chosen = ChosenPenalty { penalty: first, held_out_loss: None };
        // A comparison needs at least two held-out documents.
        if self.settings.penalties.len() < 2 || self.objective.targets.len() < 2 * HELD_OUT {
            return Ok(chosen);
        }
        // Every HELD_OUT-th row, not a run of rows: neighbours in a corpus resemble each other.
        let is_held_out = |row: usize| row % HELD_OUT == HELD_OUT - 1;
        for &penalty in &self.settings.penalties {
            let found = self.fit(penalty, &|row| !is_held_out(row))?;
            // Without the penalty: losses of different penalties must be comparable.
            let loss = self.objective.evaluate(&found.place, 0.0, &is_held_out, None);
            tracing::debug!(penalty, loss, iterations = found.iterations, "classifier of held-out documents");
            if chosen.held_out_loss.is_none_or(|best| loss < best) {
                chosen = ChosenPenalty { penalty, held_out_loss: Some(loss) };
            }
        }
        Ok(chosen)
    }
}

impl ScoredDocuments<'_> {
    /// Checks shapes, targets and that all features are finite.
    fn check(&self) -> Result<(), RoutingError> {
        let &Self { features, dimension, targets, paths } = self;
        let count = targets.len();
        if dimension == 0 || count.checked_mul(dimension) != Some(features.len()) {
            let expected = count.saturating_mul(dimension.max(1));
            let what = "features of the router's documents";
            return Err(RoutingError::Shape { what, expected, actual: features.len() });
        }
        if paths == 0 || count < paths as usize {
            return Err(RoutingError::Targets {
                problem: format!(
                    "{count} documents were scored for {paths} paths: it needs at least one for each path, better \
                     hundreds, so raise routing.router_share or use fewer paths"
                ),
            });
        }
        if let Some((document, target)) = targets.iter().enumerate().find(|(_, target)| target.0 >= paths) {
            return Err(RoutingError::Targets {
                problem: format!(
                    "document {document} has path {target} as its target, but there are {paths} paths"
                ),
            });
        }
        if let Some(place) = features.par_iter().position_first(|value| !value.is_finite()) {
            let (index, component) = ((place / dimension) as u64, place % dimension);
            return Err(RoutingError::NotFinite { what: "features of document", index, component });
        }
        Ok(())
    }
}

/// Warns of paths that are best for no document.
fn warn_of_rare_targets(target_sizes: &[u64]) {
    let never = target_sizes.iter().filter(|&&size| size == 0).count();
    if never > 0 {
        tracing::warn!(
            never,
            paths = target_sizes.len(),
            documents = target_sizes.iter().sum::<u64>(),
            "paths are best for none of the router's documents: raise routing.router_share, use fewer paths, or train longer \
             before re-routing; they get the documents that they score nearest to the best path, routing.least_share of an \
             equal share"
        );
    }
}

/// The path that the router chooses for each document.
fn choices(router: &Router, features: &[f32]) -> Result<Vec<PathId>, RoutingError> {
    features.par_chunks_exact(router.dimension()).map(|features| Ok(router.route(features)?.path)).collect()
}

fn histogram(choices: &[PathId], paths: u32) -> Vec<u64> {
    let mut sizes = vec![0; paths as usize];
    choices.iter().for_each(|path| sizes[path.index()] += 1);
    sizes
}

#[cfg(test)]
mod tests;
