//! The certificate authority of a run: it signs the certificates of coordinator, synchronizers and workers.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dipaco_net::{HelperToken, JoinToken, NetError, RunAuthority};
use dipaco_protocol::{SYNCHRONIZER, WORKER};
use dipaco_train::RenewToken;

use crate::error::PipelineError;
use crate::files;
use crate::run_directory::RunDirectory;

/// How long a join token and the certificate of a coordinator or synchronizer hold: 90 days. Connected processes renew
/// theirs when half of that is over.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// Reads the run's certificate authority, and creates it at the run's first training. `id` is the identity of the run
/// in its manifest.
///
/// # Errors
/// [`PipelineError::OtherAuthority`] when the file belongs to another run, [`PipelineError::Net`] when it is damaged,
/// [`PipelineError::Io`] when it can't be read or written.
pub fn authority(run: &RunDirectory, id: &str, now: SystemTime) -> Result<RunAuthority, PipelineError> {
    files::create_private_folder(&run.secrets())?;
    let file = run.authority();
    match fs::read_to_string(&file) {
        Ok(text) => {
            let authority = RunAuthority::from_pem(&text)?;
            if authority.run_id() != id {
                return Err(PipelineError::OtherAuthority { file, run: authority.run_id().to_owned() });
            }
            Ok(authority)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let authority = RunAuthority::create(id, now)?;
            files::write_private(&file, authority.to_pem().as_bytes())?;
            Ok(authority)
        }
        Err(source) => Err(PipelineError::Io { action: "read", path: file, source }),
    }
}

/// Writes the tokens of workers and synchronizers that bear the names of their roles.
///
/// # Errors
/// [`PipelineError::File`] when a file can't be written.
pub(crate) fn write_tokens(
    run: &RunDirectory,
    authority: &RunAuthority,
    addresses: &[String],
    now: SystemTime,
) -> Result<(), PipelineError> {
    let join = authority.issue(WORKER, WORKER, addresses.to_vec(), now, TOKEN_LIFETIME)?;
    files::write_private(&run.join_token(), format!("{join}\n").as_bytes())?;
    let helper = helper_token(authority, SYNCHRONIZER, addresses.to_vec(), now, TOKEN_LIFETIME)?;
    files::write_private(&run.synchronizer_token(), format!("{helper}\n").as_bytes())
}

/// Writes [`write_tokens`] again, with the addresses that the token has now.
pub(crate) fn renew_tokens(
    run: &RunDirectory,
    authority: &RunAuthority,
    now: SystemTime,
) -> Result<(), PipelineError> {
    let JoinToken { addresses, .. } = JoinToken::read_from(&run.join_token())?;
    write_tokens(run, authority, &addresses, now)
}

/// A synchronizer's token. It can't be used to pose as the coordinator or to make tokens.
///
/// # Errors
/// As [`RunAuthority::issue`].
pub fn helper_token(
    authority: &RunAuthority,
    name: &str,
    addresses: Vec<String>,
    now: SystemTime,
    lifetime: Duration,
) -> Result<HelperToken, NetError> {
    Ok(HelperToken {
        join: authority.issue(SYNCHRONIZER, name, addresses, now, lifetime)?,
        server: authority.helper(now, lifetime)?,
    })
}

/// Renews the tokens of connected peers.
pub(crate) fn renewals(authority: Arc<RunAuthority>) -> RenewToken {
    Arc::new(move |role, name| {
        let now = SystemTime::now();
        if role == SYNCHRONIZER {
            return Ok(helper_token(&authority, name, Vec::new(), now, TOKEN_LIFETIME)?.to_string());
        }
        Ok(authority.issue(role, name, Vec::new(), now, TOKEN_LIFETIME)?.to_string())
    })
}
