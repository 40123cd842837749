//! Anchors: manifests of `manifests` whose further layers keep blobs from being removed by older versions of Ollama.

use serde_json::{Map, Value};

use crate::gojson;
use crate::manifest::{Layer, media};
use crate::manifest_list::Document;

/// Whether a layer only keeps a blob from being removed by older versions of Ollama.
pub(crate) fn is_anchor(layer: &Layer) -> bool {
    matches!(
        layer.media_type.as_str(),
        media::MANIFEST | media::MANIFEST_LIST | media::RETAINED_BLOB
    )
}

/// A manifest's text without the layers by which `manifests` only keeps blobs for older versions of Ollama.
pub(crate) fn without_anchors(text: Vec<u8>) -> Vec<u8> {
    match Document::parse(&text) {
        Ok(Document::Manifest { manifest, .. }) if manifest.layers.iter().any(is_anchor) => {
            with_layers(&text, &[]).unwrap_or(text)
        }
        _ => text,
    }
}

/// A manifest's text with further layers; `None` for what is no manifest. Keys that are not known stay.
pub(crate) fn with_layers(text: &[u8], anchors: &[Layer]) -> Option<Vec<u8>> {
    let mut map: Map<String, Value> = serde_json::from_slice(text).ok()?;
    let layers = map.entry("layers").or_insert(Value::Null);
    if layers.is_null() {
        *layers = Value::Array(Vec::new());
    }
    let layers = layers.as_array_mut()?;
    let is_anchor_layer = |value: &Value| {
        serde_json::from_value::<Layer>(value.clone()).is_ok_and(|layer| is_anchor(&layer))
    };
    layers.retain(|value| !is_anchor_layer(value));
    layers.extend(
        anchors.iter().map(|layer| serde_json::to_value(layer).expect("strings and numbers only")),
    );
    Some(gojson::to_string_in_order(&Value::Object(map)).into_bytes())
}
