//! Claude Code is configured by environment variables. Variables in the user's settings take
//! precedence over them. This run's settings file therefore repeats them, and takes precedence over
//! the user's.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::agent::{Agent, Setup, Target};

/// Request timeout in milliseconds: a long first request takes many minutes on a CPU.
const TIMEOUT_MS: &str = "3600000";

/// Settings file of this run.
const SETTINGS_FILE: &str = "claude-settings.json";

/// Variables that would direct it to another server, or send a key meant for another server.
const CONFLICTING_VARIABLES: [&str; 5] = [
    "ANTHROPIC_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
];

pub struct ClaudeCode;

impl Agent for ClaudeCode {
    fn name(&self) -> &'static str {
        "claude"
    }

    fn title(&self) -> &'static str {
        "Claude Code"
    }

    fn program(&self) -> &'static str {
        "claude"
    }

    fn install(&self) -> &'static str {
        "npm install -g @anthropic-ai/claude-code"
    }

    /// The first request has 19,000 tokens. Version 2.1 starts to compact 13,000 tokens before the
    /// end of the window minus the longest answer.
    fn least_window(&self) -> u64 {
        49_152
    }

    fn setup(&self, target: &Target, folder: &Path) -> Result<Setup> {
        let mut setup = Setup::default();
        setup.set("ANTHROPIC_BASE_URL", &target.url);
        setup.set("ANTHROPIC_AUTH_TOKEN", &target.key);
        // Claude Code reads model names from all these variables, also for its subagents.
        for name in [
            "ANTHROPIC_MODEL",
            "ANTHROPIC_SMALL_FAST_MODEL",
            "ANTHROPIC_DEFAULT_OPUS_MODEL",
            "ANTHROPIC_DEFAULT_SONNET_MODEL",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL",
            "CLAUDE_CODE_SUBAGENT_MODEL",
        ] {
            setup.set(name, &target.model);
        }
        if let (Some(window), Some(output)) = (target.window, target.output()) {
            setup.set("CLAUDE_CODE_MAX_CONTEXT_TOKENS", window.to_string());
            setup.set("CLAUDE_CODE_MAX_OUTPUT_TOKENS", output.to_string());
        }
        setup.set("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        setup.set("API_TIMEOUT_MS", TIMEOUT_MS);
        setup.removed = CONFLICTING_VARIABLES.map(str::to_owned).to_vec();
        let removed =
            CONFLICTING_VARIABLES.iter().map(|name| ((*name).to_owned(), Value::from("")));
        let set = setup.set.iter().map(|(name, value)| (name.clone(), Value::from(value.clone())));
        let settings = json!({"env": removed.chain(set).collect::<Map<_, _>>()});
        setup.files.push((SETTINGS_FILE.to_owned(), format!("{settings:#}\n")));
        setup.arguments(&["--settings", &folder.join(SETTINGS_FILE).display().to_string()]);
        Ok(setup)
    }
}
