//! The HTTP server: three dialects on one canonical request, a scheduler of models, a process for each of them.
//!
//! [`serve`] answers requests on a listener until told to end; [`listen`] opens one and says by whom a port is taken;
//! [`runner::main`] is what the hidden subcommand `runner` of the program does.
//!
//! A request goes through these rooms: [`http`] (connections, bodies) → `door` (origins, hosts, the `table` of paths, keys) →
//! `routes` → `dialect` (to a [`canonical`] request) → `manager` with its pure [`scheduler`] (which runner) → [`runner`] (prompt, engine), and its
//! events come back to the dialect, which encodes them.

#![forbid(unsafe_code)]

mod app;
pub mod canonical;
pub mod config;
mod dialect;
mod diffusion;
mod door;
mod end;
mod error;
mod figures;
pub mod http;
mod ids;
mod kept;
pub mod keys;
mod links;
mod lock;
mod manager;
mod memory;
pub mod mirror;
mod names;
mod openapi;
mod options;
mod panics;
mod paragraphs;
mod places;
mod plans;
mod prometheus;
mod registry;
mod remote;
mod request;
mod routes;
pub mod runner;
pub mod scheduler;
mod script;
pub mod speculate;
mod table;
mod tidy;
mod turns;
mod version;
mod window;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

pub use config::{Address, Config, ConfigError, MirrorConfig, TlsFiles, Warning};
pub use error::ServeError;
pub use http::listen::{ListenError, listen};
pub use memory::read as memory;
pub use registry::settings as registry_settings;
pub use routes::stored_models;
pub use version::{OLLAMA_VERSION, VERSION};

/// Answers requests until `end` is ready, then gives running ones a few seconds and unloads all models. For programs that
/// have a server for themselves.
///
/// # Errors
/// The folder of models cannot be read, or the listener has no address.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let launcher = Arc::new(runner::launch::ProcessLauncher::this_program()?);
    answer(app::App::new(config, launcher)?, listener, end, mpsc::channel(1).1).await
}

/// The same for everybody: makes the folder of blobs, clears away what no model uses, unless that is not wanted, and looks at the files of API keys and of the certificate whenever something comes from `reload`, besides every
/// second in which somebody asks.
///
/// # Errors
/// As those of [`serve`].
pub async fn serve_reloading(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    reload: mpsc::Receiver<()>,
) -> Result<(), ServeError> {
    let launcher = Arc::new(runner::launch::ProcessLauncher::this_program()?);
    let app = app::App::new(config, launcher)?;
    app.make_folder();
    app.clean_up();
    answer(app, listener, end, reload).await
}

/// As [`serve`], with a model `script` that says what the script in a file tells it, for tests of clients. All other models of
/// this server say it, too.
///
/// # Errors
/// As those of [`serve`], and the file is no script.
pub async fn serve_scripted(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    path: PathBuf,
) -> Result<(), ServeError> {
    let (_, read) = script::ScriptFile::open(path.clone(), script::Player::Model)?;
    let mut launcher = runner::launch::ProcessLauncher::this_program()?;
    launcher.args.extend([runner::SCRIPT.to_owned(), path.to_string_lossy().into_owned()]);
    let app = app::App::new(config, Arc::new(launcher))?;
    app.make_folder();
    script::install(app.shared_store(), read.window)?;
    answer(app, listener, end, mpsc::channel(1).1).await
}

/// Plays an upstream server of OpenAI's chat dialect that answers as the script in a file says, until `end` is ready.
///
/// # Errors
/// The file is no script.
pub async fn serve_scripted_upstream(
    listener: TcpListener,
    end: impl Future<Output = ()>,
    path: PathBuf,
) -> Result<(), ServeError> {
    let (script, read) = script::ScriptFile::open(path, script::Player::Upstream)?;
    let desk = Arc::new(script::upstream::Upstream::new(script, read.window));
    let manner = http::serve::Manner { desk, tls: None, write_timeout: None };
    http::serve::run(listener, manner, mpsc::channel(1).1, end, async {}).await;
    Ok(())
}

#[cfg(test)]
pub(crate) async fn serve_with(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    launcher: Arc<dyn runner::launch::Launcher>,
) -> Result<(), ServeError> {
    answer(app::App::new(config, launcher)?, listener, end, mpsc::channel(1).1).await
}

async fn answer(
    app: app::App,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    reload: mpsc::Receiver<()>,
) -> Result<(), ServeError> {
    let (address, config) = (listener.local_addr()?, app.config());
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let write_timeout = config.write_timeout;
    let tls = config.tls.as_ref().map(http::tls::Tls::new).transpose()?.map(Arc::new);
    let guard = keys::guard::Guard::new(&app.config().keys)?;
    if !address.ip().is_loopback() && !guard.has_keys() {
        tracing::warn!(
            %address,
            "everybody who can reach this address can use the models: `puna key add NAME` makes an API key, and then \
             nobody gets in without one"
        );
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(address = %format_args!("{scheme}://{address}"), models = %app.config().models.display(), version = VERSION, "listening");
    let guard = Arc::new(guard);
    let registry = match app.config().mirror.serve {
        true => {
            let (store, client) = (app.shared_store().clone(), app.registry().clone());
            let registry =
                mirror::Registry::new(store, client, app.config(), guard.clone()).await?;
            app.serve_mirror(registry.clone());
            Some(registry)
        }
        false => None,
    };
    let desk = Arc::new(door::Door::new(app.clone(), routes::all(), guard, address, registry));
    let manner = http::serve::Manner { desk, tls, write_timeout };
    let mut broken = None;
    let ends = async {
        // A server without models would only refuse everything: its process ends, for somebody to start it again.
        tokio::select! {
            () = end => {}
            reason = app.models().broken() => broken = Some(reason),
        }
    };
    http::serve::run(listener, manner, reload, ends, app.shutdown()).await;
    if let Some(mirror) = app.mirror() {
        mirror.rest().await;
    }
    broken.map_or(Ok(()), |reason| Err(ServeError::Broken(reason)))
}
