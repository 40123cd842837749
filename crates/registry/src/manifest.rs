//! Manifests as registries give them: fetched, checked, and picked from an index where there are several.

use std::path::Path;

use bytes::Bytes;
use puna_store::{Digest, Manifest, StoreError, media};
use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::address::plain;
use crate::error::RegistryError;
use crate::http::{Ask, Session};
use crate::push::media_type;

/// Bytes of a manifest at most.
pub(crate) const MAX_MANIFEST: usize = 4 << 20;
/// Attempts at it: somebody waits who has seen nothing yet.
const MANIFEST_ATTEMPTS: u32 = 3;
/// What layers of models are called, whatever somebody has given a meaning to, and layers of containers.
const OLLAMA: &str = "application/vnd.ollama.image.";
const REGISTERED: &str = "application/vnd.";
const CONTAINER: [&str; 2] =
    ["application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs."];
/// Media types that a request for a tag accepts. A registry that has a manifest list must answer the list.
const ACCEPTED: &str = concat!(
    "application/vnd.ollama.manifest.list.v2+json, ",
    "application/vnd.docker.distribution.manifest.v2+json, ",
    "application/vnd.oci.image.manifest.v1+json, ",
    "application/vnd.oci.image.index.v1+json, ",
    "application/vnd.docker.distribution.manifest.list.v2+json"
);
/// Media types that a request for a child of a manifest list accepts.
const ACCEPTED_OF_CHILD: &str = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json";
/// Manifests of an index that a message names.
const NAMED: usize = 8;

/// A list of manifests under one tag.
#[derive(Deserialize)]
struct Index {
    manifests: Vec<Listed>,
    #[serde(default)]
    layers: Option<Value>,
}

#[derive(Deserialize)]
struct Listed {
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

impl Listed {
    /// Whether it describes another manifest instead of being a model.
    fn is_about_another(&self) -> bool {
        self.annotations.contains_key("vnd.docker.reference.type")
            || self
                .platform
                .as_ref()
                .is_some_and(|p| p.os == "unknown" && p.architecture == "unknown")
    }

    fn is_model(&self) -> bool {
        self.artifact_type.contains("model")
    }

    fn is_for_this_machine(&self) -> bool {
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
        format!("{} ({})", self.digest.short(), plain(&kind, 60))
    }
}

/// The manifest of an index that is the model; `None` where the text is no index.
pub(crate) fn picked(bytes: &[u8]) -> Result<Option<Digest>, RegistryError> {
    let Ok(Index { manifests, layers: None }) = serde_json::from_slice(bytes) else {
        return Ok(None);
    };
    let of_models = |list: &[&Listed]| -> Option<Digest> {
        let only = |list: Vec<&&Listed>| (list.len() == 1).then(|| list[0].digest);
        only(list.iter().collect())
            .or_else(|| only(list.iter().filter(|l| l.is_model()).collect()))
            .or_else(|| only(list.iter().filter(|l| l.is_for_this_machine()).collect()))
    };
    let candidates: Vec<&Listed> =
        manifests.iter().filter(|listed| !listed.is_about_another()).collect();
    if let Some(digest) = of_models(&candidates) {
        return Ok(Some(digest));
    }
    let names: Vec<String> = candidates.iter().take(NAMED).map(|listed| listed.name()).collect();
    Err(RegistryError::NotAManifest(match names.as_slice() {
        [] => "it is an index without a model".into(),
        names => format!(
            "it is an index of several, and none is this machine's or the only model: {}; ask for a tag of one of them",
            names.join(", ")
        ),
    }))
}

impl Session {
    /// Fetches what the tag stands for: a manifest, the one that an index stands for, or a manifest list of Ollama.
    pub(crate) async fn manifest(&self) -> Result<Bytes, RegistryError> {
        let bytes = self.manifest_at(self.manifest_url(), None, ACCEPTED).await?;
        if is_manifest_list(&bytes) {
            return Ok(bytes);
        }
        match picked(&bytes)? {
            None => Ok(bytes),
            Some(digest) => {
                self.manifest_at(self.digest_url(&digest), Some(digest), ACCEPTED).await
            }
        }
    }

    /// Fetches a child of a manifest list and checks its digest.
    pub(crate) async fn child_manifest(&self, digest: Digest) -> Result<Bytes, RegistryError> {
        self.manifest_at(self.digest_url(&digest), Some(digest), ACCEPTED_OF_CHILD).await
    }

    /// Whether the registry has a manifest of the model's repository.
    pub(crate) async fn has_manifest(&self, digest: Digest) -> Result<bool, RegistryError> {
        let ask =
            Ask::new(Method::HEAD, self.digest_url(&digest)).header(ACCEPT, ACCEPTED_OF_CHILD);
        let mut retry = self.retry().at_most(MANIFEST_ATTEMPTS);
        loop {
            let error = match self.send(&ask).await {
                Ok(response) if response.status().is_success() => return Ok(true),
                Ok(response) if response.status() == StatusCode::NOT_FOUND => return Ok(false),
                Ok(response) => self.refusal(response).await,
                Err(error) => error,
            };
            retry.after(error).await?;
        }
    }

    /// The address of a manifest of the model's repository.
    pub(crate) fn digest_url(&self, digest: &Digest) -> Url {
        self.url(&["manifests", &digest.to_string()])
    }

    async fn manifest_at(
        &self,
        url: Url,
        want: Option<Digest>,
        accepted: &str,
    ) -> Result<Bytes, RegistryError> {
        let ask = Ask::new(Method::GET, url).header(ACCEPT, accepted);
        let mut retry = self.retry().at_most(MANIFEST_ATTEMPTS);
        let response = loop {
            let error = match self.send(&ask).await {
                Ok(response) if response.status().is_success() => break response,
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    return Err(RegistryError::NotFound);
                }
                Ok(response) => self.refusal(response).await,
                Err(error) => error,
            };
            // Who cannot be reached is not waited for: names are misspelt, and networks absent.
            if !matches!(error, RegistryError::Status { .. }) {
                return Err(error);
            }
            match retry.after(error).await {
                Ok(()) => {}
                // In the words of Ollama, which tries once.
                Err(RegistryError::Retries(last)) => return Err(*last),
                Err(error) => return Err(error),
            }
        };
        let said = want.or_else(|| said_digest(response.headers()));
        let bytes = self.read(response, MAX_MANIFEST).await?;
        match said {
            Some(said) if said != Digest::of(&bytes) => {
                Err(RegistryError::ManifestDigest { said, found: Digest::of(&bytes) })
            }
            _ => Ok(bytes),
        }
    }
}

/// The digest that a registry gives beside a manifest.
fn said_digest(headers: &HeaderMap) -> Option<Digest> {
    headers.get("Docker-Content-Digest")?.to_str().ok()?.parse().ok()
}

/// Whether a text says that it is a manifest list of Ollama.
pub(crate) fn is_manifest_list(bytes: &[u8]) -> bool {
    media_type(bytes) == media::MANIFEST_LIST
}

/// Reads a manifest of a model that can be stored.
pub(crate) fn read_manifest(bytes: &[u8]) -> Result<Manifest, RegistryError> {
    let manifest = with_layers(bytes)?;
    if manifest.all(media::TENSOR).next().is_some() {
        return Err(RegistryError::Tensors);
    }
    of_a_model(manifest)
}

/// Reads a manifest of a model that need not run here.
pub(crate) fn read_any_manifest(bytes: &[u8]) -> Result<Manifest, RegistryError> {
    of_a_model(with_layers(bytes)?)
}

/// Refuses a manifest of something else than a model.
fn of_a_model(manifest: Manifest) -> Result<Manifest, RegistryError> {
    let kinds = || manifest.layers.iter().map(|layer| layer.media_type.as_str());
    if !kinds().any(|kind| kind.starts_with(REGISTERED))
        || kinds().any(|kind| kind.starts_with(OLLAMA))
    {
        return Ok(manifest);
    }
    let is_container = |kind: &str| CONTAINER.iter().any(|start| kind.starts_with(start));
    let what = if kinds().any(is_container) { "a container image" } else { "something else" };
    let kinds: Vec<&str> = kinds().take(NAMED).collect();
    Err(RegistryError::NotAManifest(format!(
        "it is {what} and no model: it has layers of {}",
        plain(&kinds.join(", "), 400)
    )))
}

/// Reads a manifest of any model.
pub(crate) fn with_layers(bytes: &[u8]) -> Result<Manifest, RegistryError> {
    let manifest = Manifest::parse(bytes, Path::new("")).map_err(|error| match error {
        StoreError::Manifest { reason, .. } if bytes.trim_ascii_start().starts_with(b"<") => {
            RegistryError::NotAManifest(format!("it is a page for browsers ({reason})"))
        }
        StoreError::Manifest { reason, .. } => RegistryError::NotAManifest(reason),
        other => other.into(),
    })?;
    if manifest.layers.is_empty() {
        return Err(RegistryError::NotAManifest("it has no layers".into()));
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
        picked(index.to_string().as_bytes()).map_err(|e| e.to_string())
    }

    #[test]
    fn what_else_registries_have_is_no_model() {
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
                    "it is a container image and no model: it has layers of {kind}"
                )),
                "{text}"
            );
        }
        assert!(
            refused("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
                .unwrap_err()
                .contains("something else")
        );
        assert_eq!(refused("application/vnd.ollama.image.model"), Ok(()));
    }

    #[test]
    fn the_one_model_of_an_index_is_found() {
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
        assert!(text.contains("(plan9/mips)") && text.contains("ask for a tag of one"), "{text}");
        assert!(pick(vec![proof, unknown]).unwrap_err().contains("an index without a model"));
        assert_eq!(picked(br#"{"layers": [], "manifests": []}"#).unwrap(), None);
        assert_eq!(picked(b"no json").unwrap(), None);
    }
}
