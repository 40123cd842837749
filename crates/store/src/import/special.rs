//! Tokens with a task, what is put around a text, and chat templates: `tokenizer_config.json`, the post-processor of
//! `tokenizer.json`, `config.json`, `generation_config.json` and `chat_template.jinja`.

use std::collections::HashMap;

use puna_gguf::{Value, Writer};
use serde_json::Value as JsonValue;

use super::Folder;
use super::config::Json;
use super::vocabulary::Token;
use crate::error::StoreError;

/// Tasks: the name in the files, the key in GGUF.
const TASKS: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// What is found out.
#[derive(Default)]
pub(super) struct Special {
    ids: Vec<(&'static str, u32)>,
    /// All tokens that end an answer, where there are several.
    ends: Vec<i32>,
    added: Added,
    template: Option<String>,
    /// Further templates by name.
    named: Vec<(String, String)>,
}

/// What is put around a text.
#[derive(Default, Debug, PartialEq)]
struct Added {
    bos: Option<bool>,
    eos: Option<bool>,
    sep: Option<bool>,
}

impl Special {
    pub(super) fn read(
        folder: &Folder<'_>,
        config: &Json,
        json: Option<&JsonValue>,
        settings: JsonValue,
        tokens: &[Token],
    ) -> Result<Self, StoreError> {
        let id_of: HashMap<&str, u32> =
            tokens.iter().zip(0..).map(|(token, id)| (token.text.as_str(), id)).collect();
        let text = |task: &str| {
            let entry = settings.get(format!("{task}_token"))?;
            entry.as_str().or_else(|| entry.get("content")?.as_str())
        };
        let known = |id: u64| u32::try_from(id).ok().filter(|&id| (id as usize) < tokens.len());
        let generation = folder.json("generation_config.json")?.unwrap_or_default();
        let mut found = Self::default();
        for (task, key) in TASKS {
            let stated = text(task).and_then(|text| id_of.get(text).copied());
            let number = || {
                let value = config.value(&format!("{task}_token_id"))?;
                known(value.as_u64().or_else(|| value.get(0)?.as_u64())?)
            };
            if let Some(id) = stated.or_else(number) {
                found.ids.push((key, id));
            }
        }
        let lists = [generation.get("eos_token_id"), config.value("eos_token_id")];
        let ends = lists.into_iter().flatten().find_map(JsonValue::as_array);
        found.ends =
            ends.into_iter().flatten().filter_map(|id| Some(known(id.as_u64()?)? as i32)).collect();
        if let Some(processor) = json.and_then(|json| json.get("post_processor")) {
            found.added = around(processor, &|task| text(task).map(str::to_owned));
        }
        let flag =
            |task: &str| settings.get(format!("add_{task}_token")).and_then(JsonValue::as_bool);
        found.added.bos = found.added.bos.or(flag("bos"));
        found.added.eos = found.added.eos.or(flag("eos"));
        found.take_templates(folder, &settings)?;
        Ok(found)
    }

    /// Adds a token with a task, unless the files say which has it.
    pub(super) fn add(&mut self, task: &'static str, id: u32) {
        if !self.ids.iter().any(|(key, _)| *key == task) {
            self.ids.push((task, id));
        }
    }

    /// Another token ends a text than the files say at the usual place.
    pub(super) fn end_with(&mut self, id: u32) {
        self.ids.retain(|(key, _)| *key != "eos");
        self.ids.push(("eos", id));
    }

    fn take_templates(
        &mut self,
        folder: &Folder<'_>,
        settings: &JsonValue,
    ) -> Result<(), StoreError> {
        match settings.get("chat_template") {
            Some(JsonValue::String(template)) => self.template = Some(template.clone()),
            Some(JsonValue::Array(list)) => {
                for entry in list {
                    let field =
                        |key: &str| entry.get(key).and_then(JsonValue::as_str).map(str::to_owned);
                    match field("name").zip(field("template")) {
                        Some((name, template)) if name == "default" => {
                            self.template = Some(template)
                        }
                        Some(named) => self.named.push(named),
                        None => {}
                    }
                }
            }
            _ => {
                let json = folder.json("chat_template.json")?;
                let json = json
                    .as_ref()
                    .and_then(|json| json.get("chat_template")?.as_str().map(str::to_owned));
                self.template = folder.text("chat_template.jinja")?.or(json);
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        for (key, id) in &self.ids {
            writer.set(&format!("tokenizer.ggml.{key}_token_id"), *id);
        }
        if self.ends.len() > 1 {
            writer.set("tokenizer.ggml.eos_token_ids", &self.ends[..]);
        }
        let Added { bos, eos, sep } = self.added;
        for (task, flag) in [("bos", bos), ("eos", eos), ("sep", sep)] {
            if let Some(flag) = flag {
                writer.set(&format!("tokenizer.ggml.add_{task}_token"), flag);
            }
        }
        if let Some(template) = &self.template {
            writer.set("tokenizer.chat_template", template.as_str());
        }
        // Names become parts of keys: those that are no plain words are left out.
        let plain =
            |name: &str| name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
        let named: Vec<_> =
            self.named.iter().filter(|(name, _)| !name.is_empty() && plain(name)).collect();
        if !named.is_empty() {
            writer.set(
                "tokenizer.chat_templates",
                Value::strings(named.iter().map(|(name, _)| name)),
            );
        }
        for (name, template) in named {
            writer.set(&format!("tokenizer.chat_template.{name}"), template.as_str());
        }
    }
}

/// What a post-processor puts before, behind and between texts.
fn around(processor: &JsonValue, text: &dyn Fn(&str) -> Option<String>) -> Added {
    let mut added = Added::default();
    let list = processor.get("processors").and_then(JsonValue::as_array);
    let one = std::slice::from_ref(processor);
    for processor in list.map_or(one, Vec::as_slice) {
        match processor.get("type").and_then(JsonValue::as_str) {
            Some("ByteLevel") => {
                added.bos.get_or_insert(false);
                added.eos.get_or_insert(false);
            }
            Some("RobertaProcessing") => {
                added = Added { bos: Some(true), eos: Some(true), sep: Some(true) };
            }
            Some("TemplateProcessing") => by_template(processor, text, &mut added),
            _ => {}
        }
    }
    added
}

fn by_template(processor: &JsonValue, text: &dyn Fn(&str) -> Option<String>, added: &mut Added) {
    let list =
        |key: &str| processor.get(key).and_then(JsonValue::as_array).map_or(&[][..], Vec::as_slice);
    let special =
        |entry: &JsonValue| entry.get("SpecialToken")?.get("id")?.as_str().map(str::to_owned);
    let is = |token: &Option<String>, tasks: [&str; 2]| {
        token.is_some() && tasks.iter().any(|task| text(task) == *token)
    };
    let single = list("single");
    let (mut first, mut last) = (None, None);
    if let [start, .., end] = single {
        (first, last) = (special(start), special(end));
        if first.is_some() {
            added.bos = Some(is(&first, ["bos", "cls"]) || text("bos").is_none());
        }
        if last.is_some() {
            added.eos = Some(true);
        }
    }
    let mut pair = list("pair");
    if let [start, rest @ ..] = pair
        && first.is_some()
        && special(start) == first
    {
        pair = rest;
    }
    if let [rest @ .., end] = pair
        && last.is_some()
        && special(end) == last
    {
        pair = rest;
    }
    let [_, between @ .., _] = pair else { return };
    if let [one, rest @ ..] = between {
        let second = rest.first().is_some_and(|two| is(&special(two), ["sep", "eos"]));
        added.sep = Some(second || (last.is_none() && is(&special(one), ["sep", "eos"])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_put_around_a_text_is_read_from_its_template() {
        let (a, b) = (json!({"Sequence": {"id": "A"}}), json!({"Sequence": {"id": "B"}}));
        let token = |id: &str| json!({"SpecialToken": {"id": id}});
        let text = |task: &str| match task {
            "bos" => Some("<s>".to_owned()),
            "eos" => Some("</s>".to_owned()),
            _ => None,
        };
        let of = |single: Vec<JsonValue>, pair: Vec<JsonValue>| {
            around(&json!({"type": "TemplateProcessing", "single": single, "pair": pair}), &text)
        };
        let added = |bos, eos, sep| Added { bos, eos, sep };
        let (s, e) = (token("<s>"), token("</s>"));
        assert_eq!(of(vec![s.clone(), a.clone()], vec![]), added(Some(true), None, None));
        assert_eq!(
            of(vec![s.clone(), a.clone()], vec![s.clone(), a.clone(), s.clone(), b.clone()]),
            added(Some(true), None, Some(false))
        );
        assert_eq!(of(vec![a.clone(), e.clone()], vec![]), added(None, Some(true), None));
        assert_eq!(
            around(&json!({"type": "ByteLevel"}), &text),
            added(Some(false), Some(false), None)
        );
        let sequence = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [s, a], "pair": []}]});
        assert_eq!(around(&sequence, &text), added(Some(true), Some(false), None));
    }
}
