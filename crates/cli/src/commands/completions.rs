//! `dipaco completions`: prints completions for a shell.

use clap::Command;
use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

pub(crate) const EXAMPLES: &str = "\
Examples:
  dipaco completions bash > ~/.local/share/bash-completion/completions/dipaco
  dipaco completions zsh > ~/.zfunc/_dipaco
  dipaco completions fish > ~/.config/fish/completions/dipaco.fish";

/// Prints the completions of `program`.
pub(crate) fn run(shell: Shell, mut program: Command) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "dipaco", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
