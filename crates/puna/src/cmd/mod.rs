//! The commands, one file each.

mod bench;
mod bundle;
mod completion;
mod config;
mod copy_remove_stop;
mod create;
mod debug;
mod detokenize;
mod devices;
mod imatrix;
mod inspect;
mod key;
mod launch;
mod list;
mod manual;
mod mirror_discovery;
mod perplexity;
mod quantize;
mod retain;
mod run;
mod serve;
mod show;
mod tokenize;
mod transfer;
mod verify_prune;

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::{Cli, Command, MirrorCommand};
use crate::out;

/// Runs the command of the command line.
pub fn run(cli: Cli) -> Result<ExitCode> {
    let Some(command) = cli.command else {
        let done = if cli.version { version() } else { help() };
        return done.map(|()| ExitCode::SUCCESS);
    };
    let done = match command {
        // `launch` returns the exit status of the agent.
        Command::Launch(args) => return launch::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Detokenize(args) => detokenize::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Imatrix(args) => imatrix::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Key(command) => key::run(&command),
        Command::Debug(command) => debug::run(command),
        Command::Completion { shell } => completion::run(shell),
        Command::Manual { folder } => manual::run(&folder),
        Command::Spin { threads } => bench::spin(threads),
        Command::Serve(args) => serve::run(&args),
        Command::Mirror(args) => match args.command {
            None => serve::mirror(args.settings),
            Some(MirrorCommand::Retain(args)) => retain::run(args),
        },
        Command::Runner { args } => serve::runner(&args),
        Command::Worker => serve::worker(),
        Command::Create(args) => create::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Stop { model } => copy_remove_stop::stop(&model),
        Command::Pull(args) => transfer::pull(&args),
        Command::Push(args) => transfer::push(&args),
        Command::Export(args) => bundle::export(&args),
        Command::Import(args) => bundle::import(&args),
        Command::Verify(args) => verify_prune::verify(&args),
        Command::Prune(args) => verify_prune::prune(&args),
        Command::List(args) => list::run(&args),
        Command::Ps(args) => list::ps(&args),
        Command::Cp { source, destination } => copy_remove_stop::copy(&source, &destination),
        Command::Rm { models } => copy_remove_stop::remove(&models),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn help() -> Result<()> {
    use clap::CommandFactory;
    crate::out::text(&format!("{}\n", Cli::command().render_long_help()))
}

/// Prints the program's version, and that of a different server at the configured address.
fn version() -> Result<()> {
    let own = env!("CARGO_PKG_VERSION");
    crate::out::line(&format!("puna version is {own}"))?;
    match crate::service::Service::version() {
        Ok(None) => out::note("Warning: could not connect to a running Puna instance"),
        Ok(Some(server)) if server.puna.is_empty() => {
            out::note(format_args!("Warning: the server is an Ollama, version {}", server.version));
        }
        Ok(Some(server)) if server.puna != own => {
            out::note(format_args!("Warning: server version is {}", server.puna))
        }
        Ok(Some(_)) => {}
        Err(error) => out::note(format_args!(
            "Warning: could not connect to a running Puna instance: {error:#}"
        )),
    }
    Ok(())
}
