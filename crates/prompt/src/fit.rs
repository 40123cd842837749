//! Fits a prompt to the context: drops the oldest messages, keeps system messages and the newest
//! message.

use crate::adapt::{Adaptation, Adaptations};
use crate::chat::Chat;
use crate::message::Message;
use crate::rendering::{RenderedPrompt, render_messages};
use crate::{PromptError, Template};

/// A prompt that was fitted to the context, and how it was shortened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittedPrompt {
    /// The prompt.
    pub prompt: String,
    /// Length of the prompt in tokens, images included.
    pub tokens: usize,
    /// Number of dropped messages. Oldest messages are dropped first, system messages never.
    pub dropped_messages: usize,
    /// Tokens cut out of messages that were kept.
    pub dropped_tokens: usize,
    /// System messages and newest message alone exceed the limit. The caller must cut or refuse the
    /// prompt.
    pub too_long: bool,
    /// Changes of the conversation that the template required.
    pub adaptations: Adaptations,
}

impl FittedPrompt {
    /// Returns true if messages were dropped or the prompt is still too long.
    pub fn truncated(&self) -> bool {
        self.dropped_messages > 0 || self.too_long
    }
}

/// Renders the conversation. While `count` returns more than `limit` tokens, drops the oldest
/// messages.
///
/// System messages and the last message are never dropped. Bisection finds the smallest cut. A
/// conversation that fits is rendered and counted once, a longer one of n messages at most about
/// log₂ n times. If the template refuses the rest after a cut, for example because it starts with
/// an assistant message, the next cut is tried.
pub fn fit(
    template: &Template,
    chat: &Chat<'_>,
    limit: usize,
    count: &mut dyn FnMut(&str) -> Result<usize, PromptError>,
) -> Result<FittedPrompt, PromptError> {
    let mut attempt = |first: usize| -> Result<FittedPrompt, PromptError> {
        let kept = kept_from(chat.messages, first);
        let images: usize = kept.iter().map(|m| m.images.len()).sum();
        let RenderedPrompt { prompt, mut adaptations } = render_messages(template, chat, &kept)?;
        let tokens = count(&prompt)?.saturating_add(images.saturating_mul(chat.image_tokens));
        let dropped_messages = chat.messages.len() - kept.len();
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
    let whole = attempt(0)?;
    if !whole.too_long {
        return Ok(whole);
    }
    // Cuts behind system messages are left out: dropping a system message does not shorten the
    // prompt.
    let last = chat.messages.len().saturating_sub(1);
    let cuts: Vec<usize> =
        (1..=last).filter(|cut| chat.messages[cut - 1].role != "system").collect();
    let (fitting, shortest) = smallest_cut(&cuts, &mut attempt)?;
    Ok(fitting.or(shortest).unwrap_or(whole))
}

/// Finds the smallest cut with a prompt that is not too long, by bisection. Also returns the last
/// prompt that was tried and is too long.
pub(crate) fn smallest_cut(
    cuts: &[usize],
    attempt: &mut impl FnMut(usize) -> Result<FittedPrompt, PromptError>,
) -> Result<(Option<FittedPrompt>, Option<FittedPrompt>), PromptError> {
    let (mut fitting, mut shortest) = (None, None);
    let (mut low, mut high) = (0, cuts.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match first_accepted(&cuts[middle..high], attempt)? {
            Some((_, fitted)) if !fitted.too_long => {
                high = middle;
                fitting = Some(fitted);
            }
            Some((refused, fitted)) => {
                low = middle + refused + 1;
                shortest = Some(fitted);
            }
            // The template refuses all later cuts.
            None => high = middle,
        }
    }
    Ok((fitting, shortest))
}

/// Number of consecutive refused cuts after which all later cuts count as refused.
const MAX_REFUSALS_IN_A_ROW: usize = 8;

/// The first cut that the template accepts, and the number of cuts refused before it.
fn first_accepted(
    cuts: &[usize],
    attempt: &mut impl FnMut(usize) -> Result<FittedPrompt, PromptError>,
) -> Result<Option<(usize, FittedPrompt)>, PromptError> {
    for (refused, cut) in cuts.iter().enumerate().take(MAX_REFUSALS_IN_A_ROW) {
        match attempt(*cut) {
            Ok(fitted) => return Ok(Some((refused, fitted))),
            Err(error) if error.is_refusal() => {}
            Err(other) => return Err(other),
        }
    }
    Ok(None)
}

/// The system messages before index `first`, and all messages from `first` on.
fn kept_from(messages: &[Message], first: usize) -> Vec<Message> {
    let (before, from) = messages.split_at(first.min(messages.len()));
    before.iter().filter(|m| m.role == "system").chain(from).cloned().collect()
}
