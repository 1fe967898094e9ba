//! The certificate authority of a run: it signs the certificates of coordinator, synchronizers and workers.

use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use dipaco_net::RunAuthority;

use crate::error::PipelineError;
use crate::files;
use crate::run_directory::RunDirectory;

/// How long a join token and the certificate of a coordinator or synchronizer hold: 90 days.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// Reads the run's certificate authority, and creates it at the run's first training. `id` is the identity of the run
/// in its manifest.
///
/// # Errors
/// [`PipelineError::OtherAuthority`] when the file belongs to another run, [`PipelineError::Net`] when it is damaged,
/// [`PipelineError::Io`] when it can't be read or written.
pub fn authority(run: &RunDirectory, id: &str, now: SystemTime) -> Result<RunAuthority, PipelineError> {
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
