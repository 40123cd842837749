//! opencode: a configuration of its own stands in a variable, and goes over the files of the user and the project.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::agents::{Agent, Setup, Target};

pub struct Opencode;

impl Agent for Opencode {
    fn name(&self) -> &'static str {
        "opencode"
    }

    fn title(&self) -> &'static str {
        "opencode"
    }

    fn program(&self) -> &'static str {
        "opencode"
    }

    fn install(&self) -> &'static str {
        "npm install -g opencode-ai"
    }

    /// The first request has 8,000 tokens.
    fn least_window(&self) -> u64 {
        16_384
    }

    fn setup(&self, target: &Target, _: &Path) -> Result<Setup> {
        let mut model = json!({
            "name": target.model,
            "tool_call": true,
            "reasoning": target.thinks,
            "attachment": target.sees,
        });
        if let (Some(window), Some(output)) = (target.window, target.output()) {
            model["limit"] = json!({"context": window, "output": output});
        }
        let name = format!("puna/{}", target.model);
        let config = json!({
            "model": name,
            "small_model": name,
            "provider": {"puna": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Puna",
                "options": {"baseURL": target.openai_url(), "apiKey": target.key, "timeout": false},
                "models": {(target.model.clone()): model},
            }},
        });
        let mut setup = Setup::default();
        setup.set("OPENCODE_CONFIG_CONTENT", config.to_string());
        Ok(setup)
    }
}
