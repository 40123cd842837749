//! `puna serve`, and `puna runner`, which a server starts for each model.

use std::io::IsTerminal;

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
        let listener = puna_server::listen(&config.address).await?;
        puna_server::serve(config, listener, asked_to_end()).await?;
        Ok(())
    })
}

pub fn runner(args: &[String]) -> Result<()> {
    log(Config::from_env().map_or(0, |config| config.debug));
    Ok(puna_server::runner::main(args)?)
}

/// Ctrl-C, or what `kill` sends.
async fn asked_to_end() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminated) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupted => {}
                _ = terminated.recv() => {}
            }
            return;
        }
    }
    let _ = interrupted.await;
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
        .try_init();
}
