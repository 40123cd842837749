//! Ollama manifest lists (Ollama 0.40): their blobs, and the child for clients that do not accept
//! lists.

use std::collections::HashMap;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use puna_store::{Child, Digest, ManifestList, media};

use crate::types::manifest::{Descriptor, Manifest};
use crate::types::manifest_error::{ManifestError, ManifestProblem};

/// Runners whose children the registry prefers, best first.
const PREFERRED_RUNNERS: [&str; 3] = ["llamacpp", "ggml", "ollama"];

/// Parses a list and collects the blobs of its inline children, each blob once.
///
/// # Errors
/// The list violates a rule of lists, or two children state different sizes of one blob.
pub(crate) fn read(bytes: &[u8]) -> Result<(ManifestList, Vec<Descriptor>), ManifestProblem> {
    let list = ManifestList::parse(bytes).map_err(|reason| ManifestProblem::List { reason })?;
    let (mut blobs, mut sizes) = (Vec::new(), HashMap::new());
    for (at, child) in list.children.iter().enumerate() {
        let manifest = inline_manifest(child)
            .map_err(|error| ManifestProblem::Child { number: at + 1, error: error.into() })?;
        for blob in manifest.into_iter().flat_map(|manifest| manifest.blobs) {
            match sizes.insert(blob.digest, blob.size) {
                None => blobs.push(blob),
                Some(other) if other != blob.size => {
                    return Err(ManifestProblem::ChildBlobSize {
                        number: at + 1,
                        digest: blob.digest,
                        size: blob.size,
                        other,
                    });
                }
                Some(_) => {}
            }
        }
    }
    Ok((list, blobs))
}

/// Returns the manifest of an inline child; `None` for a reference.
pub(crate) fn inline_manifest(child: &Child) -> Result<Option<Manifest>, ManifestError> {
    let text = child.inline.as_ref().map(|text| Bytes::copy_from_slice(text));
    text.map(|text| Manifest::parse(text, Some(media::MANIFEST))).transpose()
}

/// Returns the child for clients that do not accept lists: the first preferred runner, else GGUF,
/// else the first child.
pub(crate) fn default_child(list: &ManifestList) -> Option<&Child> {
    let children = &list.children;
    let of_runner = |runner: &&str| children.iter().find(|child| child.runner == *runner);
    PREFERRED_RUNNERS
        .iter()
        .find_map(of_runner)
        .or_else(|| children.iter().find(|child| child.format == "gguf"))
        .or_else(|| children.first())
}

/// Describes a child of a list for messages.
pub(crate) fn describe(list: &ManifestList, child: &Child) -> String {
    let at = list.children.iter().position(|other| other == child).map_or(0, |at| at + 1);
    match child.runner.as_str() {
        "" => format!("child {at} ({})", child.digest),
        runner => format!("child {at} for {runner} ({})", child.digest),
    }
}

/// Whether the `Accept` headers name the media type of lists. Wildcards do not count.
pub(crate) fn accepts_lists(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_list =
            parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(media::MANIFEST_LIST));
        is_list && !parts.any(is_zero_weight)
    })
}

/// Whether an `Accept` parameter is a weight of zero, which rejects a type (RFC 9110, 12.4.2).
fn is_zero_weight(parameter: &str) -> bool {
    let weight = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
    weight.is_some_and(|weight| weight.trim().parse::<f32>() == Ok(0.0))
}

/// Sums the sizes of the distinct blobs of manifests.
pub(crate) fn distinct_size<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> u64 {
    let blobs = manifests.into_iter().flat_map(|manifest| &manifest.blobs);
    let sizes: HashMap<Digest, u64> = blobs.map(|blob| (blob.digest, blob.size)).collect();
    sizes.values().fold(0, |sum, size| sum.saturating_add(*size))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A manifest in Ollama's format with one layer.
    pub(crate) fn child(weights: &[u8]) -> Value {
        let layer = json!({"mediaType": media::MODEL, "digest": Digest::of(weights).to_string(), "size": weights.len()});
        json!({"schemaVersion": 2, "mediaType": media::MANIFEST, "config": {}, "layers": [layer]})
    }

    /// A reference to a child by the digest of its text.
    pub(crate) fn reference(text: &str, runner: &str, format: &str) -> Value {
        json!({"mediaType": media::MANIFEST, "digest": Digest::of(text.as_bytes()).to_string(),
            "runner": runner, "format": format})
    }

    /// The text of a list.
    pub(crate) fn list_of(children: &[Value]) -> String {
        json!({"schemaVersion": 2, "mediaType": media::MANIFEST_LIST, "manifests": children})
            .to_string()
    }

    /// An inline child for a runner.
    pub(crate) fn inline(weights: &[u8], runner: &str) -> Value {
        let mut value = child(weights);
        value["runner"] = runner.into();
        value["format"] = "gguf".into();
        value
    }

    fn runner_of(children: &[Value]) -> String {
        let list = ManifestList::parse(list_of(children).as_bytes()).unwrap();
        let found = default_child(&list).unwrap();
        format!("{}/{}", found.runner, found.format)
    }

    #[test]
    fn the_default_child_is_the_preferred_runner_then_gguf_then_the_first() {
        let of =
            |runner: &str, format: &str| reference(&format!("{runner}{format}"), runner, format);
        let (mlx, other, ollama) =
            (of("mlx", "safetensors"), of("other", "gguf"), of("ollama", "safetensors"));
        let (ggml, llamacpp) = (of("GGML", "gguf"), of("llamacpp", "gguf"));
        let all = [mlx.clone(), other.clone(), ollama.clone(), ggml.clone(), llamacpp];
        for (children, expected) in [
            (&all[..], "llamacpp/gguf"),
            (&all[..4], "ggml/gguf"),
            (&all[..3], "ollama/safetensors"),
            (&all[..2], "other/gguf"),
            (&all[..1], "mlx/safetensors"),
        ] {
            assert_eq!(runner_of(children), expected);
        }
    }

    #[test]
    fn only_the_exact_type_in_accept_names_lists() {
        let accepts = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| _ = headers.append(header::ACCEPT, line.parse().unwrap()));
            accepts_lists(&headers)
        };
        let list = media::MANIFEST_LIST;
        for yes in [list, &list.to_uppercase(), &format!("text/html, {list};q=0.5 , */*")] {
            assert!(accepts(&[yes]), "{yes}");
        }
        assert!(accepts(&[media::MANIFEST, list]), "a header may stand in several lines");
        for no in [
            "*/*",
            "application/*",
            media::MANIFEST,
            "",
            &format!("{list};q=0"),
            &format!("{list}x"),
        ] {
            assert!(!accepts(&[no]), "{no}");
        }
        assert!(!accepts(&[]));
    }

    #[test]
    fn blobs_of_inline_children_are_those_of_the_list() {
        let shared = child(b"shared")["layers"][0].clone();
        let mut both = inline(b"a", "llamacpp");
        both["layers"].as_array_mut().unwrap().push(shared.clone());
        let mut other = inline(b"bb", "ggml");
        other["layers"].as_array_mut().unwrap().push(shared);
        let text = list_of(&[both.clone(), reference("x", "mlx", "safetensors"), other.clone()]);
        let (list, blobs) = read(text.as_bytes()).unwrap();
        assert_eq!((list.children.len(), blobs.len()), (3, 3));
        other["layers"][1]["size"] = 5.into();
        let error = read(list_of(&[both, other]).as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains("child 2 of the list declares") && error.contains("5 bytes"),
            "{error}"
        );
    }
}
