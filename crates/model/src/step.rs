//! One step of serving: rows of several sequences on several paths.

use std::ops::Range;
use std::sync::Arc;

use dipaco_ops::{
    BlockShape, KvPages, KvShape, PAGE_TOKENS, SequencePages, SequencePlace, Target, Workspace, kernel,
};
use dipaco_topology::{Part, Topology};
use rayon::prelude::*;

use crate::packed::block_shape;
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
    /// Pages of the sequence, in the order of its tokens, with room for the new ones.
    pub pages: &'a [u32],
    /// The positions whose logits are wanted.
    pub logits: Positions,
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

    /// Returns a pool of pages for this model. Keys and values are f32 or bf16.
    #[must_use]
    pub fn pages(&self, pages: usize, dtype: Dtype) -> KvPages {
        KvPages::new(self.kv_shape(), pages, dtype.into())
    }

    /// Returns the memory of a page in bytes.
    #[must_use]
    pub fn page_bytes(&self, dtype: Dtype) -> usize {
        self.kv_shape().page_bytes(dtype.into())
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
    /// another shape, or would write a page of another sequence.
    pub fn step(&self, batch: &[StepSequence<'_>], pages: &mut KvPages) -> Result<Vec<Vec<f32>>, ModelError> {
        batch.iter().try_for_each(|sequence| self.check(sequence))?;
        let place = |sequence: &StepSequence<'_>| (sequence.tokens.len(), sequence.start);
        let places: Vec<SequencePlace<'_>> = batch
            .iter()
            .map(|sequence| {
                let (rows, start) = place(sequence);
                SequencePlace { pages: sequence.pages, start, rows }
            })
            .collect();
        let opened = pages.open(&places)?.into_iter().enumerate();
        let mut rows: Vec<Rows<'_>> = opened.map(|(number, pages)| Rows { number, pages }).collect();

        let width = self.shape.width;
        let total: usize = batch.iter().map(|sequence| sequence.tokens.len()).sum();
        let mut x = vec![0.0; total * width];
        let mut rest = x.as_mut_slice();
        for sequence in batch {
            let (own, after) = rest.split_at_mut(sequence.tokens.len() * width);
            rest = after;
            sequence.modules[self.embedding].embed(sequence.tokens, width, own);
        }
        for stage in &self.stages {
            self.group(batch, stage.level, &mut rows, &mut x);
            self.run(batch, stage, &mut rows, &mut x);
        }
        self.group(batch, self.head, &mut rows, &mut x);
        Ok(self.logits(batch, &rows, &x))
    }

    /// Runs the blocks of a stage. Rows of one module are neighbours.
    fn run(&self, batch: &[StepSequence<'_>], stage: &Stage, rows: &mut [Rows<'_>], x: &mut [f32]) {
        let module = |rows: &Rows<'_>| &batch[rows.number].modules[stage.level];
        let mut rest = x;
        let mut groups = Vec::new();
        for group in rows.chunk_by_mut(|a, b| Arc::ptr_eq(module(a), module(b))) {
            let count: usize = group.iter().map(|rows| rows.pages.rows()).sum();
            let (own, after) = rest.split_at_mut(count * self.shape.width);
            rest = after;
            let module = Arc::clone(module(&group[0]));
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
    /// sequences, sequences of a group in the order of the batch.
    fn group(&self, batch: &[StepSequence<'_>], level: usize, rows: &mut [Rows<'_>], x: &mut Vec<f32>) {
        let mut firsts: Vec<&Arc<PackedModule>> = Vec::new();
        let mut keys = vec![0; batch.len()];
        for (number, sequence) in batch.iter().enumerate() {
            let module = &sequence.modules[level];
            keys[number] = firsts.iter().position(|first| Arc::ptr_eq(first, module)).unwrap_or_else(|| {
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

    fn check(&self, sequence: &StepSequence<'_>) -> Result<(), ModelError> {
        let StepSequence { modules, tokens, start, pages, .. } = sequence;
        let (positions, context) = (start.saturating_add(tokens.len()), self.config.context);
        let wrong = |what, problem: String| Err(ModelError::Batch { what, problem });
        if tokens.is_empty() {
            return wrong("tokens", "there is no token to append".into());
        }
        if positions > context {
            return Err(ModelError::Context { positions, context });
        }
        if positions.div_ceil(PAGE_TOKENS) > pages.len() {
            return wrong("pages", format!("{} pages have no room for {positions} tokens", pages.len()));
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= self.config.vocab_size) {
            return Err(ModelError::Token { token, vocabulary: self.config.vocab_size });
        }
        let fits = |stage: &Stage| {
            let module = modules.get(stage.level);
            module.is_some_and(|module| stage.blocks.clone().all(|block| module.blocks.contains_key(&block)))
        };
        let ends = || modules[self.embedding].embedding.is_some() && modules[self.head].head.is_some();
        if modules.len() != self.levels || !self.stages.iter().all(fits) || !ends() {
            let problem = "the modules of a sequence are not one module for each level".into();
            return Err(ModelError::Compose { problem });
        }
        Ok(())
    }
}
