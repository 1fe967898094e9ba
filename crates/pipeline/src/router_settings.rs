//! The settings of a router, with the blocks of the seed that its features come from.

use dipaco_routing::{FeatureKind, RouterConfig};
use dipaco_store::SeedRecord;

use crate::error::PipelineError;
use crate::weights::Weights;

/// Inner steps below which features `"seed"` come from the token embedding, unless `routing.feature_blocks` is set. The first steps
/// of a seed move the output of its blocks along one direction that all documents share, and clusters follow it.
const SHORT_SEED_STEPS: u64 = 300;

/// The settings with which a router of this run is fitted. The router records them, so that text and prompts are routed by
/// the same features later.
pub(crate) fn router_settings(weights: &Weights) -> Result<RouterConfig, PipelineError> {
    let settings = weights.config().routing.of_router();
    if settings.features != FeatureKind::Seed {
        return Ok(settings);
    }
    let feature_blocks = settings.feature_blocks.or(blocks_of(weights.seed_record()?));
    Ok(RouterConfig { feature_blocks, ..settings })
}

/// Blocks that features of this seed come from; `None` for all.
fn blocks_of(seed: &SeedRecord) -> Option<usize> {
    (seed.imported.is_none() && seed.steps < SHORT_SEED_STEPS).then_some(0)
}

#[cfg(test)]
mod tests {
    use dipaco_store::ObjectRef;

    use super::*;

    #[test]
    fn a_short_seed_routes_by_its_token_embedding() {
        let object = || ObjectRef { name: "seed".to_owned(), bytes: 0, hash: String::new() };
        let seed = |steps, imported| SeedRecord {
            origin: "origin".to_owned(),
            step: steps,
            steps,
            weights: object(),
            state: None,
            validation_loss: None,
            imported,
        };
        assert_eq!(blocks_of(&seed(0, None)), Some(0));
        assert_eq!(blocks_of(&seed(SHORT_SEED_STEPS - 1, None)), Some(0));
        assert_eq!(blocks_of(&seed(SHORT_SEED_STEPS, None)), None);
        assert_eq!(blocks_of(&seed(0, Some(object()))), None, "an imported model has learned already");
    }
}
