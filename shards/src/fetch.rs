//! Downloading files of C4 and single files, with resume, retries and checks.

mod download;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use std::io::Read;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::{PrepareProgress, ShardsError};
use download::{Downloader, check_gzip};

/// A split of C4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum C4Split {
    /// 1,024 files of about 320 MB.
    Train,
    /// 8 files of about 40 MB.
    Validation,
}

impl C4Split {
    /// Number of files.
    pub fn files(self) -> u32 {
        match self {
            Self::Train => 1024,
            Self::Validation => 8,
        }
    }

    /// Name of a file.
    pub fn file_name(self, index: u32) -> String {
        match self {
            Self::Train => format!("c4-train.{index:05}-of-01024.json.gz"),
            Self::Validation => format!("c4-validation.{index:05}-of-00008.json.gz"),
        }
    }
}

/// Settings of a download: source, files, retries and timeouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FetchConfig {
    /// Address of the folder with the files. Default: `allenai/c4` on the Hugging Face hub, English.
    pub base_url: String,
    /// Split of C4. Default: train.
    pub split: C4Split,
    /// First file. Default 0.
    pub first: u32,
    /// End of the files (exclusive). Default 1. Training has 1024 files, validation 8.
    pub end: u32,
    /// Attempts in a row that may fail with less than 1 MiB received. Default 8, with pauses of 1, 2, 4 … 60 seconds
    /// between them.
    pub retries: u32,
    /// Seconds to wait for a connection, for an answer, and for its next bytes. Default 60.
    pub timeout_seconds: u64,
    /// Use the proxy of the environment (`HTTPS_PROXY` …). Default true.
    pub proxy: bool,
}

impl Default for FetchConfig {
    fn default() -> Self {
        Self {
            base_url: "https://huggingface.co/datasets/allenai/c4/resolve/main/en".to_owned(),
            split: C4Split::Train,
            first: 0,
            end: 1,
            retries: 8,
            timeout_seconds: 60,
            proxy: true,
        }
    }
}

impl FetchConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// The range of files is empty or exceeds the split, or the timeout is 0.
    pub fn check(&self) -> Result<(), ShardsError> {
        let files = self.split.files();
        if self.first >= self.end || self.end > files {
            return Err(ShardsError::Value {
                key: "files",
                value: format!("{}..{}", self.first, self.end),
                reason: match self.split {
                    C4Split::Train => "give a range within 0..1024, such as 0..8",
                    C4Split::Validation => "give a range within 0..8, such as 0..1",
                },
            });
        }
        if self.timeout_seconds == 0 {
            let reason = "an answer takes some time; give at least 1 second";
            return Err(ShardsError::Value { key: "timeout_seconds", value: "0".to_owned(), reason });
        }
        Ok(())
    }
}

/// Result of a download.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchReport {
    /// The files, in order.
    pub files: Vec<FetchedFile>,
}

/// A downloaded file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedFile {
    /// Its path.
    pub path: PathBuf,
    /// Its address.
    pub url: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Number of requests; 0 if the file was there before.
    pub requests: u32,
}

/// Downloads C4 files into the folder `out`, one after the other.
///
/// A file arrives under the name `….part`. It gets its final name when it has the length that the server announced and
/// its gzip stream, checksums included, can be read to the end. A file with its final name is therefore whole and is not
/// downloaded again. A broken download continues where it stopped, also in a later run, while the server has the same
/// file.
///
/// `sleep` waits; each call gets at most one second, and `cancel` is read between the calls.
///
/// # Errors
/// A server refuses, or fails more than [`FetchConfig::retries`] times in a row; the disk is full; `cancel` was set.
pub fn fetch_c4(
    config: &FetchConfig,
    out: &Path,
    progress: &dyn PrepareProgress,
    cancel: &AtomicBool,
    sleep: &dyn Fn(Duration),
) -> Result<FetchReport, ShardsError> {
    config.check()?;
    std::fs::create_dir_all(out).map_err(ShardsError::io("create the folder", out))?;
    let downloader = Downloader::new(config, progress, cancel, sleep);
    let mut report = FetchReport::default();
    for index in config.first..config.end {
        let name = config.split.file_name(index);
        let url = format!("{}/{name}", config.base_url.trim_end_matches('/'));
        let path = out.join(name);
        let present = std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() > 0);
        let requests = if present { 0 } else { downloader.download(&url, &path, &check_gzip)? };
        let bytes = std::fs::metadata(&path).map_err(ShardsError::io("look at", &path))?.len();
        report.files.push(FetchedFile { path, url, bytes, requests });
    }
    Ok(report)
}

/// Downloads `url` to `path`, whose content has the SHA-256 `sha256` in hexadecimal. A file with this content is not
/// downloaded again. The base URL and the range of `config` do not count; all else is as in [`fetch_c4`].
///
/// # Errors
/// As [`fetch_c4`]; a file with other content counts as a failure.
pub fn fetch_file(
    config: &FetchConfig,
    url: &str,
    sha256: &str,
    path: &Path,
    progress: &dyn PrepareProgress,
    cancel: &AtomicBool,
    sleep: &dyn Fn(Duration),
) -> Result<(), ShardsError> {
    let check = |file: &Path| match sha256_of(file) {
        Ok(found) if found == sha256 => Ok(()),
        Ok(found) => Err(format!("the received file has the SHA-256 {found} instead of {sha256}")),
        Err(error) => Err(format!("the received file can't be read ({error})")),
    };
    if path.exists() && check(path).is_ok() {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(ShardsError::io("create the folder", folder))?;
    }
    Downloader::new(config, progress, cancel, sleep).download(url, path, &check)?;
    Ok(())
}

/// The SHA-256 of a file, in hexadecimal.
fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 1 << 17];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => context.update(&buffer[..count]),
        }
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests;
