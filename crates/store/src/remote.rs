//! Remote models in Modelfiles: `https://host/v1/MODEL` on a server with OpenAI's API,
//! `https://host/api/MODEL` on a Puna or Ollama server.

use crate::error::StoreError;

/// A model on other servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Addresses of the servers, separated by commas. Those with OpenAI's API end in `/v1`.
    pub host: String,
    /// The model's name on these servers.
    pub model: String,
}

impl Remote {
    /// Parses the value of `FROM`: one or more comma-separated addresses of the same remote model.
    /// `None` if it is no such address.
    ///
    /// # Errors
    /// The addresses name different models, or an invalid name.
    pub fn parse(text: &str) -> Result<Option<Self>, StoreError> {
        let mut found: Option<Self> = None;
        for part in text.split(',').map(str::trim) {
            let Some((host, model)) = split(part) else { return Ok(None) };
            if !is_name(model) {
                let reason = format!(
                    "{model:?} is not a model name: write an address such as https://host:8000/v1/MODEL"
                );
                return Err(StoreError::BadRemote(reason));
            }
            found = Some(match found {
                None => Self { host: host.to_owned(), model: model.to_owned() },
                Some(other) if other.model == model => {
                    Self { host: format!("{},{host}", other.host), ..other }
                }
                Some(other) => {
                    let reason = format!("{} and {model} are different models", other.model);
                    return Err(StoreError::BadRemote(reason));
                }
            });
        }
        Ok(found)
    }

    /// The `FROM` values of a remote model, one for each server.
    pub fn sources(host: &str, model: &str) -> Vec<String> {
        let source = |host: &str| {
            let host = host.trim().trim_end_matches('/');
            let is_whole = host.ends_with("/v1") || host.ends_with("/api");
            format!("{host}{}/{model}", if is_whole { "" } else { "/api" })
        };
        host.split(',').map(source).collect()
    }
}

/// Splits an address into server and model name.
fn split(text: &str) -> Option<(&str, &str)> {
    let lower = text.to_ascii_lowercase();
    let rest = lower.strip_prefix("https://").or_else(|| lower.strip_prefix("http://"))?;
    let start = text.len() - rest.len();
    // The end of the server's address and the start of the model name.
    let openai = rest.find("/v1/").map(|at| (start + at + 3, start + at + 4));
    let native = rest.find("/api/").map(|at| (start + at, start + at + 5));
    let (end, name) = openai.into_iter().chain(native).min()?;
    let (host, model) = (&text[..end], &text[name..]);
    let is_host = !rest.starts_with('/');
    is_host.then_some((host, model))
}

/// Whether a text may be a model name on another server. A query string is rejected, because it
/// often contains a key.
fn is_name(text: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    text.split('/').all(is_part)
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "?#".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_remote_models_are_distinguished_from_names() {
        let parse = |text: &str| Remote::parse(text).unwrap().map(|r| (r.host, r.model));
        let found = |host: &str, model: &str| Some((host.to_owned(), model.to_owned()));
        assert_eq!(
            parse("https://gpu:8000/v1/meta/llama-3"),
            found("https://gpu:8000/v1", "meta/llama-3")
        );
        assert_eq!(parse("http://h/open/v1/m:8b"), found("http://h/open/v1", "m:8b"));
        assert_eq!(parse("http://h:11434/api/qwen3:8b"), found("http://h:11434", "qwen3:8b"));
        assert_eq!(parse("http://a/v1/m, http://b/v1/m"), found("http://a/v1,http://b/v1", "m"));
        for name in ["llama3", "h:5000/n/m:t", "https://h/n/m:t", "https:///v1/m", "/v1/m"] {
            assert_eq!(parse(name), None, "{name}");
        }
        assert!(Remote::parse("http://a/v1/m,http://b/v1/n").is_err());
        for model in ["", "../x", "x?key=y", "x#y", "a b", "a//b"] {
            assert!(Remote::parse(&format!("https://h/v1/{model}")).is_err(), "{model}");
        }
        for text in ["https://gpu:8000/v1/meta/llama-3", "http://h:11434/api/qwen3:8b"] {
            let Remote { host, model } = Remote::parse(text).unwrap().unwrap();
            assert_eq!(Remote::sources(&host, &model), [text]);
        }
    }
}
