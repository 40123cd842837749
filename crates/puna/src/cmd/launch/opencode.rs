//! opencode reads its configuration from a variable, which takes precedence over the files of user
//! and project.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde_json::{Map, Value, json};

use super::agent::{Agent, Setup, Target};

/// Variable with the configuration.
const CONFIG_VARIABLE: &str = "OPENCODE_CONFIG_CONTENT";

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
            "attachment": target.accepts_images,
        });
        if let (Some(window), Some(output)) = (target.window, target.output()) {
            model["limit"] = json!({"context": window, "output": output});
        }
        let name = format!("puna/{}", target.model);
        let provider = json!({
            "npm": "@ai-sdk/openai-compatible",
            "name": "Puna",
            "options": {"baseURL": target.openai_url(), "apiKey": target.key, "timeout": false},
            "models": {(target.model.clone()): model},
        });
        let user_config = user_config(std::env::var_os(CONFIG_VARIABLE))?;
        let mut setup = Setup::default();
        setup.hide(&user_config);
        let config = with_provider(user_config, &name, provider);
        setup.set(CONFIG_VARIABLE, config.to_string());
        Ok(setup)
    }
}

/// Reads the configuration that the user has set in the variable.
///
/// # Errors
/// It is not a JSON object, and this run's configuration would replace it.
fn user_config(content: Option<OsString>) -> Result<Value> {
    let Some(content) = content.filter(|content| !content.is_empty()) else { return Ok(json!({})) };
    let advice = "correct it and remove comments, or unset it";
    let text = content
        .to_str()
        .ok_or_else(|| anyhow!("cannot use {CONFIG_VARIABLE}: it is not UTF-8; {advice}"))?;
    // The parser's message may quote the configuration, which may contain keys.
    let config: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        anyhow!("cannot use {CONFIG_VARIABLE}: it is not a JSON object (line {line}, column {column}); {advice}")
    })?;
    Ok(Value::Object(config))
}

/// Adds a provider of this run and its model to a configuration.
fn with_provider(mut config: Value, model: &str, provider: Value) -> Value {
    config["model"] = json!(model);
    config["small_model"] = json!(model);
    if !config["provider"].is_object() {
        config["provider"] = json!({});
    }
    config["provider"]["puna"] = provider;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_configuration_is_preserved() {
        let config = with_provider(
            json!({"theme": "x", "provider": {"a": 1}, "model": "a/b"}),
            "puna/m",
            json!({"name": "Puna"}),
        );
        let expected = json!({"theme": "x", "model": "puna/m", "small_model": "puna/m", "provider": {"a": 1, "puna": {"name": "Puna"}}});
        assert_eq!(config, expected);
        assert_eq!(
            with_provider(json!({"provider": 5}), "m", json!(1))["provider"],
            json!({"puna": 1})
        );
    }

    #[test]
    fn an_invalid_configuration_is_an_error() {
        for empty in [None, Some(OsString::new())] {
            assert_eq!(user_config(empty).unwrap(), json!({}));
        }
        assert_eq!(user_config(Some("{\"theme\": \"x\"}".into())).unwrap(), json!({"theme": "x"}));
        for wrong in ["{\"theme\": ", "[1]", "{} // mine", "\"{\\\"apiKey\\\": \\\"sk-own\\\"}\""] {
            let error = user_config(Some(wrong.into())).unwrap_err().to_string();
            assert!(
                error.starts_with("cannot use OPENCODE_CONFIG_CONTENT: it is not a JSON object"),
                "{error}"
            );
            assert!(!error.contains("sk-own"), "{error}");
        }
    }
}
