//! Images that the model cannot process. The server rejects them in the newest turn and replaces
//! them by placeholder text in earlier turns.

use puna_api::ollama::{Image, Message};
use puna_prompt::Adaptation;
use puna_store::Model;

use super::has;
use crate::canonical::ApiError;
use crate::http::record_adaptation;

/// Placeholder in the prompt for an image that the model cannot see.
const HIDDEN_IMAGE: &str = "[image: this model cannot see images]";
/// Placeholder in the prompt for an image that the server could not read.
const UNREADABLE_IMAGE: &str = "[image: it could not be read]";

/// Rejects images for a model without vision. The function accepts images for a remote model with
/// vision because the remote server processes them.
pub(crate) fn check_images(model: &Model, count: usize) -> Result<(), ApiError> {
    let (has_vision, is_remote) = (has(model, "vision"), !model.config.remote_host.is_empty());
    if count == 0 || (has_vision && is_remote) {
        return Ok(());
    }
    Err(ApiError::bad_request(match has_vision {
        false => "model does not support image input",
        true => "image input is not supported yet",
    }))
}

/// Rejects images that the server could not read.
pub(crate) fn check_readable(images: &[Image]) -> Result<(), ApiError> {
    let unreadable = images.iter().find_map(|image| match image {
        Image::Unreadable(reason) => Some(reason),
        Image::Bytes(_) => None,
    });
    unreadable.map_or(Ok(()), |reason| Err(ApiError::bad_request(reason)))
}

/// Replaces each unreadable image of earlier turns and tool results by placeholder text. Clients
/// send these images again with every later turn, so an error would block the conversation.
///
/// # Errors
/// A message of the newest turn has an unreadable image.
pub(crate) fn hide_unreadable_images(messages: &mut [Message]) -> Result<(), ApiError> {
    newest_turn(messages).try_for_each(|message| check_readable(&message.images))?;
    messages.iter_mut().for_each(|message| {
        hide(message, UNREADABLE_IMAGE, |image| matches!(image, Image::Unreadable(_)))
    });
    Ok(())
}

/// Replaces each image of earlier turns and tool results by placeholder text if the model cannot
/// see images.
///
/// # Errors
/// A message of the newest turn has an image that the model cannot see. An answer would ignore it.
pub(crate) fn hide_old_images(model: &Model, messages: &mut [Message]) -> Result<(), ApiError> {
    check_images(model, newest_turn(messages).map(|message| message.images.len()).sum())?;
    if check_images(model, 1).is_err() {
        messages.iter_mut().for_each(|message| hide(message, HIDDEN_IMAGE, |_| true));
    }
    Ok(())
}

/// Returns the messages that the model has not answered yet, without tool results. An assistant
/// message at the end of the conversation is the start of an answer and counts as unanswered.
fn newest_turn(messages: &[Message]) -> impl Iterator<Item = &Message> {
    let is_answer = |message: &&Message| message.role == "assistant";
    let unanswered =
        messages.iter().rev().skip_while(is_answer).take_while(move |message| !is_answer(message));
    unanswered.filter(|message| message.role != "tool")
}

/// Removes the images that match `is_hidden` and appends one placeholder for each.
fn hide(message: &mut Message, placeholder: &str, is_hidden: impl Fn(&Image) -> bool) {
    let before = message.images.len();
    message.images.retain(|image| !is_hidden(image));
    let hidden = before - message.images.len();
    if hidden == 0 {
        return;
    }
    let own_text = Some(std::mem::take(&mut message.content)).filter(|text| !text.is_empty());
    let texts = std::iter::repeat_n(placeholder.to_owned(), hidden);
    message.content = own_text.into_iter().chain(texts).collect::<Vec<_>>().join("\n\n");
    record_adaptation(Adaptation::Placeholder.as_str().to_owned());
}
