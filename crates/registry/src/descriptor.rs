//! What OCI's documents say of a blob that they name.

use puna_store::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A blob in a role: a layer, a config, or a manifest of a list.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Descriptor {
    #[serde(rename = "mediaType", default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) annotations: Map<String, Value>,
}
