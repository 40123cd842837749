//! Uploads.

use std::sync::Arc;

use axum::body::Body as Content;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use puna_store::Digest;

use super::{Answered, CONTENT_DIGEST, Caller, Mirror, bare, value};
use crate::access::Holder;
use crate::error::MirrorError;
use crate::id::UploadId;
use crate::library::{Body, Part};
use crate::name::{Repository, digest};
use crate::path::query;
use crate::place::{self, text};
use crate::uploading::Room;

const UUID: HeaderName = HeaderName::from_static("docker-upload-uuid");

impl Mirror {
    /// Begins an upload, unless the blob is here or all of it comes with the request.
    pub(super) async fn begin(
        &self,
        name: Repository,
        head: &Parts,
        body: Content,
        holder: Option<&Holder>,
    ) -> Answered {
        let place = place::of(head);
        let asked = |key| query(head.uri.query(), key);
        let mounted = asked("mount").map(|mount| digest(&mount)).transpose()?;
        let whole = asked("digest").map(|whole| digest(&whole)).transpose()?;
        let empty = is_empty(&head.headers);
        // Ollama's newer client announces a digest without a body: a question, and not a blob.
        let question = mounted.or(whole.filter(|whole| empty && *whole != Digest::of(b"")));
        if let Some(digest) = question
            && self.library().blob(digest).await?.is_some()
            && self.sees(holder, &name, digest).await?
            && self.stock().mount(self.library(), &name, digest).await?
        {
            return Ok(created(&name, &digest));
        }
        let id = self.library().begin(&name, &owner(head, holder)).await?;
        if let Some(digest) = whole.filter(|_| question.is_none()) {
            return self.take(name, id, digest, head, body).await;
        }
        Ok(accepted(StatusCode::ACCEPTED, &place, &name, &id, 0))
    }

    pub(super) async fn uploaded(&self, name: Repository, id: UploadId, head: &Parts) -> Answered {
        let len = self.library().uploaded(&name, &id).await?;
        Ok(accepted(StatusCode::NO_CONTENT, &place::of(head), &name, &id, len))
    }

    pub(super) async fn append(
        &self,
        name: Repository,
        id: UploadId,
        head: &Parts,
        body: Content,
    ) -> Answered {
        let place = place::of(head);
        match self.add(&name, &id, part(head, body)?).await {
            Ok(len) => Ok(accepted(StatusCode::ACCEPTED, &place, &name, &id, len)),
            Err(error @ MirrorError::OutOfOrder { at, .. }) => {
                // Where to go on stands beside what is wrong.
                let mut response = super::refusal(&error);
                let headers =
                    accepted(StatusCode::ACCEPTED, &place, &name, &id, at).into_parts().0.headers;
                for key in [header::LOCATION, header::RANGE, UUID] {
                    headers
                        .get(&key)
                        .map(|value| response.headers_mut().insert(key, value.clone()));
                }
                Ok(response)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn finish(
        &self,
        name: Repository,
        id: UploadId,
        head: &Parts,
        body: Content,
    ) -> Answered {
        let asked = query(head.uri.query(), "digest");
        let digest = digest(&asked.ok_or(MirrorError::Digest(String::new()))?)?;
        self.take(name, id, digest, head, body).await
    }

    /// Appends a part that there is room for. Of one that does not say how long it is that is known when it is too long: then nothing
    /// of the upload is kept.
    async fn add(
        &self,
        name: &Repository,
        id: &UploadId,
        mut part: Part,
    ) -> Result<u64, MirrorError> {
        let room = self.stock().room(&self.0.library, name, id).await?.map(Arc::new);
        if let Some(room) = &room {
            let there = room.there();
            let first = part.at.map_or(there, |at| at.min(there));
            room.takes(first.saturating_add(part.len.unwrap_or(0))).await?;
            part.body = within(room.clone(), first, part.body);
        }
        let body = self.figures().received(part.body);
        let added = self.library().append(name, id, Part { body, ..part }).await;
        match &added {
            Ok(len) => _ = room.inspect(|room| room.has(*len)),
            Err(MirrorError::Quota { .. }) => self.stock().cancel(self.library(), name, id).await?,
            Err(_) => {}
        }
        added
    }

    /// Takes the last part, if there is one, and makes the blob.
    async fn take(
        &self,
        name: Repository,
        id: UploadId,
        digest: Digest,
        head: &Parts,
        body: Content,
    ) -> Answered {
        if !is_empty(&head.headers) {
            self.add(&name, &id, part(head, body)?).await?;
        }
        self.stock().finish(&self.0.library, &name, &id, digest).await?;
        Ok(created(&name, &digest))
    }

    pub(super) async fn cancel(&self, name: Repository, id: UploadId) -> Answered {
        self.stock().cancel(self.library(), &name, &id).await?;
        let mut response = bare(StatusCode::NO_CONTENT);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        Ok(response)
    }
}

/// Whose an upload is: that of a key, or where none was shown, of an address.
fn owner(head: &Parts, holder: Option<&Holder>) -> String {
    match holder {
        Some(holder) => format!("key {}", holder.name),
        None => format!(
            "at {}",
            head.extensions.get::<Caller>().map_or_else(String::new, Caller::place)
        ),
    }
}

/// Whether a request has no body.
fn is_empty(headers: &HeaderMap) -> bool {
    let len = text(headers, header::CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    len.unwrap_or(0) == 0 && !headers.contains_key(header::TRANSFER_ENCODING)
}

/// The part that a request brings.
fn part(head: &Parts, body: Content) -> Result<Part, MirrorError> {
    let headers = &head.headers;
    let len = text(headers, header::CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    let range = text(headers, header::CONTENT_RANGE).map(content_range).transpose()?;
    let wanted = range.map(|(first, last)| last - first + 1);
    if let (Some(len), Some(wanted)) = (len, wanted)
        && len != wanted
    {
        return Err(MirrorError::Size(len, wanted));
    }
    let body: Body = body
        .into_data_stream()
        .map(|piece| piece.map_err(|e| MirrorError::Broken(e.to_string())))
        .boxed();
    Ok(Part { at: range.map(|(first, _)| first), len: wanted.or(len), body })
}

/// The bytes of a part that begins at a place of an upload, as long as there is room for them.
fn within(room: Arc<Room>, first: u64, body: Body) -> Body {
    let places = stream::try_unfold((body, room, first), |(mut body, room, end)| async move {
        let Some(piece) = body.next().await.transpose()? else { return Ok(None) };
        let end = end.saturating_add(piece.len() as u64);
        room.takes(end).await?;
        room.came(end);
        Ok(Some((piece, (body, room, end))))
    });
    places.boxed()
}

/// `first-last`, as the distribution rules write it: without a unit.
fn content_range(text: &str) -> Result<(u64, u64), MirrorError> {
    let read = || {
        let (first, last) = text.split_once('-')?;
        let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
        let (first, last) = (
            digits(first).then_some(first)?.parse().ok()?,
            digits(last).then_some(last)?.parse().ok()?,
        );
        (first <= last && last < u64::MAX).then_some((first, last))
    };
    read().ok_or_else(|| {
        MirrorError::UploadInvalid(format!(
            "Content-Range {text:?} is no place: write FIRST-LAST, such as 0-99"
        ))
    })
}

fn accepted(
    status: StatusCode,
    place: &str,
    name: &Repository,
    id: &UploadId,
    len: u64,
) -> Response {
    let mut response = bare(status);
    let headers = response.headers_mut();
    if status == StatusCode::NO_CONTENT {
        headers.remove(header::CONTENT_LENGTH);
    }
    // Ollama's client takes nothing but a whole address.
    headers.insert(header::LOCATION, value(&format!("{place}/v2/{name}/blobs/uploads/{id}")));
    headers.insert(header::RANGE, value(&format!("0-{}", len.saturating_sub(1))));
    headers.insert(UUID, value(id.as_str()));
    response
}

fn created(name: &Repository, digest: &Digest) -> Response {
    let mut response = bare(StatusCode::CREATED);
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, value(&format!("/v2/{name}/blobs/{digest}")));
    headers.insert(CONTENT_DIGEST, value(&digest.to_string()));
    response
}
