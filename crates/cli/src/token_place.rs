//! The place that `--join` names.

use std::path::Path;

use dipaco_train::client::TokenPlace;

use crate::error::CliError;

/// The file or the address that `--join` or `DIPACO_JOIN` names.
///
/// Every user of the machine can read a command line, so an address with a password or a signature must stand in the
/// environment.
pub(crate) fn token_place(named: &Path) -> Result<TokenPlace, CliError> {
    let place = TokenPlace::named(named)?;
    let in_environment = std::env::var_os("DIPACO_JOIN").is_some_and(|value| value == named.as_os_str());
    match &place {
        TokenPlace::Url(url) if url.may_hold_secret() && !in_environment => Err(CliError::Usage {
            message: "the address of --join has a user or a query: other users of this machine can read a command line"
                .into(),
            remedy: "give the address in the environment variable DIPACO_JOIN".into(),
        }),
        _ => Ok(place),
    }
}
