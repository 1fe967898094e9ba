//! One step of serving: rows of several sequences on several paths.

mod check;

use std::ops::Range;
use std::sync::Arc;

use dipaco_ops::{
    BlockShape, KvPages, KvShape, PAGE_TOKENS, SequencePages, SequencePlace, Target, Workspace, kernel,
};
use dipaco_topology::{Part, Topology};
use rayon::prelude::*;

use crate::packed::block_shape;
use crate::step_pages::{Borders, StepPages};
use crate::{Dtype, ModelConfig, ModelError, PackedModule};

/// The rows of one sequence in a step.
#[derive(Clone, Debug)]
pub struct StepSequence<'a> {
    /// The modules of its path, one per level.
    pub modules: &'a [Arc<PackedModule>],
    /// The tokens to append, at least one.
    pub tokens: &'a [u32],
    /// Number of tokens before them, whose keys and values are in the pages.
    pub start: usize,
    /// The first stage that the rows go through, 0 in most cases. The pages must have the rows' keys and values of the stages
    /// below it, and the border before it.
    pub stage: usize,
    /// Pages of the sequence, in the order of its tokens, with room for the new ones.
    pub pages: &'a [u32],
    /// The positions whose logits are wanted.
    pub logits: Positions,
}

impl StepSequence<'_> {
    /// The module of a level, if the rows go through this stage.
    fn module(&self, stage: usize, level: usize) -> Option<&Arc<PackedModule>> {
        (self.stage <= stage).then(|| &self.modules[level])
    }
}

/// Positions of the rows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// No position.
    None,
    /// The last row.
    Last,
    /// All rows.
    All,
}

impl Positions {
    /// Number of positions among `rows` rows.
    #[must_use]
    pub fn count(self, rows: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => 1.min(rows),
            Self::All => rows,
        }
    }
}

/// Consecutive blocks of one level.
#[derive(Clone, Debug)]
struct Stage {
    level: usize,
    blocks: Range<usize>,
}

/// Runs steps on the paths of a model.
///
/// The rows of all sequences that share a module go through it together, so its weights are read once a step. A row's
/// result has the same bits whatever other rows the step has, however the tokens of a sequence are divided into steps, and
/// with any number of threads.
#[derive(Debug)]
pub struct Stepper {
    config: ModelConfig,
    shape: BlockShape,
    levels: usize,
    embedding: usize,
    head: usize,
    stages: Vec<Stage>,
    workspace: Workspace,
}

/// One sequence within a step.
struct Rows<'a> {
    /// Its place in the batch of the caller.
    number: usize,
    pages: SequencePages<'a>,
}

impl Stepper {
    /// Prepares steps of a model.
    ///
    /// # Errors
    /// The configuration is incomplete, or the topology does not fit it.
    pub fn new(config: &ModelConfig, topology: &Topology) -> Result<Self, ModelError> {
        config.check_complete()?;
        config.check_topology(topology)?;
        let level = |part| {
            let missing = || ModelError::Compose { problem: format!("no level holds {part}") };
            topology.level_of(part).ok_or_else(missing)
        };
        let mut stages: Vec<Stage> = Vec::new();
        for block in 0..config.blocks {
            let level = level(Part::Block(block))?;
            match stages.last_mut().filter(|stage| stage.level == level) {
                Some(stage) => stage.blocks.end += 1,
                None => stages.push(Stage { level, blocks: block..block + 1 }),
            }
        }
        Ok(Self {
            shape: block_shape(config, config.context)?,
            levels: topology.levels(),
            embedding: level(Part::Embedding)?,
            head: level(Part::Head)?,
            stages,
            workspace: Workspace::default(),
            config: config.clone(),
        })
    }

    /// Returns a pool of pages for this model, without borders. Keys and values are f32 or bf16.
    #[must_use]
    pub fn pages(&self, pages: usize, dtype: Dtype) -> StepPages {
        let kv = KvPages::new(self.kv_shape(), pages, dtype.into());
        StepPages { kv, borders: Borders::new(0, pages, self.shape.width) }
    }

    /// The same with borders, for sequences that change their paths.
    #[must_use]
    pub fn pages_with_borders(&self, pages: usize, dtype: Dtype) -> StepPages {
        let borders = Borders::new(self.borders(), pages, self.shape.width);
        StepPages { borders, ..self.pages(pages, dtype) }
    }

    /// Returns the memory of a page in bytes, without borders.
    #[must_use]
    pub fn page_bytes(&self, dtype: Dtype) -> usize {
        self.kv_shape().page_bytes(dtype.into())
    }

    /// Returns the memory of a page's borders in bytes.
    #[must_use]
    pub fn border_bytes(&self) -> usize {
        self.borders() * PAGE_TOKENS * self.shape.width * size_of::<f32>()
    }

    /// The levels that the keys and values of each stage depend on, in the order of the model: that of the embedding, and
    /// those of the stages up to this one. The level of the head is among them only if it also has a stage.
    #[must_use]
    pub fn stage_levels(&self) -> Vec<Vec<usize>> {
        let mut levels = vec![self.embedding];
        let stages = self.stages.iter().map(|stage| {
            levels.push(stage.level);
            levels.clone()
        });
        stages.collect()
    }

    /// Copies from one page to another what the stages below `stage` have left in it, and the border before it.
    ///
    /// # Errors
    /// A page does not exist, the pages have no border before the stage, or they belong to a model of another shape.
    pub fn copy_page(
        &self,
        pages: &mut StepPages,
        from: u32,
        to: u32,
        stage: usize,
    ) -> Result<(), ModelError> {
        self.check_pages(pages)?;
        check::border(&pages.borders, stage)?;
        let blocks = self.stages[..stage].iter().map(|stage| stage.blocks.len()).sum();
        pages.kv.copy(from, to, blocks)?;
        pages.borders.copy(from, to, stage);
        Ok(())
    }

    /// Number of borders: one between each two stages.
    fn borders(&self) -> usize {
        self.stages.len().saturating_sub(1)
    }

    fn kv_shape(&self) -> KvShape {
        let config = &self.config;
        KvShape { blocks: config.blocks, kv_heads: config.key_value_heads(), head_dim: config.head_dim }
    }

    /// Appends the tokens of each sequence and returns the logits (positions, V) that each one asks for, in the order of
    /// `batch`. Uses the threads of the current pool. An error leaves pages of tokens before the step as they were.
    ///
    /// # Errors
    /// A sequence has no tokens, exceeds the context or its pages, has a token outside of the vocabulary or modules of
    /// another shape, or would write a page of another sequence. The pages belong to a model of another shape.
    pub fn step(
        &self,
        batch: &[StepSequence<'_>],
        pages: &mut StepPages,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        self.check_pages(pages)?;
        let StepPages { kv, borders } = pages;
        batch.iter().try_for_each(|sequence| self.check(sequence, borders))?;
        let place = |sequence: &StepSequence<'_>| (sequence.tokens.len(), sequence.start);
        let places: Vec<SequencePlace<'_>> = batch
            .iter()
            .map(|sequence| {
                let (rows, start) = place(sequence);
                SequencePlace { pages: sequence.pages, start, rows }
            })
            .collect();
        let opened = kv.open(&places)?.into_iter().enumerate();
        let mut rows: Vec<Rows<'_>> = opened.map(|(number, pages)| Rows { number, pages }).collect();

        let width = self.shape.width;
        let total: usize = batch.iter().map(|sequence| sequence.tokens.len()).sum();
        let mut x = vec![0.0; total * width];
        let mut rest = x.as_mut_slice();
        for sequence in batch {
            let (own, after) = rest.split_at_mut(sequence.tokens.len() * width);
            rest = after;
            match sequence.stage {
                0 => sequence.modules[self.embedding].embed(sequence.tokens, width, own),
                stage => borders.read(stage, sequence.pages, sequence.start, own),
            }
        }
        for (number, stage) in self.stages.iter().enumerate() {
            if (1..=borders.count).contains(&number) {
                self.keep_border(batch, number, &rows, &x, borders);
            }
            self.group(batch, number, stage.level, &mut rows, &mut x);
            self.run(batch, number, stage, &mut rows, &mut x);
        }
        self.group(batch, self.stages.len(), self.head, &mut rows, &mut x);
        Ok(self.logits(batch, &rows, &x))
    }

    /// Keeps the rows before a stage that came through the stage below it.
    fn keep_border(
        &self,
        batch: &[StepSequence<'_>],
        number: usize,
        rows: &[Rows<'_>],
        x: &[f32],
        borders: &mut Borders,
    ) {
        let mut rest = x;
        for rows in rows {
            let (own, after) = rest.split_at(rows.pages.rows() * self.shape.width);
            rest = after;
            let sequence = &batch[rows.number];
            if sequence.stage < number {
                borders.write(number, sequence.pages, sequence.start, own);
            }
        }
    }

    /// Runs the blocks of a stage. Rows of one module are neighbours.
    fn run(
        &self,
        batch: &[StepSequence<'_>],
        number: usize,
        stage: &Stage,
        rows: &mut [Rows<'_>],
        x: &mut [f32],
    ) {
        let module = |rows: &Rows<'_>| batch[rows.number].module(number, stage.level);
        let mut rest = x;
        let mut groups = Vec::new();
        for group in rows.chunk_by_mut(|a, b| module(a).map(Arc::as_ptr) == module(b).map(Arc::as_ptr)) {
            let count: usize = group.iter().map(|rows| rows.pages.rows()).sum();
            let (own, after) = rest.split_at_mut(count * self.shape.width);
            rest = after;
            let Some(module) = module(&group[0]).map(Arc::clone) else { continue };
            let numbers = group.iter_mut().map(|rows| &mut rows.pages).collect::<Vec<_>>();
            groups.push((module, numbers, own));
        }
        // Groups do not depend on each other until the stage ends. Within a group, threads share the columns of products.
        groups.into_par_iter().for_each(|(module, mut pages, x)| {
            for number in stage.blocks.clone() {
                if let Some(block) = module.blocks.get(&number) {
                    block.run(&self.shape, number, x, &mut pages, &self.workspace);
                }
            }
        });
    }

    /// Sorts sequences, and their rows in x, by their module of a level. The groups come in the order of their first
    /// sequences, sequences of a group in the order of the batch. Sequences that leave stage `stage` out are a group too.
    fn group(
        &self,
        batch: &[StepSequence<'_>],
        stage: usize,
        level: usize,
        rows: &mut [Rows<'_>],
        x: &mut Vec<f32>,
    ) {
        let mut firsts = Vec::new();
        let mut keys = vec![0; batch.len()];
        for (number, sequence) in batch.iter().enumerate() {
            let module = sequence.module(stage, level).map(Arc::as_ptr);
            keys[number] = firsts.iter().position(|first| *first == module).unwrap_or_else(|| {
                firsts.push(module);
                firsts.len() - 1
            });
        }
        let key = |rows: &Rows<'_>| (keys[rows.number], rows.number);
        if rows.is_sorted_by_key(key) {
            return;
        }
        let width = self.shape.width;
        let mut at = vec![0; batch.len()];
        let mut next = 0;
        for rows in &*rows {
            at[rows.number] = next;
            next += rows.pages.rows() * width;
        }
        rows.sort_by_key(key);
        let mut sorted = Vec::with_capacity(x.len());
        for rows in &*rows {
            sorted.extend_from_slice(&x[at[rows.number]..][..rows.pages.rows() * width]);
        }
        *x = sorted;
    }

    /// Returns the logits of all sequences. Rows of one head are neighbours.
    fn logits(&self, batch: &[StepSequence<'_>], rows: &[Rows<'_>], x: &[f32]) -> Vec<Vec<f32>> {
        let (width, outputs) = (self.shape.width, self.config.head_size());
        let head = |rows: &Rows<'_>| &batch[rows.number].modules[self.head];
        let mut logits: Vec<Vec<f32>> = batch.iter().map(|_| Vec::new()).collect();
        let mut end = 0;
        for group in rows.chunk_by(|a, b| Arc::ptr_eq(head(a), head(b))) {
            let mut wanted = Vec::new();
            for rows in group {
                end += rows.pages.rows() * width;
                let count = batch[rows.number].logits.count(rows.pages.rows());
                wanted.extend_from_slice(&x[end - count * width..end]);
            }
            let Some(head) = head(&group[0]).head.as_ref().filter(|_| !wanted.is_empty()) else { continue };
            let mut normed = vec![0.0; wanted.len()];
            kernel::rms_norm(&wanted, &head.norm, &mut normed, self.shape.epsilon);
            let mut all = vec![0.0; wanted.len() / width * outputs];
            head.projection.products_by_columns(&normed, &mut all, Target::Replace);
            let mut rest = all.as_slice();
            for rows in group {
                let count = batch[rows.number].logits.count(rows.pages.rows());
                let (own, after) = rest.split_at(count * outputs);
                rest = after;
                logits[rows.number] = own.to_vec();
            }
        }
        logits
    }
}
