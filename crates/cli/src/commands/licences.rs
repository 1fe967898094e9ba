//! `dipaco licences`: prints the licences of other people's packages in this program.

use crate::error::CliError;
use crate::output;

/// Made by cargo-about: `about.toml` says how. A test compares it with `Cargo.lock`.
const THIRD_PARTY: &str = include_str!("../../third-party.txt");

/// Prints the notices.
pub(crate) fn run() -> Result<(), CliError> {
    output::print(THIRD_PARTY)
}
