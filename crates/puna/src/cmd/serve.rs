//! `puna serve`, and `puna runner`, which a server starts for each model.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result, bail};
use puna_graph::KvType;
use puna_server::Config;
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;

use crate::cli::ServeArgs;

pub fn run(args: &ServeArgs) -> Result<()> {
    let mut flags = Vec::new();
    flags.extend(args.speculate.iter().map(|how| ("speculate", how.clone())));
    flags.extend(args.deterministic.then(|| ("deterministic", "true".into())));
    let config = super::config::load(&args.settings, flags)?;
    log(config.debug);
    check(&config)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        // Before anybody can connect: from then on a signal is a wish, which does not kill.
        let (end, reload) = (asked_to_end()?, asked_to_reload()?);
        let listener = puna_server::listen(&config.address).await?;
        puna_server::serve_reloading(config, listener, end, reload).await?;
        Ok(())
    })
}

pub fn runner(args: &[String]) -> Result<()> {
    log(Config::from_env().map_or(0, |config| config.debug));
    Ok(puna_server::runner::main(args)?)
}

/// What no model could be loaded with is refused before anybody connects.
fn check(config: &Config) -> Result<()> {
    if let Some(name) = &config.kernels {
        puna_cpu::kernels::level(name).context("PUNA_KERNELS")?;
    }
    match (config.address.scheme.as_str(), &config.tls) {
        ("https", None) => bail!(
            "OLLAMA_HOST begins with https://, but there is no certificate: set tls.certificate and tls.key, or leave https:// away"
        ),
        ("http", Some(_)) => {
            bail!("OLLAMA_HOST begins with http://, but tls.certificate is set: write https:// or neither")
        }
        ("http" | "https", _) => {}
        (other, _) => bail!("OLLAMA_HOST begins with {other}://: it must be http:// or https://"),
    }
    config.kv_cache_type.parse::<KvType>().context("OLLAMA_KV_CACHE_TYPE")?;
    Ok(())
}

/// SIGHUP, by which service managers ask for settings to be read again.
#[cfg(unix)]
fn asked_to_reload() -> io::Result<mpsc::Receiver<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hung_up = signal(SignalKind::hangup())?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move { while hung_up.recv().await.is_some() && sender.send(()).await.is_ok() {} });
    Ok(receiver)
}

/// There is no such signal.
#[cfg(not(unix))]
fn asked_to_reload() -> io::Result<mpsc::Receiver<()>> {
    Ok(mpsc::channel(1).1)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_no_model_could_be_loaded_with_is_refused_by_name() {
        let good = Config::with_models(Path::new("/nowhere"));
        check(&good).unwrap();
        let kernels = Config { kernels: Some("quantum".into()), ..good.clone() };
        let text = format!("{:#}", check(&kernels).unwrap_err());
        assert!(
            text.starts_with("PUNA_KERNELS: this machine has no kernel level `quantum`; it has portable"),
            "{text}"
        );
        let cache = Config { kv_cache_type: "q3_0".into(), ..good };
        let text = format!("{:#}", check(&cache).unwrap_err());
        assert!(text.starts_with("OLLAMA_KV_CACHE_TYPE: ") && text.contains("q8_0"), "{text}");
    }
}
