//! Runners: one child process for each loaded model.
//!
//! A runner is this same program, started with a hidden subcommand. Its standard input is one end of a pair of
//! connected sockets that exists nowhere else; framed messages ([`protocol`]) go both ways. When the server ends, however
//! it ends, the socket is closed and the runner ends too; when the runner ends, however it ends, its requests get an
//! error that says why.
//!
//! - server side: `launch` starts the process, `link` speaks with it;
//! - runner side: [`worker`] takes tasks, `prepare` makes prompts of them by `templates` (`embed`: texts; `rank`: pairs of them),
//!   `answer` makes events of what the
//!   [`generator::Generator`] reports, `local` is the generator on the engine of this program, `scripted` the same with the tokens
//!   of a script.

mod answer;
mod embed;
mod forced;
mod form;
pub mod generator;
pub(crate) mod launch;
mod line;
pub(crate) mod link;
mod local;
mod prepare;
mod prompt;
pub mod protocol;
mod rank;
mod schema_check;
mod scripted;
pub(crate) mod templates;
#[cfg(test)]
pub(crate) mod tests;
pub mod worker;

pub(crate) use prompt::prompt_message;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The word before the path of the script that a runner's model plays.
pub(crate) const SCRIPT: &str = "--script";

/// Runs a runner on this process's standard input until the server closes it: what the hidden subcommand `runner` of
/// the program does. `args` are the words after the subcommand: none, or those that name a script.
///
/// # Errors
/// Standard input is no socket, the server speaks another version of the protocol, or the script is none.
pub fn main(args: &[String]) -> io::Result<()> {
    let loader: Box<dyn generator::Loader> = match args {
        [] => Box::new(local::LocalLoader),
        [word, path] if word == SCRIPT => {
            Box::new(scripted::ScriptLoader::open(path.into()).map_err(io::Error::other)?)
        }
        [arg, ..] => {
            let message =
                format!("a runner takes no argument {arg:?}: it is started by the server alone");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    };
    end_with_the_engine();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    worker::run(socket, &*loader)
}

/// A panic of the engine's thread ends the process: its requests would wait for ever. As it is, they hear the panic's
/// message, and the next request finds a fresh runner.
fn end_with_the_engine() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if std::thread::current().name() == Some(puna_engine::THREAD) {
            std::process::abort();
        }
    }));
}

/// Tests a file of weights with its adapters: the reason why they cannot be loaded, or a remark.
pub(crate) fn check_model(weights: &Path, adapters: &[PathBuf]) -> Result<Option<String>, String> {
    local::check_model(weights, adapters)
}

/// Tests a draft model beside a file of weights: the reason why it cannot guess for them.
pub(crate) fn check_draft(weights: &Path, draft: &Path) -> Result<(), String> {
    local::check_draft(weights, draft)
}

/// Tests a Go template: the reason why it is none.
pub(crate) fn check_template(text: &str) -> Result<(), String> {
    puna_prompt::Template::parse(puna_prompt::TemplateFormat::Go, text)
        .map(drop)
        .map_err(|e| e.to_string())
}

/// The template that the program knows by what stands in a file of weights.
pub(crate) fn detect_template(
    file: &puna_store::FileTemplate,
) -> Option<puna_store::NamedTemplate> {
    let found = puna_prompt::NamedTemplate::detect(&file.source, &file.bos, &file.eos)?;
    Some(puna_store::NamedTemplate {
        name: found.name.to_owned(),
        template: found.source.to_owned(),
        stop: found.stop.iter().map(|&text| text.to_owned()).collect(),
    })
}
