//! A call that the request demands: the form of the answer is that of the call.

use puna_api::native::{Tool, ToolChoice};
use puna_prompt::CallForm;
use puna_sampler::{Constraint, lark_json};
use serde_json::{Value, json};

use crate::canonical::Failure;

/// The constraint of an answer that is a call of one of some tools, or of several. Arguments that the model writes in another
/// form than JSON are left to it. `tags` are control tokens that may stand in a call, with their texts.
pub(super) fn constraint(
    form: &CallForm,
    tools: &[&Tool],
    several: bool,
    tags: &[(String, u32)],
) -> Result<Constraint, Failure> {
    let mut lark = String::from(if several { "start: call (/[ \\n]+/? call)*\n" } else { "start: call\n" });
    let names: Vec<String> = (0..tools.len()).map(|i| format!("c{i}")).collect();
    lark += &format!("call: {}\n", names.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        let before = literal(&format!("{}{}{}", form.before, tool.name(), form.between), tags);
        let parameters = tool.0.pointer("/function/parameters").filter(|p| p.is_object());
        let any = json!({"type": "object"});
        let Some(after) = &form.after else {
            let others: String = tags.iter().map(|(_, id)| format!(" | <[{id}]>")).collect();
            lark += &format!("c{i}: {before} (/(?s:.)+/{others})*\n");
            continue;
        };
        let arguments = lark_json(parameters.unwrap_or(&any))
            .map_err(|e| Failure::bad_request(format!("tool {:?}: {e}", tool.name())))?;
        let after = literal(after, tags);
        lark += &format!("c{i}: {before} a{i} {after}\na{i}: {arguments}\n");
    }
    Ok(Constraint::Lark(lark))
}

/// The tools that a choice demands one of.
pub(super) fn demanded<'t>(choice: &ToolChoice, tools: &'t [Tool]) -> Vec<&'t Tool> {
    match choice {
        ToolChoice::Auto | ToolChoice::None => Vec::new(),
        ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name() == name).collect(),
    }
}

/// A text as Lark has it: control tokens by number, the rest quoted.
fn literal(text: &str, tags: &[(String, u32)]) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    let quote = |text: &str| Value::String(text.to_owned()).to_string();
    while !rest.is_empty() {
        let found = tags.iter().filter_map(|(tag, id)| Some((rest.find(tag.as_str())?, tag, id))).min();
        let Some((at, tag, id)) = found else {
            parts.push(quote(rest));
            break;
        };
        if at > 0 {
            parts.push(quote(&rest[..at]));
        }
        parts.push(format!("<[{id}]>"));
        rest = &rest[at + tag.len()..];
    }
    parts.join(" ")
}
