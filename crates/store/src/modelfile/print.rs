//! Prints Modelfiles so that parsing the text yields the same instructions.

use std::fmt;

use super::{Instruction, Modelfile};

impl fmt::Display for Modelfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.instructions.iter().try_for_each(|instruction| writeln!(f, "{instruction}"))
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instruction::From(value) => write!(f, "FROM {}", PathText(value)),
            Instruction::License(value) => write!(f, "LICENSE {}", QuotedText(value)),
            Instruction::Template(value) => write!(f, "TEMPLATE {}", QuotedText(value)),
            Instruction::System(value) => write!(f, "SYSTEM {}", QuotedText(value)),
            Instruction::Adapter(value) => write!(f, "ADAPTER {}", PathText(value)),
            Instruction::Draft(value) => write!(f, "DRAFT {}", PathText(value)),
            Instruction::Renderer(value) => write!(f, "RENDERER {}", QuotedText(value)),
            Instruction::Parser(value) => write!(f, "PARSER {}", QuotedText(value)),
            Instruction::Requires(value) => write!(f, "REQUIRES {}", QuotedText(value)),
            Instruction::Parameter { name, value } => {
                write!(f, "PARAMETER {name} {}", QuotedText(value))
            }
            Instruction::Message { role, content } => {
                write!(f, "MESSAGE {role} {}", QuotedText(content))
            }
        }
    }
}

/// A path or a name. It is quoted only if it would be parsed differently, because other programs
/// take quotes as part of a path.
struct PathText<'a>(&'a str);

impl fmt::Display for PathText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain =
            !self.0.contains(['\n', '\r']) && !self.0.starts_with('"') && self.0.trim() == self.0;
        if plain { f.write_str(self.0) } else { write!(f, "{}", QuotedText(self.0)) }
    }
}

/// A value, quoted if necessary.
struct QuotedText<'a>(&'a str);

impl fmt::Display for QuotedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0;
        let at_an_end = |test: fn(char) -> bool| text.starts_with(test) || text.ends_with(test);
        let bare = !text.contains(['\n', '\r'])
            && !at_an_end(char::is_whitespace)
            && !at_an_end(|c| c == '"');
        if bare {
            f.write_str(text)
        } else if !text.contains('"') {
            write!(f, "\"{text}\"")
        } else {
            write!(f, "\"\"\"{text}\"\"\"")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_only_where_needed() {
        let print = |text: &str| Instruction::System(text.into()).to_string();
        assert_eq!(print("You are terse."), "SYSTEM You are terse.");
        assert_eq!(print("say \"hi\" often"), "SYSTEM say \"hi\" often");
        assert_eq!(print("a\nb"), "SYSTEM \"a\nb\"");
        assert_eq!(print(" a"), "SYSTEM \" a\"");
        assert_eq!(print("a\n\"b\" c"), "SYSTEM \"\"\"a\n\"b\" c\"\"\"");
        assert_eq!(print("\"a\""), "SYSTEM \"\"\"\"a\"\"\"\"");
        assert_eq!(Instruction::From("/a b/c".into()).to_string(), "FROM /a b/c");
        assert_eq!(Instruction::From("/a \"b\"".into()).to_string(), "FROM /a \"b\"");
        assert_eq!(Instruction::From("a\nSYSTEM b".into()).to_string(), "FROM \"a\nSYSTEM b\"");
    }

    proptest::proptest! {
        #[test]
        fn printed_modelfiles_parse_back_to_the_same(text in "([a-z ]| |\n|\"|\t|é|#){0,20}") {
            // A value with three quotes cannot be written in every position.
            proptest::prop_assume!(!text.contains("\"\"\""));
            let instructions = vec![
                Instruction::From(text.clone()),
                Instruction::System(text.clone()),
                Instruction::Parameter { name: "stop".into(), value: text.clone() },
                Instruction::Message { role: "user".into(), content: text },
            ];
            let modelfile = Modelfile { instructions, lines: Vec::new() };
            proptest::prop_assert_eq!(Modelfile::parse(&modelfile.to_string()), Ok(modelfile));
        }
    }
}
