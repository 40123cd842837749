//! From lines to messages: blocks in `"""`, and texts that span several lines.

use super::command::{Command, QUOTES, Setting};

/// Puts lines together. A line that starts with `"""` opens a block, a line that ends with `"""` closes it; line breaks
/// inside are kept. `/set system """…` takes a block likewise.
#[derive(Debug, Default)]
pub(super) struct Composer {
    open: Option<Block>,
}

#[derive(Debug)]
struct Block {
    text: String,
    is_system: bool,
}

/// What came of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Composed {
    /// Nothing yet, or nothing at all.
    Nothing,
    Message(String),
    Command(Command),
}

impl Composer {
    /// Whether a block waits for its end.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Forgets an open block.
    pub(super) fn discard(&mut self) {
        self.open = None;
    }

    /// Takes a line, or several with line breaks in between (pasted, or typed with Ctrl-J). `is_attachment` says
    /// whether a word that begins with `/` names a file that can be attached to a message: then it is no command.
    pub(super) fn feed(&mut self, line: &str, is_attachment: impl Fn(&str) -> bool) -> Composed {
        if let Some(block) = &mut self.open {
            return match line.strip_suffix(QUOTES) {
                Some(last) => {
                    block.text.push_str(last);
                    self.close()
                }
                None => {
                    block.text.push_str(line);
                    block.text.push('\n');
                    Composed::Nothing
                }
            };
        }
        if let Some(rest) = line.strip_prefix(QUOTES) {
            return match rest.strip_suffix(QUOTES) {
                Some(text) => message(text),
                None => self.begin(format!("{rest}\n"), false),
            };
        }
        // Of several lines only a system message is a command: a pasted text may well begin with a path.
        let may_be_command = !line.contains('\n') || line.starts_with("/set system ");
        match Command::parse(line).filter(|_| may_be_command) {
            Some(Command::Unknown(word)) if is_attachment(&word) => message(line),
            // The line break after the first line is lost: models saved from sessions depend on the text being the
            // same as with Ollama.
            Some(Command::Set(Setting::SystemOpen(first))) => self.begin(first, true),
            Some(command) => Composed::Command(command),
            None => message(line),
        }
    }

    fn begin(&mut self, text: String, is_system: bool) -> Composed {
        self.open = Some(Block { text, is_system });
        Composed::Nothing
    }

    fn close(&mut self) -> Composed {
        match self.open.take() {
            Some(Block { text, is_system: true }) => {
                Composed::Command(Command::Set(Setting::System(text)))
            }
            Some(Block { text, is_system: false }) => message(&text),
            None => Composed::Nothing,
        }
    }
}

fn message(text: &str) -> Composed {
    match text.trim().is_empty() {
        true => Composed::Nothing,
        false => Composed::Message(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of the last of some lines; of all before it nothing does.
    fn compose(lines: &[&str]) -> Composed {
        let mut composer = Composer::default();
        let (last, first) = lines.split_last().expect("at least one line");
        for line in first {
            assert_eq!(composer.feed(line, |_| false), Composed::Nothing, "{line}");
            assert!(composer.is_open());
        }
        let composed = composer.feed(last, |_| false);
        assert!(!composer.is_open());
        composed
    }

    fn message(text: &str) -> Composed {
        Composed::Message(text.into())
    }

    fn system(text: &str) -> Composed {
        Composed::Command(Command::Set(Setting::System(text.into())))
    }

    #[test]
    fn a_plain_line_is_a_message_and_an_empty_one_is_nothing() {
        assert_eq!(compose(&["hello there"]), message("hello there"));
        assert_eq!(compose(&[""]), Composed::Nothing);
        assert_eq!(compose(&["  \t"]), Composed::Nothing);
    }

    #[test]
    fn quotes_enclose_lines_and_keep_the_breaks_between_them() {
        assert_eq!(compose(&[r#""""a"#, "", "b", r#"c""""#]), message("a\n\nb\nc"));
        assert_eq!(compose(&[r#"""""#, "a", r#"""""#]), message("\na\n"));
        assert_eq!(compose(&[r#""""a b""""#]), message("a b"));
        assert_eq!(compose(&[r#""""""""#]), Composed::Nothing);
    }

    #[test]
    fn what_looks_like_a_command_inside_a_block_is_text() {
        assert_eq!(compose(&[r#""""look:"#, "/bye", r#"""""#]), message("look:\n/bye\n"));
    }

    #[test]
    fn a_system_message_in_quotes_loses_the_first_line_break_only() {
        assert_eq!(compose(&[r#"/set system """a"#, r#"b""""#]), system("ab"));
        assert_eq!(compose(&[r#"/set system """a"#, "b", r#"c""""#]), system("ab\nc"));
    }

    #[test]
    fn several_lines_at_once_are_one_message_even_behind_a_slash() {
        assert_eq!(compose(&["/etc/hosts says\n127.0.0.1"]), message("/etc/hosts says\n127.0.0.1"));
        assert_eq!(compose(&["\"\"\"a\nb\"\"\""]), message("a\nb"));
        assert_eq!(compose(&["/bye"]), Composed::Command(Command::Leave));
    }

    #[test]
    fn a_path_of_a_file_to_attach_is_no_command() {
        let mut composer = Composer::default();
        assert_eq!(
            composer.feed("/tmp/a.png what is it?", |w| w == "/tmp/a.png"),
            message("/tmp/a.png what is it?")
        );
        let unknown = Composed::Command(Command::Unknown("/tmp/b".into()));
        assert_eq!(composer.feed("/tmp/b", |w| w == "/tmp/a.png"), unknown);
    }

    #[test]
    fn a_discarded_block_leaves_nothing_behind() {
        let mut composer = Composer::default();
        assert_eq!(composer.feed(r#""""half"#, |_| false), Composed::Nothing);
        composer.discard();
        assert_eq!(composer.feed("new", |_| false), message("new"));
    }
}
