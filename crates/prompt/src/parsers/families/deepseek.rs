//! DeepSeek 3 and Cogito: a section of calls, each a name, a separator and JSON.

use super::super::body::{CallBody, NameJson, TagText};
use super::super::format_parser::ParserInput;
use super::super::tagged::{CallsFormat, ReasoningFormat, ReasoningStart, TaggedFormat};

/// Tags around all calls.
const SECTION: (TagText, TagText) =
    (TagText::Borrowed("<｜tool▁calls▁begin｜>"), TagText::Borrowed("<｜tool▁calls▁end｜>"));

pub(in super::super) fn calls(format: NameJson) -> CallsFormat {
    CallsFormat {
        section: Some(SECTION),
        ..CallsFormat::between(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            CallBody::NameJson(format),
        )
    }
}

/// `f<｜tool▁sep｜>{…}`. Tool results invented by the model are part of the answer.
pub(super) fn deepseek3(input: &ParserInput<'_>) -> TaggedFormat {
    let start = if input.thinks() && !input.continues() {
        ReasoningStart::InReasoning
    } else {
        ReasoningStart::Answer
    };
    TaggedFormat {
        think: Some(ReasoningFormat::tags("<think>", "</think>", start)),
        calls: Some(calls(NameJson {
            separator: "<｜tool▁sep｜>".into(), ..NameJson::default()
        })),
        removed_tags: &["<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"],
        keep_tail: true,
        ..TaggedFormat::PLAIN
    }
}

/// `function<｜tool▁sep｜>f`, then JSON in a code block.
pub(in super::super) fn in_code_block() -> NameJson {
    NameJson {
        before: Some("<｜tool▁sep｜>".into()),
        separator: "\n```json\n".into(),
        after: Some("\n```".into()),
        ..NameJson::default()
    }
}

/// Tool results invented by the model are removed. With tools, the model does not reason.
pub(super) fn cogito(input: &ParserInput<'_>) -> TaggedFormat {
    let thinks = input.thinks() && input.tools.is_empty() && !input.continues();
    TaggedFormat {
        think: Some(ReasoningFormat::tags(
            "<think>",
            "</think>",
            if thinks { ReasoningStart::InReasoning } else { ReasoningStart::Answer },
        )),
        calls: Some(calls(in_code_block())),
        removed_sections: Some(("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>")),
        keep_tail: true,
        preserved_tokens: &["<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"],
        ..TaggedFormat::PLAIN
    }
}
