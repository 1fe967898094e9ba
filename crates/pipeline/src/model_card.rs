//! The README of an exported checkpoint: from which run, modules and round its weights come.

use std::fmt::Write;

use dipaco_topology::PathId;

use crate::error::PipelineError;
use crate::weights::Weights;

/// File name of the card in a checkpoint.
pub(crate) const CARD_FILE: &str = "README.md";

/// The card of a path, or of the seed for `None`, in Markdown with the front matter of the Hugging Face hub.
///
/// # Errors
/// As [`Weights::modules_of`], and [`PipelineError::NoSeed`].
pub(crate) fn model_card(weights: &Weights, path: Option<PathId>) -> Result<String, PipelineError> {
    let run = &weights.config().run.name;
    let version = env!("CARGO_PKG_VERSION");
    let mut card = String::from("---\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n");
    match path {
        None => {
            let seed = weights.seed_record()?;
            _ = write!(
                card,
                "# Seed of `{run}`\n\nThe seed of a DiPaCo run after {} steps: all paths of the run began with these weights.\n\n\
                 Weights: `{}`.\n",
                seed.step, seed.weights.hash,
            );
        }
        Some(path) => {
            let paths = weights.topology().paths();
            _ = write!(
                card,
                "# Path {path} of `{run}`\n\nOne of the {paths} paths of a DiPaCo run. The run's router chose the text that this path has \
                 learnt.\nFor other text another path may be better: `dipaco serve` sends each prompt to its path.\n\n\
                 | level | module | outer steps | weights |\n|--:|--:|--:|---|\n"
            );
            for module in weights.modules_of(path)? {
                let id = module.version.module;
                for (step, object) in module.version.fragments.iter().zip(&module.objects) {
                    _ = writeln!(card, "| {} | {} | {step} | `{}` |", id.level, id.index, object.hash);
                }
            }
        }
    }
    _ = write!(card, "\nHashes are BLAKE3. Written by dipaco {version}.\n");
    Ok(card)
}
