//! The check of the content of all shards.

use dipaco_shards::{ShardsError, TokenSet};

use super::ShardSet;
use crate::RoutingError;
use crate::progress::{ProgressFn, RoutingProgress, report};

impl ShardSet {
    /// Reads all shards, and the documents that are reserved for the router, and checks their content.
    ///
    /// # Errors
    ///
    /// As [`Self::open_shard`] and [`Self::open_router_documents`], [`RoutingError::Tokens`] for the first damaged file, and
    /// [`RoutingError::Cancelled`].
    pub(crate) fn verify(&self, progress: &mut ProgressFn<'_>) -> Result<(), RoutingError> {
        let mut total = 0;
        for set in self.token_sets() {
            total += content_bytes(&set?);
        }
        let mut before = 0;
        for set in self.token_sets() {
            let set = set?;
            let mut told = |done: u64, _: u64| {
                let step = RoutingProgress::VerifyShards { done: before + done, total };
                report(progress, step).map_err(|_| ShardsError::Cancelled)
            };
            set.verify_documents(&(0..set.documents()), &mut told).map_err(|source| match source {
                ShardsError::Cancelled => RoutingError::Cancelled,
                source => {
                    let what = format!("the content of {} is not as it was written", set.path().display());
                    RoutingError::Tokens { what, source }
                }
            })?;
            before += content_bytes(&set);
        }
        Ok(())
    }

    /// The shards, and the documents that are reserved for the router. They are opened one after the other: a process may have
    /// fewer memory maps than all of them together have files.
    fn token_sets(&self) -> impl Iterator<Item = Result<TokenSet, RoutingError>> + '_ {
        let shards = self.shards().iter().map(move |shard| self.open_shard(shard.path));
        let reserved = std::iter::once_with(move || self.open_router_documents());
        shards.chain(reserved.filter_map(Result::transpose))
    }
}

/// The bytes that a check of a token set reads: its tokens, and an offset more than it has documents.
fn content_bytes(set: &TokenSet) -> u64 {
    let offset_bytes = size_of::<u64>() as u64;
    set.files().map(|(_, data)| data.tokens * data.token_bytes + (data.documents + 1) * offset_bytes).sum()
}
