//! Assembles messages and commands from input lines: `"""` blocks and pasted multi-line text.

use super::command::{Command, QUOTES, Setting};

/// Assembles lines. A line that starts with `"""` opens a block, and a line that ends with `"""`
/// closes it. Line breaks inside a block are preserved. `/set system """…` opens a block too.
#[derive(Debug, Default)]
pub(super) struct Composer {
    open: Option<Block>,
}

#[derive(Debug)]
struct Block {
    text: String,
    is_system: bool,
}

/// Result of feeding a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ComposerOutput {
    /// The line is empty, or a block is still open.
    Nothing,
    Message(String),
    Command(Command),
}

impl Composer {
    /// Whether a block is open.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Discards an open block.
    pub(super) fn discard(&mut self) {
        self.open = None;
    }

    /// Processes a line, or several lines joined by line breaks (pasted, or typed with Ctrl-J).
    /// `is_attachment` reports whether a word that begins with `/` names an attachable file. A line
    /// with that word is a message and not a command.
    pub(super) fn feed(
        &mut self,
        line: &str,
        is_attachment: impl Fn(&str) -> bool,
    ) -> ComposerOutput {
        if let Some(block) = &mut self.open {
            return match line.strip_suffix(QUOTES) {
                Some(last) => {
                    block.text.push_str(last);
                    self.close()
                }
                None => {
                    block.text.push_str(line);
                    block.text.push('\n');
                    ComposerOutput::Nothing
                }
            };
        }
        if let Some(rest) = line.strip_prefix(QUOTES) {
            return match rest.strip_suffix(QUOTES) {
                Some(text) => message(text),
                None => self.begin(format!("{rest}\n"), false),
            };
        }
        // Multi-line input is a command only for `/set system`, because a pasted text may begin
        // with a path.
        let may_be_command = !line.contains('\n') || line.starts_with("/set system ");
        match Command::parse(line).filter(|_| may_be_command) {
            Some(Command::Unknown(word)) if is_attachment(&word) => message(line),
            // The line break after the first line is dropped, as in Ollama, so that models saved
            // from sessions have the same text.
            Some(Command::Set(Setting::SystemOpen(first))) => self.begin(first, true),
            Some(command) => ComposerOutput::Command(command),
            None => message(line),
        }
    }

    fn begin(&mut self, text: String, is_system: bool) -> ComposerOutput {
        self.open = Some(Block { text, is_system });
        ComposerOutput::Nothing
    }

    fn close(&mut self) -> ComposerOutput {
        match self.open.take() {
            Some(Block { text, is_system: true }) => {
                ComposerOutput::Command(Command::Set(Setting::System(text)))
            }
            Some(Block { text, is_system: false }) => message(&text),
            None => ComposerOutput::Nothing,
        }
    }
}

fn message(text: &str) -> ComposerOutput {
    match text.trim().is_empty() {
        true => ComposerOutput::Nothing,
        false => ComposerOutput::Message(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of the last line; all earlier lines must give `Nothing`.
    fn compose(lines: &[&str]) -> ComposerOutput {
        let mut composer = Composer::default();
        let (last, first) = lines.split_last().expect("at least one line");
        for line in first {
            assert_eq!(composer.feed(line, |_| false), ComposerOutput::Nothing, "{line}");
            assert!(composer.is_open());
        }
        let composed = composer.feed(last, |_| false);
        assert!(!composer.is_open());
        composed
    }

    fn message(text: &str) -> ComposerOutput {
        ComposerOutput::Message(text.into())
    }

    fn system(text: &str) -> ComposerOutput {
        ComposerOutput::Command(Command::Set(Setting::System(text.into())))
    }

    #[test]
    fn a_plain_line_is_a_message_and_an_empty_one_is_nothing() {
        assert_eq!(compose(&["hello there"]), message("hello there"));
        assert_eq!(compose(&[""]), ComposerOutput::Nothing);
        assert_eq!(compose(&["  \t"]), ComposerOutput::Nothing);
    }

    #[test]
    fn quotes_enclose_lines_and_keep_the_breaks_between_them() {
        assert_eq!(compose(&[r#""""a"#, "", "b", r#"c""""#]), message("a\n\nb\nc"));
        assert_eq!(compose(&[r#"""""#, "a", r#"""""#]), message("\na\n"));
        assert_eq!(compose(&[r#""""a b""""#]), message("a b"));
        assert_eq!(compose(&[r#""""""""#]), ComposerOutput::Nothing);
    }

    #[test]
    fn a_command_inside_a_block_is_text() {
        assert_eq!(compose(&[r#""""look:"#, "/bye", r#"""""#]), message("look:\n/bye\n"));
    }

    #[test]
    fn a_system_message_in_quotes_loses_the_first_line_break_only() {
        assert_eq!(compose(&[r#"/set system """a"#, r#"b""""#]), system("ab"));
        assert_eq!(compose(&[r#"/set system """a"#, "b", r#"c""""#]), system("ab\nc"));
    }

    #[test]
    fn several_pasted_lines_are_one_message_even_after_a_slash() {
        assert_eq!(compose(&["/etc/hosts says\n127.0.0.1"]), message("/etc/hosts says\n127.0.0.1"));
        assert_eq!(compose(&["\"\"\"a\nb\"\"\""]), message("a\nb"));
        assert_eq!(compose(&["/bye"]), ComposerOutput::Command(Command::Leave));
    }

    #[test]
    fn the_path_of_an_attachment_is_not_a_command() {
        let mut composer = Composer::default();
        assert_eq!(
            composer.feed("/tmp/a.png what is it?", |w| w == "/tmp/a.png"),
            message("/tmp/a.png what is it?")
        );
        let unknown = ComposerOutput::Command(Command::Unknown("/tmp/b".into()));
        assert_eq!(composer.feed("/tmp/b", |w| w == "/tmp/a.png"), unknown);
    }

    #[test]
    fn a_discarded_block_leaves_nothing_behind() {
        let mut composer = Composer::default();
        assert_eq!(composer.feed(r#""""half"#, |_| false), ComposerOutput::Nothing);
        composer.discard();
        assert_eq!(composer.feed("new", |_| false), message("new"));
    }
}
