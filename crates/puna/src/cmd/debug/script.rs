//! `puna debug script`: a server whose model says what a script tells it.

use anyhow::Result;

use crate::cli::ScriptArgs;

pub fn run(args: ScriptArgs) -> Result<()> {
    crate::cmd::serve::scripted(&args.settings, args.file, args.upstream)
}
