//! Fits agent conversations to the context: keeps the task and the newest turn, and no tool result
//! loses its call.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::adapt::Adaptation;
use crate::chat::Chat;
use crate::fit::{FittedPrompt, smallest_cut};
use crate::message::Message;
use crate::rendering::{RenderedPrompt, render_messages};
use crate::{PromptError, Template};

/// Shorter messages are never cut, in bytes.
const MIN_SHORTENED_BYTES: usize = 256;

/// Renders the conversation and shortens it while `count` returns more than `limit` tokens. First
/// drops the oldest steps, then cuts the middle out of the longest tool results and late system
/// messages, until at most `target` tokens remain.
///
/// System messages, the first user message (the task), the newest user message and the last step
/// are always kept. A step is a user message, or an assistant message with the results of its
/// calls. Older turns are dropped as a whole. The first and the newest turn are dropped step by
/// step.
///
/// # Errors
/// Errors of [`crate::render_adapted`] for the whole conversation, and errors of `count`.
pub fn fit_turns(
    template: &Template,
    chat: &Chat<'_>,
    limit: usize,
    target: usize,
    count: &mut dyn FnMut(&str) -> Result<usize, PromptError>,
) -> Result<FittedPrompt, PromptError> {
    let mut attempt = |messages: &[Message], limit: usize| -> Result<FittedPrompt, PromptError> {
        let images: usize = messages.iter().map(|m| m.images.len()).sum();
        let RenderedPrompt { prompt, mut adaptations } = render_messages(template, chat, messages)?;
        let tokens = count(&prompt)?.saturating_add(images.saturating_mul(chat.image_tokens));
        let dropped_messages = chat.messages.len() - messages.len();
        if dropped_messages > 0 {
            adaptations.insert(Adaptation::Dropped);
        }
        let too_long = tokens > limit;
        Ok(FittedPrompt {
            prompt,
            tokens,
            dropped_messages,
            dropped_tokens: 0,
            too_long,
            adaptations,
        })
    };
    let whole = attempt(chat.messages, limit)?;
    if !whole.too_long {
        return Ok(whole);
    }
    let pinned = PinnedMessages::find(chat.messages);
    let cuts = pinned.cuts(chat.messages);
    let mut attempt_cut = |cut: usize| attempt(&pinned.kept_from(chat.messages, cut), target);
    if let (Some(fitted), _) = smallest_cut(&cuts, &mut attempt_cut)? {
        return Ok(fitted);
    }
    let last = cuts.last().copied().unwrap_or(0);
    shorten_longest(pinned.kept_from(chat.messages, last), target, whole, &mut attempt)
}

/// Cuts the middle out of the longest messages, until the prompt has at most `target` tokens or no
/// message can be cut further. `whole` is the prompt of the complete conversation.
fn shorten_longest(
    kept: Vec<Message>,
    target: usize,
    whole: FittedPrompt,
    attempt: &mut impl FnMut(&[Message], usize) -> Result<FittedPrompt, PromptError>,
) -> Result<FittedPrompt, PromptError> {
    let longest = shortenable(&kept).map(|m| m.content.len()).max().unwrap_or(0);
    let uncut = match attempt(&kept, target) {
        Ok(fitted) => fitted,
        Err(error) if error.is_refusal() => return Ok(whole),
        Err(error) => return Err(error),
    };
    let mut shorten = |max_bytes: usize| -> Result<FittedPrompt, PromptError> {
        let mut fitted = attempt(&shortened(&kept, max_bytes), target)?;
        fitted.dropped_tokens = uncut.tokens.saturating_sub(fitted.tokens);
        fitted.adaptations.insert(Adaptation::Dropped);
        Ok(fitted)
    };
    if longest <= MIN_SHORTENED_BYTES {
        return Ok(uncut);
    }
    let shortest = shorten(MIN_SHORTENED_BYTES)?;
    if shortest.too_long {
        return Ok(shortest);
    }
    // Bisects for the largest size that fits, with a tolerance of 1/16.
    let (mut best, mut low, mut high) = (shortest, MIN_SHORTENED_BYTES, longest);
    while high - low > (low / 16).max(64) {
        let middle = low + (high - low) / 2;
        let fitted = shorten(middle)?;
        match fitted.too_long {
            true => high = middle,
            false => (best, low) = (fitted, middle),
        }
    }
    Ok(best)
}

/// Index of the first message after the task.
fn after_task(messages: &[Message]) -> usize {
    messages.iter().position(|m| m.role == "user").map_or(messages.len(), |task| task + 1)
}

/// Returns true if the middle of a message may be cut: in tool results, and in system messages
/// after the task.
fn is_shortenable(message: &Message, is_after_task: bool) -> bool {
    message.role == "tool" || (is_instruction(message) && is_after_task)
}

fn shortenable(messages: &[Message]) -> impl Iterator<Item = &Message> {
    let task_end = after_task(messages);
    let all = messages.iter().enumerate();
    all.filter(move |(at, message)| is_shortenable(message, *at >= task_end))
        .map(|(_, message)| message)
}

/// Copies the messages and cuts those that may be shortened to `max_bytes` bytes each.
fn shortened(messages: &[Message], max_bytes: usize) -> Vec<Message> {
    let task_end = after_task(messages);
    let short = |(at, message): (usize, &Message)| match message.content.len() > max_bytes {
        true if is_shortenable(message, at >= task_end) => Message {
            content: without_middle(&message.content, max_bytes).into_owned(),
            ..message.clone()
        },
        _ => message.clone(),
    };
    messages.iter().enumerate().map(short).collect()
}

/// Keeps the first and last bytes of a text, `max_bytes` together. A note between them states the
/// number of bytes left out.
fn without_middle(text: &str, max_bytes: usize) -> Cow<'_, str> {
    let head = text.floor_char_boundary(max_bytes / 2);
    let tail = text.ceil_char_boundary(text.len() - max_bytes / 2);
    if head >= tail {
        return text.into();
    }
    let left_out = tail - head;
    let mark = format!("\n[… {left_out} bytes were left out, since the context is too small …]\n");
    if mark.len() >= left_out {
        return text.into();
    }
    let (head, tail) = (&text[..head], &text[tail..]);
    format!("{head}{mark}{tail}").into()
}

/// Indices of the messages that are never dropped, besides system messages.
struct PinnedMessages {
    /// The first user message.
    task: Option<usize>,
    /// The newest user message.
    newest_user: Option<usize>,
    /// First message of the last step.
    last_step: usize,
}

impl PinnedMessages {
    fn find(messages: &[Message]) -> Self {
        let is_user = |message: &Message| message.role == "user";
        let last = messages.iter().rposition(|m| !is_instruction(m)).unwrap_or(0);
        // Tool results at the end belong to the step of the assistant message before them.
        let is_result = messages.get(last).is_some_and(|m| m.role == "tool");
        let call = messages[..last].iter().rposition(|m| m.role == "assistant");
        Self {
            task: messages.iter().position(is_user),
            newest_user: messages.iter().rposition(is_user),
            last_step: call.filter(|_| is_result).unwrap_or(last),
        }
    }

    /// Indices before which messages may be dropped, in ascending order.
    fn cuts(&self, messages: &[Message]) -> Vec<usize> {
        let is_user = |message: &Message| message.role == "user";
        let second =
            messages.iter().enumerate().position(|(at, m)| Some(at) > self.task && is_user(m));
        let begins_step = |at: usize| match messages[at].role.as_str() {
            "user" => true,
            // An assistant message stays with its question. In the first and the newest turn, the
            // question is always kept.
            "assistant" => second.is_none_or(|second| at < second) || Some(at) > self.newest_user,
            _ => false,
        };
        let first = (0..messages.len())
            .find(|index| !self.is_pinned(messages, *index))
            .unwrap_or(messages.len());
        let splits_calls = splits_calls(messages);
        (1..=self.last_step)
            .filter(|&at| at > first && begins_step(at) && !splits_calls[at])
            .collect()
    }

    fn is_pinned(&self, messages: &[Message], at: usize) -> bool {
        is_instruction(&messages[at]) || Some(at) == self.task || Some(at) == self.newest_user
    }

    /// The messages from index `first` on, and the earlier ones that are always kept.
    fn kept_from(&self, messages: &[Message], first: usize) -> Vec<Message> {
        let all = messages.iter().enumerate();
        all.filter(|(at, _)| *at >= first || self.is_pinned(messages, *at))
            .map(|(_, m)| m.clone())
            .collect()
    }
}

/// For each index, whether a cut there separates a tool result from its call.
fn splits_calls(messages: &[Message]) -> Vec<bool> {
    let mut calls: HashMap<&str, usize> = HashMap::new();
    let mut newest_user = None;
    // Difference array: at each index, the change in the number of results behind it with a call
    // before it.
    let mut changes = vec![0isize; messages.len() + 1];
    for (at, message) in messages.iter().enumerate() {
        for call in &message.tool_calls {
            newest_user = Some(at);
            calls.insert(&call.id, at);
        }
        let named = message.tool_call_id.as_deref().and_then(|id| calls.get(id)).copied();
        if let Some(call) = named.or(newest_user).filter(|_| message.role == "tool") {
            changes[call + 1] += 1;
            changes[at + 1] -= 1;
        }
    }
    let mut open = 0;
    let is_split = |change: isize| {
        open += change;
        open > 0
    };
    changes.into_iter().map(is_split).collect()
}

fn is_instruction(message: &Message) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}
