//! Every entry of `tests/data/vision` has the recorded pixels, bit for bit, and the recorded texts
//! around them.

use std::sync::Arc;

use puna_gguf::{Gguf, View};
use puna_media::{PictureLimits, decode_picture};
use puna_models::{PromptPart, VisionTower};
use serde_json::Value;

use crate::vision::{entries, folder};

/// Parts of the prompt for the pictures of a case.
pub fn parts(tower: &VisionTower, case: &Value) -> Vec<PromptPart> {
    let several = case["images"].as_array().map(Vec::as_slice);
    let pictures = several.unwrap_or(std::slice::from_ref(case)).iter().map(|picture| {
        let bytes = std::fs::read(folder().join(picture["image"].as_str().unwrap())).unwrap();
        decode_picture(&bytes, &PictureLimits::default()).unwrap()
    });
    pictures.flat_map(|picture| tower.prompt_parts(&picture)).collect()
}

fn sha256(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn view(name: &Value) -> View {
    let gguf = Gguf::open(&folder().join(name.as_str().unwrap())).unwrap();
    View::new(Arc::new(gguf)).unwrap()
}

#[test]
fn pictures_become_the_recorded_pixels() {
    let mut compared = 0;
    for (name, entry) in entries() {
        let tower = VisionTower::load(&view(&entry["mmproj"])).unwrap();
        for case in entry["cases"].as_array().unwrap() {
            let mut recorded = case["pixels"].as_array().unwrap().iter();
            for part in parts(&tower, case) {
                let PromptPart::Picture(picture) = part else { continue };
                let recorded = recorded.next().unwrap_or_else(|| panic!("{name}: too many"));
                assert_eq!(sha256(&picture.planes), recorded["sha256"], "{name} {compared}");
                compared += 1;
            }
            assert!(recorded.next().is_none(), "{name}: too few");
        }
    }
    assert!(compared >= 70, "only {compared} pictures compared");
}

/// Text of some tokens of a vocabulary.
fn text(vocabulary: &[String], tokens: &Value) -> String {
    let ids = tokens.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize);
    let text: String = ids.map(|id| vocabulary[id].as_str()).collect();
    let text = text.replace(['Ġ', '▁'], " ").replace('Ċ', "\n");
    // Tokens of single bytes, such as `<0x3C>`.
    let mut parts = text.split("<0x");
    let mut decoded = parts.next().unwrap().to_owned();
    for part in parts {
        decoded.push(u8::from_str_radix(&part[..2], 16).unwrap().into());
        decoded.push_str(&part[3..]);
    }
    decoded
}

#[test]
fn texts_around_pictures_are_the_recorded_ones() {
    let mut compared = 0;
    for (name, entry) in entries() {
        let tower = VisionTower::load(&view(&entry["mmproj"])).unwrap();
        let text_model = view(&entry["text"]);
        let tokens = text_model.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap();
        let tokens = tokens.map(|token| String::from_utf8_lossy(token).into_owned());
        let vocabulary: Vec<String> = tokens.collect();
        let cases = entry["cases"].as_array().unwrap().iter();
        for case in cases.filter(|case| case["image"].is_string()) {
            let parts = parts(&tower, case).into_iter().map(|part| match part {
                PromptPart::Text(text) => text.to_owned(),
                PromptPart::Tokens(texts) => texts.concat(),
                PromptPart::Picture(_) => "<input>".into(),
            });
            let prompt = case["prompt"].as_str().unwrap();
            let expected = prompt.replace("<__media__>", &parts.collect::<String>());
            let chunks = case["chunks"].as_array().unwrap().iter();
            let recorded = chunks.map(|chunk| match chunk["type"] == "text" {
                true => text(&vocabulary, &chunk["tokens"]),
                false => "<input>".into(),
            });
            // Some tokenizers add a first token, or spaces.
            let [recorded, expected] =
                [recorded.collect(), expected].map(|text: String| text.replace(' ', ""));
            assert!(recorded.ends_with(&expected), "{name}: {recorded} {expected}");
            compared += 1;
        }
    }
    assert!(compared >= 35, "only {compared} prompts compared");
}
