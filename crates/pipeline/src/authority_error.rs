//! Errors of the key of a run's authority.

use std::path::PathBuf;

use dipaco_model::BoxError;
use thiserror::Error;

/// Why the key of a run's authority can't be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The environment names no folder for the key of a run's authority.
    #[error(
        "there is no place for the key of the run's authority: set DIPACO_SECRETS to a folder that is outside of the run and \
         that only you may read, or HOME"
    )]
    NoSecretsFolder,
    /// The folder for the key of a run's authority can't be made.
    #[error(
        "can't keep the key of the run's authority in {}: set DIPACO_SECRETS to a folder that is outside of the run and that \
         only you may read",
        folder.display()
    )]
    SecretsFolder {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        #[source]
        source: BoxError,
    },
    /// The key of a run's authority is elsewhere.
    #[error(
        "the run has tokens, and {} with the key that signed them is not here: run this command as the user and on the \
         machine of the coordinator, with the same DIPACO_SECRETS",
        file.display()
    )]
    NoAuthority {
        /// The file that would hold the key.
        file: PathBuf,
    },
    /// The identity of a run in its manifest is none that this program makes.
    #[error(
        "the manifest names the run {id:?}: a name has up to 64 letters, digits, `-`, `_` and `.`, and begins with no dot; \
         restore the store from a copy"
    )]
    RunId {
        /// The identity.
        id: String,
    },
    /// The certificate authority of another run.
    #[error("{} belongs to run `{run}`, the store to another: remove the file, and give workers the new token", file.display())]
    OtherAuthority {
        /// The file of the authority.
        file: PathBuf,
        /// The run that it belongs to.
        run: String,
    },
}
