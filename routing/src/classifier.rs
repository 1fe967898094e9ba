//! Discriminative routing (arXiv:2403.10616 §2.4.2, §7.2.1): a linear classifier of which path scores a document best.

mod lbfgs;
mod objective;

use dipaco_shards::TokenFile;
use dipaco_topology::PathId;
use rayon::prelude::*;

use self::objective::{Objective, Scaling};
use crate::features::{FeatureExtractor, Featurizer};
use crate::fit::{Origin, warn_of_dominance};
use crate::progress::{Progress, ProgressFn, report};
use crate::router::{FittedOn, Router, TargetsFrom};
use crate::{RouterConfig, RoutingError, calibrate};

/// One document in this many is left out of the fits that choose the penalty.
const HELD_OUT: usize = 5;

/// A discriminative router and how well it fits.
#[derive(Clone, Debug)]
pub struct Discriminative {
    /// The router.
    pub router: Router,
    /// Documents that each path scores best (P).
    pub target_sizes: Vec<u64>,
    /// Documents that the router sends to each path (P).
    pub sizes: Vec<u64>,
    /// Documents that it would send to each path (P) without calibrated biases.
    pub uncalibrated_sizes: Vec<u64>,
    /// The share of the documents that go to the path that scores them best.
    pub accuracy: f64,
    /// The penalty that was chosen.
    pub penalty: f64,
    /// Mean of -ln of the probability of their targets for the documents that were held out while penalties were
    /// compared; nothing when there was one penalty only.
    pub held_out_loss: Option<f64>,
    /// Iterations of the fit.
    pub iterations: usize,
}

/// The path that scores each document best, the lowest of several: `scores` (N, P), row-major, are sums of the tokens'
/// log-likelihoods.
///
/// # Errors
///
/// [`RoutingError::Shape`] when there are not P scores for each document, [`RoutingError::NotFinite`] for a NaN or an
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

/// The features (N, D), row-major, of all documents of a file, as routers see them. Memory: N × D × 4 bytes.
///
/// # Errors
///
/// A prefix over the model's context, an empty document, features that can't be computed or are not finite, or
/// [`RoutingError::Cancelled`].
pub fn document_features(
    model: &dyn FeatureExtractor,
    file: &TokenFile,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Vec<f32>, RoutingError> {
    config.check()?;
    let featurizer =
        Featurizer { model, prefix_tokens: config.prefix_tokens, batch_documents: config.batch_documents };
    let total = file.documents();
    let mut points = Vec::new();
    featurizer.for_each(file, 0..total, total, progress, |_, features| {
        points.extend_from_slice(features);
        Ok(())
    })?;
    Ok(points)
}

/// Fits a router that sends a document to the path that is likely to score it best.
///
/// `features` (N, D), row-major, are the seed's, and `targets` (N) the paths that score the documents best
/// ([`targets_of`]). A multinomial logistic regression on standardised features is fitted with L-BFGS; the penalty on its
/// weights is the one of `config.classifier.penalties` that predicts a fifth of the documents best after fitting the
/// others. Then biases are calibrated until paths are chosen as often as they are targets, because rare targets are
/// even rarer in a classifier's choice, which left paths without text; a path that is hardly ever a target gets
/// `config.least_share` of an equal share. The same inputs give the same router, bit for bit.
///
/// # Errors
///
/// [`RoutingError::Targets`] for fewer documents than paths or a target that is no path, [`RoutingError::Shape`] and
/// [`RoutingError::NotFinite`] for features that can't be used, [`RoutingError::Config`] for a bad setting,
/// [`RoutingError::Identical`] when no feature differs, [`RoutingError::Cancelled`].
#[allow(clippy::too_many_arguments, reason = "each is a different thing that the caller has")]
pub fn fit_discriminative(
    features: &[f32],
    dimension: usize,
    targets: &[PathId],
    paths: u32,
    origin: Origin,
    from: TargetsFrom,
    config: &RouterConfig,
    progress: &mut ProgressFn<'_>,
) -> Result<Discriminative, RoutingError> {
    config.check()?;
    check(features, dimension, targets, paths)?;
    let (settings, count) = (&config.classifier, targets.len());
    let mut target_sizes = vec![0u64; paths as usize];
    targets.iter().for_each(|target| target_sizes[target.index()] += 1);
    warn_of_rare_targets(&target_sizes);

    let scaling = Scaling::of(features, dimension);
    if scaling.is_constant() && count > 1 {
        return Err(RoutingError::Identical { points: count });
    }
    let objective = Objective { features, targets, scaling: &scaling, paths: paths as usize };
    let mut fit = |penalty: f64, rows: &dyn Fn(usize) -> bool| {
        let mut iteration = 0;
        let start = vec![0.0; objective.parameters()];
        lbfgs::minimise(start, settings.iterations, settings.tolerance, &mut |place, gradient| {
            let loss = objective.evaluate(place, penalty, rows, Some(gradient));
            report(progress, Progress::Classifier { penalty, evaluation: iteration, loss })?;
            iteration += 1;
            Ok(loss)
        })
    };
    let mut chosen = (settings.penalties.first().copied().unwrap_or(1.0), None);
    if settings.penalties.len() > 1 && count >= 2 * HELD_OUT {
        for &penalty in &settings.penalties {
            let found = fit(penalty, &|row| row % HELD_OUT != HELD_OUT - 1)?;
            let loss = objective.evaluate(&found.place, 0.0, &|row| row % HELD_OUT == HELD_OUT - 1, None);
            tracing::debug!(penalty, loss, iterations = found.iterations, "classifier of held-out documents");
            if chosen.1.is_none_or(|best| loss < best) {
                chosen = (penalty, Some(loss));
            }
        }
    }
    let (penalty, held_out_loss) = chosen;
    let found = fit(penalty, &|_| true)?;
    tracing::debug!(penalty, iterations = found.iterations, "classifier");
    let loss = objective.evaluate(&found.place, 0.0, &|_| true, None);

    let logits = objective.logits(&found.place, calibrate::stride(count, paths as usize));
    let corrections =
        calibrate::calibrate(&logits, &calibrate::wanted_shares(&target_sizes, config.least_share));
    drop(logits);
    let fitted_on = FittedOn {
        tokens_hash: origin.tokens_hash,
        tokenizer_hash: origin.tokenizer_hash,
        seed_hash: origin.seed_hash,
        documents: count as u64,
        loss,
        targets: Some(from),
        config: config.clone(),
    };
    let (weights, biases) = scaling.unfold(&found.place, paths as usize);
    let with = |corrections: &[f64], fitted_on| {
        let biases: Vec<f32> =
            biases.iter().zip(corrections).map(|(bias, more)| (bias + more) as f32).collect();
        Router::discriminative(dimension, weights.clone(), &biases, fitted_on)
    };
    let uncalibrated = choices(&with(&vec![0.0; paths as usize], fitted_on.clone())?, features)?;
    let router = with(&corrections, fitted_on)?;
    let choices = choices(&router, features)?;
    let right = choices.iter().zip(targets).filter(|(choice, target)| choice == target).count();
    let sizes = histogram(&choices, paths);
    warn_of_dominance(&sizes);
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

fn check(features: &[f32], dimension: usize, targets: &[PathId], paths: u32) -> Result<(), RoutingError> {
    let count = targets.len();
    if dimension == 0 || count.checked_mul(dimension) != Some(features.len()) {
        let expected = count.saturating_mul(dimension.max(1));
        let what = "features of the router's documents";
        return Err(RoutingError::Shape { what, expected, actual: features.len() });
    }
    if paths == 0 || count < paths as usize {
        return Err(RoutingError::Targets {
            problem: format!(
                "{count} documents were scored for {paths} paths: it needs as many at least, and better hundreds for each \
                 path, so raise routing.router_share or use fewer paths"
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

/// Warns of paths that hardly any document chose.
fn warn_of_rare_targets(target_sizes: &[u64]) {
    let never = target_sizes.iter().filter(|&&size| size == 0).count();
    if never > 0 {
        tracing::warn!(
            never,
            paths = target_sizes.len(),
            documents = target_sizes.iter().sum::<u64>(),
            "paths score none of the router's documents best: raise routing.router_share, use fewer paths, or train longer \
             before re-routing; they get routing.least_share of an equal share"
        );
    }
}

/// The path of each document.
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
