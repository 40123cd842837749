//! Errors of usage, in the words that users of Ollama know.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The exit status of wrong usage.
pub const STATUS: u8 = 2;

/// A flag or argument that clap took and that means nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(String);

/// An error of usage: the program ends with [`STATUS`].
pub fn wrong(text: impl Into<String>) -> anyhow::Error {
    WrongUsage(text.into()).into()
}

/// The text for what clap found; `None` where it is no error but help or a version, which clap prints itself.
pub fn text(error: &clap::Error, args: &[String]) -> Option<String> {
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
        ErrorKind::MissingRequiredArgument if is_classic(command) => arity(command, args),
        ErrorKind::InvalidSubcommand => {
            let name = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            let parent = if command == "debug" { "puna debug" } else { "puna" };
            let mut text = format!("unknown command {name:?} for {parent:?}");
            if let Some(near) = context(ContextKind::SuggestedSubcommand) {
                text.push_str("\n\nDid you mean this?");
                // The nearest comes last.
                near.split(' ').rev().for_each(|name| text.push_str(&format!("\n\t{name}")));
            }
            text
        }
        _ => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let end = text.find("\n\nUsage").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
            text[..end].trim_end().to_owned()
        }
    })
}

/// Commands that Ollama has too, with the number of arguments it says they take.
fn is_classic(command: &str) -> bool {
    matches!(
        command,
        "run" | "rm" | "show" | "stop" | "create" | "cp" | "list" | "ls" | "ps" | "serve" | "start"
    )
}

fn arity(command: &str, args: &[String]) -> String {
    // Flags of these commands that take a value of their own.
    const VALUED: [&str; 8] =
        ["-f", "--file", "-q", "--quantize", "--keepalive", "--format", "--dimensions", "--prefix"];
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
        "serve" | "start" => format!("accepts 0 arg(s), received {given}"),
        _ => format!("accepts 1 arg(s), received {given}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};

    fn of(line: &str) -> String {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = Cli::try_parse_from(&args).unwrap_err();
        text(&error, &args).unwrap_or_default()
    }

    #[test]
    fn the_table_of_commands_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn errors_of_usage_have_the_words_of_ollama() {
        assert_eq!(of("puna run"), "requires at least 1 arg(s), only received 0");
        assert_eq!(of("puna show"), "accepts 1 arg(s), received 0");
        assert_eq!(of("puna show a b"), "accepts 1 arg(s), received 2");
        assert_eq!(of("puna cp a"), "accepts 2 arg(s), received 1");
        assert_eq!(of("puna create -f x"), "accepts 1 arg(s), received 0");
        assert_eq!(of("puna list --x"), "unknown flag: --x");
        assert_eq!(of("puna list -x"), "unknown shorthand flag: 'x' in -x");
        assert_eq!(of("puna foo"), "unknown command \"foo\" for \"puna\"");
        assert!(
            of("puna lst").starts_with("unknown command \"lst\" for \"puna\"\n\nDid you mean this?\n\tlist")
        );
        assert_eq!(of("puna debug foo"), "unknown command \"foo\" for \"puna debug\"");
    }

    #[test]
    fn errors_of_our_own_commands_name_the_argument() {
        assert!(of("puna inspect").contains("<MODEL>"), "{}", of("puna inspect"));
        assert!(of("puna detokenize m --tokens 1,x").contains("invalid value 'x'"));
        assert!(of("puna completion tcsh").contains("possible values"), "{}", of("puna completion tcsh"));
    }

    #[test]
    fn prompts_may_hold_anything_and_flags_may_follow_them() {
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
