//! Changes conversations so that every OpenAI-compatible server accepts them with any chat
//! template.

use puna_api::ollama::{self, Message};
use puna_prompt::{FunctionCall, Image, MessageRules};

/// Returns the conversation in the form that every template accepts, and the kinds of changes.
pub(super) fn adapted(messages: &[Message]) -> (Vec<Message>, Vec<String>) {
    let mut images = Vec::new();
    let of_prompt: Vec<_> =
        messages.iter().map(|message| prompt_message(message, &mut images)).collect();
    let (adapted, kinds) = puna_prompt::adapt(&of_prompt, &MessageRules::conservative());
    let adapted = adapted.into_iter().map(|message| native_message(message, &images)).collect();
    (adapted, kinds.iter().map(ToString::to_string).collect())
}

/// Converts a message; each image becomes its index in `images`.
fn prompt_message(message: &Message, images: &mut Vec<ollama::Image>) -> puna_prompt::Message {
    let first = images.len();
    images.extend(message.images.iter().cloned());
    let numbers = (first..images.len()).map(|number| Image(number.to_string()));
    puna_prompt::Message { images: numbers.collect(), ..crate::runner::prompt_message(message) }
}

fn native_message(message: puna_prompt::Message, images: &[ollama::Image]) -> Message {
    let image = |Image(number): &Image| images.get(number.parse::<usize>().ok()?).cloned();
    let call = |call: puna_prompt::ToolCall| {
        let FunctionCall { index, name, arguments } = call.function;
        let function = ollama::ToolCallFunction { index: index as i64, name, arguments };
        ollama::ToolCall { id: call.id, function }
    };
    Message {
        images: message.images.iter().filter_map(image).collect(),
        thinking: message.thinking.unwrap_or_default(),
        tool_calls: message.tool_calls.into_iter().map(call).collect(),
        tool_name: message.tool_name.unwrap_or_default(),
        tool_call_id: message.tool_call_id.unwrap_or_default(),
        ..Message::text(message.role, message.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_conversations_are_adapted_for_every_template() {
        let picture = Message {
            images: vec![ollama::Image::Bytes(vec![1, 2])],
            ..Message::text("user", "see")
        };
        let messages = [
            Message::text("developer", "a"),
            Message::text("developer", "b"),
            Message::text("user", "c"),
            picture,
            Message::text("system", "d"),
            Message::text("assistant", "e"),
            Message::text("assistant", "f"),
            Message::text("user", "g"),
        ];
        let (got, kinds) = adapted(&messages);
        let turns: Vec<_> = got.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
        let user = "c\n\nsee\n\n<system>\nd\n</system>";
        assert_eq!(
            turns,
            [("system", "a\n\nb"), ("user", user), ("assistant", "e\n\nf"), ("user", "g")]
        );
        assert_eq!(got[1].images, [ollama::Image::Bytes(vec![1, 2])]);
        assert_eq!(kinds, ["merged", "renamed"]);
        let plain = [Message::text("system", "a"), Message::text("user", "b")];
        assert_eq!(adapted(&plain), (plain.to_vec(), Vec::new()));
    }
}
