//! `dipaco fetch-c4`: downloads files of C4.

use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use dipaco_shards::{C4Split, FetchConfig, FetchedFile, ShardsError, fetch_c4};
use dipaco_telemetry::{Progress, human};

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output;
use dipaco_pipeline::prepare::FileProgress;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco fetch-c4 --files 0..8 --out c4                8 of the 1,024 training files, about 2.5 GB
  dipaco fetch-c4 --validation --files 0..1 --out c4-validation";

/// Options of `dipaco fetch-c4`.
#[derive(Debug, Args)]
pub(crate) struct FetchOptions {
    /// Numbers of the files, from 0: FIRST..END, without END.
    #[arg(long, value_name = "RANGE", default_value = "0..1")]
    files: Files,
    /// Download the validation split instead of the training split.
    #[arg(long)]
    validation: bool,
    /// Folder to download to. Complete files are not downloaded again.
    #[arg(long, default_value = "c4", value_name = "DIR")]
    out: PathBuf,
    /// Address of the folder of files; the default is the Hugging Face hub.
    #[arg(long, env = "DIPACO_C4_URL", value_name = "URL")]
    url: Option<String>,
    /// Number of times in a row that a failed download of a file is tried again. The count starts again after 1 MiB.
    #[arg(long, default_value_t = FetchConfig::default().retries, value_name = "N")]
    retries: u32,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// A half-open range of files.
#[derive(Clone, Debug)]
struct Files(Range<u32>);

impl FromStr for Files {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range =
            text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
        let range = range.filter(|range: &Range<u32>| !range.is_empty());
        range.map(Self).ok_or_else(|| format!("`{text}` is no range of files: write FIRST..END, as in 0..8"))
    }
}

pub(crate) fn run(options: &FetchOptions, progress: &Progress) -> Result<(), CliError> {
    let default = FetchConfig::default();
    let config = FetchConfig {
        base_url: options.url.clone().unwrap_or(default.base_url.clone()),
        first: options.files.0.start,
        end: options.files.0.end,
        split: if options.validation { C4Split::Validation } else { C4Split::Train },
        retries: options.retries,
        ..default
    };
    config.check().map_err(refused)?;
    let interrupt = Interrupt::listen()?;
    let shown = FileProgress::new(progress);
    // The pause between two attempts. Ctrl-C takes effect after it.
    let pause = |time| std::thread::sleep(time);
    let report = interrupt.judge(fetch_c4(&config, &options.out, &shown, &interrupt.flag(), &pause))?;
    if options.json {
        output::print_json(&report)
    } else {
        let text = |file: &FetchedFile| {
            let how = if file.requests == 0 { "was there" } else { "downloaded" };
            format!("{}  {}  {how}\n", file.path.display(), human::bytes(file.bytes))
        };
        output::print(&report.files.iter().map(text).collect::<String>())
    }
}

/// The usage error of options that can't be used.
fn refused(error: ShardsError) -> CliError {
    match error {
        ShardsError::Value { key, value, reason } => {
            CliError::Usage { message: format!("--{key} {value} can't be used"), remedy: reason.to_owned() }
        }
        other => other.into(),
    }
}
