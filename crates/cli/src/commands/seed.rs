//! `dipaco seed`: pretrains the dense path that every path starts from.

use std::path::Path;
use std::time::Instant;

use clap::Args;
use dipaco_config::RunConfig;
use dipaco_pipeline::import::PretrainedModel;
use dipaco_pipeline::vocabulary::with_vocabulary;
use dipaco_pipeline::{PipelineError, RunDirectory};
use dipaco_telemetry::{Progress, human};
use dipaco_train::SeedSummary;

use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::run_options::{RunOptions, UnsavedRun, check_changed};
use crate::{output, runtime};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco seed --run runs/tiny                          pretrain, or continue an interrupted pretraining
  dipaco seed --run runs/tiny --set seed_model.steps=1000 --restart
  dipaco seed --run runs/other --from runs/tiny        use the seed of another run
  dipaco seed --run runs/mine --config configs/smollm2-2x2.toml --import smollm2/
                                                       begin with a pretrained model; `dipaco prepare` follows";

#[derive(Debug, Args)]
pub(crate) struct SeedArguments {
    #[command(flatten)]
    run: RunOptions,
    /// Start over, even if the run has a seed of another configuration or text.
    #[arg(long)]
    restart: bool,
    /// Copy the finished seed of the run in DIR instead of training one.
    #[arg(long, value_name = "DIR", conflicts_with = "restart")]
    from: Option<std::path::PathBuf>,
    /// Begin with a pretrained Llama: a folder with Hugging Face's config.json, tokenizer.json and safetensors, or a GGUF
    /// file. It gives the run its tokenizer and its model section, and unless the configuration has others, learning rates
    /// of 1e-4 and an outer step with rate 0.35, momentum 0.9 and no rescaling. seed_model.steps of pretraining follow when
    /// the text is prepared.
    #[arg(long, value_name = "FOLDER|FILE", conflicts_with = "from")]
    import: Option<std::path::PathBuf>,
    #[command(flatten)]
    device: DeviceOptions,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &SeedArguments, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    let opened = match &options.import {
        Some(path) => import(options, path)?,
        None => {
            let (unsaved, config) = options.run.open_unsaved()?;
            Some(Begun { unsaved, config, new: false })
        }
    };
    let Some(Begun { mut unsaved, config, new }) = opened else { return Ok(()) };
    if let Some(from) = &options.from {
        let summary = adopt(&unsaved.run, &config, from)?;
        unsaved.save()?;
        return report(&summary, &format!("is that of {}", from.display()), options.json);
    }
    // An import that replaced another seed has started over already.
    let restart = options.restart && !new;
    let how = dipaco_pipeline::seed::SeedHow { restart, device: options.device.open()? };
    if how.device.is_cpu() {
        unsaved.check_seed_memory(&config, restart)?;
    }
    let run = unsaved.run.clone();
    let summary = runtime::run(async {
        let begins = || unsaved.accept();
        Ok(dipaco_pipeline::seed::seed(&run, &config, how, progress, interrupt.flag(), begins).await?)
    })?;
    unsaved.save()?;
    let done = match (summary.finished, summary.new_steps) {
        (false, _) => "is not finished",
        (true, 0) => "was there already",
        (true, _) => "is done",
    };
    report(&summary, done, options.json)?;
    if summary.finished { Ok(()) } else { Err(CliError::Interrupted) }
}

/// Copies the seed of the run in `from`. It is finished, and this command takes no step.
fn adopt(run: &RunDirectory, config: &RunConfig, from: &Path) -> Result<SeedSummary, CliError> {
    let begun = Instant::now();
    let from = dipaco_pipeline::saved_run(from)?;
    let manifest = runtime::run(async {
        dipaco_pipeline::seed::adopt(run, config, &from).await?;
        Ok(dipaco_pipeline::store::manifest(run).await?)
    })?;
    let seed = manifest.and_then(|manifest| manifest.seed).ok_or(PipelineError::NoSeed)?;
    Ok(SeedSummary {
        finished: seed.finished(),
        step: seed.step,
        new_steps: 0,
        validation_loss: seed.validation_loss,
        tokens: 0,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Prints a seed and how the run came to it.
fn report(summary: &SeedSummary, origin: &str, json: bool) -> Result<(), CliError> {
    if json {
        return output::print_json(summary);
    }
    let loss = summary.validation_loss.map(|loss| format!(", validation loss {loss:.4}")).unwrap_or_default();
    let tokens = match summary.tokens {
        0 => String::new(),
        tokens => format!(" ({} tokens)", human::integer(tokens)),
    };
    output::print(&format!("the seed {origin}: {} steps{loss}{tokens}\n", summary.step))
}

/// A run whose pretraining can go on.
struct Begun {
    unsaved: UnsavedRun,
    /// Its configuration with the vocabulary.
    config: RunConfig,
    /// True if this command imported its seed, which the run did not have before.
    new: bool,
}

/// Makes the model in a folder or file the seed of the run. Returns the run if the pretraining can go on now.
fn import(options: &SeedArguments, path: &Path) -> Result<Option<Begun>, CliError> {
    let model = PretrainedModel::open(path)?;
    let (run, config) = options.run.open_with(Some(&model.pretrained()))?;
    let mut unsaved = UnsavedRun::new(run, config)?;
    check_changed(&unsaved.run, &unsaved.config)?;
    let imported = runtime::run(async {
        let (run, config) = (&unsaved.run, &unsaved.config);
        Ok(dipaco_pipeline::import::import(run, config, &model, options.restart).await?)
    })?;
    unsaved.config = imported.config.clone();
    if imported.new {
        // A step that follows may refuse them, but the weights in the store have this shape.
        unsaved.accept()?;
    }
    if imported.prepared {
        let config = with_vocabulary(&unsaved.run, &unsaved.config)?;
        return Ok(Some(Begun { unsaved, config, new: imported.new }));
    }
    unsaved.save()?;
    if options.json {
        output::print_json(&imported)?;
        return Ok(None);
    }
    let next = match unsaved.config.seed_model.steps {
        0 => "`dipaco prepare` uses its tokenizer".to_owned(),
        steps => format!(
            "`dipaco prepare` uses its tokenizer, and `dipaco seed` then takes the {steps} steps of seed_model.steps"
        ),
    };
    output::print(&format!(
        "the seed of {} is the model in {}: {} parameters; {next}\n",
        unsaved.run.root().display(),
        path.display(),
        human::integer(imported.parameters as u64),
    ))?;
    Ok(None)
}
