//! Models that other servers run, as recipes name them: `https://host/v1/MODEL` on a server with OpenAI's dialect,
//! `https://host/api/MODEL` on a Puna or an Ollama.

use crate::error::StoreError;

/// Where a model is, and what it is called there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Addresses of the servers, separated by commas; with `/v1` at the end where they speak OpenAI's dialect.
    pub host: String,
    /// The model's name there.
    pub model: String,
}

impl Remote {
    /// What a `FROM` names, if it is the address of such a model or of several of the same name, separated by commas.
    ///
    /// # Errors
    /// The addresses name different models, or what is no name.
    pub fn parse(text: &str) -> Result<Option<Self>, StoreError> {
        let mut found: Option<Self> = None;
        for part in text.split(',').map(str::trim) {
            let Some((host, model)) = split(part) else { return Ok(None) };
            if !is_name(model) {
                let reason = format!(
                    "{model:?} is no model's name; a whole address is like https://host:8000/v1/MODEL"
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

    /// What a recipe names for this model, one line a server.
    pub fn sources(host: &str, model: &str) -> Vec<String> {
        let source = |host: &str| {
            let host = host.trim().trim_end_matches('/');
            let is_whole = host.ends_with("/v1") || host.ends_with("/api");
            format!("{host}{}/{model}", if is_whole { "" } else { "/api" })
        };
        host.split(',').map(source).collect()
    }
}

/// The server and the name of a model at an address.
fn split(text: &str) -> Option<(&str, &str)> {
    let lower = text.to_ascii_lowercase();
    let rest = lower.strip_prefix("https://").or_else(|| lower.strip_prefix("http://"))?;
    let start = text.len() - rest.len();
    // Where the server's address ends, and where the model's name begins.
    let openai = rest.find("/v1/").map(|at| (start + at + 3, start + at + 4));
    let native = rest.find("/api/").map(|at| (start + at, start + at + 5));
    let (end, name) = openai.into_iter().chain(native).min()?;
    let (host, model) = (&text[..end], &text[name..]);
    let is_host = !rest.starts_with('/');
    is_host.then_some((host, model))
}

/// Whether another server may call a model so. What comes behind a question mark is often a key.
fn is_name(text: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    text.split('/').all(is_part)
        && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "?#".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_models_are_told_from_names() {
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
