//! `puna config`: shows the settings and their sources.

use anyhow::Result;
use puna_server::config::{HostSettings, Setting, Source, check_key};
use puna_server::{Config, ConfigError};
use serde_json::json;

use crate::cli::{ConfigArgs, SettingArgs};
use crate::{out, usage};

pub fn run(args: &ConfigArgs) -> Result<()> {
    let config = load(&args.settings, Vec::new())?;
    for warning in &config.warnings {
        out::note(format_args!("warning: {warning}"));
    }
    let file = config.file.as_ref().map(|path| path.display().to_string());
    if args.json {
        let one =
            |s: &Setting| json!({"key": s.key, "value": s.value, "source": s.source.to_string()});
        let settings: Vec<_> = config.settings.iter().map(one).collect();
        let host = |table: &HostSettings| {
            let settings: Vec<_> = table.settings.iter().map(one).collect();
            json!({"host": table.host, "settings": settings})
        };
        let hosts: Vec<_> = config.host_settings.iter().map(host).collect();
        return out::json(&json!({"file": file, "settings": settings, "hosts": hosts}));
    }
    out::text(&format!("# Configuration file: {}\n", file.as_deref().unwrap_or("none")))?;
    out::text(&config.settings.iter().map(line).collect::<String>())?;
    out::text(&config.host_settings.iter().map(table).collect::<String>())
}

/// Settings of a registry, in the syntax of the configuration file.
fn table(host: &HostSettings) -> String {
    // A user name without its hidden password would be an invalid setting.
    let hidden = host.settings.iter().any(|setting| setting.hidden);
    let lines = host.settings.iter().map(|setting| {
        let aside = if hidden && setting.key == "username" { "# " } else { "" };
        format!("{aside}{}", line(setting))
    });
    // The debug format of a host, which is ASCII, is a valid TOML string.
    format!("\n[registry.hosts.{:?}]\n{}", host.host, lines.collect::<String>())
}

/// Loads the configuration with the settings of the command line, including `flags`.
pub fn load(args: &SettingArgs, mut flags: Vec<(&'static str, String)>) -> Result<Config> {
    for pair in &args.set {
        let Some((key, value)) = pair.split_once('=') else {
            let text = format!("--set {pair}: use KEY=VALUE, such as --set keep_alive=1h");
            return Err(usage::error(text));
        };
        match check_key(key.trim()) {
            Ok(key) => flags.push((key, value.trim().to_owned())),
            Err(problem) => return Err(usage::error(format!("--set {pair}: {problem}"))),
        }
    }
    flags.extend(args.host.iter().map(|host| ("host", host.clone())));
    Config::with_flags(&flags).map_err(|error| match error {
        ConfigError::Flag { .. } => usage::error(error.to_string()),
        error => error.into(),
    })
}

/// A setting in the syntax of the configuration file, with its source if it is not the default.
fn line(setting: &Setting) -> String {
    let text = match &setting.value {
        Some(value) => format!("{} = {value}", setting.key),
        None if setting.hidden => format!("# {}: set, not shown", setting.key),
        None => format!("# {}: automatic", setting.key),
    };
    match setting.source {
        Source::Default => format!("{text}\n"),
        _ => format!("{text:<40} # {}\n", setting.source),
    }
}
