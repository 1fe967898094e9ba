//! Choosing the path anew every W tokens of a sequence (arXiv:2403.10616 §2.4.3).
//!
//! The tokens of a sequence form chunks of W. The router reads all tokens before a chunk and picks the path that scores or
//! generates it, so no token influences the choice of its own path. The first chunk keeps the path of the start. A path that
//! stays keeps its keys and values. A new path keeps those of the stages before the first whose module differs, and the
//! residual stream behind them. The other stages read the sequence from its beginning, as in the evaluation.
//!
//! The steps of other sequences do not wait for the router, nor for the modules of the new path. A sequence that changes its
//! path gives up its pages and modules first, so it holds nothing while it waits. The pages' content stays until others need
//! the pages. What is still there when the new path begins is copied, because the old path's pages serve the prefix cache.

use dipaco_topology::PathId;

use crate::scheduler::{Chunks, SequenceId};
use crate::{EngineError, GenerateRequest, ServedPath};

/// Changes of paths that the thread of the steps has to make.
#[derive(Default)]
pub(crate) struct Moves {
    /// Sequences that leave their path.
    pub(crate) left: Vec<SequenceId>,
    /// Sequences with the modules of their new path.
    pub(crate) arrived: Vec<(SequenceId, PathId, ServedPath)>,
    /// Sequences that got no path, or no modules.
    pub(crate) failed: Vec<(SequenceId, EngineError)>,
}

/// The first chunk of a request that its steps compute. Of a prompt without scores, only the keys and values of its last
/// path are needed, so its chunks but the last are skipped.
pub(crate) fn chunks(request: &GenerateRequest) -> Option<Chunks> {
    let every = request.route_every?;
    let skipped = if request.prompt_log_probs.is_some() { 0 } else { request.prompt.len() / every };
    Some(Chunks { end: (skipped + 1).saturating_mul(every), every })
}

/// Refuses a request that the model's routers can't serve.
pub(crate) fn check(request: &GenerateRequest, reroutes: bool) -> Result<(), EngineError> {
    match request.route_every {
        Some(every) if !reroutes => Err(EngineError::Parameter {
            field: "route_every",
            value: every.to_string(),
            expected: "leave it out, because this run had no transformer router when the server started \
                       (dipaco route fit-transformer), and serve.reroute_by is not \"features\"",
        }),
        _ => Ok(()),
    }
}
