//! Claude Code: everything is a variable of the environment. Variables in the settings of the user would go over these, so that they
//! stand in a file of settings of this run too, which goes over those.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::agents::{Agent, Setup, Target};

/// Milliseconds until it gives an answer up: a long first request takes a CPU many minutes.
const TIMEOUT_MS: &str = "3600000";

/// The file of this run.
const FILE: &str = "claude-settings.json";

/// Variables that would lead to another server, or send a key that is meant for one.
const ELSEWHERE: [&str; 5] = [
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

    /// The first request has 19,000 tokens, and version 2.1 begins to compact 13,000 tokens before the end of the window less the
    /// longest answer.
    fn least_window(&self) -> u64 {
        49_152
    }

    fn setup(&self, target: &Target, folder: &Path) -> Result<Setup> {
        let mut setup = Setup::default();
        setup.set("ANTHROPIC_BASE_URL", &target.url);
        setup.set("ANTHROPIC_AUTH_TOKEN", &target.key);
        // Each name by which it chooses a model, also for its helpers.
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
        setup.removed = ELSEWHERE.map(str::to_owned).to_vec();
        let removed = ELSEWHERE.iter().map(|name| ((*name).to_owned(), Value::from("")));
        let set = setup.set.iter().map(|(name, value)| (name.clone(), Value::from(value.clone())));
        let settings = json!({"env": removed.chain(set).collect::<Map<_, _>>()});
        setup.files.push((FILE.to_owned(), format!("{settings:#}\n")));
        setup.arguments(&["--settings", &folder.join(FILE).display().to_string()]);
        Ok(setup)
    }
}
