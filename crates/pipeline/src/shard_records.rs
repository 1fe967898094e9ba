//! The training shards of a phase as the run's manifest records them.

use dipaco_config::RunConfig;
use dipaco_routing::{Shard, ShardSet};
use dipaco_store::ShardRecord;

use crate::error::PipelineError;
use crate::run_directory::RunDirectory;

/// The records of the training shards of a phase. Every shard is opened, so that a damaged one is
/// reported here and not by one worker after the other.
///
/// # Errors
/// [`PipelineError::NotRouted`] when there are none, [`PipelineError::Routing`] and [`PipelineError::Shards`] when one is
/// damaged, or is empty although its path trains.
pub(crate) fn shard_records(
    run: &RunDirectory,
    phase: u32,
    config: &RunConfig,
) -> Result<Vec<ShardRecord>, PipelineError> {
    let folder = run.routing(phase).train();
    if !folder.exists() {
        return Err(PipelineError::NotRouted { folder });
    }
    let shards = ShardSet::open(&folder)?;
    shards.check_trainable(|path| path.0 >= config.topology.kept_paths)?;
    for shard in shards.shards() {
        shards.open_shard(shard.path)?;
    }
    // With slashes on every system, because workers on other systems read the name.
    let place = if phase == 0 { "train".to_owned() } else { format!("phase-{phase}/train") };
    let record = |shard: &Shard| ShardRecord {
        file: format!("{place}/{}", dipaco_routing::shard_file_name(shard.path)),
        hash: shard.content_hash.clone(),
        documents: shard.documents,
        tokens: shard.tokens,
    };
    Ok(shards.shards().iter().map(record).collect())
}
