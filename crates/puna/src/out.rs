//! Standard output and standard error. A reader that closes the output early, as `head` does,
//! causes no error.
//!
//! All commands write here, so that texts of files and servers cannot control a terminal. Standard
//! output that is no terminal gets every text unchanged.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::format::{escape_control, escape_control_in_json};

/// Message of an error of standard output.
pub const WRITE_ERROR: &str = "cannot write the output";

/// Writes a text. A terminal gets it with escaped control characters.
pub fn text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let shown = if out.is_terminal() { escape_control(text) } else { text.into() };
    out.write_all(shown.as_bytes()).and_then(|()| out.flush()).context(WRITE_ERROR)
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
    let _ = stderr().write_all(format!("{line}\n").as_bytes());
}

/// Standard error with escaped control characters.
pub fn stderr() -> EscapingWriter<io::Stderr> {
    EscapingWriter(io::stderr())
}

/// A writer that escapes control characters. Every call must pass whole characters, as `write!`
/// does.
#[derive(Debug)]
pub struct EscapingWriter<W>(W);

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(escape_control(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes one JSON document. A terminal gets it with control characters as JSON escapes.
pub fn json(value: &impl Serialize) -> Result<()> {
    if io::stdout().is_terminal() {
        let json = serde_json::to_string(value).context(WRITE_ERROR)?;
        return line(&escape_control_in_json(&json));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaping_writer_passes_no_control_characters() {
        let mut out = EscapingWriter(Vec::new());
        let (text, number) = ("\x1b]0;PWNED\x07\u{202e}é", 5);
        writeln!(out, "error:\t{text} {number}").unwrap();
        let written = String::from_utf8(out.0).unwrap();
        assert_eq!(written, "error:\t\\u{1b}]0;PWNED\\u{7}\\u{202e}é 5\n");
    }
}
