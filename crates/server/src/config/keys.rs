//! The settings there are.

/// Every setting: its key in the configuration file, and the name of its variables in small letters.
pub const KEYS: [&str; 26] = [
    "host",
    "models",
    "origins",
    "keys",
    "tls.certificate",
    "tls.key",
    "api_key",
    "keep_alive",
    "load_timeout",
    "write_timeout",
    "step_timeout",
    "context_length",
    "num_parallel",
    "max_loaded_models",
    "max_queue",
    "kv_cache_type",
    "go_template",
    "noprune",
    "debug",
    "max_transfer_streams",
    "kernels",
    "threads",
    "deterministic",
    "speculate",
    "nohistory",
    "editor",
];

/// Letters that a misspelt key may differ in.
const SLIPS: usize = 3;

/// The setting of a key.
///
/// # Errors
/// There is none; what may have been meant.
pub fn check_key(key: &str) -> Result<&'static str, String> {
    if let Some(known) = KEYS.into_iter().find(|known| *known == key) {
        return Ok(known);
    }
    let plain = key.to_lowercase().replace('-', "_");
    let plain = plain.trim_start_matches("ollama_").trim_start_matches("puna_");
    let nearest = KEYS.into_iter().min_by_key(|known| strsim::levenshtein(known, plain));
    match nearest.filter(|known| strsim::levenshtein(known, plain) <= SLIPS) {
        Some(nearest) => Err(format!("there is no setting {key:?}: did you mean {nearest:?}?")),
        None => Err(format!("there is no setting {key:?}: `puna config` lists those there are")),
    }
}
