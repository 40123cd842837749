//! Variables that look like settings and are none: somebody has misspelt one.

use super::Warning;
use super::keys::keys;

/// Variables with our name in front that are no settings.
const OTHERS: [&str; 1] = ["config"];

/// Names that only our own tests, builds and benchmarks know; those with a line at the end are beginnings.
const TOOLS: [&str; 9] =
    ["bin", "test_", "write_docs", "fuzz_", "oracle_", "embedder", "gguf", "url", "key"];

/// Variables of Ollama's users that other programs read, however near they are to a setting.
const FOREIGN: [&str; 1] = ["model"];

/// A warning for each variable that may be a misspelt setting. Ours are told whatever they are, and Ollama's where they are
/// near a known one: there are many others that are right.
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
    let is_foreign = if ours { is_tool(&name) } else { FOREIGN.contains(&&*name) };
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
            "is not known and was not read: did you mean {prefix}{}?",
            known.to_uppercase()
        )),
        None if ours => {
            Some("is not known and was not read: `puna config` lists the settings".into())
        }
        None => None,
    }
}

fn is_tool(name: &str) -> bool {
    TOOLS.iter().any(|tool| name == *tool || tool.ends_with('_') && name.starts_with(tool))
}

/// What stands behind `PUNA_` and `OLLAMA_`, in small letters.
fn known() -> impl Iterator<Item = String> {
    keys().chain(OTHERS).map(|key| key.replace('.', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(names: &[&str]) -> Vec<String> {
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
            let want = format!("{wrong} is not known and was not read: did you mean {right}?");
            assert_eq!(told(&[wrong]), [want]);
        }
        let want = "PUNA_WOMBAT is not known and was not read: `puna config` lists the settings";
        assert_eq!(told(&["PUNA_WOMBAT"]), [want]);
    }

    #[test]
    fn what_others_call_after_ollama_is_their_own() {
        let foreign =
            ["OLLAMA_FLASH_ATTENTION", "OLLAMA_MODEL", "OLLAMA_BASE_URL", "OLLAMA_PORT", "HOSTS"];
        assert_eq!(told(&foreign), [""; 0]);
        let known =
            ["PUNA_HOST", "OLLAMA_TLS_KEY", "PUNA_CONFIG", "PUNA_TEST_MODELS", "OLLAMA_API_KEY"];
        assert_eq!(told(&known), [""; 0]);
    }
}
