//! Prompts that fit the context: the oldest messages go first, system messages and the newest stay.

use crate::adapt::{Adaptation, Adaptations};
use crate::chat::{Chat, Rendered, render_messages};
use crate::message::Message;
use crate::{PromptError, Template};

/// A prompt and what it took to make it fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitted {
    /// The prompt.
    pub prompt: String,
    /// Its length as counted, with the images'.
    pub tokens: usize,
    /// Messages left out, oldest first, without any system message.
    pub dropped_messages: usize,
    /// Tokens that were cut out of the messages that stayed.
    pub dropped_tokens: usize,
    /// Even the newest message with the system messages is longer than the limit; the prompt must be cut or refused.
    pub too_long: bool,
    /// What was changed so that the template accepts it.
    pub adaptations: Adaptations,
}

impl Fitted {
    /// Is anything missing or still to be cut?
    pub fn truncated(&self) -> bool {
        self.dropped_messages > 0 || self.too_long
    }
}

/// Renders the conversation and, while `count` finds more than `limit` tokens, drops the oldest messages.
///
/// System messages are never dropped, nor is the last message. The cut is found by bisection: a conversation that fits
/// is rendered and counted once, one of n messages at most about log₂ n times. A cut at which the template refuses the
/// rest (a conversation that starts with an answer, say) is passed over for the next one.
pub fn fit(
    template: &Template,
    chat: &Chat<'_>,
    limit: usize,
    count: &mut dyn FnMut(&str) -> Result<usize, PromptError>,
) -> Result<Fitted, PromptError> {
    let mut attempt = |first: usize| -> Result<Fitted, PromptError> {
        let kept = kept_from(chat.messages, first);
        let images: usize = kept.iter().map(|m| m.images.len()).sum();
        let Rendered { prompt, mut adaptations } = render_messages(template, chat, &kept)?;
        let tokens = count(&prompt)?.saturating_add(images.saturating_mul(chat.image_tokens));
        let dropped_messages = chat.messages.len() - kept.len();
        if dropped_messages > 0 {
            adaptations.insert(Adaptation::Dropped);
        }
        let too_long = tokens > limit;
        Ok(Fitted { prompt, tokens, dropped_messages, dropped_tokens: 0, too_long, adaptations })
    };
    let whole = attempt(0)?;
    if !whole.too_long {
        return Ok(whole);
    }
    // Only a message that is no system message makes a shorter candidate.
    let last = chat.messages.len().saturating_sub(1);
    let cuts: Vec<usize> =
        (1..=last).filter(|cut| chat.messages[cut - 1].role != "system").collect();
    let (enough, shortest) = smallest_cut(&cuts, &mut attempt)?;
    Ok(enough.or(shortest).unwrap_or(whole))
}

/// Finds the smallest cut whose prompt is not too long, by bisection, and of those that are too long the last one tried.
pub(crate) fn smallest_cut(
    cuts: &[usize],
    attempt: &mut impl FnMut(usize) -> Result<Fitted, PromptError>,
) -> Result<(Option<Fitted>, Option<Fitted>), PromptError> {
    let (mut enough, mut shortest) = (None, None);
    let (mut low, mut high) = (0, cuts.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match accepted(&cuts[middle..high], attempt)? {
            Some((_, fitted)) if !fitted.too_long => {
                high = middle;
                enough = Some(fitted);
            }
            Some((passed, fitted)) => {
                low = middle + passed + 1;
                shortest = Some(fitted);
            }
            // From here on the template refuses everything.
            None => high = middle,
        }
    }
    Ok((enough, shortest))
}

/// How many cuts in a row a template may refuse before it is taken to refuse all.
const REFUSALS_MAX: usize = 8;

/// The first of the cuts at which the template takes the rest, and how many it refused before.
fn accepted(
    cuts: &[usize],
    attempt: &mut impl FnMut(usize) -> Result<Fitted, PromptError>,
) -> Result<Option<(usize, Fitted)>, PromptError> {
    for (passed, cut) in cuts.iter().enumerate().take(REFUSALS_MAX) {
        match attempt(*cut) {
            Ok(fitted) => return Ok(Some((passed, fitted))),
            Err(error) if error.is_refusal() => {}
            Err(other) => return Err(other),
        }
    }
    Ok(None)
}

/// System messages before `first`, and all from it on.
fn kept_from(messages: &[Message], first: usize) -> Vec<Message> {
    let (before, from) = messages.split_at(first.min(messages.len()));
    before.iter().filter(|m| m.role == "system").chain(from).cloned().collect()
}
