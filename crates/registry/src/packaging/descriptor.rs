//! OCI content descriptors.

use puna_store::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Reference to a blob: a layer, a config, or a manifest in an index.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Descriptor {
    #[serde(rename = "mediaType", default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) annotations: Map<String, Value>,
}
