//! Parses Modelfiles character by character. Values may span lines, and quotes have no escapes.

use puna_gguf::escape_for_message;

use super::{ExpectedInput, Instruction, KEYWORDS, LineProblem, Modelfile, ModelfileError};

/// Largest edit distance between a mistyped instruction and the one suggested.
const MAX_EDIT_DISTANCE: usize = 2;

impl Modelfile {
    /// Parses a file's bytes: UTF-8, or UTF-16 with a byte order mark.
    ///
    /// # Errors
    /// The first error, with its line; [`ModelfileError::NoFrom`] comes last.
    pub fn parse_bytes(bytes: &[u8]) -> Result<Self, ModelfileError> {
        Self::parse(&decode(bytes))
    }

    /// Parses a text.
    ///
    /// # Errors
    /// Those of [`Modelfile::parse_bytes`].
    pub fn parse(text: &str) -> Result<Self, ModelfileError> {
        let mut reader = Reader { rest: text, line: 1 };
        let (mut instructions, mut lines) = (Vec::new(), Vec::new());
        while reader.skip_to_instruction() {
            lines.push(reader.line);
            instructions.push(reader.instruction()?);
        }
        if !instructions.iter().any(|i| matches!(i, Instruction::From(_))) {
            return Err(ModelfileError::NoFrom);
        }
        Ok(Self { instructions, lines })
    }
}

/// Decodes a file by its byte order mark, or as UTF-8 with replacement characters.
fn decode(bytes: &[u8]) -> String {
    let wide = |bytes: &[u8], read: fn([u8; 2]) -> u16| {
        let units: Vec<u16> =
            bytes.chunks(2).map(|pair| read([pair[0], *pair.get(1).unwrap_or(&0)])).collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => wide(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => wide(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        // CR and LF count as one line each, as in Ollama: tools that parse the messages expect its
        // numbers.
        self.line += usize::from(is_newline(c));
        Some(c)
    }

    /// Skips blanks, empty lines and comments. Returns whether anything follows.
    fn skip_to_instruction(&mut self) -> bool {
        while let Some(c) = self.rest.chars().next() {
            match c {
                '#' => while self.next().is_some_and(|c| !is_newline(c)) {},
                c if is_blank(c) || is_newline(c) => {
                    self.next();
                }
                _ => return true,
            }
        }
        false
    }

    /// Reads a word of characters that `admits` accepts, and the blank that must follow. The error
    /// is the character that ended the word instead, or `None` at the end of the file, with the
    /// word.
    fn word(&mut self, admits: fn(char) -> bool) -> Result<&'a str, (Option<char>, &'a str)> {
        let start = self.rest;
        let taken = |reader: &Self| &start[..start.len() - reader.rest.len()];
        loop {
            let word = taken(self);
            match self.next() {
                Some(c) if is_blank(c) => return Ok(word),
                Some(c) if admits(c) => {}
                other => return Err((other, word)),
            }
        }
    }

    fn instruction(&mut self) -> Result<Instruction, ModelfileError> {
        let keyword = self.keyword()?;
        let of: fn(String) -> Instruction = match keyword {
            "FROM" => Instruction::From,
            "LICENSE" => Instruction::License,
            "TEMPLATE" => Instruction::Template,
            "SYSTEM" => Instruction::System,
            "ADAPTER" => Instruction::Adapter,
            "DRAFT" => Instruction::Draft,
            "RENDERER" => Instruction::Renderer,
            "PARSER" => Instruction::Parser,
            "PARAMETER" => {
                let name =
                    self.argument(keyword, |c| c.is_ascii_alphanumeric() || c == '_')?.to_owned();
                return Ok(Instruction::Parameter { name, value: self.value()? });
            }
            "MESSAGE" => {
                let role = self.argument(keyword, |c| c.is_ascii_alphabetic())?.to_owned();
                if !["system", "user", "assistant"].contains(&role.as_str()) {
                    let problem = LineProblem::UnknownRole { found: escape_for_message(&role) };
                    return Err(ModelfileError::Line { line: self.line, problem });
                }
                return Ok(Instruction::Message { role, content: self.value()? });
            }
            // `REQUIRES`, the only other keyword.
            _ => Instruction::Requires,
        };
        Ok(of(self.value()?))
    }

    /// Reads the name of an instruction and the blank after it.
    fn keyword(&mut self) -> Result<&'static str, ModelfileError> {
        let (line, text) = (self.line, self.rest);
        let known =
            |name: &str| KEYWORDS.into_iter().find(|known| known.eq_ignore_ascii_case(name));
        let word = self.word(|c| c.is_ascii_alphabetic());
        let wanted = |name| known(name).map(ExpectedInput::Value);
        let problem = match word {
            Ok(name) => match known(name) {
                Some(keyword) => return Ok(keyword),
                None => unknown(text),
            },
            Err((None, name)) => match wanted(name) {
                Some(wanted) => {
                    return Err(ModelfileError::UnexpectedEnd {
                        line,
                        text: String::new(),
                        wanted,
                    });
                }
                None => unknown(text),
            },
            Err((Some(end), name)) if is_newline(end) => {
                wanted(name).map_or_else(|| unknown(text), LineProblem::MissingValue)
            }
            Err(_) => unknown(text),
        };
        Err(ModelfileError::Line { line, problem })
    }

    /// Reads a parameter's name or a message's role.
    fn argument(
        &mut self,
        keyword: &'static str,
        admits: fn(char) -> bool,
    ) -> Result<&'a str, ModelfileError> {
        while self.rest.starts_with(is_blank) {
            self.next();
        }
        let line = self.line;
        self.word(admits).map_err(|(end, word)| ModelfileError::UnexpectedEnd {
            line,
            text: if end.is_some() { word.to_owned() } else { String::new() },
            wanted: ExpectedInput::Value(keyword),
        })
    }

    /// Reads a value. It ends with the first line at whose end all quotes are closed.
    fn value(&mut self) -> Result<String, ModelfileError> {
        let (line, start) = (self.line, self.rest);
        loop {
            let text = &start[..start.len() - self.rest.len()];
            match self.next() {
                Some(c) if !is_newline(c) => {}
                end => match (unquote(text.trim()), end) {
                    (Some(value), _) => return Ok(printable(value)),
                    (None, Some(_)) => {}
                    (None, None) => {
                        let (text, wanted) = (String::new(), ExpectedInput::ClosingQuotes);
                        return Err(ModelfileError::UnexpectedEnd { line, text, wanted });
                    }
                },
            }
        }
    }
}

/// The error for an unknown instruction, with the most similar known one.
fn unknown(text: &str) -> LineProblem {
    let found = text.split_whitespace().next().unwrap_or_default();
    let upper = found.chars().take(20).collect::<String>().to_ascii_uppercase();
    let slips = |known: &&str| strsim::osa_distance(known, &upper);
    let suggestion =
        KEYWORDS.into_iter().min_by_key(slips).filter(|known| slips(known) <= MAX_EDIT_DISTANCE);
    LineProblem::UnknownInstruction { found: escape_for_message(found), suggestion }
}

/// The text within quotes, or the whole text if it has none. `None` if the quotes are not closed.
fn unquote(text: &str) -> Option<&str> {
    if let Some(inner) = text.strip_prefix("\"\"\"") {
        return inner.strip_suffix("\"\"\"");
    }
    match text.strip_prefix('"') {
        Some(inner) => inner.strip_suffix('"'),
        None => Some(text),
    }
}

/// Removes control characters, which would reach terminals and prompts unseen. Tabs and line ends
/// stay.
fn printable(text: &str) -> String {
    text.chars().filter(|&c| !c.is_ascii_control() || matches!(c, '\t' | '\n' | '\r')).collect()
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t')
}

fn is_newline(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use Instruction::*;

    fn parse(text: &str) -> Result<Vec<Instruction>, String> {
        Modelfile::parse(text).map(|m| m.instructions).map_err(|e| e.to_string())
    }

    fn parameter(name: &str, value: &str) -> Instruction {
        Parameter { name: name.into(), value: value.into() }
    }

    /// The instructions after a `FROM foo` line.
    fn after_from(text: &str) -> Result<Vec<Instruction>, String> {
        parse(&format!("FROM foo\n{text}")).map(|mut all| all.split_off(1))
    }

    #[test]
    fn plain_values_are_trimmed_and_quoted_ones_are_not() {
        assert_eq!(parse("FROM \"FOO  BAR  \""), Ok(vec![From("FOO  BAR  ".into())]));
        assert_eq!(parse("FROM     FOOO BAR    "), Ok(vec![From("FOOO BAR".into())]));
        assert_eq!(
            parse("PARAMETER what the \nFROM lemons make lemonade "),
            Ok(vec![parameter("what", "the"), From("lemons make lemonade".into())])
        );
        assert_eq!(
            after_from("PARAMETER stop ### User: "),
            Ok(vec![parameter("stop", "### User:")])
        );
        assert_eq!(
            after_from("PARAMETER stop \"### User: \""),
            Ok(vec![parameter("stop", "### User: ")])
        );
    }

    #[test]
    fn quoted_values_span_lines() {
        assert_eq!(
            after_from("PARAMETER stop \"\"\"### User:\n\"\"\""),
            Ok(vec![parameter("stop", "### User:\n")])
        );
        let message = |content: &str| Message { role: "system".into(), content: content.into() };
        assert_eq!(
            after_from("MESSAGE system \"\"\"\nYou are…\n\"\"\"\n"),
            Ok(vec![message("\nYou are…\n")])
        );
        assert_eq!(after_from("SYSTEM \"a\" b\nc\""), Ok(vec![System("a\" b\nc".into())]));
        assert_eq!(
            after_from("SYSTEM \"\"\"''\"'\"\"'\"\"\""),
            Ok(vec![System("''\"'\"\"'".into())])
        );
        assert_eq!(after_from("SYSTEM \"'\""), Ok(vec![System("'".into())]));
    }

    #[test]
    fn values_may_be_empty() {
        for text in ["SYSTEM \"\"\"\"\"\"", "SYSTEM \"\"", "SYSTEM ", "SYSTEM \n"] {
            assert_eq!(after_from(text), Ok(vec![System(String::new())]), "{text:?}");
        }
    }

    #[test]
    fn open_quotes_and_cut_instructions_are_errors() {
        for text in [
            "SYSTEM \"\"\"This is a multiline system.\"\"\n",
            "SYSTEM \"\n",
            "SYSTEM",
            "SYSTEM \"",
            "PARAMETER x",
        ] {
            let error = after_from(text).unwrap_err();
            assert!(error.starts_with("unexpected EOF (line 2: "), "{text:?}: {error}");
        }
        let error = after_from("PARAMETER param1\n").unwrap_err();
        assert!(
            error.starts_with("unexpected EOF: param1 (line 2: PARAMETER needs a name and"),
            "{error}"
        );
        let error = after_from("SYSTEM \"\"\"a\nb\nc").unwrap_err();
        assert_eq!(error, "unexpected EOF (line 2: the quotes are not closed)");
        for text in ["", "# FROM x\nSYSTEM y"] {
            assert!(parse(text).unwrap_err().starts_with("no FROM line: "));
        }
    }

    #[test]
    fn an_instruction_without_arguments_names_the_missing_ones() {
        let parameter = "PARAMETER needs a name and a value, such as `PARAMETER num_ctx 4096`";
        assert_eq!(parse("FROM foo\nPARAMETER\nSYSTEM x"), Err(format!("(line 2): {parameter}")));
        assert_eq!(after_from("PARAMETER"), Err(format!("unexpected EOF (line 2: {parameter})")));
        assert_eq!(
            after_from("PARAMETER \n"),
            Err(format!("unexpected EOF (line 2: {parameter})"))
        );
        assert!(after_from("MESSAGE\n").unwrap_err().contains("such as `MESSAGE user Hello`"));
        assert_eq!(
            parse("SYSTEM\nFROM x"),
            Err("(line 1): SYSTEM needs a value on the same line".into())
        );
    }

    #[test]
    fn unknown_instructions_and_roles_are_named_by_line() {
        let command = |found: &str, suggestion| {
            LineProblem::UnknownInstruction { found: found.to_owned(), suggestion }.to_string()
        };
        for (text, line, found, suggestion) in [
            ("FROM foo\n\nBADCOMMAND x\n", 3, "BADCOMMAND", None),
            ("FROM foo\nBAD1 x\n", 2, "BAD1", None),
            ("FROM foo\nFRUM x\n", 2, "FRUM", Some("FROM")),
            ("FROM foo\nparametre top_k 5", 2, "parametre", Some("PARAMETER")),
            ("FROM foo\nSYSTM:\n", 2, "SYSTM:", Some("SYSTEM")),
            ("FROM foo\nFOO", 2, "FOO", Some("FROM")),
        ] {
            assert_eq!(
                parse(text),
                Err(format!("(line {line}): {}", command(found, suggestion))),
                "{text:?}"
            );
        }
        assert!(
            command("x", Some("FROM"))
                .starts_with("command must be one of \"from\", \"license\", ")
        );
        assert!(command("x", Some("FROM")).ends_with("not \"x\": did you mean FROM?"));
        let role = LineProblem::UnknownRole { found: "badguy".into() };
        assert_eq!(after_from("MESSAGE badguy I'm a bad guy"), Err(format!("(line 2): {role}")));
    }

    #[test]
    fn comments_are_recognised_only_in_place_of_an_instruction() {
        assert_eq!(
            parse("# one\n  from a # not a comment\r\n\t# two\nLiCeNsE MIT"),
            Ok(vec![From("a # not a comment".into()), License("MIT".into())])
        );
    }

    #[test]
    fn utf_16_with_a_mark_is_read() {
        let text = "FROM bob\nSYSTEM 你好👋";
        let want = Ok(vec![From("bob".into()), System("你好👋".into())]);
        let le: Vec<u8> = [0xff, 0xfe]
            .into_iter()
            .chain(text.encode_utf16().flat_map(u16::to_le_bytes))
            .collect();
        let be: Vec<u8> = [0xfe, 0xff]
            .into_iter()
            .chain(text.encode_utf16().flat_map(u16::to_be_bytes))
            .collect();
        let utf8: Vec<u8> = [0xef, 0xbb, 0xbf].into_iter().chain(text.bytes()).collect();
        for bytes in [le, be, utf8, text.into()] {
            assert_eq!(Modelfile::parse_bytes(&bytes).map(|m| m.instructions), want);
        }
        assert_eq!(
            parse("FROM a\nSYSTEM a\u{200d}b\u{a0}c\x07"),
            Ok(vec![From("a".into()), System("a\u{200d}b\u{a0}c".into())])
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "([A-Z]{3,8}| |\n|\"|\"\"\"|#|é|FROM x\n|PARAMETER |MESSAGE user ){0,30}") {
            let _ = Modelfile::parse(&text);
        }
    }
}
