//! `puna serve`, and the processes that it starts: `puna runner` for each model, and `puna worker`
//! for each job on untrusted files.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Result, bail};
use puna_server::Config;
use puna_server::config::Source;
use tokio::sync::{mpsc, oneshot};
use tracing_subscriber::EnvFilter;

use crate::cli::{ServeArgs, SettingArgs};

pub fn run(args: &ServeArgs) -> Result<()> {
    let mut flags = Vec::new();
    flags.extend(args.speculate.iter().map(|how| ("speculate", how.clone())));
    flags.extend(args.deterministic.then(|| ("deterministic", "true".into())));
    let config = super::config::load(&args.settings, flags)?;
    init_logging(config.debug);
    check(&config)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        // The handlers are installed before a client can connect, so that from then on a signal
        // shuts the server down cleanly.
        let (end, reload) = (shutdown_signal()?, reload_signal()?);
        let listener = puna_server::listen(&config.address, "OLLAMA_HOST").await?;
        puna_server::serve_reloading(config, listener, end, reload).await?;
        Ok(())
    })
}

/// `puna mirror`: `--host` sets the mirror's listen address.
pub fn mirror(mut args: SettingArgs) -> Result<()> {
    let flags = args.host.take().map(|host| ("mirror.host", host));
    let config = super::config::load(&args, flags.into_iter().collect())?;
    init_logging(config.debug);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let (end, reload) = (shutdown_signal()?, reload_signal()?);
        let listener = puna_server::listen(&config.mirror.address, "PUNA_MIRROR_HOST").await?;
        puna_server::mirror::serve(config, listener, end, reload).await?;
        Ok(())
    })
}

/// `puna debug script`.
pub fn scripted(args: &SettingArgs, script: PathBuf, upstream: bool) -> Result<()> {
    let config = super::config::load(args, Vec::new())?;
    init_logging(config.debug);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let end = shutdown_signal()?;
        let listener = puna_server::listen(&config.address, "OLLAMA_HOST").await?;
        match upstream {
            true => puna_server::serve_scripted_upstream(listener, end, script).await?,
            false => puna_server::serve_scripted(config, listener, end, script).await?,
        }
        Ok(())
    })
}

pub fn runner(args: &[String]) -> Result<()> {
    init_logging(puna_server::runner::debug_level());
    Ok(puna_server::runner::main(args)?)
}

pub fn worker() -> Result<()> {
    init_logging(puna_server::runner::debug_level());
    Ok(puna_server::file_worker::main()?)
}

/// Refuses an address scheme that contradicts the certificate settings before a client connects.
fn check(config: &Config) -> Result<()> {
    let by = || match config.source("host") {
        Source::Default => "host".to_owned(),
        Source::File(..) | Source::Flag => format!("host ({})", config.source("host")),
        Source::Variable(name) => name.clone(),
    };
    match (config.address.scheme.as_str(), &config.tls) {
        ("https", None) => bail!(
            "{} begins with https://, but no certificate is set: set tls.certificate and tls.key, or remove https://",
            by()
        ),
        ("http", Some(_)) => {
            bail!(
                "{} begins with http://, but tls.certificate is set: use https://, or leave out the scheme",
                by()
            )
        }
        _ => Ok(()),
    }
}

/// Receives SIGHUP, with which service managers request a reload of the settings.
#[cfg(unix)]
fn reload_signal() -> io::Result<mpsc::Receiver<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hung_up = signal(SignalKind::hangup())?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while hung_up.recv().await.is_some() && sender.send(()).await.is_ok() {}
    });
    Ok(receiver)
}

/// The system has no SIGHUP.
#[cfg(not(unix))]
fn reload_signal() -> io::Result<mpsc::Receiver<()>> {
    Ok(mpsc::channel(1).1)
}

/// Completes at SIGINT or SIGTERM; the handlers are active when the call returns. A second signal
/// ends the process at once. The runners exit when their connections close.
#[cfg(unix)]
fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (first, heard) = oneshot::channel();
    tokio::spawn(async move {
        let mut signal = async || {
            tokio::select! {
                _ = interrupted.recv() => SignalKind::interrupt(),
                _ = terminated.recv() => SignalKind::terminate(),
            }
        };
        signal().await;
        tracing::info!(
            "shutting down; running requests have a few seconds, a second signal exits now"
        );
        let _ = first.send(());
        let again = signal().await;
        tracing::warn!("second signal received; exiting now");
        std::process::exit(128 + again.as_raw_value());
    });
    Ok(async { drop(heard.await) })
}

/// Completes at Ctrl-C.
#[cfg(not(unix))]
fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let (first, heard) = oneshot::channel();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        let _ = first.send(());
        let _ = tokio::signal::ctrl_c().await;
        tracing::warn!("second signal received; exiting now");
        std::process::exit(1);
    });
    Ok(async { drop(heard.await) })
}

/// Initialises logging to standard error: level 0 logs important events, 1 details for debugging, 2
/// everything.
fn init_logging(debug: u8) {
    let level = match debug {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    // Other crates log only at level 2. All crates of this project have names that begin with
    // `puna`.
    let filter =
        EnvFilter::new(if debug > 1 { level.to_owned() } else { format!("warn,puna={level}") });
    // A program that embeds this one may have set a logger already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // Internal errors would go to standard error by a macro that panics if it is closed.
        .log_internal_errors(false)
        .try_init();
}
