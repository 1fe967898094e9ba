//! `dipaco man`: writes manual pages.

use std::path::{Path, PathBuf};

use clap::Command;

use crate::error::CliError;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco man ~/.local/share/man/man1                   then: man dipaco, man dipaco-route-fit";

/// Writes a manual page of `program` and of each command into a folder, which is created if it is missing.
pub(crate) fn run(folder: PathBuf, program: Command) -> Result<(), CliError> {
    let write = |folder: &Path| {
        std::fs::create_dir_all(folder)?;
        clap_mangen::generate_to(program, folder)
    };
    write(&folder).map_err(|source| CliError::Io {
        action: "write the manual pages into",
        path: folder,
        source,
    })
}
