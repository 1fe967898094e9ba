//! The certificate authority of a run: it signs the certificates of coordinator, synchronizers and workers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dipaco_net::{HelperToken, JoinToken, NetError, RunAuthority};
use dipaco_protocol::{SYNCHRONIZER, WORKER};
use dipaco_train::RenewToken;

use crate::authority_error::AuthorityError;
pub use crate::authority_file::{SECRETS, authority_file};
use crate::error::PipelineError;
use crate::files;
use crate::run_directory::RunDirectory;

/// How long a join token and the certificate of a coordinator or synchronizer hold: 90 days. Connected processes renew
/// theirs when half of that is over.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// Reads the run's certificate authority from its [file](authority_file), and creates it at the run's first training. `id` is
/// the identity of the run in its manifest.
///
/// # Errors
/// [`AuthorityError::OtherAuthority`] when the file belongs to another run, [`PipelineError::Net`] when it is damaged,
/// [`AuthorityError::SecretsFolder`] when it can't be written, [`PipelineError::Io`] when it can't be read, and the errors of
/// [`authority_file`].
pub fn authority(run: &RunDirectory, id: &str, now: SystemTime) -> Result<RunAuthority, PipelineError> {
    files::create_private_folder(&run.secrets())?;
    read_or_create(run, authority_file(id)?, id, now)
}

fn read_or_create(
    run: &RunDirectory,
    file: PathBuf,
    id: &str,
    now: SystemTime,
) -> Result<RunAuthority, PipelineError> {
    if let Some(authority) = read(&file, id)? {
        return Ok(authority);
    }
    if run.join_token().exists() {
        tracing::warn!(
            "the key of the run's authority is not in {}: a new one takes its place, and every worker and synchronizer needs \
             a new token",
            file.display()
        );
    }
    let authority = RunAuthority::create(id, now)?;
    let folder = file.parent().unwrap_or(&file);
    let failed =
        |source| AuthorityError::SecretsFolder { folder: folder.to_owned(), source: Box::new(source) };
    files::create_private_folder(folder).map_err(failed)?;
    if files::create_private(&file, authority.to_pem().as_bytes()).map_err(failed)? {
        return Ok(authority);
    }
    // A copy of the run on this machine was first.
    read(&file, id)?.ok_or_else(|| AuthorityError::NoAuthority { file }.into())
}

/// [`authority`] for a run that may have one elsewhere: it makes no second key for tokens that exist.
///
/// # Errors
/// [`AuthorityError::NoAuthority`], and the errors of [`authority`].
pub fn known_authority(run: &RunDirectory, id: &str, now: SystemTime) -> Result<RunAuthority, PipelineError> {
    read_or_create_known(run, authority_file(id)?, id, now)
}

fn read_or_create_known(
    run: &RunDirectory,
    file: PathBuf,
    id: &str,
    now: SystemTime,
) -> Result<RunAuthority, PipelineError> {
    if run.join_token().exists() && !file.exists() {
        return Err(AuthorityError::NoAuthority { file }.into());
    }
    read_or_create(run, file, id, now)
}

/// The authority in a file; `None` if there is no file.
fn read(file: &Path, id: &str) -> Result<Option<RunAuthority>, PipelineError> {
    match fs::read_to_string(file) {
        Ok(text) => {
            let authority = RunAuthority::from_pem(&text)?;
            if authority.run_id() != id {
                let (file, run) = (file.to_owned(), authority.run_id().to_owned());
                return Err(AuthorityError::OtherAuthority { file, run }.into());
            }
            Ok(Some(authority))
        }
        // Where a file is in the way of the folder, the attempt to make the folder says so.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(source) => Err(PipelineError::Io { action: "read", path: file.to_owned(), source }),
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A new run's folder, and the place of its key outside of it.
    fn places() -> (tempfile::TempDir, RunDirectory, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::new(folder.path().join("run"));
        let file = folder.path().join("keys/mine-1/authority.pem");
        (folder, run, file)
    }

    /// Texts of all files below a folder.
    fn texts(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let of = |path: PathBuf| match path.is_dir() {
            true => texts(&path),
            false => vec![fs::read_to_string(path).unwrap()],
        };
        entries.flat_map(of).collect()
    }

    #[test]
    fn the_folder_of_a_run_has_its_tokens_and_not_the_key_that_signed_them() {
        let (_folder, run, file) = places();
        let now = SystemTime::now();
        let authority = read_or_create(&run, file.clone(), "mine-1", now).unwrap();
        write_tokens(&run, &authority, &["127.0.0.1:1".to_owned()], now).unwrap();
        let pem = authority.to_pem();
        // Tokens do have the certificate, which stands before the key.
        let (_, key) = pem.split_once("-----BEGIN PRIVATE KEY-----").unwrap();
        let key = key.lines().find(|line| line.len() > 40).unwrap();
        let texts = texts(run.root());
        assert_eq!(texts.len(), 2);
        assert!(texts.iter().all(|text| text.contains("dipaco") && !text.contains(key)));
        assert!(fs::read_to_string(&file).unwrap().contains(key));
        // The same key again, and no leftover of its creation.
        assert_eq!(read_or_create(&run, file.clone(), "mine-1", now).unwrap().to_pem(), authority.to_pem());
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
        let other = read_or_create(&run, file, "other-2", now).unwrap_err();
        assert!(matches!(other, PipelineError::Authority(AuthorityError::OtherAuthority { .. })), "{other}");
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_may_read_the_key() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, run, file) = places();
        read_or_create(&run, file.clone(), "mine-1", SystemTime::now()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn a_command_beside_the_coordinator_makes_no_second_key() {
        let (_folder, run, file) = places();
        let now = SystemTime::now();
        // Before the first start of a coordinator there is no token, so the command makes the key.
        let authority = read_or_create_known(&run, file.clone(), "mine-1", now).unwrap();
        write_tokens(&run, &authority, &["127.0.0.1:1".to_owned()], now).unwrap();
        let elsewhere = file.with_file_name("elsewhere/authority.pem");
        let error = read_or_create_known(&run, elsewhere.clone(), "mine-1", now).unwrap_err();
        assert!(
            matches!(&error, PipelineError::Authority(AuthorityError::NoAuthority { file }) if *file == elsewhere),
            "{error}"
        );
        assert!(!elsewhere.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_names_the_variable() {
        let (folder, run, _) = places();
        let blocked = folder.path().join("a file");
        fs::write(&blocked, "").unwrap();
        let error = read_or_create(&run, blocked.join("mine-1/authority.pem"), "mine-1", SystemTime::now());
        let error = error.unwrap_err();
        assert!(error.to_string().contains(SECRETS), "{error}");
    }
}
