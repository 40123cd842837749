//! Keys of the settings of single registries.

use super::setting_keys::nearest;
use super::setting_table::ValueKind;

/// Name of the table that contains the tables of hosts.
pub const GROUP: &str = "registry.hosts";

/// All settings of a host with their value types. A test checks that the manual
/// (`docs/guide/registry.md`) names each.
pub const HOST_SETTINGS: [(&str, ValueKind); 15] = [
    ("http", ValueKind::Any),
    ("ca", ValueKind::Text),
    ("username", ValueKind::Text),
    ("password", ValueKind::Text),
    ("password_file", ValueKind::Text),
    ("password_env", ValueKind::Text),
    ("token", ValueKind::Text),
    ("token_file", ValueKind::Text),
    ("token_env", ValueKind::Text),
    ("token_host", ValueKind::Text),
    ("mirrors", ValueKind::List),
    ("limit_rate", ValueKind::Any),
    ("streams", ValueKind::Any),
    ("anonymous", ValueKind::Any),
    ("hub", ValueKind::Any),
];

/// Finds a host setting by its key.
///
/// # Errors
/// No setting has this key.
pub fn key(name: &str) -> Result<(&'static str, ValueKind), String> {
    HOST_SETTINGS.iter().find(|(key, _)| *key == name).copied().ok_or_else(|| {
        if let Some(nearest) = nearest(name, HOST_SETTINGS.iter().map(|(key, _)| *key)) {
            return format!("unknown host setting {name:?}: did you mean {nearest:?}?");
        }
        let all: Vec<&str> = HOST_SETTINGS.iter().map(|(key, _)| *key).collect();
        format!("unknown host setting {name:?}: use one of {}", all.join(", "))
    })
}
