//! Images that a model does not see: those of the newest turn are refused, and a text stands for those of earlier turns.

use puna_api::native::{Image, Message};
use puna_prompt::Adaptation;
use puna_store::Model;

use super::has;
use crate::canonical::ApiError;
use crate::http::note_adapted;

/// The text that stands in the prompt for an image that the model cannot see.
const HIDDEN_IMAGE: &str = "[image: this model cannot see images]";
/// The text that stands in the prompt for an image that is not there.
const UNREADABLE_IMAGE: &str = "[image: it could not be read]";

/// Refuses images where the model has no vision. A model on another server sees images there.
pub(crate) fn check_images(model: &Model, count: usize) -> Result<(), ApiError> {
    let (sees, is_remote) = (has(model, "vision"), !model.config.remote_host.is_empty());
    if count == 0 || (sees && is_remote) {
        return Ok(());
    }
    Err(ApiError::bad_request(match sees {
        false => "model does not support image input",
        true => "image input is not supported yet",
    }))
}

/// Refuses images that could not be read.
pub(crate) fn check_readable(images: &[Image]) -> Result<(), ApiError> {
    let unreadable = images.iter().find_map(|image| match image {
        Image::Unreadable(reason) => Some(reason),
        Image::Bytes(_) => None,
    });
    unreadable.map_or(Ok(()), |reason| Err(ApiError::bad_request(reason)))
}

/// Puts a text in place of each image of earlier turns and of tool results that could not be read. The conversation
/// continues: its client sends the image again with every later turn.
///
/// # Errors
/// A message of the newest turn has an image that could not be read.
pub(crate) fn hide_unreadable_images(messages: &mut [Message]) -> Result<(), ApiError> {
    newest_turn(messages).try_for_each(|message| check_readable(&message.images))?;
    messages.iter_mut().for_each(|message| {
        hide(message, UNREADABLE_IMAGE, |image| matches!(image, Image::Unreadable(_)))
    });
    Ok(())
}

/// Puts a text in place of each image of earlier turns and of tool results where the model cannot see images.
///
/// # Errors
/// A message of the newest turn has an image: the answer would be about something else.
pub(crate) fn hide_old_images(model: &Model, messages: &mut [Message]) -> Result<(), ApiError> {
    check_images(model, newest_turn(messages).map(|message| message.images.len()).sum())?;
    if check_images(model, 1).is_err() {
        messages.iter_mut().for_each(|message| hide(message, HIDDEN_IMAGE, |_| true));
    }
    Ok(())
}

/// The messages that the model has not answered yet, without tool results. The beginning of an answer at the end of a
/// conversation is no answer.
fn newest_turn(messages: &[Message]) -> impl Iterator<Item = &Message> {
    let is_answer = |message: &&Message| message.role == "assistant";
    let unanswered =
        messages.iter().rev().skip_while(is_answer).take_while(move |message| !is_answer(message));
    unanswered.filter(|message| message.role != "tool")
}

/// Puts a text in place of those images of a message.
fn hide(message: &mut Message, placeholder: &str, is_hidden: impl Fn(&Image) -> bool) {
    let before = message.images.len();
    message.images.retain(|image| !is_hidden(image));
    let hidden = before - message.images.len();
    if hidden == 0 {
        return;
    }
    let own = Some(std::mem::take(&mut message.content)).filter(|text| !text.is_empty());
    let texts = std::iter::repeat_n(placeholder.to_owned(), hidden);
    message.content = own.into_iter().chain(texts).collect::<Vec<_>>().join("\n\n");
    note_adapted(Adaptation::Placeholder.as_str().to_owned());
}
