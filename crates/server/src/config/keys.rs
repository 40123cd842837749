//! The settings there are.

/// What a value of the configuration file may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text: no number and no switch.
    Text,
    /// A text, or several.
    List,
    /// A text, a number or a switch.
    Any,
}

/// Every setting: its key in the configuration file, which is the name of its variables in small letters, and what it may be
/// there. The manual has each of them (`docs/serve.md`; a test asks).
pub const SETTINGS: &[(&str, Kind)] = &[
    ("host", Kind::Text),
    ("models", Kind::Text),
    ("search_paths", Kind::List),
    ("runner", Kind::Text),
    ("origins", Kind::List),
    ("keys", Kind::Text),
    ("tls.certificate", Kind::Text),
    ("tls.key", Kind::Text),
    ("mirror.serve", Kind::Any),
    ("mirror.host", Kind::Text),
    ("mirror.anonymous", Kind::Any),
    ("mirror.push", Kind::Any),
    ("mirror.delete", Kind::Any),
    ("mirror.announce", Kind::Any),
    ("mirror.names", Kind::List),
    ("mirror.storage", Kind::Text),
    ("mirror.storage_endpoint", Kind::Text),
    ("mirror.storage_region", Kind::Text),
    ("mirror.storage_key", Kind::Text),
    ("mirror.storage_secret", Kind::Text),
    ("mirror.quotas", Kind::List),
    ("mirror.retention", Kind::List),
    ("mirror.upstreams", Kind::List),
    ("mirror.private", Kind::List),
    ("mirror.fresh", Kind::Any),
    ("mirror.fetch", Kind::List),
    ("mirror.fetch_limit", Kind::Any),
    ("mirror.fetch_parallel", Kind::Any),
    ("api_key", Kind::Text),
    ("keep_alive", Kind::Any),
    ("load_timeout", Kind::Any),
    ("write_timeout", Kind::Any),
    ("step_timeout", Kind::Any),
    ("context_length", Kind::Any),
    ("num_parallel", Kind::Any),
    ("max_loaded_models", Kind::Any),
    ("max_queue", Kind::Any),
    ("kv_cache_type", Kind::Text),
    ("go_template", Kind::Any),
    ("noprune", Kind::Any),
    ("debug", Kind::Any),
    ("max_transfer_streams", Kind::Any),
    ("registry.default", Kind::Text),
    ("registry.mirrors", Kind::List),
    ("registry.limit_rate", Kind::Any),
    ("image_urls", Kind::Any),
    ("image_hosts", Kind::List),
    ("remotes", Kind::List),
    ("remote_keys", Kind::List),
    ("remote_timeout", Kind::Any),
    ("kernels", Kind::Text),
    ("threads", Kind::Any),
    ("deterministic", Kind::Any),
    ("speculate", Kind::Any),
    ("nohistory", Kind::Any),
    ("editor", Kind::Text),
];

/// The keys of all settings.
pub fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(key, _)| *key)
}

/// Letters that a misspelt key may differ in.
pub(super) const SLIPS: usize = 3;

/// The one of some keys that differs from a misspelt one in the fewest letters, and in no more than `slips`.
pub(super) fn nearest(
    key: &str,
    known: impl Iterator<Item = &'static str>,
    slips: usize,
) -> Option<&'static str> {
    let nearest = known
        .map(|known| (strsim::levenshtein(known, key), known))
        .min_by_key(|(slips, _)| *slips)?;
    (nearest.0 <= slips).then_some(nearest.1)
}

/// The setting of a key.
///
/// # Errors
/// There is none; what may have been meant.
pub fn check_key(key: &str) -> Result<&'static str, String> {
    setting(key).map(|(key, _)| key)
}

/// The setting of a key, and what it may be.
///
/// # Errors
/// As [`check_key`].
pub fn setting(key: &str) -> Result<(&'static str, Kind), String> {
    if let Some(known) = SETTINGS.iter().find(|(known, _)| *known == key) {
        return Ok(*known);
    }
    let plain = key.to_lowercase().replace('-', "_");
    let plain = plain.trim_start_matches("ollama_").trim_start_matches("puna_");
    match nearest(plain, keys(), SLIPS) {
        Some(nearest) => Err(format!("there is no setting {key:?}: did you mean {nearest:?}?")),
        None => Err(format!("there is no setting {key:?}: `puna config` lists those there are")),
    }
}
