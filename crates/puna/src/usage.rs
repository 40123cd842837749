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
    let mut root = Cli::command();
    root.build();
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
            _ => arity(&root, args),
        },
        ErrorKind::MissingRequiredArgument if is_ollama_command(command) => arity(&root, args),
        ErrorKind::InvalidSubcommand => {
            let name = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            let NamedCommand { path: parent, definition: table, .. } = find_command(&root, args);
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
    let max = if name.chars().count() < 4 { 1 } else { 2 };
    let shown = table
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
        .map(clap::Command::get_name);
    let mut near: Vec<(usize, &str)> = shown
        .map(|known| (edit_distance(name, known), known))
        .filter(|(distance, known)| *distance <= max || (name.len() > 1 && known.starts_with(name)))
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

/// A command of the command line and the arguments after its name.
struct NamedCommand<'a> {
    /// The command with its parents, such as `puna debug`.
    path: String,
    definition: &'a clap::Command,
    rest: &'a [String],
}

/// Finds the command that the arguments name. `help` stands for the command after it.
fn find_command<'a>(root: &'a clap::Command, args: &'a [String]) -> NamedCommand<'a> {
    let mut found = NamedCommand {
        path: root.get_name().to_owned(),
        definition: root,
        rest: args.get(1..).unwrap_or_default(),
    };
    for (at, arg) in args.iter().enumerate().skip(1) {
        if arg.starts_with('-') || arg == "help" {
            continue;
        }
        let Some(command) = found.definition.find_subcommand(arg) else { break };
        found = NamedCommand {
            path: format!("{} {}", found.path, command.get_name()),
            definition: command,
            rest: &args[at + 1..],
        };
    }
    found
}

/// Message for a wrong number of arguments: how many the command accepts, and how many it got.
fn arity(root: &clap::Command, args: &[String]) -> String {
    let NamedCommand { definition, rest, .. } = find_command(root, args);
    let given = positional_count(definition, rest);
    // Arguments after `--` belong to another program.
    let positionals = definition.get_positionals().filter(|arg| !arg.is_last_set());
    let (mut min, mut max) = (0, 0_usize);
    for arg in positionals {
        let range = arg.get_num_args().unwrap_or_default();
        min += if arg.is_required_set() { range.min_values() } else { 0 };
        max = max.saturating_add(range.max_values());
    }
    match (min, max) {
        (min, usize::MAX) => {
            format!("requires at least {min} arg(s), only received {given}")
        }
        (min, max) if min == max => format!("accepts {max} arg(s), received {given}"),
        (0, max) => format!("accepts at most {max} arg(s), received {given}"),
        (min, max) => format!("accepts between {min} and {max} arg(s), received {given}"),
    }
}

/// Number of arguments that are neither flags nor values of flags.
fn positional_count(command: &clap::Command, args: &[String]) -> usize {
    let takes_next = |flag: &&clap::Arg| {
        let values = flag.get_num_args().is_some_and(|range| range.min_values() > 0);
        values && flag.get_action().takes_values()
    };
    let (mut count, mut args) = (0, args.iter());
    while let Some(arg) = args.next() {
        let mut flags = command.get_opts();
        let has_value_after = match (arg.strip_prefix("--"), arg.strip_prefix('-')) {
            (Some(""), _) => return count + args.len(),
            (Some(long), _) => flags.find(|flag| flag.get_long() == Some(long)),
            // The value of a short flag may follow in the same argument.
            (None, Some(short)) if !short.is_empty() => flags
                .find(|flag| flag.get_short().is_some_and(|c| short.strip_prefix(c) == Some(""))),
            _ => {
                count += 1;
                continue;
            }
        };
        if has_value_after.as_ref().is_some_and(takes_next) {
            args.next();
        }
    }
    count
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
        assert_eq!(of("puna list a b"), "accepts at most 1 arg(s), received 2");
        assert_eq!(of("puna help debug bogus"), "unknown command \"bogus\" for \"puna debug\"");
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
    fn argument_counts_follow_the_definition_of_the_command() {
        for (line, text) in [
            ("puna devices x", "accepts 0 arg(s), received 1"),
            ("puna key list x", "accepts 0 arg(s), received 1"),
            ("puna key ls x", "accepts 0 arg(s), received 1"),
            ("puna mirror retain --set a=b x", "accepts 0 arg(s), received 1"),
            ("puna debug graph cria --tokens 2 x", "accepts 1 arg(s), received 2"),
            ("puna verify a b", "accepts at most 1 arg(s), received 2"),
            ("puna quantize -- a b c d", "accepts 3 arg(s), received 4"),
            ("puna launch codex -m cria x", "accepts 1 arg(s), received 2"),
            ("puna create -qQ8_0 a -f x b", "accepts 1 arg(s), received 2"),
        ] {
            assert_eq!(of(line), text, "{line}");
        }
    }

    #[test]
    fn numbers_are_refused_in_plain_words() {
        let huge = "99999999999999999999";
        for (line, text) in [
            ("puna key add a --concurrent 0".to_owned(), "it must be a number of at least 1"),
            (format!("puna key add a --requests-per-minute {huge}"), "of at most 4294967295"),
            ("puna bench m -p x".to_owned(), "it must be a number of at least 0"),
            (format!("puna bench m -b {huge}"), "of at most 18446744073709551615"),
            (format!("puna debug logits m --tokens {huge}"), "of at most 4294967295"),
            ("puna detokenize m --tokens 1.5".to_owned(), "it must be a number of at least 0"),
            ("puna run m --dimensions x".to_owned(), "it must be a whole number"),
            ("puna debug graph m --tokens 18446744073709551615".to_owned(), "of at most 16777216"),
            ("puna debug graph m --tokens 0".to_owned(), "it must be a number of at least 1"),
            ("puna debug logits m --tokens 1 --parallel 9223372036854775807".to_owned(), "65536"),
            ("puna debug logits m --tokens 1 --num-ctx 0".to_owned(), "number of at least 1"),
            ("puna perplexity m --file t --chunks 0".to_owned(), "number of at least 1"),
            ("puna imatrix m --file t --chunks 0".to_owned(), "number of at least 1"),
        ] {
            assert!(of(&line).contains(text), "{line}: {}", of(&line));
        }
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
