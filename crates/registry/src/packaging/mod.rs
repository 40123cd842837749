//! Packaging of models as OCI artifacts: Docker Model Runner's format and CNCF ModelPack. A pull
//! reads them into an ordinary model of the store, and a push writes them.
//!
//! The stored model keeps the original manifest as a layer. A later pull of the same manifest
//! fetches nothing, although packed layers were removed after unpacking.

pub(crate) mod bundle;
pub(crate) mod descriptor;
mod read;
pub(crate) mod tar;
#[cfg(test)]
mod tests;
mod unpack;
mod write;

use puna_store::{Digest, FileTemplate, NamedTemplate};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use descriptor::Descriptor;
pub(crate) use read::{ModelBuilder, Package, is_created_from};
pub(crate) use unpack::check_name;
pub(crate) use write::{OutgoingPackage, package};

/// Media type of OCI image manifests.
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type prefixes of ModelPack, current and former.
const MODEL_PACK_PREFIXES: [&str; 2] =
    ["application/vnd.cncf.model.", "application/vnd.cnai.model."];
/// Media type prefix of Docker Model Runner.
const DOCKER_PREFIX: &str = "application/vnd.docker.ai.";
/// Media type prefix of Ollama's layers. Packages of this program use them for content that the
/// other formats cannot express.
const OLLAMA_PREFIX: &str = "application/vnd.ollama.image.";
/// Annotations with a layer's file path, current and former.
const FILE_PATH_ANNOTATIONS: [&str; 2] = ["org.cncf.model.filepath", "org.cnai.model.filepath"];
/// Annotation with the file name in other artifacts.
const TITLE_ANNOTATION: &str = "org.opencontainers.image.title";

/// Recognizes a Jinja template as a known template.
pub trait TemplateDetector: std::fmt::Debug + Send + Sync {
    /// Returns the built-in template, if one is equivalent.
    fn detect(&self, file: &FileTemplate) -> Option<NamedTemplate>;
}

/// Packaging format of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// Ollama's format.
    #[default]
    Ollama,
    /// Docker Model Runner's format.
    Docker,
    /// CNCF ModelPack.
    ModelPack,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" | "ollama" => Ok(Self::Ollama),
            "docker" => Ok(Self::Docker),
            "modelpack" => Ok(Self::ModelPack),
            other => Err(format!("unknown format {other:?}: use ollama, docker or modelpack")),
        }
    }
}

/// OCI manifest with all fields that these formats use.
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

/// Manifest that records the source files of a model without a manifest of its own.
#[derive(Debug, Clone)]
pub(crate) struct SourceManifest(Vec<u8>);

impl SourceManifest {
    pub(crate) fn new(source: &str, layers: Vec<Value>) -> Self {
        let config = serde_json::json!({
            "mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(b"{}").to_string(), "size": 2,
        });
        let artifact = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
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
        let is_pack =
            |text: &str| MODEL_PACK_PREFIXES.iter().any(|prefix| text.starts_with(prefix));
        if self.config.media_type.starts_with(DOCKER_PREFIX) {
            Format::Docker
        } else if is_pack(&self.artifact_type) || is_pack(&self.config.media_type) {
            Format::ModelPack
        } else {
            Format::Ollama
        }
    }
}

impl Descriptor {
    /// The file name of a layer, if it has one.
    fn file_name(&self) -> Option<&str> {
        FILE_PATH_ANNOTATIONS
            .iter()
            .chain([&TITLE_ANNOTATION])
            .find_map(|key| self.annotations.get(*key)?.as_str())
    }
}
