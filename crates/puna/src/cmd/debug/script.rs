//! `puna debug script`: a server with a scripted model, for tests of clients.

use anyhow::Result;

use crate::cli::ScriptArgs;

pub fn run(args: ScriptArgs) -> Result<()> {
    crate::cmd::serve::scripted(&args.settings, args.file, args.upstream)
}
