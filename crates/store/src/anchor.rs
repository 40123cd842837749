//! Anchors: manifests in `manifests` with extra layers that keep older versions of Ollama from
//! removing the blobs of a name.

use serde_json::{Map, Value};

use crate::gojson;
use crate::manifest::{Layer, media};
use crate::manifest_list::ManifestDocument;

/// Whether a layer exists only to keep its blob from older versions of Ollama's pruning.
pub(crate) fn is_anchor(layer: &Layer) -> bool {
    matches!(
        layer.media_type.as_str(),
        media::MANIFEST | media::MANIFEST_LIST | media::RETAINED_BLOB
    )
}

/// A manifest's text without anchor layers.
pub(crate) fn without_anchors(text: Vec<u8>) -> Vec<u8> {
    match ManifestDocument::parse(&text) {
        Ok(ManifestDocument::Manifest { manifest, .. })
            if manifest.layers.iter().any(is_anchor) =>
        {
            with_layers(&text, &[]).unwrap_or(text)
        }
        _ => text,
    }
}

/// Replaces the anchor layers in a manifest's text; unknown keys stay. `None` if the text is no
/// manifest.
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
