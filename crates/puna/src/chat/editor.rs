//! Line editor: key bindings, prompts, placeholder, history.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use rustyline::completion::Completer;
use rustyline::config::BellStyle;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Context, Event, EventContext, EventHandler, Helper,
    KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::Options;
use super::history::History;
use super::terminal::TypeaheadMode;
use crate::terminal::discard_input;

const PROMPT: &str = ">>> ";
const CONTINUATION: &str = "... ";
const PLACEHOLDER: &str = "Send a message (/? for help)";
const BLOCK_PLACEHOLDER: &str = r#"Use """ to end the message"#;
const TAB: &str = "        ";

/// Source of input lines.
pub(super) trait LineSource {
    /// Reads the next line, or reports an interrupt or the end of the input.
    fn read(&mut self, kind: PromptKind) -> Result<Line>;
    /// Adds a line to the history.
    fn record(&mut self, line: &str) -> Result<()>;
    /// Sets whether new entries are written to the history file.
    fn save_history(&mut self, on: bool);
}

/// Prompt before the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptKind {
    Message,
    Continuation,
}

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    /// The user pressed Ctrl-C.
    Interrupted {
        was_empty: bool,
    },
    /// The user pressed Ctrl-D on an empty line, or the input ended.
    End,
}

/// Line editor on the terminal.
pub(super) struct Editor {
    editor: rustyline::Editor<Placeholder, MemHistory>,
    history: History,
    keys: KeyBindings,
    external: String,
    terminal: TypeaheadMode,
}

impl Editor {
    /// Creates an editor with the history of earlier sessions.
    pub(super) fn new(options: &Options) -> Result<Self> {
        let config = Config::builder().max_history_size(100)?.bell_style(BellStyle::None).build();
        let entries = MemHistory::with_config(&config);
        let mut editor = rustyline::Editor::with_history(config, entries)?;
        editor.set_helper(Some(Placeholder { text: PLACEHOLDER, line: RefCell::default() }));
        let keys = KeyBindings::default();
        keys.bind(&mut editor);
        let history = History::load(options.history_file.clone(), options.save_history);
        let history = history.unwrap_or_else(|e| {
            warn_without_history("read", options.history_file.as_deref(), &e);
            History::default()
        });
        for entry in history.entries() {
            editor.add_history_entry(entry)?;
        }
        Ok(Self {
            editor,
            history,
            keys,
            external: options.editor.clone(),
            terminal: TypeaheadMode::new(),
        })
    }

    /// Opens a text in an external editor and returns the edited text, or the original text on
    /// failure.
    fn edit_externally(&self, text: String) -> String {
        self.terminal.leave();
        let edited = edit(&self.external, &text);
        self.terminal.enter();
        match edited {
            Ok(edited) => edited,
            Err(e) => {
                crate::out::note(format_args!("{e:#}"));
                text
            }
        }
    }
}

impl LineSource for Editor {
    fn read(&mut self, kind: PromptKind) -> Result<Line> {
        let (prompt, placeholder) = match kind {
            PromptKind::Message => (PROMPT, PLACEHOLDER),
            PromptKind::Continuation => (CONTINUATION, BLOCK_PLACEHOLDER),
        };
        if let Some(helper) = self.editor.helper_mut() {
            helper.text = placeholder;
        }
        let mut initial = String::new();
        loop {
            self.keys.reset();
            match self.editor.readline_with_initial(prompt, (&initial, "")) {
                Ok(line) if self.keys.wants_editor() => initial = self.edit_externally(line),
                Ok(line) => return Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => {
                    return Ok(Line::Interrupted { was_empty: self.keys.interrupted_empty() });
                }
                Err(ReadlineError::Eof) => return Ok(Line::End),
                Err(ReadlineError::Signal(_)) => {}
                Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                    // The editor's buffer loses the rest of the input; a remaining paste would be
                    // read as key presses.
                    discard_input();
                    crate::out::note("ignored input that is not UTF-8");
                    initial =
                        self.editor.helper().map(|helper| helper.line.take()).unwrap_or_default();
                }
                Err(e) => return Err(e).context("cannot read from the terminal"),
            }
        }
    }

    fn record(&mut self, line: &str) -> Result<()> {
        self.editor.add_history_entry(line)?;
        if let Err(e) = self.history.add(line) {
            warn_without_history("write", self.history.path(), &e);
            self.history.save(false);
        }
        Ok(())
    }

    fn save_history(&mut self, on: bool) {
        self.history.save(on);
    }
}

/// Prints a warning, because a session works without a history file.
fn warn_without_history(action: &str, path: Option<&Path>, error: &io::Error) {
    let path = path.map(|path| path.display().to_string()).unwrap_or_default();
    crate::out::note(format_args!(
        "warning: cannot {action} the history {path}: {error}; continuing without it"
    ));
}

/// Flags that the bound keys set while a line is read.
#[derive(Clone, Default)]
struct KeyBindings {
    pressed: Arc<Mutex<PressedKeys>>,
}

#[derive(Clone, Copy, Default)]
struct PressedKeys {
    editor: bool,
    interrupt_on_empty: bool,
}

impl KeyBindings {
    fn bind(&self, editor: &mut rustyline::Editor<Placeholder, MemHistory>) {
        let special = |key: char| KeyEvent(KeyCode::Char(key), Modifiers::CTRL);
        editor.bind_sequence(special('J'), Cmd::Newline);
        editor
            .bind_sequence(KeyEvent(KeyCode::Tab, Modifiers::NONE), Cmd::Insert(1, TAB.to_owned()));
        for key in ['C', 'G'] {
            editor.bind_sequence(special(key), EventHandler::Conditional(Box::new(self.clone())));
        }
    }

    fn reset(&self) {
        *self.lock() = PressedKeys::default();
    }

    fn wants_editor(&self) -> bool {
        self.lock().editor
    }

    fn interrupted_empty(&self) -> bool {
        self.lock().interrupt_on_empty
    }

    fn lock(&self) -> MutexGuard<'_, PressedKeys> {
        self.pressed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConditionalEventHandler for KeyBindings {
    fn handle(
        &self,
        event: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        let mut pressed = self.lock();
        match event.get(0) {
            Some(KeyEvent(KeyCode::Char('G'), _)) => {
                pressed.editor = true;
                Some(Cmd::AcceptLine)
            }
            _ => {
                pressed.interrupt_on_empty = context.line().is_empty();
                Some(Cmd::Interrupt)
            }
        }
    }
}

/// Grey placeholder text in an empty line.
struct Placeholder {
    text: &'static str,
    /// The latest line. The editor passes it here at each change but does not return it when
    /// reading fails.
    line: RefCell<String>,
}

impl Hinter for Placeholder {
    type Hint = PlaceholderHint;

    fn hint(&self, line: &str, _pos: usize, _context: &Context<'_>) -> Option<PlaceholderHint> {
        line.clone_into(&mut self.line.borrow_mut());
        line.is_empty().then_some(PlaceholderHint(self.text))
    }
}

/// A hint that is displayed only; no key inserts it.
struct PlaceholderHint(&'static str);

impl rustyline::hint::Hint for PlaceholderHint {
    fn display(&self) -> &str {
        self.0
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}

impl Highlighter for Placeholder {
    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        Cow::Owned(format!("\x1b[38;5;245m{hint}\x1b[0m"))
    }
}

impl Completer for Placeholder {
    type Candidate = String;
}

impl Validator for Placeholder {}

impl Helper for Placeholder {}

/// Runs `editor` (a program and its arguments) on a file with the text, and returns the edited
/// text.
fn edit(editor: &str, text: &str) -> Result<String> {
    let mut file = tempfile::Builder::new().prefix("puna-prompt-").suffix(".txt").tempfile()?;
    file.write_all(text.as_bytes())?;
    let path = file.into_temp_path();
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or_default();
    let status = match Command::new(program).args(words).arg(&path).status() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            anyhow::bail!(
                "editor \"{program}\" not found, set OLLAMA_EDITOR to the path of your preferred editor"
            )
        }
        status => status.with_context(|| format!("cannot start the editor \"{program}\""))?,
    };
    anyhow::ensure!(status.success(), "the editor \"{program}\" failed: {status}");
    let edited = std::fs::read(&path).context("cannot read the edited text")?;
    let edited = String::from_utf8(edited).context("the edited text is not UTF-8")?;
    Ok(edited.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_editor_is_named_with_the_remedy() {
        let error = edit("no-such-editor-anywhere --wait", "text").expect_err("there is none");
        let want = "editor \"no-such-editor-anywhere\" not found, set OLLAMA_EDITOR to the path of your preferred editor";
        assert_eq!(error.to_string(), want);
        assert!(edit("", "text").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn an_editor_changes_the_text_and_its_failure_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("ed.sh");
        std::fs::write(&script, "printf ' more\\n\\n' >> \"$1\"\n").expect("written");
        let edited = edit(&format!("sh {}", script.display()), "some").expect("edited");
        assert_eq!(edited, "some more");
        assert!(edit("false", "text").expect_err("it fails").to_string().contains("failed"));
    }
}
