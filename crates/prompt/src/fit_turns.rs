//! Prompts of agents that fit the context: the task and the newest turn stay, and no result loses its call.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::adapt::Adaptation;
use crate::chat::{Chat, Rendered, render_messages};
use crate::fit::{Fitted, smallest_cut};
use crate::message::Message;
use crate::{PromptError, Template};

/// Bytes of a message that is never cut.
const SHORT_BYTES: usize = 256;

/// Renders the conversation and, while `count` finds more than `limit` tokens, leaves out the oldest of its steps and then the
/// middle of its longest tool results and late system messages, until `target` tokens are left.
///
/// System messages, the first user message (the task), the newest one and the last step always stay. A step is a user message,
/// or an assistant message with the results of its calls. Older turns are left out as a whole, and of the first and the newest
/// one step after the other.
///
/// # Errors
/// As of [`crate::render_adapted`] for the whole conversation, and what `count` fails with.
pub fn fit_turns(
    template: &Template,
    chat: &Chat<'_>,
    limit: usize,
    target: usize,
    count: &mut dyn FnMut(&str) -> Result<usize, PromptError>,
) -> Result<Fitted, PromptError> {
    let mut attempt = |messages: &[Message], limit: usize| -> Result<Fitted, PromptError> {
        let images: usize = messages.iter().map(|m| m.images.len()).sum();
        let Rendered { prompt, mut adaptations } = render_messages(template, chat, messages)?;
        let tokens = count(&prompt)?.saturating_add(images.saturating_mul(chat.image_tokens));
        let dropped_messages = chat.messages.len() - messages.len();
        if dropped_messages > 0 {
            adaptations.insert(Adaptation::Dropped);
        }
        let too_long = tokens > limit;
        Ok(Fitted { prompt, tokens, dropped_messages, dropped_tokens: 0, too_long, adaptations })
    };
    let whole = attempt(chat.messages, limit)?;
    if !whole.too_long {
        return Ok(whole);
    }
    let turns = Turns::of(chat.messages);
    let cuts = turns.cuts(chat.messages);
    let mut attempt_cut = |cut: usize| attempt(&turns.kept_from(chat.messages, cut), target);
    if let (Some(fitted), _) = smallest_cut(&cuts, &mut attempt_cut)? {
        return Ok(fitted);
    }
    let last = cuts.last().copied().unwrap_or(0);
    shorten_longest(turns.kept_from(chat.messages, last), target, whole, &mut attempt)
}

/// Cuts the middle out of the longest messages that may be cut until the prompt has no more than `target` tokens, or none of
/// them can be shorter. `whole` is the prompt before anything was left out.
fn shorten_longest(
    kept: Vec<Message>,
    target: usize,
    whole: Fitted,
    attempt: &mut impl FnMut(&[Message], usize) -> Result<Fitted, PromptError>,
) -> Result<Fitted, PromptError> {
    let longest = shortable(&kept).map(|m| m.content.len()).max().unwrap_or(0);
    let uncut = match attempt(&kept, target) {
        Ok(fitted) => fitted,
        Err(error) if error.is_refusal() => return Ok(whole),
        Err(error) => return Err(error),
    };
    let mut shorten = |most: usize| -> Result<Fitted, PromptError> {
        let mut fitted = attempt(&shortened(&kept, most), target)?;
        fitted.dropped_tokens = uncut.tokens.saturating_sub(fitted.tokens);
        fitted.adaptations.insert(Adaptation::Dropped);
        Ok(fitted)
    };
    if longest <= SHORT_BYTES {
        return Ok(uncut);
    }
    let shortest = shorten(SHORT_BYTES)?;
    if shortest.too_long {
        return Ok(shortest);
    }
    // The longest that fit, to a sixteenth.
    let (mut best, mut low, mut high) = (shortest, SHORT_BYTES, longest);
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

/// Where the messages begin that are behind the task.
fn behind_task(messages: &[Message]) -> usize {
    messages.iter().position(|m| m.role == "user").map_or(messages.len(), |task| task + 1)
}

/// Whether the middle of a message may be left out: that of a tool result, or of a system message behind the task.
fn is_shortable(message: &Message, is_behind_task: bool) -> bool {
    message.role == "tool" || (is_instruction(message) && is_behind_task)
}

fn shortable(messages: &[Message]) -> impl Iterator<Item = &Message> {
    let behind = behind_task(messages);
    let all = messages.iter().enumerate();
    all.filter(move |(at, message)| is_shortable(message, *at >= behind))
        .map(|(_, message)| message)
}

/// The messages with no more than `most` bytes of each that may be cut.
fn shortened(messages: &[Message], most: usize) -> Vec<Message> {
    let behind = behind_task(messages);
    let short = |(at, message): (usize, &Message)| match message.content.len() > most {
        true if is_shortable(message, at >= behind) => Message {
            content: without_middle(&message.content, most).into_owned(),
            ..message.clone()
        },
        _ => message.clone(),
    };
    messages.iter().enumerate().map(short).collect()
}

/// Head and tail of a text, `most` bytes together, with a mark between them that says how much was left out.
fn without_middle(text: &str, most: usize) -> Cow<'_, str> {
    let head = text.floor_char_boundary(most / 2);
    let tail = text.ceil_char_boundary(text.len() - most / 2);
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

/// The messages of a conversation that are never left out.
struct Turns {
    /// The first user message.
    task: Option<usize>,
    /// The newest user message.
    newest: Option<usize>,
    /// Where the last step begins.
    last_step: usize,
}

impl Turns {
    fn of(messages: &[Message]) -> Self {
        let is_user = |message: &Message| message.role == "user";
        let last = messages.iter().rposition(|m| !is_instruction(m)).unwrap_or(0);
        // The results of a step belong to the assistant's message before them.
        let is_result = messages.get(last).is_some_and(|m| m.role == "tool");
        let call = messages[..last].iter().rposition(|m| m.role == "assistant");
        Self {
            task: messages.iter().position(is_user),
            newest: messages.iter().rposition(is_user),
            last_step: call.filter(|_| is_result).unwrap_or(last),
        }
    }

    /// The places before which messages may be left out, in their order.
    fn cuts(&self, messages: &[Message]) -> Vec<usize> {
        let is_user = |message: &Message| message.role == "user";
        let second =
            messages.iter().enumerate().position(|(at, m)| Some(at) > self.task && is_user(m));
        let begins_step = |at: usize| match messages[at].role.as_str() {
            "user" => true,
            // An answer stays with its question, but in the first and the newest turn, whose questions always stay.
            "assistant" => second.is_none_or(|second| at < second) || Some(at) > self.newest,
            _ => false,
        };
        let first = (0..messages.len())
            .find(|index| !self.stays(messages, *index))
            .unwrap_or(messages.len());
        let splits_calls = splits_calls(messages);
        (1..=self.last_step)
            .filter(|&at| at > first && begins_step(at) && !splits_calls[at])
            .collect()
    }

    fn stays(&self, messages: &[Message], at: usize) -> bool {
        is_instruction(&messages[at]) || Some(at) == self.task || Some(at) == self.newest
    }

    /// The messages from a place on, and those before it that always stay.
    fn kept_from(&self, messages: &[Message], first: usize) -> Vec<Message> {
        let all = messages.iter().enumerate();
        all.filter(|(at, _)| *at >= first || self.stays(messages, *at))
            .map(|(_, m)| m.clone())
            .collect()
    }
}

/// For each place, whether a cut there would leave a result without its call.
fn splits_calls(messages: &[Message]) -> Vec<bool> {
    let mut calls: HashMap<&str, usize> = HashMap::new();
    let mut newest = None;
    // By how much the number of results behind a place whose calls are before it differs from that of the place before.
    let mut changes = vec![0isize; messages.len() + 1];
    for (at, message) in messages.iter().enumerate() {
        for call in &message.tool_calls {
            newest = Some(at);
            calls.insert(&call.id, at);
        }
        let named = message.tool_call_id.as_deref().and_then(|id| calls.get(id)).copied();
        if let Some(call) = named.or(newest).filter(|_| message.role == "tool") {
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
