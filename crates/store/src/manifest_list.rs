//! Manifest lists of Ollama 0.40: one manifest for each runner under one name.
//!
//! ```text
//! {"schemaVersion": 2, "mediaType": "application/vnd.ollama.manifest.list.v2+json",
//!  "manifests": [CHILD, …]}
//! CHILD = {"mediaType": "…manifest.v2+json", "digest": "sha256:…", "runner": "llamacpp",
//!          "format": "gguf"}
//!       | a whole manifest with "runner" and "format"
//! ```
//!
//! The digest of an inline manifest is that of its canonical JSON: the fields that Ollama knows, in
//! Ollama's order.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::gojson;
use crate::manifest::{Manifest, media, parse_object};

/// Largest number of children of a list. Ollama knows four runners.
const MAX_CHILDREN: usize = 64;

/// A manifest or a manifest list.
#[derive(Debug, Clone, PartialEq)]
pub enum ManifestDocument {
    /// The manifest of a model.
    Manifest {
        /// Layers and config.
        manifest: Manifest,
        /// The runner that the manifest names, in lower case; empty if it names none.
        runner: String,
    },
    /// A list of manifests for several runners.
    List(ManifestList),
}

/// A list of manifests for several runners.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestList {
    /// The children in the order of the list: at least one, each for another runner.
    pub children: Vec<Child>,
}

/// One manifest of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// The digest of the child's manifest.
    pub digest: Digest,
    /// The runner in lower case: `llamacpp`, `ggml`, `mlx`; empty if the list names none.
    pub runner: String,
    /// Format of the weights: `gguf` or `safetensors`; empty if the list names none.
    pub format: String,
    /// The canonical JSON of an inline manifest.
    pub inline: Option<Vec<u8>>,
}

impl ManifestDocument {
    /// Parses a manifest or manifest list.
    ///
    /// # Errors
    /// The text is neither, or is an invalid list; the message names the reason.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Header {
            #[serde(rename = "mediaType", default)]
            media_type: Option<String>,
            #[serde(default)]
            runner: Option<String>,
        }
        let header: Header = parse_object(bytes)?;
        if header.media_type.as_deref() == Some(media::MANIFEST_LIST) {
            return ManifestList::parse(bytes).map(Self::List);
        }
        let runner = header.runner.unwrap_or_default().trim().to_ascii_lowercase();
        Ok(Self::Manifest { manifest: parse_object(bytes)?, runner })
    }
}

impl ManifestList {
    /// Parses a manifest list.
    ///
    /// # Errors
    /// The list has no children or too many, two children for one runner, a nested list, or a child
    /// without a digest.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct ListJson {
            #[serde(default)]
            manifests: Vec<Value>,
        }
        let list: ListJson = parse_object(bytes)?;
        if list.manifests.is_empty() {
            return Err("the manifest list has no children".into());
        }
        if list.manifests.len() > MAX_CHILDREN {
            return Err(format!(
                "the manifest list has {} children, at most {MAX_CHILDREN} are allowed",
                list.manifests.len()
            ));
        }
        let children = list.manifests.iter().enumerate();
        let children: Vec<Child> = children
            .map(|(at, value)| {
                Child::read(value).map_err(|why| format!("child {} of the list {why}", at + 1))
            })
            .collect::<Result<_, _>>()?;
        let mut runners = HashSet::new();
        for child in &children {
            if !child.runner.is_empty() && !runners.insert(child.runner.as_str()) {
                return Err(format!(
                    "the manifest list has two children for the runner {:?}",
                    child.runner
                ));
            }
        }
        Ok(Self { children })
    }

    /// The JSON that Ollama writes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let child = |child: &Child| match &child.inline {
            Some(text) => serde_json::from_slice(text).expect("canonical JSON"),
            None => {
                let mut map = Map::new();
                map.insert("mediaType".into(), media::MANIFEST.into());
                map.insert("digest".into(), child.digest.to_string().into());
                for (key, value) in [("runner", &child.runner), ("format", &child.format)] {
                    if !value.is_empty() {
                        map.insert(key.into(), value.as_str().into());
                    }
                }
                Value::Object(map)
            }
        };
        let mut map = Map::new();
        map.insert("schemaVersion".into(), 2.into());
        map.insert("mediaType".into(), media::MANIFEST_LIST.into());
        map.insert("manifests".into(), self.children.iter().map(child).collect());
        gojson::to_string_in_order(&Value::Object(map)).into_bytes()
    }
}

impl Child {
    fn read(value: &Value) -> Result<Self, String> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        if !value.is_object() {
            return Err("is not a JSON object".into());
        }
        match text("mediaType") {
            "" | media::MANIFEST => {}
            media::MANIFEST_LIST => return Err("is a list itself".into()),
            other => return Err(format!("has the unknown media type {:?}", truncated(other))),
        }
        let digest = match text("digest") {
            "" => None,
            digest => Some(
                digest
                    .parse::<Digest>()
                    .map_err(|_| format!("has the invalid digest {:?}", truncated(digest)))?,
            ),
        };
        let list_of =
            |key| value.get(key).and_then(Value::as_array).is_some_and(|list| !list.is_empty());
        let has_config =
            value.pointer("/config/digest").and_then(Value::as_str).is_some_and(|d| !d.is_empty());
        let is_whole = has_config || list_of("layers");
        if list_of("manifests") {
            return Err("is a list itself".into());
        }
        let (digest, inline) = match (digest, is_whole) {
            (None, false) => return Err("has neither a digest nor layers".into()),
            (Some(digest), false) => (digest, None),
            (named, true) => {
                let text = canonical(value);
                let found = Digest::of(&text);
                if let Some(named) = named.filter(|named| *named != found) {
                    return Err(format!("has the digest {found}, but the list says {named}"));
                }
                parse_object::<Manifest>(&text)?;
                (found, Some(text))
            }
        };
        let lower = |key: &str| text(key).trim().to_ascii_lowercase();
        Ok(Self { digest, runner: lower("runner"), format: lower("format"), inline })
    }
}

/// The canonical JSON of a manifest: the fields that Ollama knows, in its order.
fn canonical(value: &Value) -> Vec<u8> {
    let text = |value: &Value, key: &str| {
        Value::from(value.get(key).and_then(Value::as_str).unwrap_or_default())
    };
    let number = |value: &Value, key: &str| {
        Value::from(value.get(key).and_then(Value::as_i64).unwrap_or_default())
    };
    let layer = |value: &Value| {
        let mut map = Map::new();
        map.insert("mediaType".into(), text(value, "mediaType"));
        map.insert("digest".into(), text(value, "digest"));
        map.insert("size".into(), number(value, "size"));
        for key in ["from", "name"] {
            let value = text(value, key);
            if value != "" {
                map.insert(key.into(), value);
            }
        }
        Value::Object(map)
    };
    let mut map = Map::new();
    map.insert("schemaVersion".into(), number(value, "schemaVersion"));
    map.insert("mediaType".into(), text(value, "mediaType"));
    map.insert("config".into(), layer(value.get("config").unwrap_or(&Value::Null)));
    let layers = value.get("layers").and_then(Value::as_array);
    map.insert(
        "layers".into(),
        layers.map_or(Value::Null, |layers| layers.iter().map(layer).collect()),
    );
    for key in ["runner", "format"] {
        let value = text(value, key);
        if value != "" {
            map.insert(key.into(), value);
        }
    }
    gojson::to_string_in_order(&Value::Object(map)).into_bytes()
}

/// The first 80 characters of an untrusted text, for messages.
fn truncated(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(seed: &str) -> Digest {
        Digest::of(seed.as_bytes())
    }

    fn reference(seed: &str, runner: &str) -> Value {
        json!({"mediaType": media::MANIFEST, "digest": digest(seed).to_string(), "runner": runner, "format": "gguf"})
    }

    fn parse(children: Vec<Value>) -> Result<ManifestList, String> {
        let list =
            json!({"schemaVersion": 2, "mediaType": media::MANIFEST_LIST, "manifests": children});
        match ManifestDocument::parse(list.to_string().as_bytes())? {
            ManifestDocument::List(list) => Ok(list),
            ManifestDocument::Manifest { .. } => panic!("not a list"),
        }
    }

    #[test]
    fn a_list_of_references_is_read_and_written() {
        let list = parse(vec![reference("a", "LlamaCPP"), reference("b", "ggml")]).unwrap();
        let found: Vec<_> = list.children.iter().map(|c| (c.runner.as_str(), c.digest)).collect();
        assert_eq!(found, [("llamacpp", digest("a")), ("ggml", digest("b"))]);
        let text = String::from_utf8(list.to_bytes()).unwrap();
        let (a, kind, of_list) = (digest("a"), media::MANIFEST, media::MANIFEST_LIST);
        let start = format!(
            r#"{{"schemaVersion":2,"mediaType":"{of_list}","manifests":[{{"mediaType":"{kind}","digest":"{a}","runner":"llamacpp","format":"gguf"}},"#
        );
        assert!(text.starts_with(&start), "{text}");
        assert_eq!(ManifestList::parse(text.as_bytes()).unwrap(), list);
    }

    #[test]
    fn an_inline_child_has_the_digest_of_its_canonical_json() {
        // The order of keys and unknown keys do not matter.
        let layer = json!({"size": 3, "digest": digest("w").to_string(), "mediaType": media::MODEL, "x": 1});
        let child = json!({"runner": "ggml", "layers": [layer], "config": {"digest": digest("c").to_string(), "size": 2,
            "mediaType": media::CONFIG}, "format": "gguf", "mediaType": media::MANIFEST, "schemaVersion": 2, "y": []});
        let (w, c) = (digest("w"), digest("c"));
        let want = format!(
            r#"{{"schemaVersion":2,"mediaType":"{}","config":{{"mediaType":"{}","digest":"{c}","size":2}},"layers":[{{"mediaType":"{}","digest":"{w}","size":3}}],"runner":"ggml","format":"gguf"}}"#,
            media::MANIFEST,
            media::CONFIG,
            media::MODEL
        );
        let list = parse(vec![child.clone()]).unwrap();
        assert_eq!(String::from_utf8(list.children[0].inline.clone().unwrap()).unwrap(), want);
        assert_eq!(list.children[0].digest, Digest::of(want.as_bytes()));
        let mut named = child;
        named["digest"] = digest("other").to_string().into();
        assert!(parse(vec![named]).unwrap_err().contains("but the list says"));
    }

    #[test]
    fn lists_that_break_a_rule_are_refused_with_the_reason() {
        let many = (0..10_000).map(|n| reference(&n.to_string(), &n.to_string())).collect();
        let nested =
            json!({"mediaType": media::MANIFEST_LIST, "manifests": [reference("a", "ggml")]});
        for (children, reason) in [
            (vec![], "no children"),
            (many, "10000 children"),
            (
                vec![reference("a", "ggml"), reference("b", "GGML")],
                "two children for the runner \"ggml\"",
            ),
            (vec![reference("a", "ggml"), nested], "child 2 of the list is a list itself"),
            (vec![json!({"runner": "ggml"})], "neither a digest nor layers"),
            (vec![json!({"digest": "sha256:../x"})], "has the invalid digest"),
            (
                vec![json!({"mediaType": "text/html", "digest": digest("a").to_string()})],
                "unknown media type",
            ),
            (vec![json!(5)], "not a JSON object"),
        ] {
            let found = parse(children).unwrap_err();
            assert!(found.contains(reason), "{found}");
        }
        assert!(ManifestDocument::parse(b"{\"mediaType\":5}").is_err());
        assert!(matches!(ManifestDocument::parse(b"{}"), Ok(ManifestDocument::Manifest { .. })));
    }
}
