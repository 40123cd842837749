//! The HTTP server: three API dialects over one canonical request, a model scheduler, and one
//! runner process per loaded model.
//!
//! [`serve`] answers requests on a listener until shutdown. [`listen`] opens the listener and
//! reports which program occupies a port. [`runner::main`] implements the hidden subcommand
//! `runner` of the program, [`file_worker::main`] the hidden subcommand `worker`.
//!
//! A request passes these modules: [`http`] (connections, bodies) → `middleware` (origin, host,
//! route table, API keys of [`auth`]) → `routes` → `api` (to a [`canonical`] request) →
//! `models::manager` with its pure [`model_scheduler`] (chooses a runner) → [`runner`] (prompt,
//! engine). Its events return to the dialect in `api`, which encodes them.

#![forbid(unsafe_code)]

mod api;
mod app;
pub mod auth;
pub mod canonical;
pub mod config;
mod error;
pub mod file_worker;
pub mod http;
mod metrics;
mod middleware;
pub mod mirror;
pub mod model_scheduler;
mod models;
mod openapi;
mod options;
mod remote;
mod routes;
pub mod runner;
mod script;
pub mod shared_tables;
mod util;
mod version;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

pub use api::ollama::library::stored_models;
pub use config::{Address, Config, ConfigError, MirrorConfig, TlsFiles, Warning};
pub use error::ServeError;
pub use http::listen::{ListenError, listen};
pub use models::memory::read as memory;
pub use models::registry_client_settings::{
    read_in_worker as read_packages_in_worker, settings as registry_settings,
};
pub use options::speculate;
pub use runner::sandbox::SandboxMode;
pub use version::{OLLAMA_VERSION, VERSION};

/// Answers requests until `end` is ready, then gives running requests a few seconds and unloads all
/// models. For programs that embed the server.
///
/// # Errors
/// The models directory cannot be read, or the listener has no address.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let launcher =
        Arc::new(runner::launch::ProcessLauncher::this_program(config.debug, config.sandbox)?);
    run_app(app::App::new(config, launcher)?, listener, end, mpsc::channel(1).1).await
}

/// Like [`serve`], for the server program. It also creates the blobs directory and, unless pruning
/// is disabled, removes unreferenced files. A message on `reload` makes it check the key and
/// certificate files at once. Requests trigger that check at most once a second.
///
/// # Errors
/// Like [`serve`].
pub async fn serve_reloading(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    reload: mpsc::Receiver<()>,
) -> Result<(), ServeError> {
    let launcher =
        Arc::new(runner::launch::ProcessLauncher::this_program(config.debug, config.sandbox)?);
    let app = app::App::new(config, launcher)?;
    app.create_blobs_dir();
    app.clean_up();
    run_app(app, listener, end, reload).await
}

/// Like [`serve`], with a model `script` that generates the answers of a script file, for tests of
/// clients. All other models of this server follow the script too.
///
/// # Errors
/// Like [`serve`]; also if the file is not a valid script.
pub async fn serve_scripted(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    path: PathBuf,
) -> Result<(), ServeError> {
    let (_, read) = script::ScriptFile::open(path.clone(), script::ScriptPlayer::Model)?;
    let mut launcher = runner::launch::ProcessLauncher::this_program(config.debug, config.sandbox)?;
    launcher.args.extend([runner::SCRIPT_FLAG.to_owned(), path.to_string_lossy().into_owned()]);
    let app = app::App::new(config, Arc::new(launcher))?;
    app.create_blobs_dir();
    script::install(app.shared_store(), read.window)?;
    run_app(app, listener, end, mpsc::channel(1).1).await
}

/// Serves OpenAI's chat dialect from a script file, as an upstream server, until `end` is ready.
///
/// # Errors
/// The file is not a valid script.
pub async fn serve_scripted_upstream(
    listener: TcpListener,
    end: impl Future<Output = ()>,
    path: PathBuf,
) -> Result<(), ServeError> {
    let (script, read) = script::ScriptFile::open(path, script::ScriptPlayer::Upstream)?;
    let handler = Arc::new(script::upstream::ScriptedUpstream::new(script, read.window));
    let config = http::serve::ConnectionConfig { handler, tls: None, write_timeout: None };
    http::serve::run(listener, config, mpsc::channel(1).1, end, async {}).await;
    Ok(())
}

#[cfg(test)]
pub(crate) async fn serve_with(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    launcher: Arc<dyn runner::launch::Launcher>,
) -> Result<(), ServeError> {
    run_app(app::App::new(config, launcher)?, listener, end, mpsc::channel(1).1).await
}

async fn run_app(
    app: app::App,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    reload: mpsc::Receiver<()>,
) -> Result<(), ServeError> {
    let (address, config) = (listener.local_addr()?, app.config());
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if config.sandbox == SandboxMode::Off {
        tracing::warn!(
            "the sandbox is off (sandbox = \"off\"): an error in a model file may give its author the rights of this user"
        );
    }
    let write_timeout = config.write_timeout;
    let tls = config.tls.as_ref().map(http::tls::Tls::new).transpose()?.map(Arc::new);
    let authorizer = auth::authorizer::Authorizer::new(&app.config().keys)?;
    if !address.ip().is_loopback() && !authorizer.has_keys() {
        tracing::warn!(
            %address,
            "everyone who can reach this address can use the models; `puna key add NAME` creates an API key, which is then required"
        );
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(address = %format_args!("{scheme}://{address}"), models = %app.config().models.display(), version = VERSION, "listening");
    runner::log_devices(app.config().threads, app.config().kernels.clone());
    let authorizer = Arc::new(authorizer);
    let registry = match app.config().mirror.serve {
        true => {
            let (store, client) = (app.shared_store().clone(), app.registry().clone());
            let registry =
                mirror::MirrorService::new(store, client, app.config(), authorizer.clone()).await?;
            app.serve_mirror(registry.clone());
            Some(registry)
        }
        false => None,
    };
    let handler = Arc::new(middleware::Middleware::new(
        app.clone(),
        routes::all(),
        authorizer,
        address,
        registry,
    ));
    let config = http::serve::ConnectionConfig { handler, tls, write_timeout };
    let mut failure = None;
    let shutdown_requested = async {
        // Without its model manager the server can only refuse requests. The process ends so that a
        // supervisor restarts it.
        tokio::select! {
            () = end => {}
            reason = app.models().wait_for_failure() => failure = Some(reason),
        }
    };
    http::serve::run(listener, config, reload, shutdown_requested, app.shutdown()).await;
    if let Some(mirror) = app.mirror() {
        mirror.flush().await;
    }
    failure.map_or(Ok(()), |reason| Err(ServeError::Broken(reason)))
}
