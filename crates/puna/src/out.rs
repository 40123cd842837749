//! Standard output and standard error. A reader that closes the output early, as `head` does,
//! causes no error.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// Message of an error of standard output.
pub const WRITE_ERROR: &str = "cannot write the output";

/// Writes a text.
pub fn text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context(WRITE_ERROR)
}

/// Prints the help or the version of clap.
pub fn help(help: &clap::Error) -> Result<()> {
    help.print().and_then(|()| io::stdout().flush()).context(WRITE_ERROR)
}

/// Writes a text and a line end.
pub fn line(line: &str) -> Result<()> {
    text(&format!("{line}\n"))
}

/// Writes a line to standard error and ignores errors; `eprintln!` would panic if it is closed.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes one JSON document.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    serde_json::to_writer(&mut out, value).context(WRITE_ERROR)?;
    out.write_all(b"\n").and_then(|()| out.flush()).context(WRITE_ERROR)
}

/// Whether an error is due to a closed standard output.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let direct = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json =
            cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        direct.or(json) == Some(io::ErrorKind::BrokenPipe)
    })
}
