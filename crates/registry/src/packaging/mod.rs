//! Other ways in which models are packaged as OCI artifacts: Docker Model Runner's, and the CNCF's ModelPack. Both are read
//! into an ordinary model of the store, and written by a push.
//!
//! The model in the store keeps the manifest as it came, as a layer: a pull that finds the same one fetches nothing, though
//! packed files are no longer there as they came.

mod read;
#[cfg(test)]
mod tests;
mod unpack;
mod write;

use puna_store::{Digest, FileTemplate, NamedTemplate};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::descriptor::Descriptor;
pub(crate) use read::{Made, Package, is_made_of};
pub(crate) use unpack::check_name;
pub(crate) use write::{Outgoing, package};

/// The media type of OCI's manifests.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// ModelPack's names, today's and the ones before.
const MODEL_PACK: [&str; 2] = ["application/vnd.cncf.model.", "application/vnd.cnai.model."];
/// Docker's names.
const DOCKER: &str = "application/vnd.docker.ai.";
/// Ollama's names, which a package of ours has for what the others have no words for.
const OLLAMA: &str = "application/vnd.ollama.image.";
/// Where a layer's file belongs, today's name and the one before.
const FILE_PATH: [&str; 2] = ["org.cncf.model.filepath", "org.cnai.model.filepath"];
/// The same for other artifacts.
const TITLE: &str = "org.opencontainers.image.title";

/// A search for the known template that a Jinja template is.
pub type DetectTemplate = fn(&FileTemplate) -> Option<NamedTemplate>;

/// How a model is packaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// As Ollama does.
    #[default]
    Ollama,
    /// As Docker Model Runner does.
    Docker,
    /// The CNCF's ModelPack.
    ModelPack,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" | "ollama" => Ok(Self::Ollama),
            "docker" => Ok(Self::Docker),
            "modelpack" => Ok(Self::ModelPack),
            other => {
                Err(format!("there is no format {other:?}: it must be ollama, docker or modelpack"))
            }
        }
    }
}

/// A manifest with all that these packagings say in it.
#[derive(Debug, Clone, Deserialize, Serialize)]
struct Artifact {
    #[serde(rename = "schemaVersion", default)]
    schema_version: u64,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    #[serde(rename = "artifactType", default, skip_serializing_if = "String::is_empty")]
    artifact_type: String,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// What a model was made of that has no manifest of its own, in the form of one.
#[derive(Debug, Clone)]
pub(crate) struct Origin(Vec<u8>);

impl Origin {
    pub(crate) fn new(source: &str, layers: Vec<Value>) -> Self {
        let config = serde_json::json!({
            "mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}").to_string(), "size": 2,
        });
        let artifact = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": "application/vnd.puna.source.v1+json",
            "config": config,
            "layers": layers,
            "annotations": {"org.opencontainers.image.source": source},
        });
        Self(artifact.to_string().into_bytes())
    }

    pub(crate) fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }
}

impl Artifact {
    fn format(&self) -> Format {
        let is_pack = |text: &str| MODEL_PACK.iter().any(|prefix| text.starts_with(prefix));
        if self.config.media_type.starts_with(DOCKER) {
            Format::Docker
        } else if is_pack(&self.artifact_type) || is_pack(&self.config.media_type) {
            Format::ModelPack
        } else {
            Format::Ollama
        }
    }
}

impl Descriptor {
    /// The name of a packed file, if it has one.
    fn file_name(&self) -> Option<&str> {
        FILE_PATH.iter().chain([&TITLE]).find_map(|key| self.annotations.get(*key)?.as_str())
    }
}
