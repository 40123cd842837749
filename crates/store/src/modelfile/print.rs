//! Writing a Modelfile so that reading it gives the same again.

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
            Instruction::From(value) => write!(f, "FROM {}", Path(value)),
            Instruction::License(value) => write!(f, "LICENSE {}", Quoted(value)),
            Instruction::Template(value) => write!(f, "TEMPLATE {}", Quoted(value)),
            Instruction::System(value) => write!(f, "SYSTEM {}", Quoted(value)),
            Instruction::Adapter(value) => write!(f, "ADAPTER {}", Path(value)),
            Instruction::Draft(value) => write!(f, "DRAFT {}", Path(value)),
            Instruction::Renderer(value) => write!(f, "RENDERER {}", Quoted(value)),
            Instruction::Parser(value) => write!(f, "PARSER {}", Quoted(value)),
            Instruction::Requires(value) => write!(f, "REQUIRES {}", Quoted(value)),
            Instruction::Parameter { name, value } => {
                write!(f, "PARAMETER {name} {}", Quoted(value))
            }
            Instruction::Message { role, content } => {
                write!(f, "MESSAGE {role} {}", Quoted(content))
            }
        }
    }
}

/// A path or a name: without quotes, which other readers take for a part of it, unless it would be read as something else.
struct Path<'a>(&'a str);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain =
            !self.0.contains(['\n', '\r']) && !self.0.starts_with('"') && self.0.trim() == self.0;
        if plain { f.write_str(self.0) } else { write!(f, "{}", Quoted(self.0)) }
    }
}

/// A value, in quotes where it needs them.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
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
        fn what_is_printed_reads_back_the_same(text in "([a-z ]| |\n|\"|\t|é|#){0,20}") {
            // Three quotes within a text have no form in the language that holds everywhere.
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
