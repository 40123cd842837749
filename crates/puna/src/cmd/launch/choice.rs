//! Which model an agent gets: the one that is named, else the one that was launched last, else one that is loaded or stored; and where
//! there is none, the offer to pull one that fits.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use puna_api::native::{ModelSummary, ShowRequest, ShowResponse};
use serde_json::{Value, json};

use super::catalog::{Suggestion, fitting};
use crate::cmd::library::is_not_found;
use crate::cmd::transfer::fetch;
use crate::format;
use crate::service::Service;

/// Suggestions that are shown.
const SHOWN: usize = 4;

/// A model with what is known of it.
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// What the server shows of it.
    pub info: ShowResponse,
}

/// Chooses a model. With `asks` this offers to pull one that is missing.
///
/// # Errors
/// There is none, or the server does not answer.
pub fn choose(
    service: &Service,
    title: &str,
    least: u64,
    named: Option<&str>,
    asks: bool,
) -> Result<Chosen> {
    if let Some(name) = named {
        return match show(service, name) {
            Err(error) if is_not_found(&error) => pull_named(service, name, asks),
            info => Ok(Chosen { name: name.to_owned(), info: info? }),
        };
    }
    let last = last_used();
    for name in last.iter().cloned().chain(candidates(service)?) {
        // One of the list may have been removed meanwhile, or be broken.
        let Ok(info) = show(service, &name) else { continue };
        let is_large = trained(&info).is_none_or(|trained| trained >= least);
        if can(&info, "tools")
            && can(&info, "completion")
            && (is_large || last.as_ref() == Some(&name))
        {
            return Ok(Chosen { name, info });
        }
    }
    offer(service, title, least, asks)
}

/// Whether a model has a capability.
pub fn can(info: &ShowResponse, capability: &str) -> bool {
    info.capabilities.iter().any(|other| other == capability)
}

fn show(service: &Service, name: &str) -> Result<ShowResponse> {
    let request = ShowRequest { model: name.to_owned(), ..ShowRequest::default() };
    service.wait(service.client().show(&request))
}

/// The context that a model was trained for, where that is known.
fn trained(info: &ShowResponse) -> Option<u64> {
    let architecture = info.model_info.get("general.architecture")?.as_str()?;
    info.model_info.get(&format!("{architecture}.context_length"))?.as_u64()
}

/// Names of models that may do, the most likely first: loaded ones, the last to be unloaded first, then stored ones, the newest first.
fn candidates(service: &Service) -> Result<Vec<String>> {
    let mut loaded = service.wait(service.client().ps())?.models;
    loaded.sort_by(|a, b| b.expires_at.cmp(&a.expires_at));
    let stored = service.wait(service.client().list())?.models;
    // A server that does not list capabilities shows them.
    let may_call = |model: &&ModelSummary| {
        model.capabilities.is_empty()
            || model.capabilities.iter().any(|capability| capability == "tools")
    };
    let stored = stored.iter().filter(may_call).map(|model| model.name.clone());
    Ok(loaded.into_iter().map(|model| model.name).chain(stored).collect())
}

fn pull_named(service: &Service, name: &str, asks: bool) -> Result<Chosen> {
    if !asks {
        bail!("the model {name} is not stored: fetch it with `puna pull {name}`");
    }
    let question = format!("The model {name} is not stored. Pull it? [y/N] ");
    let answer = ask(&question, &mut std::io::stdin().lock(), &mut std::io::stderr())?;
    if !matches!(answer.as_str(), "y" | "Y" | "yes") {
        bail!("the model {name} is not stored");
    }
    pulled(service, name)
}

fn pulled(service: &Service, name: &str) -> Result<Chosen> {
    fetch(service, name, false)?;
    Ok(Chosen { name: name.to_owned(), info: show(service, name)? })
}

/// Offers models of the list that fit this machine.
fn offer(service: &Service, title: &str, least: u64, asks: bool) -> Result<Chosen> {
    let none =
        format!("no stored model can call tools in a context of {least} tokens, as {title} needs");
    if !service.is_here() {
        bail!(
            "{none}: pull one on the server {}, or name one with --model",
            service.client().base()
        );
    }
    let memory = puna_server::memory().total;
    let fitting = fitting(memory, least);
    let Some((best, _)) = fitting.first() else {
        bail!(
            "{none}, and none of the list fits in {}: name one with --model",
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
    let answer = ask(&text, &mut std::io::stdin().lock(), &mut std::io::stderr())?;
    match picked(&answer, &fitting) {
        Some(model) => pulled(service, &model.name),
        None => bail!("{none}: name one with --model"),
    }
}

/// A message as a sentence.
fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// The list of models that fit, and the question.
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
    let rows: Vec<Vec<String>> = fitting.iter().take(SHOWN).enumerate().map(row).collect();
    let table = format::table(&["", "NAME", "SIZE", "CONTEXT", "PURPOSE"], &rows);
    format!(
        "These fit this machine ({}):\n\n{table}\nPull which one? [1, or n] ",
        format::bytes(memory)
    )
}

/// The model that an answer names by its number or its name; an empty answer is the first.
fn picked<'a>(answer: &str, fitting: &'a [(Suggestion, u64)]) -> Option<&'a Suggestion> {
    let answer = if answer.is_empty() { "1" } else { answer };
    let by_number = answer
        .parse::<usize>()
        .ok()
        .and_then(|number| fitting[..SHOWN.min(fitting.len())].get(number.checked_sub(1)?));
    let by_name = || fitting.iter().find(|(model, _)| model.name == answer);
    by_number.or_else(by_name).map(|(model, _)| model)
}

/// A line that the user types in answer to a question.
fn ask(question: &str, terminal: &mut impl BufRead, screen: &mut impl Write) -> Result<String> {
    write!(screen, "{question}")?;
    screen.flush()?;
    let mut answer = String::new();
    terminal.read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

/// Whether somebody can be asked.
pub fn has_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// The file that has the name of the model that was launched last.
fn state_file() -> Option<PathBuf> {
    let given =
        std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = given.or_else(|| Some(crate::env::home()?.join(".local/state")))?;
    Some(folder.join("puna/launch.json"))
}

/// The model that was launched last.
fn last_used() -> Option<String> {
    let text = std::fs::read_to_string(state_file()?).ok()?;
    let state: Value = serde_json::from_str(&text).ok()?;
    state["model"].as_str().map(str::to_owned)
}

/// Remembers a model for the next launch.
///
/// # Errors
/// The file cannot be written.
pub fn remember(model: &str) -> Result<()> {
    let path = state_file().context("there is no home folder")?;
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
    fn a_suggestion_is_picked_by_number_or_name() {
        let fitting = fitting(64_000_000_000, 32_768);
        let name = |answer: &str| picked(answer, &fitting).map(|model| model.name.clone());
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
