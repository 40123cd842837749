//! Tags, values and calls of all syntaxes.

use std::borrow::Cow;

use crate::message::FunctionCall;

/// A tag or separator, either constant or taken from a template.
pub(in super::super) type TagText = Cow<'static, str>;

/// Removes line breaks around a value between two tags. In formats that put values on their own
/// lines, each line break is optional. With `bare`, line breaks belong to the value unless they
/// stand on both sides.
pub(super) fn trim_value(text: &str, bare: bool) -> &str {
    let within = text.strip_prefix('\n');
    if bare {
        return within.and_then(|text| text.strip_suffix('\n')).unwrap_or(text);
    }
    let text = within.unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

/// A call with index 0.
pub(in super::super) fn call(
    name: impl Into<String>,
    arguments: serde_json::Map<String, serde_json::Value>,
) -> FunctionCall {
    FunctionCall { index: 0, name: name.into(), arguments }
}
