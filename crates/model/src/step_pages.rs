//! The pages of a step: keys and values, and the rows between stages.

use dipaco_ops::{KvPages, PAGE_TOKENS};

/// Pages of many sequences, as in [`KvPages`].
///
/// They may also hold borders: the residual stream (D) of each token before each stage but the first. A sequence that changes
/// its path then goes on from the first stage whose module differs.
#[derive(Debug)]
pub struct StepPages {
    pub(crate) kv: KvPages,
    pub(crate) borders: Borders,
}

/// The residual stream before stages: stage by stage from the second, page by page, token by token. Always f32, so that rows
/// that go on from it get the same bits.
#[derive(Debug)]
pub(crate) struct Borders {
    pub(crate) count: usize,
    pages: usize,
    pub(crate) width: usize,
    rows: Vec<f32>,
}

impl Borders {
    pub(crate) fn new(count: usize, pages: usize, width: usize) -> Self {
        Self { count, pages, width, rows: vec![0.0; count * pages * PAGE_TOKENS * width] }
    }

    /// Where the rows of a page begin. `stage` is from 1 to `count`.
    fn at(&self, stage: usize, page: u32) -> usize {
        ((stage - 1) * self.pages + page as usize) * PAGE_TOKENS * self.width
    }

    /// The pieces of `rows` consecutive rows from position `start`: where each lies, and its length.
    fn pieces(
        &self,
        stage: usize,
        pages: &[u32],
        start: usize,
        rows: usize,
    ) -> impl Iterator<Item = (usize, usize)> {
        let end = start + rows;
        (start / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS)).map(move |index| {
            let first = start.max(index * PAGE_TOKENS);
            let last = end.min((index + 1) * PAGE_TOKENS);
            let at = self.at(stage, pages[index]) + first % PAGE_TOKENS * self.width;
            (at, (last - first) * self.width)
        })
    }

    /// Reads the rows (N × D) from position `start` before a stage.
    pub(crate) fn read(&self, stage: usize, pages: &[u32], start: usize, mut rows: &mut [f32]) {
        for (at, length) in self.pieces(stage, pages, start, rows.len() / self.width) {
            let (own, rest) = rows.split_at_mut(length);
            own.copy_from_slice(&self.rows[at..at + length]);
            rows = rest;
        }
    }

    /// Keeps the rows (N × D) from position `start` before a stage.
    pub(crate) fn write(&mut self, stage: usize, pages: &[u32], start: usize, mut rows: &[f32]) {
        let pieces: Vec<_> = self.pieces(stage, pages, start, rows.len() / self.width).collect();
        for (at, length) in pieces {
            let (own, rest) = rows.split_at(length);
            self.rows[at..at + length].copy_from_slice(own);
            rows = rest;
        }
    }

    /// Copies the rows before the stages up to `stage` from one page to another.
    pub(crate) fn copy(&mut self, from: u32, to: u32, stage: usize) {
        for stage in 1..=stage {
            let source = self.at(stage, from);
            let to = self.at(stage, to);
            self.rows.copy_within(source..source + PAGE_TOKENS * self.width, to);
        }
    }
}
