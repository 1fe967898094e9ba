//! `dipaco export`: writes a path or the seed as a Hugging Face Llama checkpoint, or as a GGUF file.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use dipaco_model::WeightFormat;
use dipaco_pipeline::export::{Exported, ThereAlready, WrongPlace, check_free, check_places};
use dipaco_topology::PathId;
use serde::Serialize;

use crate::error::CliError;
use crate::run_options::RunOptions;
use crate::{output, runtime};
use dipaco_pipeline::vocabulary;
use dipaco_pipeline::{Version, Weights};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco export --run runs/tiny --path 2 --out path-2  for transformers, vLLM and others
  dipaco export --run runs/tiny --seed --out seed      the seed that all paths began with
  dipaco export --run runs/tiny --path 2 --gguf path-2.gguf --format q8_0 --verify  for llama.cpp";

/// Options of `dipaco export`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("model").args(["path", "seed"]).required(true),
    group = ArgGroup::new("files").args(["out", "gguf"]).required(true).multiple(true)
)]
pub(crate) struct ExportOptions {
    #[command(flatten)]
    run: RunOptions,
    /// Number of the path, from 0.
    #[arg(long, value_name = "N")]
    path: Option<PathId>,
    /// Export the seed instead of a path.
    #[arg(long, conflicts_with = "early_stopping")]
    seed: bool,
    /// Folder to write a Hugging Face checkpoint to. It must not hold files of another checkpoint or a README.md.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// GGUF file to write, with the tokenizer inside. It must not exist.
    #[arg(long, value_name = "FILE")]
    gguf: Option<PathBuf>,
    /// Number type of the matrices of the GGUF file.
    #[arg(long, value_enum, default_value_t, requires = "gguf")]
    format: FormatOption,
    /// Use the version of the path with the lowest loss on its held-out documents, instead of the last version.
    #[arg(long)]
    early_stopping: bool,
    /// Read what was written as `seed --import` does, and compare its logits with those of the weights.
    #[arg(long)]
    verify: bool,
    /// Replace a checkpoint and a README.md in the folder, and the GGUF file. Other files of the folder stay.
    #[arg(long)]
    force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The values of `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum FormatOption {
    /// 32 bits a weight: the same tokens as `dipaco serve` with the same format.
    #[default]
    F32,
    /// 16 bits a weight.
    Bf16,
    /// 8.5 bits a weight.
    #[value(name = "q8_0")]
    Q8_0,
    /// 4.5 bits a weight, 8.5 in embedding and head.
    #[value(name = "q4_0")]
    Q4_0,
}

impl From<FormatOption> for WeightFormat {
    fn from(option: FormatOption) -> Self {
        match option {
            FormatOption::F32 => Self::F32,
            FormatOption::Bf16 => Self::Bf16,
            FormatOption::Q8_0 => Self::Q8_0,
            FormatOption::Q4_0 => Self::Q4_0,
        }
    }
}

/// A checkpoint or a GGUF file in the output of `--json`.
#[derive(Serialize)]
struct Written {
    /// `path-2` or `seed`.
    model: String,
    kind: &'static str,
    /// The folder, or the GGUF file.
    files: String,
    format: FormatOption,
    /// With `--verify`.
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<Logits>,
}

/// Logits of the written files beside those of the weights.
#[derive(Serialize)]
struct Logits {
    largest_difference: f32,
    largest_logit: f32,
    tokens: usize,
    /// Number of tokens after which both find the same token most likely.
    same_tokens: usize,
}

/// Refuses what can't be written, or would write over something without `--force`.
fn check_targets(options: &ExportOptions) -> Result<(), CliError> {
    let (folder, gguf) = (options.out.as_deref(), options.gguf.as_deref());
    check_places(folder, gguf).map_err(|wrong| match wrong {
        WrongPlace::File { file } => CliError::Usage {
            message: format!("--out {} is a file", file.display()),
            remedy: "give a folder".into(),
        },
        WrongPlace::Folder { folder } => CliError::Usage {
            message: format!("--gguf {} is a folder", folder.display()),
            remedy: "give the name of a file".into(),
        },
    })?;
    if options.force {
        return Ok(());
    }
    check_free(folder, gguf).map_err(|ThereAlready { file }| CliError::Usage {
        message: format!("{} is there already", file.display()),
        remedy: "give another name, or add --force to write over it".into(),
    })
}

pub(crate) fn run(options: &ExportOptions) -> Result<(), CliError> {
    let (run, config) = options.run.open_existing()?;
    dipaco_pipeline::route::check_tokenizer(&run)?;
    let config = vocabulary::with_vocabulary(&run, &config)?;
    check_targets(options)?;
    let version = if options.early_stopping { Version::Best } else { Version::Current };
    let path = options.path;
    let shown = path.map_or_else(|| "the seed".into(), |path| format!("path {path}"));
    let exported = runtime::run(async {
        let weights = Weights::open(&run, &config, version).await?;
        runtime::blocking(move || Ok(Exported::compose(&weights, path)?)).await
    })?;
    let mut list = Vec::new();
    let mut written = |kind, files: &Path, format: FormatOption| -> Result<(), CliError> {
        let verify = || exported.verify(&config, files, format.into());
        let difference = options.verify.then(verify).transpose()?;
        let place = files.display();
        if !options.json {
            let verified = difference.map(|difference| format!(": {difference}")).unwrap_or_default();
            return output::print(&format!("{shown} is in {place}{verified}\n"));
        }
        let logits = difference.map(|difference| Logits {
            largest_difference: difference.largest,
            largest_logit: difference.scale,
            tokens: difference.tokens,
            same_tokens: difference.same,
        });
        list.push(Written { model: exported.name.clone(), kind, files: place.to_string(), format, logits });
        Ok(())
    };
    if let Some(out) = &options.out {
        exported.write_checkpoint(&run, &config, out)?;
        written("checkpoint", out, FormatOption::F32)?;
    }
    if let Some(file) = &options.gguf {
        exported.write_gguf(&run, &config, options.format.into(), file)?;
        written("gguf", file, options.format)?;
    }
    if options.json { output::print_json(&list) } else { Ok(()) }
}
