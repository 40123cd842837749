//! Selects the model for an agent: the named one, else the last launched one, else a loaded or
//! stored one. Without a stored model, it offers to pull a model that fits.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use puna_api::ollama::{ModelSummary, ShowRequest, ShowResponse};
use serde_json::{Value, json};

use super::catalog::{Suggestion, fitting};
use crate::cmd::copy_remove_stop::is_not_found;
use crate::cmd::transfer::fetch;
use crate::format;
use crate::service::Service;

/// Number of suggestions in the menu.
const MAX_SUGGESTIONS: usize = 4;

/// The selected model and its details.
pub struct SelectedModel {
    /// Name of the model.
    pub name: String,
    /// Details from the server.
    pub info: ShowResponse,
}

/// Selects a model. With `asks`, offers to pull a missing one.
///
/// # Errors
/// No model is available, or the server does not answer.
pub fn choose(
    service: &Service,
    title: &str,
    min: u64,
    named: Option<&str>,
    asks: bool,
) -> Result<SelectedModel> {
    if let Some(name) = named {
        return match show(service, name) {
            Err(error) if is_not_found(&error) => pull_named(service, name, asks),
            info => Ok(SelectedModel { name: name.to_owned(), info: info? }),
        };
    }
    let last = last_used();
    for name in last.iter().cloned().chain(candidates(service)?) {
        // A listed model may have been removed since, or be broken.
        let Ok(info) = show(service, &name) else { continue };
        let is_large = trained_context(&info).is_none_or(|trained| trained >= min);
        if can(&info, "tools")
            && can(&info, "completion")
            && (is_large || last.as_ref() == Some(&name))
        {
            return Ok(SelectedModel { name, info });
        }
    }
    offer_pull(service, title, min, asks)
}

/// Whether a model has a capability.
pub fn can(info: &ShowResponse, capability: &str) -> bool {
    info.capabilities.iter().any(|other| other == capability)
}

fn show(service: &Service, name: &str) -> Result<ShowResponse> {
    let request = ShowRequest { model: name.to_owned(), ..ShowRequest::default() };
    service.wait(service.client().show(&request))
}

/// Context length of the training, in tokens, if known.
fn trained_context(info: &ShowResponse) -> Option<u64> {
    let architecture = info.model_info.get("general.architecture")?.as_str()?;
    info.model_info.get(&format!("{architecture}.context_length"))?.as_u64()
}

/// Names of candidate models in order of preference: loaded ones, the last to be unloaded first,
/// then stored ones, the newest first.
fn candidates(service: &Service) -> Result<Vec<String>> {
    let mut loaded = service.wait(service.client().ps())?.models;
    loaded.sort_by(|a, b| b.expires_at.cmp(&a.expires_at));
    let stored = service.wait(service.client().list())?.models;
    // A server without capabilities in its list reports them per model.
    let may_call = |model: &&ModelSummary| {
        model.capabilities.is_empty()
            || model.capabilities.iter().any(|capability| capability == "tools")
    };
    let stored = stored.iter().filter(may_call).map(|model| model.name.clone());
    Ok(loaded.into_iter().map(|model| model.name).chain(stored).collect())
}

fn pull_named(service: &Service, name: &str, asks: bool) -> Result<SelectedModel> {
    if !asks {
        bail!("the model {name} is not stored: fetch it with `puna pull {name}`");
    }
    let question = format!("The model {name} is not stored. Pull it? [y/N] ");
    let answer = ask(&question, &mut std::io::stdin().lock(), &mut crate::out::stderr())?;
    if !matches!(answer.as_str(), "y" | "Y" | "yes") {
        bail!("the model {name} is not stored");
    }
    pull_and_show(service, name)
}

fn pull_and_show(service: &Service, name: &str) -> Result<SelectedModel> {
    fetch(service, name, false)?;
    Ok(SelectedModel { name: name.to_owned(), info: show(service, name)? })
}

/// Offers recommended models that fit this machine.
fn offer_pull(service: &Service, title: &str, min: u64, asks: bool) -> Result<SelectedModel> {
    let none = format!(
        "no stored model can call tools with a context of {min} tokens, which {title} needs"
    );
    if !service.is_local() {
        bail!(
            "{none}: pull one on the server {}, or name one with --model",
            service.client().base()
        );
    }
    let memory = puna_server::memory().total;
    let fitting = fitting(memory, min);
    let Some((best, _)) = fitting.first() else {
        bail!(
            "{none}, and no suggested model fits in {}: name one with --model",
            format::bytes(memory)
        );
    };
    if !asks {
        bail!(
            "{none}: `puna pull {0}` fetches one that fits this machine ({1}), or name another one with --model",
            best.name,
            best.purpose
        );
    }
    let text = format!("{}\n{}", sentence(&none), menu(memory, &fitting));
    let answer = ask(&text, &mut std::io::stdin().lock(), &mut crate::out::stderr())?;
    match parse_selection(&answer, &fitting) {
        Some(model) => pull_and_show(service, &model.name),
        None => bail!("{none}: name one with --model"),
    }
}

/// Formats a message as a sentence.
fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// The menu of models that fit, and the question.
fn menu(memory: u64, fitting: &[(Suggestion, u64)]) -> String {
    let row = |(at, (model, window)): (usize, &(Suggestion, u64))| {
        let numbers = [
            format!("{}", at + 1),
            model.name.clone(),
            format::bytes(model.size),
            window.to_string(),
        ];
        numbers.into_iter().chain([model.purpose.clone()]).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> =
        fitting.iter().take(MAX_SUGGESTIONS).enumerate().map(row).collect();
    let table = format::table(&["", "NAME", "SIZE", "CONTEXT", "PURPOSE"], &rows);
    format!(
        "These fit this machine ({}):\n\n{table}\nPull which one? [1, or n] ",
        format::bytes(memory)
    )
}

/// The model that the user selected by number or name. An empty answer selects the first.
fn parse_selection<'a>(answer: &str, fitting: &'a [(Suggestion, u64)]) -> Option<&'a Suggestion> {
    let answer = if answer.is_empty() { "1" } else { answer };
    let by_number = answer.parse::<usize>().ok().and_then(|number| {
        fitting[..MAX_SUGGESTIONS.min(fitting.len())].get(number.checked_sub(1)?)
    });
    let by_name = || fitting.iter().find(|(model, _)| model.name == answer);
    by_number.or_else(by_name).map(|(model, _)| model)
}

/// Prints a question and reads the answer line.
fn ask(question: &str, terminal: &mut impl BufRead, screen: &mut impl Write) -> Result<String> {
    write!(screen, "{question}")?;
    screen.flush()?;
    let mut answer = String::new();
    terminal.read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// Whether a user can answer questions on a terminal.
pub fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// File with the name of the last launched model.
fn state_file() -> Option<PathBuf> {
    let given =
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = given.or_else(|| Some(crate::env::home()?.join(".local/state")))?;
    Some(folder.join("puna/launch.json"))
}

/// Name of the last launched model.
fn last_used() -> Option<String> {
    let text = std::fs::read_to_string(state_file()?).ok()?;
    let state: Value = serde_json::from_str(&text).ok()?;
    state["model"].as_str().map(str::to_owned)
}

/// Stores the model's name for the next launch.
///
/// # Errors
/// The file cannot be written.
pub fn remember(model: &str) -> Result<()> {
    let path = state_file().context("cannot find the home directory")?;
    if last_used().as_deref() == Some(model) {
        return Ok(());
    }
    let text = format!("{:#}\n", json!({"model": model}));
    let written = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(&path, text));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suggestion_is_selected_by_number_or_name() {
        let fitting = fitting(64_000_000_000, 32_768);
        let name = |answer: &str| parse_selection(answer, &fitting).map(|model| model.name.clone());
        assert_eq!(name(""), Some(fitting[0].0.name.clone()));
        assert_eq!(name("2"), Some(fitting[1].0.name.clone()));
        assert_eq!(name("qwen3.5:9b"), Some("qwen3.5:9b".into()));
        for none in ["n", "0", "5", "99999999999999999999", "-1", "nothing"] {
            assert_eq!(name(none), None, "{none}");
        }
    }

    #[test]
    fn the_menu_has_numbers_sizes_windows_and_purposes() {
        let text = menu(32_000_000_000, &fitting(32_000_000_000, 32_768));
        let second = text.lines().find(|line| line.starts_with('2')).unwrap();
        assert!(
            second.contains("qwen3-coder:30b")
                && second.contains("18 GB")
                && second.contains("made for"),
            "{text}"
        );
        assert!(text.ends_with("Pull which one? [1, or n] "), "{text}");
    }
}
