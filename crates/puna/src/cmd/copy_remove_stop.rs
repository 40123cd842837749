//! `puna cp`, `puna rm` and `puna stop`.

use anyhow::{Result, anyhow, bail};
use puna_api::ollama::{GenerateRequest, ShowRequest};
use puna_api::{Client, ClientError, KeepAlive};

use puna_store::ModelRef;

use crate::out;
use crate::service::Service;

pub fn copy(source: &str, destination: &str) -> Result<()> {
    let service = Service::connect_or_run_in_process()?;
    service.wait(service.client().copy(source, destination))?;
    out::line(&format!("copied '{source}' to '{destination}'"))
}

/// Removes every model that can be removed, and names the others at the end.
pub fn remove(models: &[String]) -> Result<()> {
    let service = Service::connect_or_run_in_process()?;
    let mut failed = Vec::new();
    for model in models {
        // Only a loaded model needs to be unloaded; for a broken model that request would fail.
        if service.wait(is_loaded(service.client(), model)).unwrap_or(true) {
            match service.wait(unload(service.client(), model)) {
                Ok(()) => {}
                // The key may remove models but not use them. The server unloads a removed model
                // itself.
                Err(error) if is_not_found(&error) || is_status(&error, 403) => {}
                Err(_) => out::note(format_args!("Warning: unable to stop model '{model}'")),
            }
        }
        match service.wait(service.client().delete(model)) {
            Ok(warning) => {
                out::line(&format!("deleted '{model}'"))?;
                if let Some(warning) = warning {
                    out::note(format_args!("Warning: {warning}"));
                }
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(anyhow!(failed.join("\n"))) }
}

pub fn stop(model: &str) -> Result<()> {
    let service = Service::connect()?;
    let show = ShowRequest { model: model.to_owned(), ..ShowRequest::default() };
    match service.wait(service.client().show(&show)) {
        Err(error) if is_not_found(&error) => bail!("couldn't find model \"{model}\" to stop"),
        other => drop(other?),
    }
    service.wait(unload(service.client(), model))
}

/// Whether a model is loaded.
async fn is_loaded(client: &Client, model: &str) -> Result<bool, ClientError> {
    let Ok(wanted) = ModelRef::parse(model) else { return Ok(false) };
    let wanted = wanted.name.to_string();
    Ok(client.ps().await?.models.iter().any(|running| running.name.eq_ignore_ascii_case(&wanted)))
}

/// Unloads a model. A model that does not exist is no error.
async fn unload(client: &Client, model: &str) -> Result<(), ClientError> {
    let request = GenerateRequest {
        model: model.to_owned(),
        keep_alive: Some(KeepAlive::from_nanos(0)),
        stream: Some(false),
        ..GenerateRequest::default()
    };
    let mut answer = client.generate(&request).await?;
    while let Some(line) = answer.next().await {
        line?;
    }
    Ok(())
}

/// Whether an error says that the server does not have the model.
pub fn is_not_found(error: &anyhow::Error) -> bool {
    is_status(error, 404)
}

fn is_status(error: &anyhow::Error, wanted: u16) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::Status { status, .. }) if *status == wanted)
}
