//! The HTTP server: three dialects on one canonical request, a scheduler of models, a process for each of them.
//!
//! [`serve`] answers requests on a listener until told to end; [`listen`] opens one and says by whom a port is taken;
//! [`runner::main`] is what the hidden subcommand `runner` of the program does.
//!
//! A request goes through these rooms: [`http`] (origins, hosts, paths, bodies) → `routes` → `dialect` (to a
//! [`canonical`] request) → `manager` with its pure [`scheduler`] (which runner) → [`runner`] (prompt, engine), and its
//! events come back to the dialect, which encodes them.

#![forbid(unsafe_code)]

mod app;
pub mod canonical;
pub mod config;
mod dialect;
mod figures;
pub mod http;
pub mod keys;
mod lock;
mod manager;
mod memory;
mod names;
mod options;
mod routes;
pub mod runner;
pub mod scheduler;
mod show;
pub mod speculate;

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;

pub use config::{Address, Config, ConfigError, Warning};
pub use http::serve::{ListenError, listen};

/// Version of Ollama's interface that is spoken; clients switch features on by it.
pub const OLLAMA_VERSION: &str = "0.34.2";

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The folder of models cannot be used.
    #[error(transparent)]
    Store(#[from] puna_store::StoreError),
    /// The system refuses something.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The API keys cannot be used.
    #[error(transparent)]
    Keys(#[from] keys::KeyError),
}

/// Answers requests until `end` is ready, then gives running ones a few seconds and unloads all models.
///
/// # Errors
/// The folder of models cannot be read, or the listener has no address.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let launcher = Arc::new(runner::launch::ProcessLauncher::this_program()?);
    serve_with(config, listener, end, launcher).await
}

pub(crate) async fn serve_with(
    config: Config,
    listener: TcpListener,
    end: impl Future<Output = ()>,
    launcher: Arc<dyn runner::launch::Launcher>,
) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let write_timeout = config.write_timeout;
    let app = app::App::new(config, launcher)?;
    let guard = keys::guard::Guard::new(&app.config().keys)?;
    if !address.ip().is_loopback() && !guard.has_keys() {
        tracing::warn!(
            %address,
            "everybody who can reach this address can use the models: `puna key add NAME` makes an API key, and then \
             nobody gets in without one"
        );
    }
    tracing::info!(%address, models = %app.config().models.display(), version = VERSION, "listening");
    let door = http::door::Door::new(app.clone(), guard, address);
    http::serve::run(listener, door, write_timeout, end, app.models().shutdown()).await;
    Ok(())
}
