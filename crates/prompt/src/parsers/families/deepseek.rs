//! DeepSeek 3 and Cogito: a section of calls, each a name, a separator and JSON.

use super::super::ParserInput;
use super::super::body::{Body, NameJson, Text};
use super::super::tagged::{Calls, Rules, Start, Thought};

/// Around all calls.
const SECTION: (Text, Text) =
    (Text::Borrowed("<｜tool▁calls▁begin｜>"), Text::Borrowed("<｜tool▁calls▁end｜>"));

pub(in super::super) fn calls(form: NameJson) -> Calls {
    Calls {
        section: Some(SECTION),
        ..Calls::between("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", Body::NameJson(form))
    }
}

/// `f<｜tool▁sep｜>{…}`. Made-up results of tools are part of the answer.
pub(super) fn deepseek3(input: &ParserInput<'_>) -> Rules {
    let start = if input.thinks() && !input.continues() { Start::Thought } else { Start::Answer };
    Rules {
        think: Some(Thought::tags("<think>", "</think>", start)),
        calls: Some(calls(NameJson {
            separator: "<｜tool▁sep｜>".into(), ..NameJson::default()
        })),
        dropped: &["<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"],
        keep_tail: true,
        ..Rules::PLAIN
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

/// Made-up results of tools are left out; with tools it does not think.
pub(super) fn cogito(input: &ParserInput<'_>) -> Rules {
    let thinks = input.thinks() && input.tools.is_empty() && !input.continues();
    Rules {
        think: Some(Thought::tags(
            "<think>",
            "</think>",
            if thinks { Start::Thought } else { Start::Answer },
        )),
        calls: Some(calls(in_code_block())),
        swallowed: Some(("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>")),
        keep_tail: true,
        preserved: &["<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"],
        ..Rules::PLAIN
    }
}
