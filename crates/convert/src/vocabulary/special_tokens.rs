//! Special tokens, tokens added around a text, and chat templates: from `tokenizer_config.json`,
//! the post-processor of `tokenizer.json`, `config.json`, `generation_config.json` and
//! `chat_template.jinja`.

use std::collections::HashMap;

use puna_gguf::{Value, Writer};
use serde_json::Value as JsonValue;

use super::token::Token;
use crate::error::ConvertError;
use crate::source::{Config, ModelFolder};

/// Roles of special tokens: name in the folder's files, name in GGUF keys.
const ROLES: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// Special tokens and chat templates of a folder.
#[derive(Default)]
pub(super) struct SpecialTokens {
    ids: Vec<(&'static str, u32)>,
    /// All tokens that end a generation, if there are several.
    eos_ids: Vec<i32>,
    add_flags: AddTokenFlags,
    template: Option<String>,
    /// Further chat templates by name.
    named_templates: Vec<(String, String)>,
}

/// Which special tokens are added: before a text, behind it, and between the texts of a pair.
#[derive(Default, Debug, PartialEq)]
struct AddTokenFlags {
    bos: Option<bool>,
    eos: Option<bool>,
    sep: Option<bool>,
}

impl SpecialTokens {
    pub(super) fn read(
        folder: &ModelFolder<'_>,
        config: &Config,
        json: Option<&JsonValue>,
        settings: JsonValue,
        tokens: &[Token],
    ) -> Result<Self, ConvertError> {
        let id_of: HashMap<&str, u32> =
            tokens.iter().zip(0..).map(|(token, id)| (token.text.as_str(), id)).collect();
        let text = |role: &str| {
            let entry = settings.get(format!("{role}_token"))?;
            entry.as_str().or_else(|| entry.get("content")?.as_str())
        };
        let valid_id = |id: u64| u32::try_from(id).ok().filter(|&id| (id as usize) < tokens.len());
        let generation = folder.json("generation_config.json")?.unwrap_or_default();
        let mut found = Self::default();
        for (role, key) in ROLES {
            let by_text = text(role).and_then(|text| id_of.get(text).copied());
            let by_id = || {
                let value = config.value(&format!("{role}_token_id"))?;
                valid_id(value.as_u64().or_else(|| value.get(0)?.as_u64())?)
            };
            if let Some(id) = by_text.or_else(by_id) {
                found.ids.push((key, id));
            }
        }
        let lists = [generation.get("eos_token_id"), config.value("eos_token_id")];
        let eos_ids = lists.into_iter().flatten().find_map(JsonValue::as_array);
        found.eos_ids = eos_ids
            .into_iter()
            .flatten()
            .filter_map(|id| Some(valid_id(id.as_u64()?)? as i32))
            .collect();
        if let Some(processor) = json.and_then(|json| json.get("post_processor")) {
            found.add_flags =
                flags_of_post_processor(processor, &|role| text(role).map(str::to_owned));
        }
        let flag =
            |role: &str| settings.get(format!("add_{role}_token")).and_then(JsonValue::as_bool);
        found.add_flags.bos = found.add_flags.bos.or(flag("bos"));
        found.add_flags.eos = found.add_flags.eos.or(flag("eos"));
        found.take_templates(folder, &settings)?;
        Ok(found)
    }

    /// Adds a special token, unless the files define one for the role.
    pub(super) fn add(&mut self, role: &'static str, id: u32) {
        if !self.ids.iter().any(|(key, _)| *key == role) {
            self.ids.push((role, id));
        }
    }

    /// Replaces the end token of the files.
    pub(super) fn set_eos(&mut self, id: u32) {
        self.ids.retain(|(key, _)| *key != "eos");
        self.ids.push(("eos", id));
    }

    fn take_templates(
        &mut self,
        folder: &ModelFolder<'_>,
        settings: &JsonValue,
    ) -> Result<(), ConvertError> {
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
                        Some(named_templates) => self.named_templates.push(named_templates),
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
        if self.eos_ids.len() > 1 {
            writer.set("tokenizer.ggml.eos_token_ids", &self.eos_ids[..]);
        }
        let AddTokenFlags { bos, eos, sep } = self.add_flags;
        for (role, flag) in [("bos", bos), ("eos", eos), ("sep", sep)] {
            if let Some(flag) = flag {
                writer.set(&format!("tokenizer.ggml.add_{role}_token"), flag);
            }
        }
        if let Some(template) = &self.template {
            writer.set("tokenizer.chat_template", template.as_str());
        }
        // Names become parts of metadata keys, so templates with other characters in their name are
        // ignored.
        let plain =
            |name: &str| name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
        let named_templates: Vec<_> = self
            .named_templates
            .iter()
            .filter(|(name, _)| !name.is_empty() && plain(name))
            .collect();
        if !named_templates.is_empty() {
            writer.set(
                "tokenizer.chat_templates",
                Value::strings(named_templates.iter().map(|(name, _)| name)),
            );
        }
        for (name, template) in named_templates {
            writer.set(&format!("tokenizer.chat_template.{name}"), template.as_str());
        }
    }
}

/// Reads from a post-processor which tokens it adds around and between texts.
fn flags_of_post_processor(
    processor: &JsonValue,
    text: &dyn Fn(&str) -> Option<String>,
) -> AddTokenFlags {
    let mut add_flags = AddTokenFlags::default();
    let list = processor.get("processors").and_then(JsonValue::as_array);
    let one = std::slice::from_ref(processor);
    for processor in list.map_or(one, Vec::as_slice) {
        match processor.get("type").and_then(JsonValue::as_str) {
            Some("ByteLevel") => {
                add_flags.bos.get_or_insert(false);
                add_flags.eos.get_or_insert(false);
            }
            Some("RobertaProcessing") => {
                add_flags = AddTokenFlags { bos: Some(true), eos: Some(true), sep: Some(true) };
            }
            Some("TemplateProcessing") => flags_of_template(processor, text, &mut add_flags),
            _ => {}
        }
    }
    add_flags
}

fn flags_of_template(
    processor: &JsonValue,
    text: &dyn Fn(&str) -> Option<String>,
    add_flags: &mut AddTokenFlags,
) {
    let list =
        |key: &str| processor.get(key).and_then(JsonValue::as_array).map_or(&[][..], Vec::as_slice);
    let special =
        |entry: &JsonValue| entry.get("SpecialToken")?.get("id")?.as_str().map(str::to_owned);
    let is = |token: &Option<String>, roles: [&str; 2]| {
        token.is_some() && roles.iter().any(|role| text(role) == *token)
    };
    let single = list("single");
    let (mut first, mut last) = (None, None);
    if let [start, .., end] = single {
        (first, last) = (special(start), special(end));
        if first.is_some() {
            add_flags.bos = Some(is(&first, ["bos", "cls"]) || text("bos").is_none());
        }
        if last.is_some() {
            add_flags.eos = Some(true);
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
        add_flags.sep = Some(second || (last.is_none() && is(&special(one), ["sep", "eos"])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flags_for_bos_eos_and_sep_follow_the_post_processor() {
        let (a, b) = (json!({"Sequence": {"id": "A"}}), json!({"Sequence": {"id": "B"}}));
        let token = |id: &str| json!({"SpecialToken": {"id": id}});
        let text = |role: &str| match role {
            "bos" => Some("<s>".to_owned()),
            "eos" => Some("</s>".to_owned()),
            _ => None,
        };
        let of = |single: Vec<JsonValue>, pair: Vec<JsonValue>| {
            flags_of_post_processor(
                &json!({"type": "TemplateProcessing", "single": single, "pair": pair}),
                &text,
            )
        };
        let add_flags = |bos, eos, sep| AddTokenFlags { bos, eos, sep };
        let (s, e) = (token("<s>"), token("</s>"));
        assert_eq!(of(vec![s.clone(), a.clone()], vec![]), add_flags(Some(true), None, None));
        assert_eq!(
            of(vec![s.clone(), a.clone()], vec![s.clone(), a.clone(), s.clone(), b.clone()]),
            add_flags(Some(true), None, Some(false))
        );
        assert_eq!(of(vec![a.clone(), e.clone()], vec![]), add_flags(None, Some(true), None));
        assert_eq!(
            flags_of_post_processor(&json!({"type": "ByteLevel"}), &text),
            add_flags(Some(false), Some(false), None)
        );
        let sequence = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"},
            {"type": "TemplateProcessing", "single": [s, a], "pair": []}]});
        assert_eq!(
            flags_of_post_processor(&sequence, &text),
            add_flags(Some(true), Some(false), None)
        );
    }
}
