//! A sequence, as the scheduler sees it.

use dipaco_model::PAGE_TOKENS;

use super::pages::Content;

/// A waiting or running sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) client: u64,
    /// Prompt and generated tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    pub(super) max_tokens: usize,
    pub(super) reads_cache: bool,
    /// Number of the path's modules; `None` until the path is known.
    pub(super) root: Option<Content>,
    pub(super) running: bool,
    /// Number of tokens whose keys and values are in the pages.
    pub(super) computed: usize,
    pub(super) pages: Vec<u32>,
    /// Contents of the full pages.
    pub(super) contents: Vec<Content>,
}

impl Sequence {
    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Rows until the next token can be drawn.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Tokens of page `index`, if it is full of known tokens.
    pub(super) fn page(&self, index: usize) -> Option<&[u32; PAGE_TOKENS]> {
        self.tokens.get(index * PAGE_TOKENS..(index + 1) * PAGE_TOKENS)?.try_into().ok()
    }
}
