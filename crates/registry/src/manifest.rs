//! Manifests of registries: fetches and checks them, and selects one from an OCI index.

use std::path::Path;

use bytes::Bytes;
use puna_store::{Digest, Manifest, StoreError, media};
use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::client::session::{RequestSpec, Session};
use crate::display::single_line;
use crate::error::{ManifestProblem, RegistryError};
use crate::push::manifest_media_type;

/// Largest manifest, in bytes.
pub(crate) const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// Attempts to fetch a manifest. They are few because the user has seen no progress yet.
const MANIFEST_ATTEMPTS: u32 = 3;
/// Prefixes of media types: Ollama's layers, all registered types, and layers of container images.
const OLLAMA_TYPE_PREFIX: &str = "application/vnd.ollama.image.";
const VENDOR_TYPE_PREFIX: &str = "application/vnd.";
const CONTAINER_LAYER_PREFIXES: [&str; 2] =
    ["application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs."];
/// Media types in `Accept` of a request for a tag. A registry with a manifest list must answer with
/// the list.
const ACCEPT_TAG: &str = concat!(
    "application/vnd.ollama.manifest.list.v2+json, ",
    "application/vnd.docker.distribution.manifest.v2+json, ",
    "application/vnd.oci.image.manifest.v1+json, ",
    "application/vnd.oci.image.index.v1+json, ",
    "application/vnd.docker.distribution.manifest.list.v2+json"
);
/// Media types in `Accept` of a request for a child of a manifest list.
const ACCEPT_CHILD: &str = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json";
/// Largest number of index entries that a message names.
const MAX_NAMED: usize = 8;

/// OCI index: several manifests under one tag.
#[derive(Deserialize)]
struct Index {
    manifests: Vec<IndexEntry>,
    #[serde(default)]
    layers: Option<Value>,
}

#[derive(Deserialize)]
struct IndexEntry {
    digest: Digest,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    #[serde(rename = "artifactType", default)]
    artifact_type: String,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Map<String, Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Platform {
    os: String,
    architecture: String,
}

impl IndexEntry {
    /// Whether the entry describes another manifest, such as an attestation, and is not a model.
    fn is_attestation(&self) -> bool {
        self.annotations.contains_key("vnd.docker.reference.type")
            || self
                .platform
                .as_ref()
                .is_some_and(|p| p.os == "unknown" && p.architecture == "unknown")
    }

    fn is_model(&self) -> bool {
        self.artifact_type.contains("model")
    }

    fn is_for_this_platform(&self) -> bool {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let fits = |p: &Platform| p.architecture == architecture && p.os == std::env::consts::OS;
        self.platform.as_ref().is_some_and(fits)
    }

    fn name(&self) -> String {
        let kind = match &self.platform {
            Some(p) => format!("{}/{}", p.os, p.architecture),
            None if self.artifact_type.is_empty() => self.media_type.clone(),
            None => self.artifact_type.clone(),
        };
        format!("{} ({})", self.digest.short(), single_line(&kind, 60))
    }
}

/// Selects the model's manifest from an index. `None`: the text is not an index. The only entry,
/// the only model, or the only entry for this platform is selected.
pub(crate) fn select_from_index(bytes: &[u8]) -> Result<Option<Digest>, RegistryError> {
    let Ok(Index { manifests, layers: None }) = serde_json::from_slice(bytes) else {
        return Ok(None);
    };
    let single_model = |list: &[&IndexEntry]| -> Option<Digest> {
        let only = |list: Vec<&&IndexEntry>| (list.len() == 1).then(|| list[0].digest);
        only(list.iter().collect())
            .or_else(|| only(list.iter().filter(|l| l.is_model()).collect()))
            .or_else(|| only(list.iter().filter(|l| l.is_for_this_platform()).collect()))
    };
    let candidates: Vec<&IndexEntry> =
        manifests.iter().filter(|listed| !listed.is_attestation()).collect();
    if let Some(digest) = single_model(&candidates) {
        return Ok(Some(digest));
    }
    let names: Vec<String> =
        candidates.iter().take(MAX_NAMED).map(|listed| listed.name()).collect();
    Err(match names.as_slice() {
        [] => ManifestProblem::EmptyIndex.into(),
        names => ManifestProblem::AmbiguousIndex { names: names.join(", ") }.into(),
    })
}

impl Session {
    /// Fetches the manifest of the tag: a manifest, the selected entry of an OCI index, or Ollama's
    /// manifest list.
    pub(crate) async fn manifest(&self) -> Result<Bytes, RegistryError> {
        let bytes = self.get_manifest(self.manifest_url(), None, ACCEPT_TAG).await?;
        if is_manifest_list(&bytes) {
            return Ok(bytes);
        }
        match select_from_index(&bytes)? {
            None => Ok(bytes),
            Some(digest) => {
                self.get_manifest(self.digest_url(&digest), Some(digest), ACCEPT_TAG).await
            }
        }
    }

    /// Fetches a child of a manifest list and checks its digest.
    pub(crate) async fn child_manifest(&self, digest: Digest) -> Result<Bytes, RegistryError> {
        self.get_manifest(self.digest_url(&digest), Some(digest), ACCEPT_CHILD).await
    }

    /// Whether the registry has a manifest in the model's repository.
    pub(crate) async fn has_manifest(&self, digest: Digest) -> Result<bool, RegistryError> {
        let request =
            RequestSpec::new(Method::HEAD, self.digest_url(&digest)).header(ACCEPT, ACCEPT_CHILD);
        let mut retry = self.retry().with_attempts(MANIFEST_ATTEMPTS);
        loop {
            let error = match self.send(&request).await {
                Ok(response) if response.status().is_success() => return Ok(true),
                Ok(response) if response.status() == StatusCode::NOT_FOUND => return Ok(false),
                Ok(response) => self.error_from_response(response).await,
                Err(error) => error,
            };
            retry.wait_after(error).await?;
        }
    }

    /// URL of a manifest by digest.
    pub(crate) fn digest_url(&self, digest: &Digest) -> Url {
        self.url(&["manifests", &digest.to_string()])
    }

    async fn get_manifest(
        &self,
        url: Url,
        expected: Option<Digest>,
        accept: &str,
    ) -> Result<Bytes, RegistryError> {
        let request = RequestSpec::new(Method::GET, url).header(ACCEPT, accept);
        let mut retry = self.retry().with_attempts(MANIFEST_ATTEMPTS);
        let response = loop {
            let error = match self.send(&request).await {
                Ok(response) if response.status().is_success() => break response,
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    return Err(RegistryError::NotFound);
                }
                Ok(response) => self.error_from_response(response).await,
                Err(error) => error,
            };
            // A failed connection is not retried: the name may be misspelt, or there is no network.
            if !matches!(error, RegistryError::Status { .. }) {
                return Err(error);
            }
            match retry.wait_after(error).await {
                Ok(()) => {}
                // Ollama tries once, so its message has no word about retries.
                Err(RegistryError::RetriesExceeded(last)) => return Err(*last),
                Err(error) => return Err(error),
            }
        };
        let declared = expected.or_else(|| declared_digest(response.headers()));
        let bytes = self.read(response, MAX_MANIFEST_BYTES).await?;
        match declared {
            Some(declared) if declared != Digest::of(&bytes) => {
                Err(RegistryError::ManifestDigestMismatch { declared, found: Digest::of(&bytes) })
            }
            _ => Ok(bytes),
        }
    }
}

/// The digest in the response's header.
fn declared_digest(headers: &HeaderMap) -> Option<Digest> {
    headers.get("Docker-Content-Digest")?.to_str().ok()?.parse().ok()
}

/// Whether a document declares itself as Ollama's manifest list.
pub(crate) fn is_manifest_list(bytes: &[u8]) -> bool {
    manifest_media_type(bytes) == media::MANIFEST_LIST
}

/// Reads a manifest of a model that this program can run.
pub(crate) fn read_manifest(bytes: &[u8]) -> Result<Manifest, RegistryError> {
    let manifest = parse_with_layers(bytes)?;
    if manifest.all(media::TENSOR).next().is_some() {
        return Err(RegistryError::TensorLayers);
    }
    check_is_model(manifest)
}

/// Reads a manifest of a model that this program need not run.
pub(crate) fn read_any_manifest(bytes: &[u8]) -> Result<Manifest, RegistryError> {
    check_is_model(parse_with_layers(bytes)?)
}

/// Refuses manifests of container images and other artifacts.
fn check_is_model(manifest: Manifest) -> Result<Manifest, RegistryError> {
    let kinds = || manifest.layers.iter().map(|layer| layer.media_type.as_str());
    if !kinds().any(|kind| kind.starts_with(VENDOR_TYPE_PREFIX))
        || kinds().any(|kind| kind.starts_with(OLLAMA_TYPE_PREFIX))
    {
        return Ok(manifest);
    }
    let is_container =
        |kind: &str| CONTAINER_LAYER_PREFIXES.iter().any(|start| kind.starts_with(start));
    let what = if kinds().any(is_container) { "a container image" } else { "another artifact" };
    let kinds: Vec<&str> = kinds().take(MAX_NAMED).collect();
    let kinds = single_line(&kinds.join(", "), 400);
    Err(ManifestProblem::NoModel { what, kinds }.into())
}

/// Parses a manifest that has layers.
pub(crate) fn parse_with_layers(bytes: &[u8]) -> Result<Manifest, RegistryError> {
    let manifest = Manifest::parse(bytes, Path::new("")).map_err(|error| match error {
        StoreError::Manifest { reason, .. } if bytes.trim_ascii_start().starts_with(b"<") => {
            RegistryError::from(ManifestProblem::WebPage { reason })
        }
        StoreError::Manifest { reason, .. } => ManifestProblem::Invalid { reason }.into(),
        other => other.into(),
    })?;
    if manifest.layers.is_empty() {
        return Err(ManifestProblem::NoLayers.into());
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listed(seed: &[u8], more: Value) -> Value {
        let mut listed = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "size": 3, "digest": Digest::of(seed).to_string()});
        listed.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        listed
    }

    fn pick(manifests: Vec<Value>) -> Result<Option<Digest>, String> {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        select_from_index(index.to_string().as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn other_artifacts_are_refused() {
        let refused = |kind: &str| {
            let layer =
                json!({"mediaType": kind, "digest": Digest::of(b"x").to_string(), "size": 1});
            let config = json!({"mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": Digest::of(b"{}").to_string(), "size": 2});
            let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
            read_manifest(manifest.to_string().as_bytes()).map(drop).map_err(|e| e.to_string())
        };
        for kind in [
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        ] {
            let text = refused(kind).unwrap_err();
            assert!(
                text.ends_with(&format!(
                    "it is a container image, not a model: it has layers of {kind}"
                )),
                "{text}"
            );
        }
        assert!(
            refused("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
                .unwrap_err()
                .contains("another artifact")
        );
        assert_eq!(refused("application/vnd.ollama.image.model"), Ok(()));
    }

    #[test]
    fn the_only_model_of_an_index_is_selected() {
        let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let plain = listed(b"a", json!({}));
        let proof = listed(
            b"b",
            json!({"annotations": {"vnd.docker.reference.type": "attestation-manifest"}}),
        );
        let unknown =
            listed(b"c", json!({"platform": {"os": "unknown", "architecture": "unknown"}}));
        let model =
            listed(b"d", json!({"artifactType": "application/vnd.cncf.model.manifest.v1+json"}));
        let here =
            listed(b"e", json!({"platform": {"os": std::env::consts::OS, "architecture": arch}}));
        let other = listed(b"f", json!({"platform": {"os": "plan9", "architecture": "mips"}}));
        let found = |seed: &[u8]| Ok(Some(Digest::of(seed)));
        assert_eq!(pick(vec![plain.clone()]), found(b"a"));
        assert_eq!(pick(vec![proof.clone(), plain.clone(), unknown.clone()]), found(b"a"));
        assert_eq!(pick(vec![plain.clone(), model.clone(), other.clone()]), found(b"d"));
        assert_eq!(pick(vec![other.clone(), here.clone()]), found(b"e"));
        let text = pick(vec![other.clone(), plain.clone()]).unwrap_err();
        assert!(text.contains("(plan9/mips)") && text.contains("pull the tag of one"), "{text}");
        assert!(pick(vec![proof, unknown]).unwrap_err().contains("an index without a model"));
        assert_eq!(select_from_index(br#"{"layers": [], "manifests": []}"#).unwrap(), None);
        assert_eq!(select_from_index(b"no json").unwrap(), None);
    }
}
