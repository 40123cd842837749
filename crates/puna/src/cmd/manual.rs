//! `puna manual`: manual pages, generated from the parser's command table.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::cli::Cli;

/// Writes `puna.1` and a page for each command: `puna-run.1`, `puna-debug-logits.1` and so on.
pub fn run(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let command = Cli::command().version(env!("CARGO_PKG_VERSION")).disable_version_flag(true);
    clap_mangen::generate_to(command, folder)
        .with_context(|| format!("cannot write in {}", folder.display()))
}
