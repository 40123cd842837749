//! Manifests and manifest lists, in the field order of Ollama's JSON encoder.

use std::io;

use serde::{Deserialize, Deserializer};

use crate::Digest;

/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Media type of a manifest list.
pub const LIST: &str = "application/vnd.ollama.manifest.list.v2+json";
/// Media type of a config blob.
pub const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// Media type of GGUF weights.
pub const MODEL: &str = "application/vnd.ollama.image.model";
/// Media type of a prompt template.
pub const TEMPLATE: &str = "application/vnd.ollama.image.template";

/// A config or layer descriptor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Layer {
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    pub from: String,
    pub name: String,
}

impl Layer {
    pub fn new(media_type: &str, digest: Digest, size: usize) -> Self {
        let (media_type, digest) = (media_type.to_owned(), digest.to_string());
        Self { media_type, digest, size: size as u64, ..Self::default() }
    }

    /// Whether the layer only keeps a manifest blob from being collected.
    pub fn is_manifest(&self) -> bool {
        self.media_type == MANIFEST || self.media_type == LIST
    }

    fn to_json(&self) -> String {
        let mut json = format!(
            r#"{{"mediaType":{},"digest":{},"size":{}"#,
            string(&self.media_type),
            string(&self.digest),
            self.size
        );
        push_optional(&mut json, "from", &self.from);
        push_optional(&mut json, "name", &self.name);
        json + "}"
    }
}

/// A manifest, a manifest list, or a reference to a manifest inside a list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ManifestDocument {
    pub schema_version: i64,
    pub media_type: String,
    #[serde(deserialize_with = "null_as_default")]
    pub config: Layer,
    #[serde(deserialize_with = "null_as_default")]
    pub layers: Vec<Layer>,
    pub runner: String,
    pub format: String,
    #[serde(deserialize_with = "null_as_default")]
    pub manifests: Vec<ManifestDocument>,
    pub digest: String,
}

impl ManifestDocument {
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let document: Self = serde_json::from_slice(bytes)?;
        if document.is_list() && document.manifests.iter().any(Self::is_list) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "nested manifest lists are not supported",
            ));
        }
        Ok(document)
    }

    pub fn manifest(config: Layer, layers: Vec<Layer>, runner: &str, format: &str) -> Self {
        let (media_type, runner, format) =
            (MANIFEST.to_owned(), runner.to_owned(), format.to_owned());
        Self { schema_version: 2, media_type, config, layers, runner, format, ..Self::default() }
    }

    pub fn list(manifests: Vec<Self>) -> Self {
        Self { schema_version: 2, media_type: LIST.to_owned(), manifests, ..Self::default() }
    }

    pub fn reference(digest: Digest, runner: &str, format: &str) -> Self {
        let (runner, format) = (runner.to_owned(), format.to_owned());
        Self {
            media_type: MANIFEST.to_owned(),
            digest: digest.to_string(),
            runner,
            format,
            ..Self::default()
        }
    }

    pub fn is_list(&self) -> bool {
        self.media_type == LIST
    }

    pub fn is_reference(&self) -> bool {
        !self.is_list()
            && !self.digest.is_empty()
            && self.config.digest.is_empty()
            && self.layers.is_empty()
    }

    /// The digest that a reference names, or the digest of the canonical JSON.
    pub fn child_digest(&self) -> io::Result<Digest> {
        if self.is_reference() {
            parse_digest(&self.digest)
        } else {
            Ok(Digest::of(self.to_json().as_bytes()))
        }
    }

    /// The layers, then the config.
    pub fn layers_and_config(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().chain([&self.config])
    }

    /// The total size that lists of models show.
    pub fn size(&self) -> u64 {
        self.layers_and_config().map(|layer| layer.size).sum()
    }

    /// The canonical JSON, without a newline at its end.
    pub fn to_json(&self) -> String {
        let mut json = format!(r#"{{"mediaType":{}"#, string(&self.media_type));
        if self.is_reference() {
            json += &format!(r#","digest":{}"#, string(&self.digest));
        } else {
            json = format!(r#"{{"schemaVersion":{},{}"#, self.schema_version, &json[1..]);
        }
        if self.is_list() {
            let children: Vec<_> = self.manifests.iter().map(Self::to_json).collect();
            return format!(r#"{json},"manifests":[{}]}}"#, children.join(","));
        }
        if !self.is_reference() {
            let layers: Vec<_> = self.layers.iter().map(Layer::to_json).collect();
            json +=
                &format!(r#","config":{},"layers":[{}]"#, self.config.to_json(), layers.join(","));
        }
        push_optional(&mut json, "runner", &self.runner);
        push_optional(&mut json, "format", &self.format);
        json + "}"
    }
}

pub fn parse_digest(text: &str) -> io::Result<Digest> {
    text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn push_optional(json: &mut String, key: &str, value: &str) {
    if !value.is_empty() {
        *json += &format!(r#","{key}":{}"#, string(value));
    }
}

/// A JSON string with the escapes of Go's encoder for HTML.
fn string(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn null_as_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
