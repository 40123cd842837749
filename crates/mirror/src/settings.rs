//! What a registry is told of how to behave.

use crate::quota::Quota;
use crate::retention::Rule;

/// How a registry behaves.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Whether everybody may pull, where there are keys; without any everybody may.
    pub anonymous: bool,
    /// Whether everybody may push, where there are no keys; otherwise those from this machine alone.
    pub push: bool,
    /// Whether what was pushed may be removed.
    pub delete: bool,
    /// The hosts, with ports where clients name them, under which clients reach it: signatures for others count for nothing. Without any
    /// it believes the request.
    pub names: Vec<String>,
    /// How many bytes namespaces may have, the first that fits; others have no limit.
    pub quotas: Vec<Quota>,
    /// What stays; of repositories that no rule fits, everything.
    pub retention: Vec<Rule>,
}
