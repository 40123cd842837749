//! `puna pull` and `puna push`.

use anyhow::{Result, bail};
use puna_api::native::PullRequest;
use puna_store::{DEFAULT_HOST, ModelRef};

use super::announced;
use crate::cli::{PullArgs, PushArgs, TransferArgs};
use crate::out;
use crate::progress::Display;
use crate::service::Service;

pub fn pull(args: &PullArgs) -> Result<()> {
    let service = Service::connect_or_own()?;
    // Two words of the command line are no addresses.
    let mirror = match args.mirror.as_deref() {
        Some("off") => Some(String::new()),
        Some("auto") => Some(announced::mirror()?),
        mirror => mirror.map(str::to_owned),
    };
    let mut request =
        PullRequest { mirror, all_runners: args.all_runners, ..request(&args.transfer) };
    if let Some(digest) = &args.digest {
        if !request.model.contains("://") {
            bail!(
                "--digest is for the address of a file; a registry says the digests of a model itself"
            );
        }
        request.model = with_digest(&request.model, digest)?;
    }
    follow(&service, &request)
}

/// An address with the digest of its file behind it.
fn with_digest(address: &str, digest: &str) -> Result<String> {
    match address.split_once('#').filter(|(_, given)| !given.is_empty()) {
        Some((_, given)) => {
            bail!("the address has a digest already (#{given}): leave that out, or --digest")
        }
        None => Ok(format!("{}#{digest}", address.trim_end_matches('#'))),
    }
}

/// Has the server fetch a model, showing how far it is.
pub fn fetch(service: &Service, model: &str, insecure: bool) -> Result<()> {
    follow(service, &PullRequest { model: model.to_owned(), insecure, ..PullRequest::default() })
}

fn follow(service: &Service, request: &PullRequest) -> Result<()> {
    let mut display = Display::new();
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
    let service = Service::connect_or_own()?;
    // What a server of Ollama's does anyway is not mentioned to it.
    let format = Some(args.format.clone()).filter(|format| format != "ollama").unwrap_or_default();
    let request = PullRequest { format, ..request(&args.transfer) };
    let mut display = Display::new();
    let pushed = service.runtime().block_on(async {
        let lines = service.client().push(&request).await?;
        display.follow(lines).await
    });
    display.done();
    match pushed {
        Ok(()) => {
            out::text(&format!("\nYou can find your model at:\n\n\t{}\n", place(&request.model)))
        }
        Err(error) if is_refused(&error.to_string()) => bail!(
            "you are not authorized to push to this namespace, create the model under a namespace you own{}",
            words(&error.to_string())
        ),
        Err(error) => Err(error.into()),
    }
}

fn is_refused(error: &str) -> bool {
    error.contains("access denied") || error.contains("unauthorized")
}

/// What the registry itself says of it.
fn words(error: &str) -> String {
    error.split_once("access denied: ").map_or(String::new(), |(_, said)| format!(" ({said})"))
}

/// Where people find a model that was pushed.
fn place(model: &str) -> String {
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
    fn a_file_has_one_digest() {
        let with = |address: &str| with_digest(address, "sha256:12").map_err(|e| e.to_string());
        assert_eq!(with("https://h/m.gguf"), Ok("https://h/m.gguf#sha256:12".into()));
        assert_eq!(with("https://h/m.gguf#"), Ok("https://h/m.gguf#sha256:12".into()));
        let text = with("https://h/m.gguf#sha256=34").unwrap_err();
        assert_eq!(
            text,
            "the address has a digest already (#sha256=34): leave that out, or --digest"
        );
    }

    #[test]
    fn a_pushed_model_is_found_where_its_name_says() {
        assert_eq!(place("me/m"), "https://ollama.com/me/m");
        assert_eq!(place("me/m:1b"), "https://ollama.com/me/m:1b");
        assert_eq!(place("h:5000/me/m"), "h:5000/me/m:latest");
    }
}
