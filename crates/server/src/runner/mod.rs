//! Runners: the server starts one child process for each loaded model.
//!
//! A runner is this same program, started with the hidden subcommand `runner`. Its standard input
//! is one end of a private socket pair. Framed messages ([`protocol`]) travel in both directions.
//! When the server process ends for any reason, the socket closes and the runner exits. When the
//! runner ends for any reason, the server fails its open requests with an error that states the
//! cause.
//!
//! Server side:
//! - `launch` starts the process; `process_exit` describes its end.
//! - `connection` exchanges messages with it.
//!
//! Runner side:
//! - [`worker`] receives tasks and sends their events.
//! - [`sandbox`] gives up all rights that the runner does not need, before it reads a file.
//! - `task_handle` has the state of a task, sends its events, and cancels it.
//! - `prepare` turns a task into an engine request; `prompt` and `templates` render its prompt.
//! - `public_prefix` computes the part of a prompt that all clients share: the model's own system
//!   prompt. `text_limits` rejects texts that are too long before they are tokenized.
//! - `preparer` has the state and the steps that the preparations of all tasks share.
//! - `embed` and `rerank` prepare texts to embed and query–document pairs to score.
//! - `forced`, `answer_limits` and `schema_check` handle constraints of the answer.
//! - `answer_sink` turns the events of the [`runner_model::RunnerModel`] into events.
//! - `local` implements it with this program's engine; `scripted` generates the tokens
//!   of a script.

mod answer_limits;
mod answer_sink;
pub(crate) mod connection;
mod embed;
mod forced;
#[cfg(any(test, fuzzing))]
pub mod hostile_messages;
pub(crate) mod launch;
mod local;
mod prepare;
mod preparer;
pub(crate) mod process_exit;
mod prompt;
pub mod protocol;
pub(crate) mod public_prefix;
mod rerank;
pub mod runner_model;
pub mod sandbox;
mod schema_check;
mod scripted;
mod task_handle;
pub(crate) mod templates;
#[cfg(test)]
pub(crate) mod tests;
mod text_limits;
pub mod worker;

pub(crate) use local::log_devices;
pub(crate) use prompt::prompt_message;
pub(crate) use text_limits::MAX_TEXT_BYTES;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Argument before the path of the script that the runner's model plays.
pub(crate) const SCRIPT_FLAG: &str = "--script";

/// Runs a runner on this process's standard input until the server closes it.
///
/// The hidden subcommand `runner` calls this function. `args` are the arguments after the
/// subcommand: none, or `SCRIPT_FLAG` and the path of a script.
///
/// # Errors
/// Standard input is not a socket, the server speaks another version of the protocol, or the script
/// cannot be read.
pub fn main(args: &[String]) -> io::Result<()> {
    let mut script_folders = Vec::new();
    let loader: Box<dyn runner_model::Loader> = match args {
        [] => Box::new(local::LocalLoader),
        [word, path] if word == SCRIPT_FLAG => {
            // A script that changes is another file with the same name, so the rule is for its
            // folder.
            let folder = Path::new(path).parent().unwrap_or(Path::new("."));
            script_folders.push(folder.to_owned());
            Box::new(scripted::ScriptLoader::open(path.into()).map_err(io::Error::other)?)
        }
        [arg, ..] => {
            let message = format!("unexpected argument {arg:?}: only the server starts runners");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    };
    abort_on_engine_panic();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mode = sandbox::inherited_mode();
    worker::run(socket, &*loader, |spec| sandbox::enter(mode, &spec.paths(), &script_folders))
}

/// Log level that the server gave this runner: 0, 1 (debug) or 2 (trace).
pub fn debug_level() -> u8 {
    let level = std::env::var(sandbox::environment::DEBUG_VARIABLE);
    level.ok().and_then(|level| level.parse().ok()).unwrap_or(0)
}

/// Makes a panic of the engine thread abort the process, because its requests would otherwise wait
/// forever. The server reports the panic's message to them and starts a new runner for the next
/// request.
fn abort_on_engine_panic() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        if std::thread::current().name() == Some(puna_engine::THREAD) {
            std::process::abort();
        }
    }));
}

/// Checks that a weights file can be loaded with its adapters. Returns the reason if it cannot, or
/// an optional warning.
pub(crate) fn check_model(weights: &Path, adapters: &[PathBuf]) -> Result<Option<String>, String> {
    local::check_model(weights, adapters)
}

/// Checks that a draft model fits a weights file. Returns the reason if it does not.
pub(crate) fn check_draft(weights: &Path, draft: &Path) -> Result<(), String> {
    local::check_draft(weights, draft)
}

/// Checks that a text is a valid Go template. Returns the parse error if it is not.
pub(crate) fn check_template(text: &str) -> Result<(), String> {
    puna_prompt::Template::parse(puna_prompt::TemplateFormat::Go, text)
        .map(drop)
        .map_err(|e| e.to_string())
}

/// Returns the built-in template that matches the template and the special tokens of a weights
/// file.
pub(crate) fn detect_template(
    file: &puna_store::FileTemplate,
) -> Option<puna_store::NamedTemplate> {
    puna_prompt::NamedTemplate::detect(&file.source, &file.bos, &file.eos).map(owned_template)
}

/// Returns the built-in template with this name.
pub(crate) fn named_template(name: &str) -> Option<puna_store::NamedTemplate> {
    puna_prompt::NamedTemplate::by_name(name).map(owned_template)
}

fn owned_template(template: &puna_prompt::NamedTemplate) -> puna_store::NamedTemplate {
    puna_store::NamedTemplate {
        name: template.name.to_owned(),
        template: template.source.to_owned(),
        stop: template.stop.iter().map(|&text| text.to_owned()).collect(),
    }
}
