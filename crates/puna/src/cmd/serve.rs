//! `puna serve`, and `puna runner`, which a server starts for each model.

use std::io::{self, IsTerminal};

use anyhow::Result;
use puna_server::Config;
use puna_server::speculate::Wish;
use tracing_subscriber::EnvFilter;

use crate::cli::ServeArgs;

pub fn run(args: &ServeArgs) -> Result<()> {
    let mut config = Config::from_env()?;
    if let Some(how) = &args.speculate {
        config.speculate = Wish::parse(how);
    }
    config.deterministic |= args.deterministic;
    log(config.debug);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        // Before anybody can connect: from then on a signal is a wish, which does not kill.
        let end = asked_to_end()?;
        let listener = puna_server::listen(&config.address).await?;
        puna_server::serve(config, listener, end).await?;
        Ok(())
    })
}

pub fn runner(args: &[String]) -> Result<()> {
    log(Config::from_env().map_or(0, |config| config.debug));
    Ok(puna_server::runner::main(args)?)
}

/// Ctrl-C, or what `kill` sends; both are heard from the call on.
#[cfg(unix)]
fn asked_to_end() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    })
}

/// Ctrl-C.
#[cfg(not(unix))]
fn asked_to_end() -> io::Result<impl Future<Output = ()>> {
    Ok(async { drop(tokio::signal::ctrl_c().await) })
}

/// Logs to standard error: 0 what matters, 1 what helps to find errors, 2 everything.
fn log(debug: u8) {
    let level = match debug {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    // Other people's crates are quiet until everything is asked for.
    let filter = EnvFilter::new(if debug > 1 {
        level.to_owned()
    } else {
        format!("warn,puna={level},puna_server={level},puna_store={level},puna_engine={level}")
    });
    // A second one, set by whoever embeds this, is fine.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // They would go to standard error too, by a macro that panics where nobody reads it any more.
        .log_internal_errors(false)
        .try_init();
}
