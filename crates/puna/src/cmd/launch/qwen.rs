//! Qwen Code reads server, key and model from variables. The window is in a settings file that
//! takes precedence over the user's.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};

use super::agent::{Agent, Setup, Target};

/// Variable with the path of the system settings.
const SETTINGS_VARIABLE: &str = "QWEN_CODE_SYSTEM_SETTINGS_PATH";

/// Settings file of this run.
const SETTINGS_FILE: &str = "qwen-settings.json";

/// Request timeout in milliseconds.
const TIMEOUT_MS: u64 = 3_600_000;

pub struct QwenCode;

impl Agent for QwenCode {
    fn name(&self) -> &'static str {
        "qwen"
    }

    fn title(&self) -> &'static str {
        "Qwen Code"
    }

    fn program(&self) -> &'static str {
        "qwen"
    }

    fn install(&self) -> &'static str {
        "npm install -g @qwen-code/qwen-code"
    }

    /// The first request has 19,000 tokens.
    fn least_window(&self) -> u64 {
        32_768
    }

    fn setup(&self, target: &Target, folder: &Path) -> Result<Setup> {
        let mut setup = Setup::default();
        setup.set("OPENAI_API_KEY", &target.key);
        setup.set("OPENAI_BASE_URL", target.openai_url());
        setup.set("OPENAI_MODEL", &target.model);
        setup.set(SETTINGS_VARIABLE, folder.join(SETTINGS_FILE).display().to_string());
        let system = system_settings()?;
        setup.hide(&system);
        let settings = with_model(system, target);
        setup.files.push((SETTINGS_FILE.to_owned(), format!("{settings:#}\n")));
        setup.arguments(&["--auth-type", "openai", "--model", &target.model]);
        Ok(setup)
    }
}

/// Reads the system settings, which this run's file replaces.
fn system_settings() -> Result<Value> {
    let usual = match std::env::consts::OS {
        "macos" => "/Library/Application Support/QwenCode/settings.json",
        _ => "/etc/qwen-code/settings.json",
    };
    let path = std::env::var_os(SETTINGS_VARIABLE).filter(|path| !path.is_empty());
    let path = path.map_or_else(|| PathBuf::from(usual), PathBuf::from);
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(json!({})),
        text => {
            text.with_context(|| format!("cannot read Qwen Code's settings {}", path.display()))?
        }
    };
    // The parser's message may quote the settings, which may contain keys.
    let advice = |error: serde_json::Error| {
        let (path, line, column) = (path.display(), error.line(), error.column());
        anyhow!(
            "cannot use Qwen Code's settings {path}: they are not a JSON object (line {line}, column {column}); set {SETTINGS_VARIABLE} to a file without comments"
        )
    };
    serde_json::from_str::<Map<String, Value>>(&text).map(Value::Object).map_err(advice)
}

/// Adds the model to the settings. Settings of a provider's model take precedence over all others
/// in Qwen Code.
fn with_model(mut settings: Value, target: &Target) -> Value {
    let mut generation = json!({"timeout": TIMEOUT_MS});
    if let (Some(window), Some(output)) = (target.window, target.output()) {
        generation["contextWindowSize"] = json!(window);
        generation["samplingParams"] = json!({"max_tokens": output});
    }
    let model = json!({
        "id": target.model,
        "name": target.model,
        "envKey": "OPENAI_API_KEY",
        "baseUrl": target.openai_url(),
        "generationConfig": generation,
    });
    let field = |value: &mut Value, name: &str| {
        if !value[name].is_object() {
            value[name] = json!({});
        }
    };
    field(&mut settings, "modelProviders");
    let models =
        settings["modelProviders"]["openai"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let others = models.into_iter().filter(|other| other["id"] != target.model.as_str());
    settings["modelProviders"]["openai"] = others.chain([model]).collect();
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::launch::tests::target;

    #[test]
    fn system_settings_are_preserved() {
        let system = json!({"tools": {"exclude": ["x"]}, "modelProviders": {"openai": [{"id": "other"}, {"id": "qwen3"}], "gemini": []}});
        let settings = with_model(system, &target(Some(32768)));
        assert_eq!(settings["tools"]["exclude"][0], "x");
        let models = settings["modelProviders"]["openai"].as_array().unwrap();
        assert_eq!(
            (models.len(), &models[0]["id"], &models[1]["id"]),
            (2, &json!("other"), &json!("qwen3"))
        );
        assert_eq!(models[1]["generationConfig"]["contextWindowSize"], 32768);
        let settings = with_model(json!({"modelProviders": 5}), &target(None));
        let model = &settings["modelProviders"]["openai"][0];
        assert_eq!(model["generationConfig"], json!({"timeout": TIMEOUT_MS}));
    }
}
