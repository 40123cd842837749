//! Manifests and config blobs, the two JSON documents of a model.

use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::error::StoreError;
use crate::gojson;

/// Media types of layers.
pub mod media {
    /// GGUF weights.
    pub const MODEL: &str = "application/vnd.ollama.image.model";
    /// GGUF projector for images or audio.
    pub const PROJECTOR: &str = "application/vnd.ollama.image.projector";
    /// GGUF LoRA adapter.
    pub const ADAPTER: &str = "application/vnd.ollama.image.adapter";
    /// GGUF draft model.
    pub const DRAFT: &str = "application/vnd.ollama.image.draft";
    /// A tensor of a model that only Ollama's MLX engine for Apple computers runs.
    pub const TENSOR: &str = "application/vnd.ollama.image.tensor";
    /// Go template.
    pub const TEMPLATE: &str = "application/vnd.ollama.image.template";
    /// Former name of [`TEMPLATE`].
    pub const PROMPT: &str = "application/vnd.ollama.image.prompt";
    /// System message.
    pub const SYSTEM: &str = "application/vnd.ollama.image.system";
    /// JSON object of options.
    pub const PARAMS: &str = "application/vnd.ollama.image.params";
    /// JSON array of messages.
    pub const MESSAGES: &str = "application/vnd.ollama.image.messages";
    /// Licence text.
    pub const LICENSE: &str = "application/vnd.ollama.image.license";
    /// Config blob.
    pub const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// The manifest itself.
    pub const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// Manifest list with one manifest for each runner (Ollama 0.40).
    pub const MANIFEST_LIST: &str = "application/vnd.ollama.manifest.list.v2+json";
    /// A blob that an anchor keeps for older versions of Ollama. It is not part of the model.
    pub const RETAINED_BLOB: &str = "application/vnd.puna.kept";
}

/// Largest size of a manifest, config or text layer in bytes.
pub(crate) const TEXT_LIMIT: u64 = 32 << 20;

/// Largest number of values in a JSON document of the store. A model in tensors has about 20,000.
const MAX_JSON_VALUES: usize = 200_000;

/// A manifest. Unknown keys are ignored here. They stay on disk, because manifests are copied byte
/// for byte.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Manifest {
    /// The config blob.
    #[serde(default, deserialize_with = "config_with_digest")]
    pub config: Option<Layer>,
    /// Weights, template and other layers, in order. Layers with `urls` are left out: registries
    /// do not store them.
    #[serde(default, deserialize_with = "stored_layers")]
    pub layers: Vec<Layer>,
}

/// A layer: a blob and its media type.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Layer {
    /// The media type: one of [`media`], or an unknown one.
    #[serde(rename = "mediaType", default)]
    pub media_type: String,
    /// The blob.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// The short name of the model that the layer was copied from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The tensor or file that the layer holds, in models with one layer for each tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Layer {
    /// A layer without source and name.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self { media_type: media_type.to_owned(), digest, size, from: None, name: None }
    }
}

impl Manifest {
    /// Parses a manifest. `path` is for error messages.
    ///
    /// # Errors
    /// The text is no JSON object, or a field has the wrong type.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, StoreError> {
        parse_object(bytes).map_err(|reason| StoreError::Manifest { path: path.to_owned(), reason })
    }

    /// The JSON that Ollama writes: compact, with a line end.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut map = Map::new();
        map.insert("schemaVersion".into(), 2.into());
        map.insert("mediaType".into(), media::MANIFEST.into());
        let layer = |l: &Layer| serde_json::to_value(l).expect("strings and numbers only");
        map.insert("config".into(), self.config.as_ref().map_or(Value::Object(Map::new()), layer));
        map.insert("layers".into(), self.layers.iter().map(layer).collect());
        let mut text = gojson::to_string_in_order(&Value::Object(map));
        text.push('\n');
        text.into_bytes()
    }

    /// All blobs, the config's last.
    pub fn blobs(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().chain(&self.config)
    }

    /// Size of all blobs in bytes, as the manifest states it.
    pub fn size(&self) -> u64 {
        self.blobs().fold(0, |sum, layer| sum.saturating_add(layer.size))
    }

    /// The last layer of a media type.
    pub fn last(&self, media_type: &str) -> Option<&Layer> {
        self.layers.iter().rfind(|layer| layer.media_type == media_type)
    }

    /// All layers of a media type.
    pub fn all<'a>(&'a self, media_type: &'a str) -> impl Iterator<Item = &'a Layer> {
        self.layers.iter().filter(move |layer| layer.media_type == media_type)
    }
}

/// Parses a JSON object. Derived `Deserialize` code would also accept an array of the fields.
pub(crate) fn parse_object<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("not a JSON object".into());
    }
    parse_json(bytes)
}

/// Parses JSON with a limited number of values.
pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    check_value_count(bytes)?;
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

/// Rejects JSON with more values than documents of a store have. Parsed values take 50 times the
/// memory of a text such as `[[],[],…]`.
///
/// # Errors
/// The reason.
pub fn check_value_count(json: &[u8]) -> Result<(), String> {
    let (mut count, mut in_string, mut is_escaped) = (1, false, false);
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' => count += usize::from(!in_string),
            _ => {}
        }
    }
    match count > MAX_JSON_VALUES {
        true => Err(format!("it has more than {MAX_JSON_VALUES} JSON values")),
        false => Ok(()),
    }
}

/// Layers that a registry stores: those without `urls`.
fn stored_layers<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Layer>, D::Error> {
    #[derive(Deserialize)]
    struct LayerJson {
        #[serde(flatten)]
        layer: Layer,
        #[serde(default)]
        urls: Option<Vec<IgnoredAny>>,
    }
    let layers = Option::<Vec<LayerJson>>::deserialize(d)?.unwrap_or_default();
    let stored = layers.into_iter().filter(|one| one.urls.as_ref().is_none_or(Vec::is_empty));
    Ok(stored.map(|one| one.layer).collect())
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    d: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// A config without a digest counts as absent.
fn config_with_digest<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Layer>, D::Error> {
    let value = Option::<Value>::deserialize(d)?;
    match value {
        Some(value)
            if value
                .get("digest")
                .and_then(Value::as_str)
                .is_some_and(|digest| !digest.is_empty()) =>
        {
            serde_json::from_value(value).map(Some).map_err(serde::de::Error::custom)
        }
        _ => Ok(None),
    }
}

/// The config blob.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Config {
    /// `gguf` or `safetensors`; empty means `gguf`.
    #[serde(deserialize_with = "null_as_default")]
    pub model_format: String,
    /// The architecture of the weights.
    #[serde(deserialize_with = "null_as_default")]
    pub model_family: String,
    /// The architecture of each layer of weights.
    pub model_families: Option<Vec<String>>,
    /// Number of parameters for display: `134.52M`.
    #[serde(deserialize_with = "null_as_default")]
    pub model_type: String,
    /// Quantization for display: `Q4_K_M`.
    #[serde(deserialize_with = "null_as_default")]
    pub file_type: String,
    /// Built-in renderer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renderer: String,
    /// Built-in output parser.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parser: String,
    /// Oldest version of the program that runs the model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub requires: String,
    /// Server of a remote model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_host: String,
    /// Name of a remote model on that server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_model: String,
    /// Capabilities beyond those that the files show.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_as_default")]
    pub capabilities: Vec<String>,
    /// Trained context length of a remote model in tokens.
    #[serde(skip_serializing_if = "is_zero")]
    pub context_length: u64,
    /// Embedding length of a remote model.
    #[serde(skip_serializing_if = "is_zero")]
    pub embedding_length: u64,
    /// The model that this one was made from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base_name: String,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Config {
    /// The JSON that Ollama writes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Value::Object(mut map) = serde_json::to_value(self).expect("strings and numbers only")
        else {
            unreachable!("a structure is an object")
        };
        map.insert("architecture".into(), "amd64".into());
        map.insert("os".into(), "linux".into());
        let mut text = gojson::to_string_in_order(&Value::Object(map));
        text.push('\n');
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Manifest, StoreError> {
        Manifest::parse(text.as_bytes(), Path::new("m"))
    }

    const D: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_manifest_is_written_as_ollama_writes_it() {
        let manifest = Manifest {
            config: Some(Layer::new(media::CONFIG, D.parse().unwrap(), 485)),
            layers: vec![Layer {
                from: Some("m:latest".into()),
                ..Layer::new(media::MODEL, D.parse().unwrap(), 38)
            }],
        };
        let text = String::from_utf8(manifest.to_bytes()).unwrap();
        assert_eq!(
            text,
            format!(
                r#"{{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{{"mediaType":"application/vnd.docker.container.image.v1+json","digest":"{D}","size":485}},"layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"{D}","size":38,"from":"m:latest"}}]}}"#
            ) + "\n"
        );
        assert_eq!(parse(&text).unwrap(), manifest);
        assert_eq!(manifest.size(), 523);
    }

    #[test]
    fn a_config_is_written_as_recorded_from_ollama() {
        let config = Config {
            model_format: "gguf".into(),
            model_family: "llama".into(),
            model_families: Some(vec!["llama".into()]),
            model_type: "134.52M".into(),
            file_type: "Q4_1".into(),
            requires: "0.1.0".into(),
            ..Config::default()
        };
        let want = r#"{"model_format":"gguf","model_family":"llama","model_families":["llama"],"model_type":"134.52M","file_type":"Q4_1","requires":"0.1.0","architecture":"amd64","os":"linux"}"#;
        assert_eq!(String::from_utf8(config.to_bytes()).unwrap(), format!("{want}\n"));
    }

    #[test]
    fn manifests_with_absent_parts_are_read() {
        assert_eq!(parse("{}").unwrap(), Manifest { config: None, layers: vec![] });
        assert_eq!(parse(r#"{"layers":null,"config":{"digest":""}}"#).unwrap().layers, []);
        let foreign = format!(
            r#"{{"x":[1],"layers":[{{"mediaType":"a/b","digest":"{D}","size":1,"annotations":{{}}}}]}}"#
        );
        assert_eq!(parse(&foreign).unwrap().layers[0].media_type, "a/b");
    }

    #[test]
    fn hostile_manifests_are_refused() {
        for bad in [
            "",
            "null",
            "[]",
            "{\"layers\":5}",
            "{\"layers\":[{}]}",
            r#"{"layers":[{"mediaType":"m","digest":"sha256:../../../etc/passwd","size":1}]}"#,
            &format!(r#"{{"layers":[{{"mediaType":"m","digest":"{D}","size":-1}}]}}"#),
            &format!(r#"{{"layers":[{{"mediaType":"m","digest":"{D}","size":1e400}}]}}"#),
            r#"{"config":{"digest":"sha256:0"}}"#,
            &"[".repeat(100_000),
        ] {
            assert!(
                matches!(parse(bad), Err(StoreError::Manifest { .. })),
                "{}",
                &bad[..bad.len().min(80)]
            );
        }
    }

    #[test]
    fn layers_with_urls_are_no_part_of_the_model() {
        let layer = |urls: &str| format!(r#"{{"mediaType":"m","digest":"{D}","size":1{urls}}}"#);
        let manifest = |urls| parse(&format!(r#"{{"layers":[{}]}}"#, layer(urls))).unwrap();
        assert_eq!(manifest(r#","urls":["http://x/"]"#).layers, []);
        assert!(
            [r#","urls":[]"#, r#","urls":null"#, ""]
                .map(manifest)
                .iter()
                .all(|m| m.layers.len() == 1)
        );
    }

    #[test]
    fn json_with_too_many_values_is_refused_before_it_is_parsed() {
        let nested = format!(r#"{{"x":[{}[]]}}"#, "[],".repeat(MAX_JSON_VALUES));
        assert!(parse(&nested).unwrap_err().to_string().contains("JSON values"));
        let text = format!(r#"{{"x":"{}"}}"#, r#"[,\",{"#.repeat(MAX_JSON_VALUES));
        assert!(parse(&text).is_ok(), "the text of a string has no values");
    }

    #[test]
    fn claimed_sizes_do_not_overflow_the_sum() {
        let layer = format!(r#"{{"mediaType":"m","digest":"{D}","size":18446744073709551615}}"#);
        assert_eq!(parse(&format!(r#"{{"layers":[{layer},{layer}]}}"#)).unwrap().size(), u64::MAX);
    }
}
