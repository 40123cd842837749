//! What all coding agents have in common, and the list of them.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::claude::ClaudeCode;
use super::codex::Codex;
use super::opencode::Opencode;
use super::pi::Pi;
use super::qwen::QwenCode;

/// The server and the model that an agent is to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The server's address, such as `http://127.0.0.1:11434`.
    pub url: String,
    /// The API key; `none` where the server asks for none.
    pub key: String,
    /// The model's name.
    pub model: String,
    /// Tokens of its context window, where that is known.
    pub window: Option<u64>,
    /// Whether it thinks before it answers.
    pub thinks: bool,
    /// Whether it takes images.
    pub sees: bool,
}

impl Target {
    /// The address of OpenAI's dialect.
    pub fn openai_url(&self) -> String {
        format!("{}/v1", self.url)
    }

    /// Tokens of one answer at most: an eighth of the window, since agents keep that much of it free.
    pub fn output(&self) -> Option<u64> {
        self.window.map(|window| (window / 8).clamp(1024, 32_000).min(window / 2))
    }
}

/// How an agent is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Variables that are set.
    pub set: Vec<(String, String)>,
    /// Variables that are removed, as they would lead the agent to another server.
    pub removed: Vec<String>,
    /// Arguments in front of the user's.
    pub arguments: Vec<String>,
    /// Files that exist as long as the agent runs: their names in the folder of this run, and what they hold.
    pub files: Vec<(String, String)>,
    /// Keys in settings of the user that were taken over, which are not printed.
    pub secrets: Vec<String>,
}

/// Parts of the names of fields with secrets.
const SECRET: [&str; 8] =
    ["key", "token", "secret", "password", "authorization", "credential", "cookie", "bearer"];

/// Fields with texts of any kind, among them secrets.
const CONTAINERS: [&str; 5] = ["headers", "env", "environment", "args", "command"];

impl Setup {
    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.set.push((name.to_owned(), value.into()));
    }

    /// Keeps the secrets in settings of the user out of what is printed.
    pub fn hide(&mut self, settings: &Value) {
        self.hide_in(settings, false);
    }

    fn hide_in(&mut self, value: &Value, is_secret: bool) {
        match value {
            Value::String(text)
                if !text.is_empty()
                    && !names_place(text)
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

/// Whether a text only names the place of a secret, as `{env:NAME}` and `{file:PATH}` do in opencode's configuration.
fn names_place(text: &str) -> bool {
    let inner = text.strip_prefix("{env:").or_else(|| text.strip_prefix("{file:"));
    inner.and_then(|inner| inner.strip_suffix('}')).is_some_and(|name| !name.contains(['{', '}']))
}

/// Whether a text is an address with a query or a user in it, which may be a key.
fn has_secret_in_address(text: &str) -> bool {
    text.split_once("://").is_some_and(|(_, rest)| rest.contains(['?', '@']))
}

/// Whether a field of settings may hold secrets. `envKey` is the name of a variable.
fn holds_secrets(name: &str) -> bool {
    let name = name.to_lowercase();
    let may_hold =
        SECRET.iter().any(|part| name.contains(part)) || CONTAINERS.contains(&name.as_str());
    may_hold && !matches!(name.as_str(), "envkey" | "env_key")
}

/// A coding agent that Puna can start.
pub trait Agent: Sync {
    /// Its name on the command line of `puna launch`.
    fn name(&self) -> &'static str;

    /// Its name in messages.
    fn title(&self) -> &'static str;

    /// The program, as it is found on PATH.
    fn program(&self) -> &'static str;

    /// The command that installs it.
    fn install(&self) -> &'static str;

    /// Tokens of the smallest window in which it does some work: its first request, what it keeps free, and some files.
    fn least_window(&self) -> u64;

    /// How it is started. `folder` is where its files are going to be.
    ///
    /// # Errors
    /// A file of the user that is needed cannot be read.
    fn setup(&self, target: &Target, folder: &Path) -> Result<Setup>;
}

/// All agents.
pub const AGENTS: [&dyn Agent; 5] = [&ClaudeCode, &Codex, &Opencode, &QwenCode, &Pi];

/// The agent of a name.
pub fn agent(name: &str) -> Option<&'static dyn Agent> {
    AGENTS.into_iter().find(|agent| agent.name() == name)
}

/// A text in the syntax of JSON, which that of TOML has in common for texts without control characters.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
