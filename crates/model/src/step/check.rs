//! What a step refuses before it changes anything.

use std::sync::Arc;

use dipaco_ops::{KvShape, PAGE_TOKENS, PackedRows};

use super::{Stage, StepSequence, Stepper};
use crate::packed::Embedding;
use crate::step_pages::{Borders, StepPages};
use crate::{ModelError, PackedModule};

impl Stepper {
    /// Refuses pages of a model of another shape.
    pub(super) fn check_pages(&self, pages: &StepPages) -> Result<(), ModelError> {
        let (own, found, borders) = (self.kv_shape(), pages.kv.shape(), pages.borders.count);
        let fit = borders == self.borders() && pages.borders.width == self.shape.width;
        if own == found && (borders == 0 || fit) {
            return Ok(());
        }
        let words = |shape: KvShape, borders: usize| {
            let KvShape { blocks, kv_heads, head_dim } = shape;
            format!("{blocks} blocks of {kv_heads} heads of {head_dim} elements with {borders} borders")
        };
        let problem = format!(
            "they hold {}, and this model has {}: take the pages of its own `Stepper`",
            words(found, borders),
            words(own, self.borders())
        );
        Err(ModelError::Batch { what: "pages", problem })
    }

    /// Refuses a sequence that does not fit the model or its pages.
    pub(super) fn check(&self, sequence: &StepSequence<'_>, borders: &Borders) -> Result<(), ModelError> {
        let StepSequence { modules, tokens, start, pages, .. } = sequence;
        border(borders, sequence.stage)?;
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
        self.check_modules(modules)
    }

    /// Refuses modules that are no path of the model.
    fn check_modules(&self, modules: &[Arc<PackedModule>]) -> Result<(), ModelError> {
        let holds = |stage: &Stage| {
            let module = modules.get(stage.level);
            module.is_some_and(|module| stage.blocks.clone().all(|block| module.blocks.contains_key(&block)))
        };
        let ends = || modules[self.embedding].embedding.is_some() && modules[self.head].head.is_some();
        let wrong = |problem: &str| Err(ModelError::Compose { problem: problem.to_owned() });
        if modules.len() != self.levels || !self.stages.iter().all(holds) || !ends() {
            return wrong("the modules of a sequence are not one module for each level");
        }
        if !self.fits(modules) {
            return wrong(
                "a module of a sequence has weights of another shape: it belongs to another configuration",
            );
        }
        Ok(())
    }

    /// True if the weights of the modules, one for each level, have the sizes of the model.
    fn fits(&self, modules: &[Arc<PackedModule>]) -> bool {
        let (config, width) = (&self.config, self.shape.width);
        let is = |table: &PackedRows, rows| (table.rows(), table.depth()) == (rows, width);
        let embedding = match &modules[self.embedding].embedding {
            Some(Embedding::Table(table)) => !config.tie_embeddings && is(table, config.vocab_size),
            // The head of the same module, whose size is checked below.
            Some(Embedding::Tied) => config.tie_embeddings,
            None => false,
        };
        let head = modules[self.head].head.as_ref();
        embedding
            && head.is_some_and(|head| head.norm.len() == width && is(&head.projection, config.head_size()))
            && modules.iter().flat_map(|module| module.blocks.values()).all(|block| block.fits(&self.shape))
    }
}

/// Refuses a stage that rows can't begin with.
pub(super) fn border(borders: &Borders, stage: usize) -> Result<(), ModelError> {
    if stage <= borders.count {
        return Ok(());
    }
    let problem = format!("the pages have {} borders, so rows can't begin with stage {stage}", borders.count);
    Err(ModelError::Batch { what: "stage", problem })
}

#[cfg(test)]
mod tests {
    use dipaco_ops::WeightFormat;
    use dipaco_topology::{LevelConfig, Modules, Topology, TopologyConfig};

    use super::*;
    use crate::{Dtype, ModelConfig, Positions, init, split};

    fn config() -> ModelConfig {
        ModelConfig {
            vocab_size: 11,
            hidden_size: 8,
            blocks: 2,
            heads: 2,
            head_dim: 4,
            ffn_size: 12,
            context: 32,
            ..ModelConfig::default()
        }
    }

    /// A path through a level for each block, of which the last has the head, or through one level.
    fn topology(levels: usize) -> Topology {
        let level = |number: usize| LevelConfig {
            modules: Modules::Count(1),
            blocks: if levels == 1 { "0..2".to_owned() } else { number.to_string() },
            embedding: number == 0,
            head: number + 1 == levels,
            frozen: false,
        };
        Topology::new(&TopologyConfig::grid(1, (0..levels).map(level).collect()), 2).unwrap()
    }

    fn modules(config: &ModelConfig) -> Vec<Arc<PackedModule>> {
        let topology = topology(1);
        let weights = split(config, &topology, &init(config, 1).unwrap()).unwrap();
        let pack = |(level, weights)| {
            Arc::new(PackedModule::new(config, &topology, level, weights, WeightFormat::F32).unwrap())
        };
        weights.iter().enumerate().map(pack).collect()
    }

    /// The outcome of a step of two tokens.
    fn step(
        stepper: &Stepper,
        modules: &[Arc<PackedModule>],
        pages: &mut StepPages,
    ) -> Result<usize, ModelError> {
        let sequence = StepSequence {
            modules,
            tokens: &[3, 5],
            start: 0,
            stage: 0,
            pages: &[1],
            logits: Positions::All,
        };
        Ok(stepper.step(&[sequence], pages)?.concat().len())
    }

    #[test]
    fn modules_of_another_shape_are_refused() {
        let stepper = Stepper::new(&config(), &topology(1)).unwrap();
        let mut pages = stepper.pages(2, Dtype::F32);
        assert_eq!(step(&stepper, &modules(&config()), &mut pages).unwrap(), 2 * 11);
        for other in [
            ModelConfig { hidden_size: 16, ..config() },
            ModelConfig { heads: 4, ..config() },
            ModelConfig { kv_heads: Some(1), ..config() },
            ModelConfig { ffn_size: 16, ..config() },
            ModelConfig { vocab_size: 12, ..config() },
            ModelConfig { tie_embeddings: true, ..config() },
        ] {
            let error = step(&stepper, &modules(&other), &mut pages).unwrap_err().to_string();
            assert!(error.contains("has weights of another shape"), "{other:?}: {error}");
        }
    }

    #[test]
    fn pages_of_another_shape_are_refused() {
        let (config, modules) = (config(), modules(&config()));
        let stepper = Stepper::new(&config, &topology(1)).unwrap();
        for (other, levels) in [
            (ModelConfig { kv_heads: Some(1), ..config.clone() }, 1),
            (ModelConfig { head_dim: 8, ..config.clone() }, 1),
            // The same keys and values, with a border between two levels.
            (config.clone(), 2),
        ] {
            let owner = Stepper::new(&other, &topology(levels)).unwrap();
            let mut pages = owner.pages_with_borders(2, Dtype::F32);
            for refused in
                [step(&stepper, &modules, &mut pages).map(drop), stepper.copy_page(&mut pages, 0, 1, 0)]
            {
                let error = refused.unwrap_err().to_string();
                assert!(error.starts_with("pages: they hold 2 blocks"), "{other:?}: {error}");
            }
        }
        // Pages of another stepper of the same model are as good.
        let mut pages = Stepper::new(&config, &topology(1)).unwrap().pages(2, Dtype::Bf16);
        assert_eq!(step(&stepper, &modules, &mut pages).unwrap(), 2 * 11);
    }
}
