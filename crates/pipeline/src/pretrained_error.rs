//! Errors of the files of a pretrained model.

use std::path::PathBuf;

use thiserror::Error;

/// Why a folder or a file can't be imported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// There is no pretrained model.
    #[error("there is no {}: name a folder in Hugging Face's format, or a GGUF file", path.display())]
    NoModel {
        /// The missing folder or file.
        path: PathBuf,
    },
    /// A folder does not hold a model.
    #[error(
        "{} has no {file}: name a folder in Hugging Face's format, with config.json, tokenizer.json and model.safetensors, \
         or a GGUF file",
        path.display()
    )]
    NoFile {
        /// The folder.
        path: PathBuf,
        /// The missing file.
        file: String,
    },
    /// A file is larger than any such file can be.
    #[error(
        "{} has more than {largest} bytes: it can't be what its name says; get the model anew, or name another one",
        file.display()
    )]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The largest possible length in bytes.
        largest: u64,
    },
    /// A model does not fit into the machine.
    #[error(
        "{} needs {needed} bytes of memory, and {available} are available here: name a smaller model, end other programs, use \
         a larger machine, or get the model anew if it should be smaller",
        file.display()
    )]
    Memory {
        /// The folder or file.
        file: PathBuf,
        /// Bytes that an import needs: of the weights and of one tensor more in f32, and of the file.
        needed: u64,
        /// Memory in bytes that programs could still allocate when the import began.
        available: u64,
    },
    /// The run's tokenizer is not that of the model.
    #[error(
        "{} is not the tokenizer of the model in {}: import into a new run directory before `dipaco prepare`, or name the \
         model's tokenizer.json in prepare.tokenizer",
        file.display(),
        model.display()
    )]
    Tokenizer {
        /// The tokenizer's file.
        file: PathBuf,
        /// The folder or file of the model.
        model: PathBuf,
    },
    /// An import was broken off.
    #[error(
        "{} has no config.json, so an import was broken off, and its tokenizer and the weights may be of two models: repeat \
         the command that was broken off, `dipaco seed --import`, `dipaco seed --from` or `dipaco extend`",
        folder.display()
    )]
    BrokenOff {
        /// The run's folder with the files of the model.
        folder: PathBuf,
    },
    /// A downloaded package can't be unpacked.
    #[error("{} can't be unpacked: {problem}", package.display())]
    Package {
        /// The package.
        package: PathBuf,
        /// The problem.
        problem: String,
    },
}
