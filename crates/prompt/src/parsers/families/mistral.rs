//! Ministral: `[TOOL_CALLS]f[ARGS]{…}`, reasoning anywhere between `[THINK]` and `[/THINK]`.

use super::super::body::{CallBody, NameJson};
use super::super::tagged::{CallEnd, CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat};

pub(super) fn ministral() -> TaggedFormat {
    let format = NameJson {
        separator: "[ARGS]".into(),
        id: Some("[CALL_ID]".into()),
        ..NameJson::default()
    };
    let end = CallEnd::Json(Some("[ARGS]".into()));
    let calls = CallsFormat {
        only_declared: true,
        ..CallsFormat::new("[TOOL_CALLS]", end, CallBody::NameJson(format))
    };
    let think = ReasoningFormat {
        reasoning_anywhere: true,
        ..ReasoningFormat::tags("[THINK]", "[/THINK]", ReasoningStart::Answer)
    };
    TaggedFormat { think: Some(think), calls: Some(calls), ..TaggedFormat::PLAIN }
}
