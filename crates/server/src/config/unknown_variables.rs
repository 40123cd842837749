//! Warnings about environment variables that look like misspelt settings.

use super::error::Warning;
use super::setting_keys::keys;

/// Variables with Puna's prefix that are not settings.
const NON_SETTINGS: [&str; 1] = ["config"];

/// Names that only Puna's tests, builds and benchmarks use. Those that end with `_` are prefixes.
const TOOL_NAMES: [&str; 9] =
    ["bin", "test_", "write_docs", "fuzz_", "oracle_", "embedder", "gguf", "url", "key"];

/// Variables of other programs with Ollama's prefix that are near to a setting.
const FOREIGN_NAMES: [&str; 1] = ["model"];

/// Returns a warning for each variable that may be a misspelt setting. Unknown variables with
/// Puna's prefix always get one. Those with Ollama's get one only if they are near a setting,
/// because other programs use many.
pub fn warnings(names: impl Iterator<Item = String>) -> Vec<Warning> {
    let mut found: Vec<Warning> = names
        .filter_map(|variable| {
            let text = text_for(&variable)?;
            Some(Warning { variable, text })
        })
        .collect();
    found.sort_by(|a, b| a.variable.cmp(&b.variable));
    found
}

fn text_for(variable: &str) -> Option<String> {
    let capitals = variable.to_uppercase();
    let (prefix, ours, name) = match capitals.strip_prefix("PUNA_") {
        Some(name) => ("PUNA_", true, name),
        None => ("OLLAMA_", false, capitals.strip_prefix("OLLAMA_")?),
    };
    let name = name.to_lowercase();
    let is_known = |name: &str| known().any(|known| known == name);
    if is_known(&name) && variable == capitals {
        return None;
    }
    let is_foreign = if ours { is_tool(&name) } else { FOREIGN_NAMES.contains(&&*name) };
    if is_foreign && !is_known(&name) {
        return None;
    }
    let slips = if name.len() <= 6 { 1 } else { 2 };
    let nearest = known()
        .map(|known| (strsim::osa_distance(&known, &name), known))
        .filter(|(distance, _)| *distance <= if ours { slips + 1 } else { slips })
        .min_by_key(|(distance, _)| *distance);
    match nearest {
        Some((_, known)) => Some(format!(
            "is unknown and was ignored: did you mean {prefix}{}?",
            known.to_uppercase()
        )),
        None if ours => Some("is unknown and was ignored: `puna config` lists the settings".into()),
        None => None,
    }
}

fn is_tool(name: &str) -> bool {
    TOOL_NAMES.iter().any(|tool| name == *tool || tool.ends_with('_') && name.starts_with(tool))
}

/// Known names without prefix, in lower case.
fn known() -> impl Iterator<Item = String> {
    keys().chain(NON_SETTINGS).map(|key| key.replace('.', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning_texts(names: &[&str]) -> Vec<String> {
        warnings(names.iter().map(|name| (*name).to_owned()))
            .iter()
            .map(Warning::to_string)
            .collect()
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_nearest_known_one() {
        for (wrong, right) in [
            ("PUNA_MAX_QEUE", "PUNA_MAX_QUEUE"),
            ("PUNA_KEEPALIVE", "PUNA_KEEP_ALIVE"),
            ("PUNA_HOTS", "PUNA_HOST"),
            ("puna_host", "PUNA_HOST"),
            ("OLLAMA_KEEPALIVE", "OLLAMA_KEEP_ALIVE"),
            ("OLLAMA_NUM_PARALEL", "OLLAMA_NUM_PARALLEL"),
        ] {
            let want = format!("{wrong} is unknown and was ignored: did you mean {right}?");
            assert_eq!(warning_texts(&[wrong]), [want]);
        }
        let want = "PUNA_WOMBAT is unknown and was ignored: `puna config` lists the settings";
        assert_eq!(warning_texts(&["PUNA_WOMBAT"]), [want]);
    }

    #[test]
    fn variables_of_other_programs_are_ignored() {
        let foreign =
            ["OLLAMA_FLASH_ATTENTION", "OLLAMA_MODEL", "OLLAMA_BASE_URL", "OLLAMA_PORT", "HOSTS"];
        assert_eq!(warning_texts(&foreign), [""; 0]);
        let known =
            ["PUNA_HOST", "OLLAMA_TLS_KEY", "PUNA_CONFIG", "PUNA_TEST_MODELS", "OLLAMA_API_KEY"];
        assert_eq!(warning_texts(&known), [""; 0]);
    }
}
