//! Bundles: models in one file, for machines without a network. A bundle is a tar archive of an OCI
//! image layout, which container tools can read too:
//!
//! ```text
//! oci-layout               {"imageLayoutVersion": "1.0.0"}
//! index.json               the manifests, by digest, and what each is called
//! blobs/sha256/<64 hex>    manifests, configs and layers
//! ```

mod read;
#[cfg(test)]
mod tests;
mod write;

use puna_store::Digest;
use serde::{Deserialize, Serialize};

use crate::packaging::descriptor::Descriptor;

pub use write::write_bundle;

/// File that states the version of the layout.
const LAYOUT_FILE: &str = "oci-layout";
/// File that lists the manifests.
const INDEX_FILE: &str = "index.json";
/// Folder of the blobs.
const BLOB_DIR: &str = "blobs/sha256/";
/// Media type of the index.
const INDEX_MEDIA_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// Annotations with a manifest's name. OCI's is a tag or a full name, containerd's is always a full
/// name.
const REF_NAME_ANNOTATION: &str = "org.opencontainers.image.ref.name";
const IMAGE_NAME_ANNOTATION: &str = "io.containerd.image.name";

#[derive(Debug, Deserialize, Serialize)]
struct ImageLayout {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct Index {
    #[serde(rename = "schemaVersion", default)]
    schema_version: u64,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    manifests: Vec<Descriptor>,
}

fn blob_path(digest: &Digest) -> String {
    format!("{BLOB_DIR}{}", digest.hex())
}
