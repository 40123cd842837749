//! Manifests of any form: kept byte for byte, understood as far as their blobs, their subject and what they say they are.

use std::sync::Arc;

use bytes::Bytes;
use puna_store::{Child, Digest, ManifestList, media};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::MirrorError;
use crate::manifest_list;

/// Bytes of a manifest at most.
pub(crate) const MAX_MANIFEST: usize = 8 << 20;

/// An image of the OCI rules.
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// A list of images of the OCI rules.
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// A list of images of Docker's.
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Letters of a media type that is refused which are shown.
const MAX_SHOWN: usize = 80;
/// How media types of a model's layers begin.
const OLLAMA: &str = "application/vnd.ollama.image.";

/// What a manifest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A model in Ollama's form.
    Model,
    /// Another thing with blobs.
    Image,
    /// A list of manifests.
    Index,
    /// A manifest list of Ollama, which has one manifest for each runner.
    List,
}

/// A blob or manifest, as manifests name it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    #[serde(default)]
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
    /// What it is for, of a manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Map<String, Value>>,
}

/// A manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// As it came.
    pub bytes: Bytes,
    /// Of the bytes.
    pub digest: Digest,
    /// As it is to be sent.
    pub media_type: String,
    /// What it is.
    pub kind: Kind,
    /// Blobs that must be there: layers, the config last; of a list those of its inline children.
    pub blobs: Vec<Descriptor>,
    /// The manifests that it is a list of.
    pub children: Vec<Digest>,
    /// Its children with their runners, where it is a manifest list of Ollama.
    pub list: Option<Arc<ManifestList>>,
    /// The manifest that this one is about.
    pub subject: Option<Digest>,
    /// What it is for: what it says, else what its config is.
    artifact_type: Option<String>,
    annotations: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
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
    /// Where it is, if not in the registry.
    #[serde(default)]
    urls: Vec<String>,
}

#[derive(Deserialize)]
struct Subject {
    digest: Digest,
}

impl Manifest {
    /// Reads a manifest that came with a media type.
    ///
    /// # Errors
    /// It is none, or another one than was said.
    pub fn parse(bytes: Bytes, said: Option<&str>) -> Result<Self, MirrorError> {
        Self::read(bytes, said, false)
    }

    /// The same of one that somebody pushes, which must come as a manifest and say that it is one: it is handed to others as what it
    /// says, and a browser would show a page.
    pub(crate) fn pushed(bytes: Bytes, said: Option<&str>) -> Result<Self, MirrorError> {
        Self::read(bytes, said, true)
    }

    fn read(bytes: Bytes, said: Option<&str>, is_pushed: bool) -> Result<Self, MirrorError> {
        let invalid = |reason: String| MirrorError::ManifestInvalid(reason);
        if bytes.len() > MAX_MANIFEST {
            return Err(MirrorError::ManifestTooLarge { most: MAX_MANIFEST });
        }
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(invalid("it is no JSON object".into()));
        }
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|e| invalid(e.to_string()))?;
        let said = said
            .map(|said| said.split(';').next().unwrap_or(said).trim())
            .filter(|said| !said.is_empty());
        let own = wire.media_type.clone().filter(|own| !own.is_empty());
        for kind in [own.as_deref(), said].into_iter().flatten().filter(|_| is_pushed) {
            if !is_of_manifests(kind) {
                return Err(invalid(format!(
                    "{:?} is no media type of manifests, such as {OCI_MANIFEST}",
                    kind.chars().take(MAX_SHOWN).collect::<String>()
                )));
            }
        }
        // What was kept before pushes were judged by it, or comes from an upstream, is handed on as what its form says it is.
        let media_type = match (own.filter(|own| is_of_manifests(own)), said) {
            (Some(own), Some(said)) if own != said && is_known(said) => {
                return Err(invalid(format!("its mediaType is {own:?}, but it came as {said:?}")));
            }
            (Some(own), _) => own,
            (None, Some(said)) if is_known(said) => said.to_owned(),
            (None, _) if wire.manifests.is_some() => OCI_INDEX.to_owned(),
            (None, _) => OCI_MANIFEST.to_owned(),
        };
        if media_type == media::MANIFEST_LIST {
            return Self::read_list(bytes, wire);
        }
        if wire.layers.is_none() && wire.manifests.is_none() && wire.config.is_none() {
            return Err(invalid("it has neither layers nor manifests".into()));
        }
        let config =
            wire.config.filter(has_digest).map(serde_json::from_value::<Descriptor>).transpose();
        let config = config.map_err(|e| invalid(format!("config: {e}")))?;
        let layers = wire.layers.unwrap_or_default();
        let is_model = layers.iter().any(|layer| layer.descriptor.media_type.starts_with(OLLAMA));
        let children = wire.manifests.iter().flatten().filter_map(digest_of).collect();
        let kind = match wire.manifests {
            Some(_) => Kind::Index,
            None if is_model && media_type == media::MANIFEST && wire.subject.is_none() => {
                Kind::Model
            }
            None => Kind::Image,
        };
        let config_type = config.as_ref().map(|config| config.media_type.clone());
        let here =
            layers.into_iter().filter(|layer| layer.urls.is_empty()).map(|layer| layer.descriptor);
        Ok(Self {
            digest: Digest::of(&bytes),
            bytes,
            media_type,
            kind,
            blobs: here.chain(config).collect(),
            children,
            list: None,
            subject: wire.subject.map(|subject| subject.digest),
            artifact_type: wire.artifact_type.filter(|kind| !kind.is_empty()).or(config_type),
            annotations: wire.annotations,
        })
    }

    /// Reads a manifest list of Ollama.
    fn read_list(bytes: Bytes, wire: Wire) -> Result<Self, MirrorError> {
        if wire.media_type.is_none_or(|own| own.is_empty()) {
            return Err(MirrorError::ManifestInvalid(format!(
                "a manifest list must state its mediaType: {}",
                media::MANIFEST_LIST
            )));
        }
        let (list, blobs) = manifest_list::read(&bytes).map_err(MirrorError::ManifestInvalid)?;
        Ok(Self {
            digest: Digest::of(&bytes),
            bytes,
            media_type: media::MANIFEST_LIST.to_owned(),
            kind: Kind::List,
            blobs,
            children: list.children.iter().map(|child| child.digest).collect(),
            list: Some(Arc::new(list)),
            subject: wire.subject.map(|subject| subject.digest),
            artifact_type: wire.artifact_type.filter(|kind| !kind.is_empty()),
            annotations: wire.annotations,
        })
    }

    /// Reads a manifest of the store. A manifest there that states no media type is one of Docker's.
    pub(crate) fn of_store(bytes: Bytes) -> Result<Self, MirrorError> {
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
    pub(crate) fn inline_child(&self, digest: &Digest) -> Result<Option<Self>, MirrorError> {
        self.child(digest).map(manifest_list::inline_manifest).transpose().map(Option::flatten)
    }

    /// Returns the media type that the manifest states where it is not one whose blobs are known.
    pub(crate) fn unknown_type(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Stated {
            #[serde(rename = "mediaType")]
            media_type: Option<String>,
        }
        let stated: Option<Stated> = serde_json::from_slice(&self.bytes).ok();
        stated?.media_type.filter(|kind| !kind.is_empty() && !is_known(kind))
    }

    /// Bytes of its blobs, as it states them.
    pub fn size(&self) -> u64 {
        self.blobs.iter().fold(0, |sum, blob| sum.saturating_add(blob.size))
    }

    /// As a list of manifests names it.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor {
            media_type: self.media_type.clone(),
            digest: self.digest,
            size: self.bytes.len() as u64,
            artifact_type: self
                .artifact_type
                .clone()
                .filter(|_| self.kind != Kind::Index || self.artifact_type.is_some()),
            annotations: self.annotations.clone(),
        }
    }
}

/// Whether a media type is that of manifests, rather than what a client sends with everything.
fn is_known(media_type: &str) -> bool {
    [OCI_MANIFEST, OCI_INDEX, media::MANIFEST, DOCKER_LIST, media::MANIFEST_LIST]
        .contains(&media_type)
}

/// Whether a media type may be that of a manifest: JSON, of a vendor's or of none's. Neither browsers nor anybody else run that.
fn is_of_manifests(media_type: &str) -> bool {
    let kind = media_type.to_ascii_lowercase();
    let Some(rest) = kind.strip_prefix("application/") else { return false };
    let of_vendor = || {
        let name = rest.strip_prefix("vnd.").and_then(|rest| rest.strip_suffix("+json"))?;
        // The letters of names in RFC 6838, 4.2.
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

    fn parse(text: &str, said: Option<&str>) -> Result<Manifest, MirrorError> {
        Manifest::parse(Bytes::copy_from_slice(text.as_bytes()), said)
    }

    fn layer(kind: &str) -> String {
        format!(r#"{{"mediaType":"{kind}","digest":"{}","size":1}}"#, Digest::of(kind.as_bytes()))
    }

    #[test]
    fn models_images_and_lists_are_told_apart() {
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
        assert_eq!(of(media::MANIFEST, media::MODEL), (Kind::Model, 2));
        assert_eq!(
            of(media::MANIFEST, "application/vnd.docker.image.rootfs.diff.tar.gzip"),
            (Kind::Image, 2)
        );
        assert_eq!(of(OCI_MANIFEST, media::MODEL), (Kind::Image, 2));
        let list =
            parse(&format!(r#"{{"manifests":[{},{{"digest":7}},8]}}"#, layer("m")), None).unwrap();
        assert_eq!((list.kind, list.media_type.as_str()), (Kind::Index, OCI_INDEX));
        assert_eq!(list.children, [Digest::of(b"m")]);
    }

    #[test]
    fn lists_that_break_a_rule_are_no_manifests() {
        use crate::manifest_list::tests::{child, inline, list_of, reference};

        let good = list_of(&[inline(b"a", "llamacpp"), reference("x", "mlx", "safetensors")]);
        let list = parse(&good, Some(media::MANIFEST_LIST)).unwrap();
        assert_eq!((list.kind, list.media_type.as_str()), (Kind::List, media::MANIFEST_LIST));
        assert_eq!((list.blobs.len(), list.children.len(), list.size()), (1, 2, 1));
        let first = list.inline_child(&list.children[0]).unwrap().unwrap();
        assert_eq!((first.digest, first.kind), (list.children[0], Kind::Model));
        assert_eq!(
            list.inline_child(&list.children[1]).unwrap(),
            None,
            "a reference is not inline"
        );
        let own = |text: &str| text.replace(media::MANIFEST_LIST, OCI_INDEX);
        assert!(parse(&own(&good), Some(media::MANIFEST_LIST)).is_err());
        assert_eq!(parse(&own(&good), None).unwrap().list, None);
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
            assert_eq!(error.code(), (400, "MANIFEST_INVALID"));
            assert!(error.to_string().contains(reason), "{error}");
        }
        let untyped = r#"{"manifests":[]}"#;
        let error = parse(untyped, Some(media::MANIFEST_LIST)).unwrap_err();
        assert!(error.to_string().contains("must state its mediaType"), "{error}");
    }

    #[test]
    fn what_lies_elsewhere_need_not_be_here() {
        let text = format!(
            r#"{{"layers":[{{"mediaType":"x","digest":"{}","size":1,"urls":["https://e.example/x"]}}],"config":{{}}}}"#,
            Digest::of(b"x")
        );
        let manifest = parse(&text, Some(OCI_MANIFEST)).unwrap();
        assert_eq!(manifest.blobs, []);
    }

    #[test]
    fn a_manifest_is_what_it_says_it_is() {
        let text = format!(r#"{{"mediaType":"{OCI_MANIFEST}","layers":[]}}"#);
        assert_eq!(
            parse(&text, Some(&format!("{OCI_MANIFEST}; charset=utf-8"))).unwrap().media_type,
            OCI_MANIFEST
        );
        assert!(matches!(parse(&text, Some(OCI_INDEX)), Err(MirrorError::ManifestInvalid(_))));
        assert_eq!(parse(&text, Some("application/json")).unwrap().media_type, OCI_MANIFEST);
        assert_eq!(
            parse(r#"{"layers":[]}"#, Some(media::MANIFEST)).unwrap().media_type,
            media::MANIFEST
        );
    }

    #[test]
    fn what_is_pushed_comes_as_a_manifest_and_says_nothing_else() {
        let own = |kind: &str| Bytes::from(format!(r#"{{"mediaType":"{kind}","layers":[]}}"#));
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
            assert!(Manifest::pushed(plain(), Some(kind)).is_ok(), "{kind}");
        }
        assert!(Manifest::pushed(plain(), None).is_ok());
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
            for refused in
                [Manifest::pushed(plain(), Some(kind)), Manifest::pushed(own(kind), None)]
            {
                assert!(
                    matches!(refused, Err(MirrorError::ManifestInvalid(_))),
                    "{kind}: {refused:?}"
                );
            }
            // One that is there, from when nobody looked.
            assert_eq!(
                Manifest::parse(own(kind), None).unwrap().media_type,
                OCI_MANIFEST,
                "{kind}"
            );
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for bad in [
            "",
            "[]",
            "null",
            "{}",
            "<html>",
            r#"{"layers":[{"digest":"sha256:zz","size":1}]}"#,
            r#"{"layers":{}}"#,
        ] {
            assert!(matches!(parse(bad, None), Err(MirrorError::ManifestInvalid(_))), "{bad}");
        }
        let large = vec![b' '; MAX_MANIFEST + 1];
        let error = Manifest::parse(large.into(), None).unwrap_err();
        assert_eq!(error.code().0, 413);
    }
}
