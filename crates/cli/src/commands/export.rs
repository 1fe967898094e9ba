//! `dipaco export`: writes a path as a Hugging Face Llama checkpoint.

use std::path::PathBuf;

use clap::Args;
use dipaco_model::{SpecialTokens, export_llama, export_model};
use dipaco_topology::PathId;

use crate::error::CliError;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::files;
use dipaco_pipeline::{Version, Weights};
use dipaco_pipeline::{prepared, vocabulary};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco export --run runs/tiny --path 2 --out path-2  for transformers, vLLM and others";

/// Options of `dipaco export`.
#[derive(Debug, Args)]
pub(crate) struct ExportOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Number of the path, from 0.
    #[arg(long, value_name = "N")]
    path: PathId,
    /// Folder to write. It must not hold another checkpoint.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Use the version of the path with the lowest loss on its held-out documents, instead of the last version.
    #[arg(long)]
    early_stopping: bool,
    /// Overwrite a checkpoint in the folder.
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(options: &ExportOptions) -> Result<(), CliError> {
    let (run, config) = options.run.open()?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    let config = vocabulary::with_vocabulary(&run, &config)?;
    if options.out.join("config.json").exists() && !options.force {
        return Err(CliError::Usage {
            message: format!("{} holds a checkpoint already", options.out.display()),
            remedy: "name another folder, or add --force to write over it".into(),
        });
    }
    let version = if options.early_stopping { Version::Best } else { Version::Current };
    let path = options.path;
    let model = config.model.clone();
    let composed = runtime::run(async {
        let weights = Weights::open(&run, &config, version).await?;
        runtime::blocking(move || Ok(weights.path(path)?)).await
    })?;
    let (tokenizer, weights) = (prepared::tokenizer(&run)?, composed.weights()?);
    let checkpoint = match run.imported().exported()? {
        Some(imported) => {
            let tokenizer = ("tokenizer.json".to_owned(), tokenizer.to_json().to_vec());
            let mut checkpoint = export_model(&model, &weights, &imported.special)?;
            checkpoint.extend(imported.files.into_iter().chain([tokenizer]));
            checkpoint
        }
        None => {
            let special = SpecialTokens {
                end_of_text: tokenizer.end_of_text(),
                end_of_text_text: tokenizer.end_of_text_text(),
            };
            export_llama(&model, &weights, &special, tokenizer.to_json())?
        }
    };
    for (name, bytes) in &checkpoint {
        files::write(&options.out.join(name), bytes)?;
    }
    output::print(&format!("path {path} is in {}\n", options.out.display()))
}
