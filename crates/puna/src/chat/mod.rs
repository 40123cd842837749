//! The interactive session of `puna run`: a prompt, a conversation, and commands that begin with
//! `/`.
//!
//! ```text
//! Editor (keys, history) ─ line ─> Composer (""" blocks)
//!     ─ message or Command ─> Session ─> Backend
//! ```
//!
//! [`Backend`] is the session's interface to a server; HTTP and the tests implement it. `puna run
//! MODEL PROMPT` also uses [`AnswerPrinter`] and [`write_stats`].

mod answer;
mod attach;
mod backend;
mod command;
mod compose;
mod editor;
mod help;
mod history;
mod interrupt;
mod screen;
mod session;
mod stats;
mod terminal;
mod wrap;

pub use answer::AnswerPrinter;
pub use attach::take_attachments;
pub use backend::{Backend, BackendError, ChatEvent};
pub use interrupt::Interrupt;
pub use screen::Screen;
pub use session::Options;
pub use stats::{warn_truncated, write_stats};

use anyhow::Result;

use compose::{Composer, ComposerOutput};
use editor::{Editor, Line, LineSource, PromptKind};
use session::{Flow, Session};

/// Loads the model and runs the session on the terminal until the user leaves. Text goes to
/// standard output; usage texts and warnings go to standard error.
pub fn run(options: Options, backend: &mut dyn Backend, interrupt: &Interrupt) -> Result<()> {
    let mut editor = Editor::new(&options)?;
    let mut session = Session::open(options, backend, interrupt, Screen::terminal())?;
    converse(&mut session, &mut editor)
}

/// Reads and executes lines until the end of the input or a command to leave.
fn converse(session: &mut Session<'_>, lines: &mut dyn LineSource) -> Result<()> {
    let mut composer = Composer::default();
    loop {
        let kind = if composer.is_open() { PromptKind::Continuation } else { PromptKind::Message };
        let line = match lines.read(kind)? {
            Line::Text(line) => line,
            Line::Interrupted { was_empty } => {
                if was_empty && !composer.is_open() {
                    session.print_line("Use Ctrl + d or /bye to exit.")?;
                }
                composer.discard();
                continue;
            }
            Line::End => return Ok(()),
        };
        if !line.trim().is_empty() {
            lines.record(&line)?;
        }
        let flow = match composer.feed(&line, |word| session.is_attachment(&line, word)) {
            ComposerOutput::Nothing => Flow::Stay,
            ComposerOutput::Message(text) => session.send(text)?,
            ComposerOutput::Command(command) => session.execute(command)?,
        };
        match flow {
            Flow::Stay => {}
            Flow::Leave => return Ok(()),
            Flow::SaveHistory(on) => lines.save_history(on),
        }
    }
}

#[cfg(test)]
mod tests;
