//! A sequence, as the scheduler sees it.

use dipaco_model::PAGE_TOKENS;

use super::pages::Content;
use super::plan::Chunks;

/// A waiting or running sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) client: u64,
    pub(super) priority: i32,
    /// Its turn among waiting sequences, a lower one first: its number, unless it traded turns.
    pub(super) turn: u64,
    /// Prompt and generated tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    pub(super) max_tokens: usize,
    pub(super) reads_cache: bool,
    pub(super) chunks: Option<Chunks>,
    /// True while the path of the next chunk is being chosen.
    pub(super) routing: bool,
    /// Numbers of the modules of the path's first stage, of its first two, and so on, up to the whole path. Empty until the
    /// path is known. If there is one number only, the stages are kept all together.
    pub(super) roots: Vec<Content>,
    pub(super) running: bool,
    /// Number of tokens whose keys and values are in the pages.
    pub(super) computed: usize,
    pub(super) pages: Vec<u32>,
    /// Contents of the full pages, for each of `roots`.
    pub(super) contents: Vec<Vec<Content>>,
    /// Number of tokens whose rows have run on any path. Their scores, if they are wanted, are known.
    pub(super) ran: usize,
    /// Stages, the last one first, each with the number of tokens whose rows begin in it or in a later one.
    pub(super) begins: Vec<(usize, usize)>,
}

impl Sequence {
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Rows until the next token can be drawn, or until the path of the next chunk must be known.
    pub(super) fn rows(&self) -> usize {
        // The last token of a chunk predicts the first token of the next one, so its row is the next path's. The last token
        // of a text that is only scored predicts nothing.
        let ends_here = |end| self.max_tokens == 0 && end == self.tokens.len();
        let chunks = self.chunks.filter(|chunks| !ends_here(chunks.end));
        let end = chunks.map_or(usize::MAX, |chunks| chunks.end - 1);
        self.tokens.len().min(end).saturating_sub(self.computed)
    }

    /// The number of tokens that choose the next path, if all rows of the current one have run.
    pub(super) fn at_end(&self) -> Option<usize> {
        let end = self.chunks?.end;
        (!self.routing && self.rows() == 0 && self.tokens.len() >= end).then_some(end)
    }

    /// The stage that the row of the next token begins in, and the number of tokens that begin in it or in a later one.
    pub(super) fn begin(&self) -> (usize, usize) {
        self.begins.iter().copied().find(|begin| self.computed < begin.1).unwrap_or((0, usize::MAX))
    }

    /// Number of tokens that the sequence may read from the cache. The scores of rows that have not run yet need them all.
    pub(super) fn cacheable(&self) -> usize {
        self.tokens.len().min(if self.reads_cache { usize::MAX } else { self.ran })
    }

    /// Tokens of page `index`, if it is full of known tokens.
    pub(super) fn page(&self, index: usize) -> Option<&[u32; PAGE_TOKENS]> {
        self.tokens.get(index * PAGE_TOKENS..(index + 1) * PAGE_TOKENS)?.try_into().ok()
    }
}
