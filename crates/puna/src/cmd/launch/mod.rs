//! `puna launch`: starts a coding agent with this server, a model and its actual context window,
//! for one run.

mod agent;
mod agents;
mod catalog;
mod choice;
mod claude;
mod codex;
mod opencode;
mod pi;
mod plan;
mod process;
mod qwen;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use puna_api::ollama::ShowResponse;
use puna_api::openai::ModelMeta;
use puna_server::Config;

use crate::cli::LaunchArgs;
use crate::service::{Service, no_port_error};
use crate::{out, usage};
use agent::{Agent, Target};
use agents::{AGENTS, agent};
use choice::{SelectedModel, can};

/// Assumed context window, in tokens, of an unknown client; similar to that of the known agents.
const DEFAULT_CLIENT_WINDOW: u64 = 32_768;

pub fn run(args: &LaunchArgs) -> Result<ExitCode> {
    let known = agent(&args.client);
    let names = || AGENTS.map(|agent| agent.name()).join(", ");
    if args.client.trim().is_empty() {
        return Err(usage::error(format!("the name of the agent is empty: use {}", names())));
    }
    if known.is_none() && !args.print {
        let names = names();
        let client = &args.client;
        return Err(usage::error(format!(
            "cannot start {client:?}: use {names}, or print its settings with `puna launch {client} --print`"
        )));
    }
    let program = known.map(find_agent_program).transpose();
    let (program, missing) = match program {
        Ok(program) => (program, None),
        Err(error) if args.print => (None, Some(error)),
        Err(error) => return Err(error),
    };
    // Printing a plan has no lasting effect and starts no server.
    let service = if args.print {
        Service::connect_or_run_in_process()?
    } else {
        Service::connect_or_start()?
    };
    let config = Config::from_env()?;
    if config.address.port == 0 {
        return Err(no_port_error());
    }
    let asks = !args.print && choice::has_terminal();
    let title = known.map_or(args.client.as_str(), |agent| agent.title());
    let min = known.map_or(DEFAULT_CLIENT_WINDOW, |agent| agent.least_window());
    let chosen = choice::choose(&service, title, min, args.model.as_deref(), asks)?;
    let (target, meta) = target(&service, &config, &chosen)?;
    for warning in warnings(title, min, &target, &meta, &chosen.info) {
        out::note(format_args!("warning: {warning}"));
    }
    if let Some(missing) = missing {
        out::note(format_args!("warning: {missing}"));
    }
    let Some(agent) = known else {
        return done(out::text(&plan::instructions(&args.client, &target)));
    };
    if args.print {
        let folder = std::env::temp_dir().join("puna-launch");
        let setup = agent.setup(&target, &folder)?;
        return done(out::text(&plan::plan(agent, &target, &setup, &args.arguments, &folder)));
    }
    // From here on the agent receives the signals.
    drop(service);
    if let Err(error) = choice::remember(&target.model) {
        out::note(format_args!("warning: cannot store the model for the next launch: {error:#}"));
    }
    let program = program.ok_or_else(|| anyhow!("{title} is not installed"))?;
    let folder = tempfile::Builder::new()
        .prefix("puna-launch-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let setup = agent.setup(&target, folder.path())?;
    let code = process::run(&program, &setup, &args.arguments, folder.path())?;
    Ok(ExitCode::from(code))
}

fn done(printed: Result<()>) -> Result<ExitCode> {
    printed.map(|()| ExitCode::SUCCESS)
}

/// Finds the executable of an agent.
fn find_agent_program(agent: &'static dyn Agent) -> Result<PathBuf> {
    let path = std::env::var_os("PATH");
    let (title, program, install) = (agent.title(), agent.program(), agent.install());
    process::find(program, path.as_deref()).ok_or_else(|| {
        anyhow!(
            "{title} is not installed: no program {program} is on PATH; `{install}` installs it"
        )
    })
}

/// Server and model for an agent, and the sizes of the model.
fn target(
    service: &Service,
    config: &Config,
    chosen: &SelectedModel,
) -> Result<(Target, ModelMeta)> {
    let about = service.wait(service.client().model(&chosen.name))?;
    let target = Target {
        url: config.address.url(),
        key: config.api_key.0.clone().unwrap_or_else(|| plan::NO_KEY.to_owned()),
        model: chosen.name.clone(),
        window: about.context_length,
        thinks: can(&chosen.info, "thinking"),
        accepts_images: can(&chosen.info, "vision"),
    };
    Ok((target, about.meta))
}

/// Reasons why an agent works badly with a model, with remedies.
fn warnings(
    title: &str,
    min: u64,
    target: &Target,
    meta: &ModelMeta,
    info: &ShowResponse,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let model = &target.model;
    if !can(info, "tools") {
        warnings.push(format!(
            "the model {model} cannot call tools, so the server will refuse requests of {title}: choose another with --model"
        ));
    }
    let Some(window) = target.window else {
        warnings.push(format!(
            "the context window of {model} is unknown: {title} uses its own default"
        ));
        return warnings;
    };
    if window >= min {
        return warnings;
    }
    let limited = info.parameters.lines().any(|line| line.trim_start().starts_with("num_ctx"));
    let advice = match meta.n_ctx_train {
        Some(trained) if trained < min => {
            format!("it was trained for {trained}, so choose another model with --model")
        }
        _ if limited => format!(
            "the model sets `PARAMETER num_ctx`, so create one with `FROM {model}` and `PARAMETER num_ctx {}`",
            window_to_request(min, meta)
        ),
        _ => format!(
            "set OLLAMA_CONTEXT_LENGTH={} for `puna serve`, or if memory is the limit, use OLLAMA_KV_CACHE_TYPE=q8_0 or a smaller model",
            window_to_request(min, meta)
        ),
    };
    warnings.push(format!(
        "{title} needs a context window of {min} tokens, and {model} has {window} here: {advice}"
    ));
    warnings
}

/// Window to request: twice the smallest usable one, limited by the model.
fn window_to_request(min: u64, meta: &ModelMeta) -> u64 {
    meta.n_ctx_train.map_or(2 * min, |trained| trained.min(2 * min))
}
