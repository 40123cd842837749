//! The `puna` program: command line, terminal chat and progress display. Code that another crate
//! could hold is not here.

#![forbid(unsafe_code)]

mod chat;
mod cli;
mod cmd;
mod env;
mod format;
mod local;
mod out;
mod progress;
mod service;
mod terminal;
mod usage;

use std::process::ExitCode;

use clap::Parser;

/// Exit status: 0 for success (also when the reader closed the output), 1 for a failure, 2 for
/// wrong usage.
fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let Some(text) = usage::message(&error, &args) else {
                return print_help(&error);
            };
            out::note(format_args!("Error: {text}"));
            return ExitCode::from(usage::EXIT_STATUS);
        }
    };
    match cmd::run(cli) {
        Ok(code) => code,
        Err(error) => failure(&error),
    }
}

/// Prints the help or the version. Help after wrong usage is an error.
fn print_help(help: &clap::Error) -> ExitCode {
    match out::help(help) {
        _ if help.use_stderr() => ExitCode::from(usage::EXIT_STATUS),
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

/// Prints an error. A reader that closes the output early causes none.
fn failure(error: &anyhow::Error) -> ExitCode {
    if out::is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    out::note(format_args!("Error: {error:#}"));
    if error.is::<usage::UsageError>() {
        ExitCode::from(usage::EXIT_STATUS)
    } else {
        ExitCode::FAILURE
    }
}
