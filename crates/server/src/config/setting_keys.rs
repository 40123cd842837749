//! Finds settings by their keys.

use super::setting_table::{SETTINGS, ValueKind};

/// Returns the keys of all settings.
pub fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.key)
}

/// Maximum edit distance of a misspelt key.
const MAX_TYPOS: usize = 3;

/// Returns the known key with the smallest edit distance to a misspelt one.
pub(super) fn nearest(
    key: &str,
    known: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    // Short keys allow fewer typos: more changes than half of a key make it another word.
    let max = MAX_TYPOS.min(key.chars().count() / 2);
    let (distance, nearest) = known
        .map(|known| (strsim::levenshtein(known, key), known))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= max).then_some(nearest)
}

/// Finds a setting by its key.
///
/// # Errors
/// No setting has this key; the message suggests the nearest one.
pub fn check_key(key: &str) -> Result<&'static str, String> {
    setting(key).map(|(key, _)| key)
}

/// Finds a setting and its value type by its key.
///
/// # Errors
/// As for [`check_key`].
pub fn setting(key: &str) -> Result<(&'static str, ValueKind), String> {
    if let Some(known) = SETTINGS.iter().find(|known| known.key == key) {
        return Ok((known.key, known.kind));
    }
    let plain = key.to_lowercase().replace('-', "_");
    let plain = plain.trim_start_matches("ollama_").trim_start_matches("puna_");
    match nearest(plain, keys()) {
        Some(nearest) => Err(format!("unknown setting {key:?}: did you mean {nearest:?}?")),
        None => Err(format!("unknown setting {key:?}: `puna config` lists the settings")),
    }
}
