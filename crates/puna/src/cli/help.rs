//! Completes help texts by the settings that they name.

use puna_server::config::SettingDefinition;

/// Blanks before the names of variables.
const INDENT: &str = "      ";
/// Column at which the meaning of a variable begins.
const MEANING_COLUMN: usize = 33;

/// Adds the meaning of its setting to each line that consists of the indented name of a variable.
pub fn with_variables(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let setting = line.strip_prefix(INDENT).and_then(SettingDefinition::of_variable);
        let Some(help) = setting.and_then(SettingDefinition::help_text) else {
            lines.push(line.to_owned());
            continue;
        };
        if line.len() < MEANING_COLUMN {
            lines.push(format!("{line:<MEANING_COLUMN$}{help}"));
        } else {
            lines.extend([line.to_owned(), format!("{:MEANING_COLUMN$}{help}", "")]);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn each_variable_in_the_help_has_a_meaning() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let mut lines = help.lines().peekable();
            while let Some(line) = lines.next() {
                let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
                if line.strip_prefix(INDENT).is_some_and(|rest| rest.chars().all(is_name)) {
                    let indent = " ".repeat(MEANING_COLUMN);
                    let meaning = lines.peek().is_some_and(|next| next.starts_with(&indent));
                    assert!(meaning, "{}: {line}", command.get_name());
                }
            }
        }
    }

    #[test]
    fn meanings_stand_in_one_column_and_long_names_alone() {
        let text =
            "Variables:\n      OLLAMA_DEBUG\n      OLLAMA_MAX_TRANSFER_STREAMS\n      OTHER  x";
        let lines = [
            "Variables:",
            "      OLLAMA_DEBUG               Log more: debug information (1), traces too (2)",
            "      OLLAMA_MAX_TRANSFER_STREAMS",
            "                                 Connections of one download (default 8)",
            "      OTHER  x",
        ];
        assert_eq!(with_variables(text), lines.join("\n"));
    }
}
