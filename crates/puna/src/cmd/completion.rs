//! `puna completion`: scripts for shells, from the same table as the parser.

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::Cli;
use crate::out;

pub fn run(shell: clap_complete::Shell) -> Result<()> {
    // Into memory first: the generator panics where standard output is closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "puna", &mut script);
    out::text(&String::from_utf8_lossy(&script))
}
