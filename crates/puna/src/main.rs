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
                // A reader may close the output before all of the help is read. Help after wrong
                // usage is an error.
                let _ = error.print();
                return ExitCode::from(if error.use_stderr() { usage::EXIT_STATUS } else { 0 });
            };
            out::note(format_args!("Error: {text}"));
            return ExitCode::from(usage::EXIT_STATUS);
        }
    };
    match cmd::run(cli) {
        Ok(code) => code,
        Err(error) if out::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::note(format_args!("Error: {error:#}"));
            if error.is::<usage::UsageError>() {
                ExitCode::from(usage::EXIT_STATUS)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
