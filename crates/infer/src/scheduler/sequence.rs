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
    /// Number of the path's modules; `None` until the path is known.
    pub(super) root: Option<Content>,
    pub(super) running: bool,
    /// Number of tokens whose keys and values are in the pages.
    pub(super) computed: usize,
    pub(super) pages: Vec<u32>,
    /// Contents of the full pages.
    pub(super) contents: Vec<Content>,
    /// Number of tokens whose rows have run on any path. Their scores, if they are wanted, are known.
    pub(super) ran: usize,
    pub(super) left: Left,
}

/// The path that a sequence left, and what is kept of it.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Number of its modules; `None` before the first change.
    root: Option<Content>,
    /// Contents of its full pages.
    contents: Vec<Content>,
    /// Stages that the new path has in common with it.
    pub(super) shared: usize,
    /// Number of tokens that begin in stage `shared`.
    pub(super) tokens: usize,
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

    /// Leaves the path.
    pub(super) fn leave(&mut self) {
        let contents = std::mem::take(&mut self.contents);
        self.left = Left { root: self.root.take(), contents, ..Left::default() };
    }

    /// The key of page `index` on the path before, if the new path has stages in common with it.
    pub(super) fn left_page(&self, index: usize) -> Option<(Content, &[u32; PAGE_TOKENS])> {
        let Left { root, contents, shared, .. } = &self.left;
        let before = if index == 0 { *root } else { contents.get(index - 1).copied() };
        (*shared > 0 && index < contents.len()).then(|| before.zip(self.page(index)))?
    }

    /// The stage that the row of the next token begins in, and the number of tokens that begin in it.
    pub(super) fn begin(&self) -> (usize, usize) {
        let Left { shared, tokens, .. } = self.left;
        if self.computed < tokens { (shared, tokens) } else { (0, usize::MAX) }
    }

    /// Tokens of page `index`, if it is full of known tokens.
    pub(super) fn page(&self, index: usize) -> Option<&[u32; PAGE_TOKENS]> {
        self.tokens.get(index * PAGE_TOKENS..(index + 1) * PAGE_TOKENS)?.try_into().ok()
    }
}
