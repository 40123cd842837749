//! Codex is configured on the command line, with overrides of its configuration file.

use std::path::Path;

use anyhow::Result;

use super::agent::{Agent, Setup, Target, quoted};

/// Variable from which it reads the key.
const KEY_VARIABLE: &str = "PUNA_LAUNCH_KEY";

/// Timeout of a silent stream, in milliseconds.
const IDLE_TIMEOUT_MS: &str = "3600000";

pub struct Codex;

impl Agent for Codex {
    fn name(&self) -> &'static str {
        "codex"
    }

    fn title(&self) -> &'static str {
        "Codex"
    }

    fn program(&self) -> &'static str {
        "codex"
    }

    fn install(&self) -> &'static str {
        "npm install -g @openai/codex"
    }

    /// The first request has 10,000 tokens.
    fn least_window(&self) -> u64 {
        16_384
    }

    fn setup(&self, target: &Target, _: &Path) -> Result<Setup> {
        let mut setup = Setup::default();
        setup.set(KEY_VARIABLE, &target.key);
        let mut settings = vec![
            ("model", quoted(&target.model)),
            ("model_provider", quoted("puna")),
            ("model_providers.puna.name", quoted("Puna")),
            ("model_providers.puna.base_url", quoted(&target.openai_url())),
            ("model_providers.puna.env_key", quoted(KEY_VARIABLE)),
            ("model_providers.puna.wire_api", quoted("responses")),
            ("model_providers.puna.stream_idle_timeout_ms", IDLE_TIMEOUT_MS.to_owned()),
        ];
        if let (Some(window), Some(output)) = (target.window, target.output()) {
            settings.push(("model_context_window", window.to_string()));
            settings.push(("model_auto_compact_token_limit", (window - output).to_string()));
        }
        for (key, value) in settings {
            setup.arguments(&["-c", &format!("{key}={value}")]);
        }
        Ok(setup)
    }
}
