//! opencode: a configuration of its own stands in a variable, and goes over the files of the user and the project.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde_json::{Map, Value, json};

use super::agents::{Agent, Setup, Target};

/// The variable with a configuration.
const CONFIG: &str = "OPENCODE_CONFIG_CONTENT";

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
        let provider = json!({
            "npm": "@ai-sdk/openai-compatible",
            "name": "Puna",
            "options": {"baseURL": target.openai_url(), "apiKey": target.key, "timeout": false},
            "models": {(target.model.clone()): model},
        });
        let given = given(std::env::var_os(CONFIG))?;
        let mut setup = Setup::default();
        setup.hide(&given);
        let config = with_provider(given, &name, provider);
        setup.set(CONFIG, config.to_string());
        Ok(setup)
    }
}

/// The configuration that the variable has already.
///
/// # Errors
/// It is no JSON object: this run's configuration would replace it.
fn given(content: Option<OsString>) -> Result<Value> {
    let Some(content) = content.filter(|content| !content.is_empty()) else { return Ok(json!({})) };
    let advice = "correct it, without comments in it, or unset it";
    let text = content
        .to_str()
        .ok_or_else(|| anyhow!("cannot take over {CONFIG}: it is not UTF-8; {advice}"))?;
    // The parser's own words may repeat the configuration, which may have keys in it.
    let config: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        anyhow!("cannot take over {CONFIG}: it is no JSON object (line {line}, column {column}); {advice}")
    })?;
    Ok(Value::Object(config))
}

/// A configuration with a provider of this run and its model.
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
    fn a_configuration_that_is_there_is_kept() {
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
    fn a_configuration_that_cannot_be_read_is_an_error() {
        for empty in [None, Some(OsString::new())] {
            assert_eq!(given(empty).unwrap(), json!({}));
        }
        assert_eq!(given(Some("{\"theme\": \"x\"}".into())).unwrap(), json!({"theme": "x"}));
        for wrong in ["{\"theme\": ", "[1]", "{} // mine", "\"{\\\"apiKey\\\": \\\"sk-own\\\"}\""] {
            let error = given(Some(wrong.into())).unwrap_err().to_string();
            assert!(
                error.starts_with("cannot take over OPENCODE_CONFIG_CONTENT: it is no JSON object"),
                "{error}"
            );
            assert!(!error.contains("sk-own"), "{error}");
        }
    }
}
