//! `puna completion`: shell completion scripts, generated from the parser's command table.

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::Cli;
use crate::out;

pub fn run(shell: clap_complete::Shell) -> Result<()> {
    // The script is generated in memory, because the generator panics on a closed standard output.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "puna", &mut script);
    out::text(&String::from_utf8_lossy(&script))
}
