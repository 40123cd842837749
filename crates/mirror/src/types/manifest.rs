//! Manifests of any format. They are stored byte for byte; blobs, subject and media type are
//! parsed.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Child, Digest, ManifestList, check_value_count, media};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::types::manifest_error::{ManifestError, ManifestProblem};
use crate::types::manifest_list;

/// Largest size of a manifest in bytes.
pub(crate) const MAX_MANIFEST_BYTES: usize = 4 << 20;

/// Media type of an OCI image manifest.
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an OCI image index.
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of a Docker manifest list.
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Number of characters of a rejected media type that an error shows.
const MAX_SHOWN_CHARS: usize = 80;
/// Prefix of the media types of Ollama model layers.
const OLLAMA_LAYER_PREFIX: &str = "application/vnd.ollama.image.";

/// Format of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManifestKind {
    /// Model in Ollama's format.
    Model,
    /// Other manifest with blobs.
    Image,
    /// OCI index or Docker list of manifests.
    Index,
    /// Ollama manifest list: one manifest for each runner.
    List,
}

/// Reference to a blob or manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type of the content.
    #[serde(default)]
    pub media_type: String,
    /// Digest of the content.
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
    /// Type of the artifact, if the content is a manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Map<String, Value>>,
}

/// A parsed manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Original bytes.
    pub bytes: Bytes,
    /// Digest of the bytes.
    pub digest: Digest,
    /// Media type to serve the manifest with.
    pub media_type: String,
    /// Format of the manifest.
    pub kind: ManifestKind,
    /// Referenced blobs: layers, then the config. For a manifest list, the blobs of its inline
    /// children.
    pub blobs: Vec<Descriptor>,
    /// Digests of the children of an index or list.
    pub children: Vec<Digest>,
    /// Children with their runners, if this is an Ollama manifest list.
    pub list: Option<Arc<ManifestList>>,
    /// Manifest that this one refers to.
    pub subject: Option<Digest>,
    /// Stated artifact type, else the media type of the config.
    artifact_type: Option<String>,
    annotations: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestJson {
    media_type: Option<String>,
    config: Option<Value>,
    layers: Option<Vec<Layer>>,
    manifests: Option<Vec<Value>>,
    subject: Option<Subject>,
    artifact_type: Option<String>,
    annotations: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(flatten)]
    descriptor: Descriptor,
    /// External locations of the layer, if it is not stored in the registry.
    #[serde(default)]
    urls: Vec<String>,
}

#[derive(Deserialize)]
struct Subject {
    digest: Digest,
}

impl Manifest {
    /// Parses a manifest that came with a media type.
    ///
    /// # Errors
    /// The bytes are no manifest, or state another media type.
    pub fn parse(bytes: Bytes, content_type: Option<&str>) -> Result<Self, ManifestError> {
        Self::read(bytes, content_type, false)
    }

    /// Parses a pushed manifest. Its media types must be those of manifests: the registry serves
    /// the manifest with its own type, and a browser would render `text/html`. Each digest must
    /// have one size.
    pub(crate) fn parse_pushed(
        bytes: Bytes,
        content_type: Option<&str>,
    ) -> Result<Self, ManifestError> {
        Self::read(bytes, content_type, true)?.with_checked_sizes()
    }

    /// Returns the manifest if it declares one size for each digest.
    pub(crate) fn with_checked_sizes(self) -> Result<Self, ManifestError> {
        self.check_sizes()?;
        Ok(self)
    }

    /// Rejects a manifest that declares two sizes for one digest. Manifests that are stored already
    /// are not checked, because garbage collection must be able to read them.
    fn check_sizes(&self) -> Result<(), ManifestProblem> {
        /// Descriptors of all fields. Entries that are no descriptors have no size.
        #[derive(Deserialize)]
        struct Descriptors {
            config: Option<Value>,
            #[serde(default)]
            layers: Option<Vec<Value>>,
            #[serde(default)]
            manifests: Option<Vec<Value>>,
            subject: Option<Value>,
        }
        let Ok(all) = serde_json::from_slice::<Descriptors>(&self.bytes) else { return Ok(()) };
        let single = all.config.into_iter().chain(all.subject);
        let lists = all.layers.into_iter().chain(all.manifests).flatten();
        let mut sizes = HashMap::new();
        for descriptor in single.chain(lists) {
            let size = descriptor.get("size").and_then(Value::as_u64);
            let (Some(digest), Some(size)) = (digest_of(&descriptor), size) else { continue };
            if let Some(other) = sizes.insert(digest, size).filter(|other| *other != size) {
                return Err(ManifestProblem::TwoSizes { digest, size, other });
            }
        }
        Ok(())
    }

    fn read(
        bytes: Bytes,
        content_type: Option<&str>,
        is_pushed: bool,
    ) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge { max: MAX_MANIFEST_BYTES });
        }
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(ManifestProblem::NotAnObject.into());
        }
        check_value_count(&bytes).map_err(|reason| ManifestProblem::Json { reason })?;
        let wire: ManifestJson = serde_json::from_slice(&bytes)
            .map_err(|e| ManifestProblem::Json { reason: e.to_string() })?;
        let media_type = media_type(&wire, content_type, is_pushed)?;
        if media_type == media::MANIFEST_LIST {
            return Self::read_list(bytes, wire);
        }
        if wire.layers.is_none() && wire.manifests.is_none() && wire.config.is_none() {
            return Err(ManifestProblem::Empty.into());
        }
        let config =
            wire.config.filter(has_digest).map(serde_json::from_value::<Descriptor>).transpose();
        let config = config.map_err(|e| ManifestProblem::Config { reason: e.to_string() })?;
        let layers = wire.layers.unwrap_or_default();
        let is_model =
            layers.iter().any(|layer| layer.descriptor.media_type.starts_with(OLLAMA_LAYER_PREFIX));
        let children = wire.manifests.iter().flatten().filter_map(digest_of).collect();
        let kind = match wire.manifests {
            Some(_) => ManifestKind::Index,
            None if is_model && media_type == media::MANIFEST && wire.subject.is_none() => {
                ManifestKind::Model
            }
            None => ManifestKind::Image,
        };
        let config_type = config.as_ref().map(|config| config.media_type.clone());
        let stored_layers =
            layers.into_iter().filter(|layer| layer.urls.is_empty()).map(|layer| layer.descriptor);
        Ok(Self {
            digest: Digest::of(&bytes),
            bytes,
            media_type,
            kind,
            blobs: stored_layers.chain(config).collect(),
            children,
            list: None,
            subject: wire.subject.map(|subject| subject.digest),
            artifact_type: wire.artifact_type.filter(|kind| !kind.is_empty()).or(config_type),
            annotations: wire.annotations,
        })
    }

    /// Parses an Ollama manifest list.
    fn read_list(bytes: Bytes, wire: ManifestJson) -> Result<Self, ManifestError> {
        if wire.media_type.is_none_or(|stated| stated.is_empty()) {
            return Err(ManifestProblem::UntypedList.into());
        }
        let (list, blobs) = manifest_list::read(&bytes)?;
        Ok(Self {
            digest: Digest::of(&bytes),
            bytes,
            media_type: media::MANIFEST_LIST.to_owned(),
            kind: ManifestKind::List,
            blobs,
            children: list.children.iter().map(|child| child.digest).collect(),
            list: Some(Arc::new(list)),
            subject: wire.subject.map(|subject| subject.digest),
            artifact_type: wire.artifact_type.filter(|kind| !kind.is_empty()),
            annotations: wire.annotations,
        })
    }

    /// Parses a manifest of the store. Without a media type it counts as a Docker manifest.
    pub(crate) fn parse_stored(bytes: Bytes) -> Result<Self, ManifestError> {
        match Self::parse(bytes.clone(), None) {
            Ok(manifest) if manifest.list.is_some() => Ok(manifest),
            _ => Self::parse(bytes, Some(media::MANIFEST)),
        }
    }

    /// Returns the child of a list with a digest.
    pub(crate) fn child(&self, digest: &Digest) -> Option<&Child> {
        self.list.as_ref()?.children.iter().find(|child| child.digest == *digest)
    }

    /// Returns the manifest of an inline child with a digest.
    pub(crate) fn inline_child(&self, digest: &Digest) -> Result<Option<Self>, ManifestError> {
        self.child(digest).map(manifest_list::inline_manifest).transpose().map(Option::flatten)
    }

    /// Returns the stated media type if the registry does not know how it references blobs.
    pub(crate) fn unknown_type(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Stated {
            #[serde(rename = "mediaType")]
            media_type: Option<String>,
        }
        let stated: Option<Stated> = serde_json::from_slice(&self.bytes).ok();
        stated?.media_type.filter(|kind| !kind.is_empty() && !is_known_media_type(kind))
    }

    /// Sum of the stated blob sizes in bytes.
    pub fn size(&self) -> u64 {
        self.blobs.iter().fold(0, |sum, blob| sum.saturating_add(blob.size))
    }

    /// Descriptor for lists of manifests.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor {
            media_type: self.media_type.clone(),
            digest: self.digest,
            size: self.bytes.len() as u64,
            artifact_type: self
                .artifact_type
                .clone()
                .filter(|_| self.kind != ManifestKind::Index || self.artifact_type.is_some()),
            annotations: self.annotations.clone(),
        }
    }
}

/// Returns the media type of a manifest: the stated one, else the one that it came with, else one
/// by its fields.
fn media_type(
    wire: &ManifestJson,
    content_type: Option<&str>,
    is_pushed: bool,
) -> Result<String, ManifestProblem> {
    let content_type = content_type
        .map(|content_type| content_type.split(';').next().unwrap_or(content_type).trim())
        .filter(|content_type| !content_type.is_empty());
    let stated = wire.media_type.clone().filter(|stated| !stated.is_empty());
    // Garbage collection removes nothing while it cannot read a manifest, so none of an unknown
    // type is accepted.
    let unknown = stated.as_deref().filter(|kind| !is_known_media_type(kind));
    let unknown = unknown.or(content_type.filter(|kind| !is_manifest_media_type(kind)));
    if let Some(kind) = unknown.filter(|_| is_pushed) {
        let stated = kind.chars().take(MAX_SHOWN_CHARS).collect();
        return Err(ManifestProblem::MediaType { stated, example: OCI_MANIFEST });
    }
    // Stored manifests from before this check, and those of upstreams, get a media type by their
    // fields.
    Ok(match (stated.filter(|stated| is_manifest_media_type(stated)), content_type) {
        (Some(stated), Some(content_type))
            if stated != content_type && is_known_media_type(content_type) =>
        {
            let content_type = content_type.to_owned();
            return Err(ManifestProblem::ContentType { stated, content_type });
        }
        (Some(stated), _) => stated,
        (None, Some(content_type)) if is_known_media_type(content_type) => content_type.to_owned(),
        (None, _) if wire.manifests.is_some() => OCI_INDEX.to_owned(),
        (None, _) => OCI_MANIFEST.to_owned(),
    })
}

/// Whether a media type is one of the known manifest types. Clients also send generic types.
fn is_known_media_type(media_type: &str) -> bool {
    [OCI_MANIFEST, OCI_INDEX, media::MANIFEST, DOCKER_LIST, media::MANIFEST_LIST]
        .contains(&media_type)
}

/// Whether a media type may belong to a manifest: plain or vendor JSON, which browsers do not
/// execute.
fn is_manifest_media_type(media_type: &str) -> bool {
    let kind = media_type.to_ascii_lowercase();
    let Some(rest) = kind.strip_prefix("application/") else { return false };
    let of_vendor = || {
        let name = rest.strip_prefix("vnd.").and_then(|rest| rest.strip_suffix("+json"))?;
        // Characters of names in RFC 6838, 4.2.
        let letters = |c: u8| c.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&c);
        Some(!name.is_empty() && name.len() <= 127 && name.bytes().all(letters))
    };
    rest == "json" || of_vendor().unwrap_or(false)
}

fn digest_of(descriptor: &Value) -> Option<Digest> {
    descriptor.get("digest")?.as_str()?.parse().ok()
}

fn has_digest(config: &Value) -> bool {
    config.get("digest").and_then(Value::as_str).is_some_and(|digest| !digest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, content_type: Option<&str>) -> Result<Manifest, ManifestError> {
        Manifest::parse(Bytes::copy_from_slice(text.as_bytes()), content_type)
    }

    fn layer(kind: &str) -> String {
        format!(r#"{{"mediaType":"{kind}","digest":"{}","size":1}}"#, Digest::of(kind.as_bytes()))
    }

    #[test]
    fn a_digest_with_two_sizes_is_rejected() {
        let digest = Digest::of(b"x");
        let of = |size: u64| format!(r#"{{"mediaType":"a/b","digest":"{digest}","size":{size}}}"#);
        let push = |text: String| Manifest::parse_pushed(text.into(), Some(OCI_MANIFEST));
        let texts = |first: &str, second: &str| {
            [
                format!(r#"{{"layers":[{first},{second}]}}"#),
                format!(r#"{{"config":{first},"layers":[{second}]}}"#),
                format!(r#"{{"manifests":[{first},{second}]}}"#),
                format!(r#"{{"subject":{first},"layers":[{second}]}}"#),
            ]
        };
        for text in texts(&of(1), &of(2)) {
            let error = push(text.clone()).unwrap_err();
            assert!(error.to_string().contains("declares 2 bytes for"), "{error}");
            // A manifest that is stored already is still read.
            parse(&text, None).unwrap();
        }
        for text in texts(&of(1), &of(1)) {
            push(text).unwrap();
        }
    }

    #[test]
    fn models_images_and_lists_are_distinguished() {
        let of = |media_type: &str, kind: &str| {
            let text = format!(
                r#"{{"schemaVersion":2,"mediaType":"{media_type}","config":{},"layers":[{}]}}"#,
                layer("c/d"),
                layer(kind)
            );
            let manifest = parse(&text, None).unwrap();
            assert_eq!(manifest.digest, Digest::of(text.as_bytes()));
            (manifest.kind, manifest.blobs.len())
        };
        assert_eq!(of(media::MANIFEST, media::MODEL), (ManifestKind::Model, 2));
        assert_eq!(
            of(media::MANIFEST, "application/vnd.docker.image.rootfs.diff.tar.gzip"),
            (ManifestKind::Image, 2)
        );
        assert_eq!(of(OCI_MANIFEST, media::MODEL), (ManifestKind::Image, 2));
        let list =
            parse(&format!(r#"{{"manifests":[{},{{"digest":7}},8]}}"#, layer("m")), None).unwrap();
        assert_eq!((list.kind, list.media_type.as_str()), (ManifestKind::Index, OCI_INDEX));
        assert_eq!(list.children, [Digest::of(b"m")]);
    }

    #[test]
    fn invalid_manifest_lists_are_rejected() {
        use crate::types::manifest_list::tests::{child, inline, list_of, reference};

        let good = list_of(&[inline(b"a", "llamacpp"), reference("x", "mlx", "safetensors")]);
        let list = parse(&good, Some(media::MANIFEST_LIST)).unwrap();
        assert_eq!(
            (list.kind, list.media_type.as_str()),
            (ManifestKind::List, media::MANIFEST_LIST)
        );
        assert_eq!((list.blobs.len(), list.children.len(), list.size()), (1, 2, 1));
        let first = list.inline_child(&list.children[0]).unwrap().unwrap();
        assert_eq!((first.digest, first.kind), (list.children[0], ManifestKind::Model));
        assert_eq!(
            list.inline_child(&list.children[1]).unwrap(),
            None,
            "a reference is not inline"
        );
        let stated = |text: &str| text.replace(media::MANIFEST_LIST, OCI_INDEX);
        assert!(parse(&stated(&good), Some(media::MANIFEST_LIST)).is_err());
        assert_eq!(parse(&stated(&good), None).unwrap().list, None);
        let mut wrong = inline(b"a", "llamacpp");
        wrong["digest"] = Digest::of(b"another").to_string().into();
        let many: Vec<_> =
            (0..10_000).map(|n| reference(&n.to_string(), &n.to_string(), "gguf")).collect();
        let nested = serde_json::from_str(&good).unwrap();
        let twice = |runner| vec![reference("a", runner, "gguf"), reference("b", "ggml", "gguf")];
        for (children, reason) in [
            (vec![], "no children"),
            (many, "10000 children"),
            (twice("GGML"), "\"ggml\""),
            (vec![reference("a", "ggml", "gguf"), nested], "child 2 of the list is a list itself"),
            (vec![wrong], "child 1 of the list has the digest"),
            (
                vec![child(b"a")["layers"][0].clone()],
                "child 1 of the list has the unknown media type",
            ),
        ] {
            let error = parse(&list_of(&children), None).unwrap_err();
            assert!(matches!(error, ManifestError::Invalid(_)), "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
        let untyped = r#"{"manifests":[]}"#;
        let error = parse(untyped, Some(media::MANIFEST_LIST)).unwrap_err();
        assert!(error.to_string().contains("must state its mediaType"), "{error}");
    }

    #[test]
    fn layers_with_external_urls_are_not_required() {
        let text = format!(
            r#"{{"layers":[{{"mediaType":"x","digest":"{}","size":1,"urls":["https://e.example/x"]}}],"config":{{}}}}"#,
            Digest::of(b"x")
        );
        let manifest = parse(&text, Some(OCI_MANIFEST)).unwrap();
        assert_eq!(manifest.blobs, []);
    }

    #[test]
    fn the_content_type_must_not_contradict_the_manifest() {
        let text = format!(r#"{{"mediaType":"{OCI_MANIFEST}","layers":[]}}"#);
        assert_eq!(
            parse(&text, Some(&format!("{OCI_MANIFEST}; charset=utf-8"))).unwrap().media_type,
            OCI_MANIFEST
        );
        assert!(matches!(parse(&text, Some(OCI_INDEX)), Err(ManifestError::Invalid(_))));
        assert_eq!(parse(&text, Some("application/json")).unwrap().media_type, OCI_MANIFEST);
        assert_eq!(
            parse(r#"{"layers":[]}"#, Some(media::MANIFEST)).unwrap().media_type,
            media::MANIFEST
        );
    }

    #[test]
    fn pushed_manifests_need_a_manifest_media_type() {
        let stated = |kind: &str| Bytes::from(format!(r#"{{"mediaType":"{kind}","layers":[]}}"#));
        let plain = || Bytes::from_static(br#"{"layers":[]}"#);
        for kind in [
            OCI_MANIFEST,
            OCI_INDEX,
            DOCKER_LIST,
            media::MANIFEST,
            "application/vnd.cncf.oras.artifact.manifest.v1+json",
            "application/vnd.oci.artifact.manifest.v1+json; charset=utf-8",
            "application/json",
        ] {
            assert!(Manifest::parse_pushed(plain(), Some(kind)).is_ok(), "{kind}");
        }
        assert!(Manifest::parse_pushed(plain(), None).is_ok());
        // Garbage collection could not tell which blobs it references.
        let unknown = "application/vnd.other.manifest.v9+json";
        let refused = Manifest::parse_pushed(stated(unknown), None);
        assert!(matches!(refused, Err(ManifestError::Invalid(_))), "{refused:?}");
        for kind in [
            "text/html",
            "text/html; charset=utf-8",
            "TEXT/HTML",
            "html",
            "image/svg+xml",
            "application/xhtml+xml",
            "application/vnd.x+xml",
            "application/vnd.+json",
            "application/vnd.a/b+json",
            "application/javascript",
            "application/octet-stream",
        ] {
            for refused in [
                Manifest::parse_pushed(plain(), Some(kind)),
                Manifest::parse_pushed(stated(kind), None),
            ] {
                assert!(matches!(refused, Err(ManifestError::Invalid(_))), "{kind}: {refused:?}");
            }
            // A manifest from before pushes were checked stays readable.
            assert_eq!(
                Manifest::parse(stated(kind), None).unwrap().media_type,
                OCI_MANIFEST,
                "{kind}"
            );
        }
    }

    #[test]
    fn invalid_manifests_are_rejected() {
        for bad in [
            "",
            "[]",
            "null",
            "{}",
            "<html>",
            r#"{"layers":[{"digest":"sha256:zz","size":1}]}"#,
            r#"{"layers":{}}"#,
        ] {
            assert!(matches!(parse(bad, None), Err(ManifestError::Invalid(_))), "{bad}");
        }
        let large = vec![b' '; MAX_MANIFEST_BYTES + 1];
        let error = Manifest::parse(large.into(), None).unwrap_err();
        assert_eq!(error, ManifestError::TooLarge { max: MAX_MANIFEST_BYTES });
    }
}
