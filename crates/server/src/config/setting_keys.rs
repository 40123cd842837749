//! Keys of all settings.

/// Type of a value in the configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A text, not a number or boolean.
    Text,
    /// A text or a list of texts.
    List,
    /// A text, a number or a boolean.
    Any,
}

/// All settings: key in the configuration file and value type. Variables have the key in upper
/// case. A test checks that the manual (`docs/reference/settings.md`) names each.
pub const SETTINGS: &[(&str, ValueKind)] = &[
    ("host", ValueKind::Text),
    ("models", ValueKind::Text),
    ("search_paths", ValueKind::List),
    ("runner", ValueKind::Text),
    ("origins", ValueKind::List),
    ("keys", ValueKind::Text),
    ("tls.certificate", ValueKind::Text),
    ("tls.key", ValueKind::Text),
    ("mirror.serve", ValueKind::Any),
    ("mirror.host", ValueKind::Text),
    ("mirror.anonymous", ValueKind::Any),
    ("mirror.push", ValueKind::Any),
    ("mirror.delete", ValueKind::Any),
    ("mirror.announce", ValueKind::Any),
    ("mirror.names", ValueKind::List),
    ("mirror.storage", ValueKind::Text),
    ("mirror.storage_endpoint", ValueKind::Text),
    ("mirror.storage_region", ValueKind::Text),
    ("mirror.storage_key", ValueKind::Text),
    ("mirror.storage_secret", ValueKind::Text),
    ("mirror.quotas", ValueKind::List),
    ("mirror.retention", ValueKind::List),
    ("mirror.upstreams", ValueKind::List),
    ("mirror.private", ValueKind::List),
    ("mirror.fresh", ValueKind::Any),
    ("mirror.fetch", ValueKind::List),
    ("mirror.fetch_limit", ValueKind::Any),
    ("mirror.fetch_parallel", ValueKind::Any),
    ("api_key", ValueKind::Text),
    ("keep_alive", ValueKind::Any),
    ("load_timeout", ValueKind::Any),
    ("write_timeout", ValueKind::Any),
    ("step_timeout", ValueKind::Any),
    ("context_length", ValueKind::Any),
    ("num_parallel", ValueKind::Any),
    ("max_loaded_models", ValueKind::Any),
    ("max_queue", ValueKind::Any),
    ("kv_cache_type", ValueKind::Text),
    ("go_template", ValueKind::Any),
    ("noprune", ValueKind::Any),
    ("debug", ValueKind::Any),
    ("max_transfer_streams", ValueKind::Any),
    ("registry.default", ValueKind::Text),
    ("registry.mirrors", ValueKind::List),
    ("registry.limit_rate", ValueKind::Any),
    ("image_urls", ValueKind::Any),
    ("image_hosts", ValueKind::List),
    ("remotes", ValueKind::List),
    ("remote_keys", ValueKind::List),
    ("remote_timeout", ValueKind::Any),
    ("kernels", ValueKind::Text),
    ("threads", ValueKind::Any),
    ("deterministic", ValueKind::Any),
    ("speculate", ValueKind::Any),
    ("nohistory", ValueKind::Any),
    ("editor", ValueKind::Text),
];

/// Returns the keys of all settings.
pub fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(key, _)| *key)
}

/// Maximum edit distance of a misspelt key.
const MAX_TYPOS: usize = 3;

/// Returns the known key with the smallest edit distance to a misspelt one.
pub(super) fn nearest(
    key: &str,
    known: impl Iterator<Item = &'static str>,
) -> Option<&'static str> {
    // Short keys allow fewer typos: more changes than half of a key make it another word.
    let most = MAX_TYPOS.min(key.chars().count() / 2);
    let (distance, nearest) = known
        .map(|known| (strsim::levenshtein(known, key), known))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= most).then_some(nearest)
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
    if let Some(known) = SETTINGS.iter().find(|(known, _)| *known == key) {
        return Ok(*known);
    }
    let plain = key.to_lowercase().replace('-', "_");
    let plain = plain.trim_start_matches("ollama_").trim_start_matches("puna_");
    match nearest(plain, keys()) {
        Some(nearest) => Err(format!("unknown setting {key:?}: did you mean {nearest:?}?")),
        None => Err(format!("unknown setting {key:?}: `puna config` lists the settings")),
    }
}
