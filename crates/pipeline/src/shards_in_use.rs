//! Shards that paths were trained on stay as they are.

use dipaco_routing::{Router, ShardSet};
use dipaco_shards::TokenSet;

use crate::error::PipelineError;
use crate::run_directory::RoutingFolder;
use crate::weights::Weights;

/// Refuses to replace the training shards of a phase that the training has begun, if they came from another router or text, or
/// with other settings: the training could not go on with the new ones. Lost and damaged shards may be made again, and shards
/// that are not those of the training may be replaced.
///
/// # Errors
/// [`PipelineError::ShardsInUse`].
pub(crate) fn refuse_other_shards(
    routing: &RoutingFolder,
    phase: u32,
    weights: &Weights,
    router: &Router,
    tokens: &TokenSet,
) -> Result<(), PipelineError> {
    let training = weights.manifest().training.as_ref();
    let Some(training) = training.filter(|training| phase <= training.phase) else { return Ok(()) };
    let folder = routing.train();
    // Without a readable list there are no shards that anybody could train on.
    let Ok(shards) = ShardSet::open(&folder) else { return Ok(()) };
    let hashes = shards.shards().iter().map(|shard| &shard.content_hash);
    // The manifest has no hashes of the earlier phases, to which the training may go back.
    if phase == training.phase && !hashes.eq(training.shards.iter().map(|shard| &shard.hash)) {
        return Ok(());
    }
    let (manifest, settings) = (shards.manifest(), &weights.config().routing);
    let reserved = manifest.reserved.as_ref().map(|reserved| (reserved.share, reserved.seed));
    let same = manifest.router_hash == router.hash()
        && manifest.tokens_hash == tokens.content_hash()
        && manifest.overlap as usize == settings.overlap
        && reserved == (settings.router_share > 0.0).then_some((settings.router_share, settings.seed));
    if same { Ok(()) } else { Err(PipelineError::ShardsInUse { folder }) }
}
