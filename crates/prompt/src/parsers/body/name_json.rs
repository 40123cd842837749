//! Calls that consist of a name, a separator and a JSON object.

use super::super::output_part::CallError;
use super::syntax::{TagText, call};
use crate::message::FunctionCall;

/// `f<separator>{…}`.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct NameJson {
    /// Text before the name ends with this tag.
    pub(in super::super) before: Option<TagText>,
    /// Separator between name and arguments.
    pub(in super::super) separator: TagText,
    /// Tag between the name and an id, which is ignored.
    pub(in super::super) id: Option<TagText>,
    /// Tag behind the arguments.
    pub(in super::super) after: Option<TagText>,
    /// The name is written as `functions.f:0`.
    pub(in super::super) numbered: bool,
}

impl NameJson {
    pub(super) fn read(&self, text: &str) -> Result<FunctionCall, CallError> {
        let format = || CallError::Syntax("NAME, a separator, {…}");
        let (name, from) = self.head(text).ok_or_else(format)?;
        let mut rest = &text[from..];
        if let Some(after) = &self.after {
            rest = rest.rsplit_once(after.as_ref()).ok_or_else(format)?.0;
        }
        let arguments = serde_json::from_str(rest.trim())
            .map_err(|e: serde_json::Error| CallError::Json(e.to_string()))?;
        Ok(call(name, arguments))
    }

    /// The name, and the offset behind the separator. `None` without separator.
    pub(in super::super) fn head<'t>(&self, text: &'t str) -> Option<(&'t str, usize)> {
        let from = match &self.before {
            Some(before) => text.find(before.as_ref())? + before.len(),
            None => 0,
        };
        let end = from + text[from..].find(self.separator.as_ref())?;
        let mut name = &text[from..end];
        if let Some(id) = &self.id {
            name = name.split_once(id.as_ref()).map_or(name, |(name, _)| name);
        }
        name = name.trim();
        if self.numbered {
            name = name.strip_prefix("functions.").unwrap_or(name);
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            name =
                name.rsplit_once(':').filter(|(_, n)| is_number(n)).map_or(name, |(name, _)| name);
        }
        Some((name, end + self.separator.len()))
    }

    pub(super) fn tags(&self) -> Vec<&str> {
        let optional = [&self.before, &self.id, &self.after];
        std::iter::once(&self.separator)
            .chain(optional.into_iter().flatten())
            .map(AsRef::as_ref)
            .collect()
    }
}
