//! Settings of the registry.

use crate::quota::Quota;
use crate::retention::Rule;

/// Settings of the registry.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Whether clients without a key may pull although keys exist. Without keys, everybody may
    /// pull.
    pub anonymous: bool,
    /// Whether everybody may push while no keys exist. Otherwise only this machine may push then.
    pub push: bool,
    /// Whether manifests, tags and blobs may be removed.
    pub delete: bool,
    /// Hosts under which clients reach the registry, with ports where clients name them. Signatures
    /// for other hosts are rejected. If empty, the registry trusts the request.
    pub names: Vec<String>,
    /// Quotas of namespaces. The first match applies; other namespaces have no limit.
    pub quotas: Vec<Quota>,
    /// Retention rules. Repositories that no rule matches keep everything.
    pub retention: Vec<Rule>,
}
