//! Common interface of all coding agents.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

/// Server and model for an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Address of the server, such as `http://127.0.0.1:11434`.
    pub url: String,
    /// API key; `none` if the server requires none.
    pub key: String,
    /// Name of the model.
    pub model: String,
    /// Context window in tokens, if known.
    pub window: Option<u64>,
    /// Whether the model supports reasoning.
    pub thinks: bool,
    /// Whether the model accepts images.
    pub accepts_images: bool,
}

impl Target {
    /// Base URL of the OpenAI dialect.
    pub fn openai_url(&self) -> String {
        format!("{}/v1", self.url)
    }

    /// Token limit of one answer: an eighth of the window, because agents keep that much free.
    pub fn output(&self) -> Option<u64> {
        self.window.map(|window| (window / 8).clamp(1024, 32_000).min(window / 2))
    }
}

/// Environment, arguments and files with which an agent is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Environment variables to set.
    pub set: Vec<(String, String)>,
    /// Environment variables to remove, because they would direct the agent to another server.
    pub removed: Vec<String>,
    /// Arguments that precede the user's.
    pub arguments: Vec<String>,
    /// Files that exist while the agent runs: their names in the temporary folder, and their
    /// contents.
    pub files: Vec<(String, String)>,
    /// Secrets in the user's settings, which are never printed.
    pub secrets: Vec<String>,
}

/// Substrings of the names of fields with secrets.
const SECRET_NAME_PARTS: [&str; 8] =
    ["key", "token", "secret", "password", "authorization", "credential", "cookie", "bearer"];

/// Fields with arbitrary texts, which may be secrets.
const CONTAINERS: [&str; 5] = ["headers", "env", "environment", "args", "command"];

impl Setup {
    /// Sets an environment variable.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.set.push((name.to_owned(), value.into()));
    }

    /// Records the secrets in the user's settings, so that they are not printed.
    pub fn hide(&mut self, settings: &Value) {
        self.hide_in(settings, false);
    }

    fn hide_in(&mut self, value: &Value, is_secret: bool) {
        match value {
            Value::String(text)
                if !text.is_empty()
                    && !is_reference(text)
                    && (is_secret || has_secret_in_address(text)) =>
            {
                self.secrets.push(text.clone());
            }
            Value::Array(list) => list.iter().for_each(|item| self.hide_in(item, is_secret)),
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| {
                    self.hide_in(value, is_secret || holds_secrets(name))
                });
            }
            _ => {}
        }
    }

    /// Adds arguments.
    pub fn arguments(&mut self, arguments: &[&str]) {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    }
}

/// Whether a text is a reference to a secret, such as `{env:NAME}` and `{file:PATH}` in opencode's
/// configuration.
fn is_reference(text: &str) -> bool {
    let inner = text.strip_prefix("{env:").or_else(|| text.strip_prefix("{file:"));
    inner.and_then(|inner| inner.strip_suffix('}')).is_some_and(|name| !name.contains(['{', '}']))
}

/// Whether a text is a URL with a query or user, which may contain a key.
fn has_secret_in_address(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains(['?', '@']))
}

/// Whether a field of the settings may hold secrets. `envKey` is the name of a variable.
fn holds_secrets(name: &str) -> bool {
    let name = name.to_lowercase();
    let may_hold = SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
        || CONTAINERS.contains(&name.as_str());
    may_hold && !matches!(name.as_str(), "envkey" | "env_key")
}

/// A coding agent that Puna can start.
pub trait Agent: Sync {
    /// Name on the command line of `puna launch`.
    fn name(&self) -> &'static str;

    /// Name in messages.
    fn title(&self) -> &'static str;

    /// Name of the executable on PATH.
    fn program(&self) -> &'static str;

    /// Command that installs the agent.
    fn install(&self) -> &'static str;

    /// Smallest usable window in tokens: the agent's first request, its reserve, and some files.
    fn least_window(&self) -> u64;

    /// Describes how to start the agent. `folder` is the path for its files.
    ///
    /// # Errors
    /// A required file of the user cannot be read.
    fn setup(&self, target: &Target, folder: &Path) -> Result<Setup>;
}

/// A text as a JSON string, which is also a valid TOML string if the text has no control
/// characters.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
