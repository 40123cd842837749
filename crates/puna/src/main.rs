//! The `puna` program: command line, terminal chat and progress; nothing that another crate could hold.

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

/// 0: done (also when the reader of the output went away), 1: the work failed, 2: wrong usage.
fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let Some(text) = usage::text(&error, &args) else {
                // Help goes to standard output, and nobody has to read all of it; unasked for, it is an error.
                let _ = error.print();
                return ExitCode::from(if error.use_stderr() { usage::STATUS } else { 0 });
            };
            out::note(format_args!("Error: {text}"));
            return ExitCode::from(usage::STATUS);
        }
    };
    match cmd::run(cli) {
        Ok(code) => code,
        Err(error) if out::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::note(format_args!("Error: {error:#}"));
            if error.is::<usage::WrongUsage>() {
                ExitCode::from(usage::STATUS)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
