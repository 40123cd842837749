//! cria, the model embedded in the program: a new machine without a network can answer at once.
//!
//! Its manifest is made from `models/cria/Modelfile` and is the same in every build of a version.
//! `cp` and `FROM` write its blobs into the store like those of any other model.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::entry::{Entry, StoreLocation};
use crate::gojson;
use crate::manifest::{Config, Layer, Manifest, media};
use crate::modelfile::{Instruction, Modelfile, parse_parameter};
use crate::name::ModelName;

/// Name of the embedded model.
pub const CRIA: &str = "cria";

/// Aligned to 64 bytes, so that tensors can be used in place.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/cria/cria-q8_0.gguf"
)));

const MODELFILE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/cria/Modelfile"));

/// The digest of [`WEIGHTS`], stated so that it is not computed at each start.
const WEIGHTS_DIGEST: &str =
    "sha256:ee7398492fb266d6374b46365241e0a6716e33225efea6381fc9cc52fa0ede65";

/// When this version of the model was made: 2026-11-21, in seconds since 1970.
const MODIFIED_UNIX_SECONDS: u64 = 1_795_219_200;

/// The GGUF file of the embedded model.
pub fn weights() -> &'static [u8] {
    &WEIGHTS.0
}

/// The Go template of the embedded model.
pub fn template() -> &'static str {
    &embedded_model().template
}

/// The texts of the model and their digests.
struct EmbeddedModel {
    template: String,
    license: String,
    params: Map<String, Value>,
    config: Config,
    manifest: Manifest,
    manifest_bytes: Vec<u8>,
    digest: Digest,
}

fn embedded_model() -> &'static EmbeddedModel {
    static MODEL: OnceLock<EmbeddedModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let modelfile = Modelfile::parse(MODELFILE).expect("a test reads it");
        let (mut template, mut license) = (String::new(), String::new());
        let mut values: Vec<(&str, Vec<&str>)> = Vec::new();
        for instruction in &modelfile.instructions {
            match instruction {
                Instruction::Template(text) => template.clone_from(text),
                Instruction::License(text) => license.clone_from(text),
                Instruction::Parameter { name, value } => {
                    match values.iter_mut().find(|row| row.0 == name) {
                        Some(row) => row.1.push(value),
                        None => values.push((name, vec![value])),
                    }
                }
                _ => {}
            }
        }
        let mut params = Map::new();
        for (name, values) in values {
            let value = parse_parameter(name, &values).expect("a test reads it");
            params.insert(name.to_owned(), value.expect("no deprecated parameter"));
        }
        let config = Config {
            model_format: "gguf".into(),
            model_family: "llama".into(),
            model_families: Some(vec!["llama".into()]),
            model_type: "5.77M".into(),
            file_type: "Q8_0".into(),
            ..Config::default()
        };
        let layer = |media_type, bytes: &[u8]| {
            Layer::new(media_type, Digest::of(bytes), bytes.len() as u64)
        };
        let weights_digest = WEIGHTS_DIGEST.parse().expect("a digest");
        let manifest = Manifest {
            config: Some(layer(media::CONFIG, &config.to_bytes())),
            layers: vec![
                Layer::new(media::MODEL, weights_digest, weights().len() as u64),
                layer(media::TEMPLATE, template.as_bytes()),
                layer(media::PARAMS, &params_bytes(&params)),
                layer(media::LICENSE, license.as_bytes()),
            ],
        };
        let manifest_bytes = manifest.to_bytes();
        let digest = Digest::of(&manifest_bytes);
        EmbeddedModel { template, license, params, config, manifest, manifest_bytes, digest }
    })
}

/// The content of a parameter layer: JSON with a line end.
pub(crate) fn params_bytes(params: &Map<String, Value>) -> Vec<u8> {
    format!("{}\n", gojson::to_string(&Value::Object(params.clone()))).into_bytes()
}

/// The entry of the embedded model.
pub fn entry() -> Entry {
    let model = embedded_model();
    Entry {
        name: ModelName::parse(CRIA).expect("a name"),
        digest: model.digest,
        modified: SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_UNIX_SECONDS),
        manifest: model.manifest.clone(),
        location: StoreLocation::Embedded,
        runner: String::new(),
        list: None,
    }
}

pub(crate) fn manifest_bytes() -> Vec<u8> {
    embedded_model().manifest_bytes.clone()
}

/// The content of one of the embedded model's blobs.
pub(crate) fn blob(digest: &Digest) -> Option<Vec<u8>> {
    let model = embedded_model();
    let layer = model.manifest.blobs().find(|layer| layer.digest == *digest)?;
    Some(match layer.media_type.as_str() {
        media::MODEL => weights().to_vec(),
        media::TEMPLATE => model.template.clone().into_bytes(),
        media::PARAMS => params_bytes(&model.params),
        media::LICENSE => model.license.clone().into_bytes(),
        _ => model.config.to_bytes(),
    })
}

/// The contents of all blobs of the embedded model.
pub(crate) fn blobs() -> impl Iterator<Item = Vec<u8>> {
    embedded_model().manifest.blobs().filter_map(|layer| blob(&layer.digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf_info::{GgufInfo, parameter_size};
    use serde_json::json;

    #[test]
    fn the_embedded_weights_match_their_recorded_facts() {
        assert_eq!(Digest::of(weights()).to_string(), WEIGHTS_DIGEST);
        assert_eq!(weights().as_ptr().align_offset(64), 0);
        let info = GgufInfo::of(&puna_gguf::Gguf::from_bytes(weights()).unwrap());
        let config = &embedded_model().config;
        assert_eq!(info.architecture, config.model_family);
        assert_eq!(info.file_type, config.file_type);
        assert_eq!(parameter_size(info.parameter_count), config.model_type);
    }

    #[test]
    fn template_and_parameters_are_those_of_the_models_folder() {
        let model = embedded_model();
        let template =
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/cria/template.gotmpl"));
        assert_eq!(model.template, template.trim_end_matches('\n'));
        assert_eq!(
            Value::Object(model.params.clone()),
            json!({"temperature": 0, "num_ctx": 2048, "stop": ["<|im_end|>", "<|endoftext|>"]})
        );
        assert_eq!(model.license, "MIT OR Apache-2.0");
    }

    #[test]
    fn every_blob_has_the_content_of_its_digest() {
        for layer in embedded_model().manifest.blobs() {
            let bytes = blob(&layer.digest).unwrap();
            assert_eq!((Digest::of(&bytes), bytes.len() as u64), (layer.digest, layer.size));
        }
    }
}
