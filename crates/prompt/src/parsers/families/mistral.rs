//! Ministral: `[TOOL_CALLS]f[ARGS]{…}`, thoughts between `[THINK]` and `[/THINK]` anywhere.

use super::super::body::{Body, NameJson};
use super::super::tagged::{Calls, End, Rules, Start, Thought};

pub(super) fn ministral() -> Rules {
    let form = NameJson {
        separator: "[ARGS]".into(),
        id: Some("[CALL_ID]".into()),
        ..NameJson::default()
    };
    let end = End::Json(Some("[ARGS]".into()));
    let calls = Calls { declared: true, ..Calls::new("[TOOL_CALLS]", end, Body::NameJson(form)) };
    let think = Thought { anywhere: true, ..Thought::tags("[THINK]", "[/THINK]", Start::Answer) };
    Rules { think: Some(think), calls: Some(calls), ..Rules::PLAIN }
}
