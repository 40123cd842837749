//! pi loads an extension of this run that registers the server. The user's models and sessions
//! remain unchanged.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::agent::{Agent, Setup, Target};

/// Extension file of this run.
const EXTENSION_FILE: &str = "pi-puna.js";

/// Variable from which it reads the key.
const KEY_VARIABLE: &str = "PUNA_LAUNCH_KEY";

pub struct Pi;

impl Agent for Pi {
    fn name(&self) -> &'static str {
        "pi"
    }

    fn title(&self) -> &'static str {
        "pi"
    }

    fn program(&self) -> &'static str {
        "pi"
    }

    fn install(&self) -> &'static str {
        "npm install -g @mariozechner/pi-coding-agent"
    }

    /// The first request has about 2,000 tokens. By default, compaction keeps 16,384 tokens free
    /// for the answer.
    fn least_window(&self) -> u64 {
        32_768
    }

    fn setup(&self, target: &Target, folder: &Path) -> Result<Setup> {
        let mut model = json!({
            "id": target.model,
            "name": target.model,
            "reasoning": target.thinks,
            "input": if target.accepts_images { vec!["text", "image"] } else { vec!["text"] },
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        });
        if let (Some(window), Some(output)) = (target.window, target.output()) {
            model["contextWindow"] = json!(window);
            model["maxTokens"] = json!(output);
        }
        let provider = json!({
            "name": "Puna",
            "baseUrl": target.openai_url(),
            "apiKey": KEY_VARIABLE,
            "api": "openai-completions",
            "models": [model],
        });
        let mut setup = Setup::default();
        setup.set(KEY_VARIABLE, &target.key);
        let extension =
            format!("export default (pi) => pi.registerProvider(\"puna\", {provider:#});\n");
        setup.files.push((EXTENSION_FILE.to_owned(), extension));
        let path = folder.join(EXTENSION_FILE).display().to_string();
        setup.arguments(&["--extension", &path, "--provider", "puna", "--model", &target.model]);
        Ok(setup)
    }
}
