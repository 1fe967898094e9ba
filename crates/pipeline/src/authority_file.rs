//! The place of the key of a run's authority: outside of the run's folder, which people copy.

use std::ffi::OsString;
use std::path::PathBuf;

use dipaco_net::RunAuthority;

use crate::authority_error::AuthorityError;

/// Environment variable with the folder of the keys of all runs of this machine.
pub const SECRETS: &str = "DIPACO_SECRETS";

/// Name of the file with a run's key.
const FILE: &str = "authority.pem";

/// Returns the file with the key of a run's authority, which need not exist: `FOLDER/ID/authority.pem`. `id` is the identity
/// of the run in its manifest. The folder is the first of these that the environment names:
///
/// 1. `$DIPACO_SECRETS`,
/// 2. `$XDG_STATE_HOME/dipaco`, if the variable is an absolute path,
/// 3. `$HOME/.local/state/dipaco`, likewise.
///
/// # Errors
/// [`AuthorityError::NoSecretsFolder`] when the environment names no folder, [`AuthorityError::RunId`] when the identity can't
/// be the name of a folder.
pub fn authority_file(id: &str) -> Result<PathBuf, AuthorityError> {
    place(id, |variable| std::env::var_os(variable))
}

/// The file that the rule names, in an environment.
fn place(id: &str, variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, AuthorityError> {
    if !RunAuthority::is_run_id(id) {
        return Err(AuthorityError::RunId { id: id.to_owned() });
    }
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let absolute = |name: &str| set(name).filter(|folder| folder.is_absolute());
    let folder = set(SECRETS)
        .or_else(|| absolute("XDG_STATE_HOME").map(|state| state.join("dipaco")))
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state/dipaco")))
        .ok_or(AuthorityError::NoSecretsFolder)?;
    Ok(folder.join(id).join(FILE))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::*;

    fn place_in(environment: &[(&str, &str)]) -> Result<PathBuf, AuthorityError> {
        let find = |name: &str| environment.iter().find(|(set, _)| *set == name);
        place("mine-1a2b", |name| find(name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_first_variable_of_the_rule_names_the_folder() {
        let all = [("HOME", "/home/a"), ("XDG_STATE_HOME", "/state"), (SECRETS, "keys")];
        let expected = ["/home/a/.local/state/dipaco", "/state/dipaco", "keys"];
        for (count, folder) in (1..).zip(expected) {
            let file = place_in(&all[..count]).unwrap();
            assert_eq!(file, Path::new(folder).join("mine-1a2b/authority.pem"));
        }
        // The specification of XDG: a relative path is none. An empty variable is none either.
        for unset in [("XDG_STATE_HOME", "state"), ("XDG_STATE_HOME", ""), (SECRETS, "")] {
            let file = place_in(&[("HOME", "/home/a"), unset]).unwrap();
            assert!(file.starts_with("/home/a"), "{unset:?}: {}", file.display());
        }
        let error = place_in(&[("HOME", "")]).unwrap_err();
        assert!(error.to_string().contains(SECRETS), "{error}");
    }

    #[test]
    fn no_identity_leaves_the_folder() {
        for id in ["", "..", "a/../../b", "/etc", ".ssh", "a\\b", "a\n", &"a".repeat(65)] {
            let error = place(id, |_| Some("/keys".into())).unwrap_err();
            assert!(matches!(error, AuthorityError::RunId { .. }), "{id}: {error}");
        }
    }
}
