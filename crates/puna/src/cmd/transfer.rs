//! `puna pull` and `puna push`.

use anyhow::{Result, bail};
use puna_api::ollama::PullRequest;
use puna_registry::FileUrl;
use puna_store::{DEFAULT_HOST, ModelRef};

use super::mirror_discovery;
use crate::cli::{PullArgs, PushArgs, TransferArgs};
use crate::progress::ProgressDisplay;
use crate::service::Service;
use crate::{out, usage};

pub fn pull(args: &PullArgs) -> Result<()> {
    let model = model(args)?;
    let service = Service::connect_or_run_in_process()?;
    // The values `off` and `auto` are not addresses.
    let mirror = match args.mirror.as_deref() {
        Some("off") => Some(String::new()),
        Some("auto") => Some(mirror_discovery::choose_mirror()?),
        mirror => mirror.map(str::to_owned),
    };
    let request =
        PullRequest { model, mirror, all_runners: args.all_runners, ..request(&args.transfer) };
    follow(&service, &request)
}

/// The model to pull: its name, or its address with the digest of `--digest`.
fn model(args: &PullArgs) -> Result<String> {
    let model = &args.transfer.model;
    let Some(digest) = &args.digest else { return Ok(model.clone()) };
    if !model.contains("://") {
        return Err(usage::error(
            "--digest needs the address of a file: registries provide the digests of their models",
        ));
    }
    let address = with_digest(model, digest)?;
    match FileUrl::parse(&address) {
        Some(Err(error)) => Err(usage::error(error)),
        _ => Ok(address),
    }
}

/// Adds the digest of its file to an address.
fn with_digest(address: &str, digest: &str) -> Result<String> {
    match address.split_once('#').filter(|(_, given)| !given.is_empty()) {
        Some((_, given)) => {
            let text = format!(
                "the address has a digest already (#{given}): leave out this one, or --digest"
            );
            Err(usage::error(text))
        }
        None => Ok(format!("{}#{digest}", address.trim_end_matches('#'))),
    }
}

/// Asks the server to pull a model and shows the progress.
pub fn fetch(service: &Service, model: &str, insecure: bool) -> Result<()> {
    follow(service, &PullRequest { model: model.to_owned(), insecure, ..PullRequest::default() })
}

fn follow(service: &Service, request: &PullRequest) -> Result<()> {
    let mut display = ProgressDisplay::new();
    let pulled =
        service.wait(async { display.follow(service.client().pull(request).await?).await });
    display.done();
    pulled
}

fn request(args: &TransferArgs) -> PullRequest {
    let TransferArgs { model, insecure, limit_rate } = args.clone();
    PullRequest { model, insecure, limit_rate, ..PullRequest::default() }
}

pub fn push(args: &PushArgs) -> Result<()> {
    let service = Service::connect_or_run_in_process()?;
    // Ollama's format is the default of every server and is not sent.
    let format = Some(args.format.clone()).filter(|format| format != "ollama").unwrap_or_default();
    let request = PullRequest { format, ..request(&args.transfer) };
    let mut display = ProgressDisplay::new();
    let pushed = service.runtime().block_on(async {
        let lines = service.client().push(&request).await?;
        display.follow(lines).await
    });
    display.done();
    match pushed {
        Ok(()) => out::text(&format!(
            "\nYou can find your model at:\n\n\t{}\n",
            web_address(&request.model)
        )),
        Err(error) if is_refused(&error.to_string()) => bail!(
            "you are not authorized to push to this namespace, create the model under a namespace you own{}",
            registry_message(&error.to_string())
        ),
        Err(error) => Err(error.into()),
    }
}

fn is_refused(error: &str) -> bool {
    error.contains("access denied") || error.contains("unauthorized")
}

/// The registry's own message in an error.
fn registry_message(error: &str) -> String {
    error.split_once("access denied: ").map_or(String::new(), |(_, said)| format!(" ({said})"))
}

/// Web page of a pushed model.
fn web_address(model: &str) -> String {
    let Ok(ModelRef { name, .. }) = ModelRef::parse(model) else { return model.to_owned() };
    if name.host().eq_ignore_ascii_case(DEFAULT_HOST) {
        let short = name.to_string();
        return format!("https://ollama.com/{}", short.strip_suffix(":latest").unwrap_or(&short));
    }
    name.full()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_digest_accepts_no_second_one() {
        let with = |address: &str| with_digest(address, "sha256:12").map_err(|e| e.to_string());
        assert_eq!(with("https://h/m.gguf"), Ok("https://h/m.gguf#sha256:12".into()));
        assert_eq!(with("https://h/m.gguf#"), Ok("https://h/m.gguf#sha256:12".into()));
        let text = with("https://h/m.gguf#sha256=34").unwrap_err();
        assert_eq!(
            text,
            "the address has a digest already (#sha256=34): leave out this one, or --digest"
        );
    }

    #[test]
    fn the_web_address_follows_from_the_model_name() {
        assert_eq!(web_address("me/m"), "https://ollama.com/me/m");
        assert_eq!(web_address("me/m:1b"), "https://ollama.com/me/m:1b");
        assert_eq!(web_address("h:5000/me/m"), "h:5000/me/m:latest");
    }
}
