//! Usage errors, with the wording that users of Ollama know.

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;

/// Exit status of wrong usage.
pub const EXIT_STATUS: u8 = 2;

/// A flag or argument that clap accepted but that has no meaning.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(String);

/// Creates a usage error. The program then exits with [`EXIT_STATUS`].
pub fn error(text: impl Into<String>) -> anyhow::Error {
    UsageError(text.into()).into()
}

/// Message for a clap error; `None` for help and version output, which clap prints itself.
pub fn message(error: &clap::Error, args: &[String]) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(list)) => Some(list.join(" ")),
        _ => None,
    };
    let invalid = || context(ContextKind::InvalidArg).unwrap_or_default();
    let command = args.iter().skip(1).find(|arg| !arg.starts_with('-')).map_or("", String::as_str);
    Some(match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => return None,
        ErrorKind::UnknownArgument => match invalid() {
            flag if flag.starts_with("--") => format!("unknown flag: {flag}"),
            flag if flag.starts_with('-') && flag.len() > 1 => {
                format!("unknown shorthand flag: '{}' in {flag}", &flag[1..2.min(flag.len())])
            }
            _ => arity(command, args),
        },
        ErrorKind::MissingRequiredArgument if is_ollama_command(command) => arity(command, args),
        ErrorKind::InvalidSubcommand => {
            let name = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            let root = Cli::command();
            let (parent, table) =
                match root.find_subcommand(command).filter(|found| found.has_subcommands()) {
                    Some(found) => (format!("puna {command}"), found),
                    None => ("puna".to_owned(), &root),
                };
            let mut text = format!("unknown command {name:?} for {parent:?}");
            let near = similar(&name, table);
            if !near.is_empty() {
                text.push_str("\n\nDid you mean this?");
                near.iter().for_each(|name| text.push_str(&format!("\n\t{name}")));
            }
            text
        }
        ErrorKind::InvalidUtf8 => {
            let bad = args.iter().find(|arg| arg.contains(char::REPLACEMENT_CHARACTER));
            let bad = bad.map_or("", String::as_str);
            format!("the argument {bad:?} is not UTF-8: use a link with another name for the file")
        }
        _ => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let end =
                text.find("\n\nUsage").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
            text[..end].trim_end().to_owned()
        }
    })
}

/// Visible commands with names similar to `name`, the most similar first.
fn similar(name: &str, table: &clap::Command) -> Vec<String> {
    let most = if name.chars().count() < 4 { 1 } else { 2 };
    let shown = table
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(clap::Command::get_name);
    let mut near: Vec<(usize, &str)> = shown
        .map(|known| (edit_distance(name, known), known))
        .filter(|(distance, known)| {
            *distance <= most || (name.len() > 1 && known.starts_with(name))
        })
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().map(|(_, known)| known.to_owned()).collect()
}

/// Edit distance between two words: insertions, deletions, substitutions and transpositions of
/// letters.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1);
            best = best.min(rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// Whether Ollama has the command too. Errors for these state the number of arguments.
fn is_ollama_command(command: &str) -> bool {
    matches!(
        command,
        "run" | "rm" | "show" | "stop" | "create" | "cp" | "list" | "ls" | "ps" | "serve" | "start"
    )
}

fn arity(command: &str, args: &[String]) -> String {
    // Flags of these commands that take a value.
    const VALUED: [&str; 12] = [
        "-f",
        "--file",
        "-q",
        "--quantize",
        "--imatrix",
        "--draft-quantize",
        "--keepalive",
        "--format",
        "--dimensions",
        "--prefix",
        "--host",
        "--set",
    ];
    let mut given = 0;
    let mut rest = args.iter().skip(1).skip_while(|arg| *arg != command).skip(1);
    while let Some(arg) = rest.next() {
        if VALUED.contains(&arg.as_str()) {
            rest.next();
        } else if !arg.starts_with('-') || arg == "-" {
            given += 1;
        }
    }
    match command {
        "run" | "rm" => format!("requires at least 1 arg(s), only received {given}"),
        "cp" => format!("accepts 2 arg(s), received {given}"),
        "list" | "ls" | "ps" => format!("accepts at most 1 arg(s), received {given}"),
        "serve" | "start" | "prune" | "config" => format!("accepts 0 arg(s), received {given}"),
        _ => format!("accepts 1 arg(s), received {given}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn of(line: &str) -> String {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = Cli::try_parse_from(&args).unwrap_err();
        message(&error, &args).unwrap_or_default()
    }

    #[test]
    fn the_table_of_commands_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_match_ollama() {
        assert_eq!(of("puna run"), "requires at least 1 arg(s), only received 0");
        assert_eq!(of("puna show"), "accepts 1 arg(s), received 0");
        assert_eq!(of("puna show a b"), "accepts 1 arg(s), received 2");
        assert_eq!(of("puna cp a"), "accepts 2 arg(s), received 1");
        assert_eq!(of("puna create -f x"), "accepts 1 arg(s), received 0");
        assert_eq!(of("puna prune x"), "accepts 0 arg(s), received 1");
        assert_eq!(of("puna mirror x"), "unknown command \"x\" for \"puna mirror\"");
        assert_eq!(of("puna list --x"), "unknown flag: --x");
        assert_eq!(of("puna list -x"), "unknown shorthand flag: 'x' in -x");
        assert_eq!(of("puna foo"), "unknown command \"foo\" for \"puna\"");
        assert!(
            of("puna lst")
                .starts_with("unknown command \"lst\" for \"puna\"\n\nDid you mean this?\n\tlist")
        );
        assert!(of("puna rnu").ends_with("Did you mean this?\n\trun"), "{}", of("puna rnu"));
        assert!(
            of("puna debug grap").ends_with("Did you mean this?\n\tgraph"),
            "{}",
            of("puna debug grap")
        );
        assert_eq!(of("puna debug foo"), "unknown command \"foo\" for \"puna debug\"");
        assert!(
            of("puna mirror retian")
                .ends_with("for \"puna mirror\"\n\nDid you mean this?\n\tretain")
        );
    }

    #[test]
    fn zero_counts_are_refused() {
        for line in [
            "puna bench m -r 0",
            "puna bench m -b 4,0",
            "puna debug logits m --tokens 1 --parallel 0",
        ] {
            assert!(of(line).contains("must be a number of at least 1"), "{}", of(line));
        }
    }

    #[test]
    fn thread_counts_are_limited_by_the_processors() {
        for command in
            ["bench m -t", "bench m --busy", "perplexity m --file t -t", "debug logits m --threads"]
        {
            for wrong in ["0", "1000000", "18446744073709551615", "many"] {
                let text = of(&format!("puna {command} {wrong}"));
                assert!(
                    text.contains("must be a number from 1 to ") && text.contains("processors"),
                    "{text}"
                );
            }
        }
        assert!(Cli::try_parse_from(["puna", "bench", "m", "-t", "4", "--busy", "4"]).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn a_non_utf8_argument_is_named() {
        use std::os::unix::ffi::OsStringExt;
        let args = [b"puna".to_vec(), b"inspect".to_vec(), b"caf\xe9.gguf".to_vec()];
        let args = args.map(std::ffi::OsString::from_vec);
        let error = Cli::try_parse_from(&args).unwrap_err();
        let args = args.map(|arg| arg.to_string_lossy().into_owned());
        assert!(message(&error, &args).unwrap().contains("\"caf\u{fffd}.gguf\" is not UTF-8"));
    }

    #[test]
    fn tables_in_the_help_fit_a_terminal() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.starts_with("      ")) {
                assert!(line.len() <= 80, "{}: {line}", command.get_name());
            }
        }
    }

    #[test]
    fn errors_of_puna_commands_name_the_argument() {
        assert!(of("puna inspect").contains("<MODEL>"), "{}", of("puna inspect"));
        assert!(of("puna detokenize m --tokens 1,x").contains("invalid value 'x'"));
        assert!(
            of("puna completion tcsh").contains("possible values"),
            "{}",
            of("puna completion tcsh")
        );
    }

    #[test]
    fn prompts_may_contain_anything_and_flags_may_follow_them() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).unwrap().command.unwrap();
        let crate::cli::Command::Run(run) =
            parse(&["puna", "run", "m", "a b", "c", "--verbose", "--think=high"])
        else {
            panic!("another command");
        };
        assert_eq!(
            (run.prompt, run.verbose, run.think.as_deref()),
            (vec!["a b".to_owned(), "c".into()], true, Some("high"))
        );
        let crate::cli::Command::Run(run) = parse(&["puna", "run", "m", "--think", "hello"]) else {
            panic!("another command");
        };
        assert_eq!((run.think.as_deref(), run.prompt), (Some("true"), vec!["hello".to_owned()]));
    }
}
