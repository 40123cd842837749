//! Bundles: models in one file, for machines without a network between them. A bundle is a tar archive of OCI's image layout, so
//! that the tools of container registries read it too:
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

use crate::descriptor::Descriptor;

pub use write::write_bundle;

/// The file that says what the archive is.
const LAYOUT: &str = "oci-layout";
/// The file that lists the manifests.
const INDEX: &str = "index.json";
/// The folder of blobs.
const BLOBS: &str = "blobs/sha256/";
/// The media type of the list.
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// What a manifest is called: by OCI's rules a tag or a whole name, by containerd's always a whole name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const IMAGE_NAME: &str = "io.containerd.image.name";

#[derive(Debug, Deserialize, Serialize)]
struct Layout {
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

fn blob_name(digest: &Digest) -> String {
    format!("{BLOBS}{}", digest.hex())
}
