//! Upload requests.

use std::sync::Arc;

use axum::body::Body as Content;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use puna_store::Digest;

use super::{CONTENT_DIGEST, HandlerResult, Mirror, empty_response, header_value};
use crate::auth::{ClientId, Principal};
use crate::error::{MirrorError, UploadProblem};
use crate::http::base_url::{self, header_text};
use crate::http::target::query_value;
use crate::quota::reservation::UploadReservation;
use crate::storage::{ByteStream, UploadPart};
use crate::types::name_error::NameError;
use crate::types::repository::{Repository, digest};
use crate::types::upload_id::UploadId;

const UUID: HeaderName = HeaderName::from_static("docker-upload-uuid");

impl Mirror {
    /// Starts an upload, unless the blob exists or the request contains it whole.
    pub(super) async fn begin(
        &self,
        name: Repository,
        head: &Parts,
        body: Content,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        let base_url = base_url::base_url(head);
        let parameter = |key| query_value(head.uri.query(), key);
        let mounted = parameter("mount").map(|mount| digest(&mount)).transpose()?;
        let whole = parameter("digest").map(|whole| digest(&whole)).transpose()?;
        let empty = is_empty(&head.headers);
        // Ollama's newer client sends a digest without a body to ask whether the blob exists.
        let existence_check = mounted.or(whole.filter(|whole| empty && *whole != Digest::of(b"")));
        // In this order, the time does not tell whether others have the blob.
        if let Some(digest) = existence_check
            && self.namespace_index().can_see_blob(principal, &name, digest).await?
            && self.storage().blobs.blob(digest).await?.is_some()
            && self.namespace_index().mount(&name, digest).await?
        {
            return Ok(created(&name, &digest));
        }
        if let Some(pull_through) = &self.0.pull_through {
            pull_through.check_not_mirrored(&name)?;
        }
        let owner = ClientId::current();
        let id = self.namespace_index().begin_upload(&name, owner.as_str()).await?;
        if let Some(digest) = whole.filter(|_| existence_check.is_none()) {
            return self.finish_with_body(name, id, digest, head, body).await;
        }
        Ok(accepted(StatusCode::ACCEPTED, &base_url, &name, &id, 0))
    }

    pub(super) async fn upload_status(
        &self,
        name: Repository,
        id: UploadId,
        head: &Parts,
    ) -> HandlerResult {
        let len = self.storage().uploads.size(&name, &id).await?;
        Ok(accepted(StatusCode::NO_CONTENT, &base_url::base_url(head), &name, &id, len))
    }

    pub(super) async fn append(
        &self,
        name: Repository,
        id: UploadId,
        head: &Parts,
        body: Content,
    ) -> HandlerResult {
        let base_url = base_url::base_url(head);
        match self.append_within_quota(&name, &id, part(head, body)?).await {
            Ok(len) => Ok(accepted(StatusCode::ACCEPTED, &base_url, &name, &id, len)),
            Err(error @ MirrorError::OutOfOrder { at, .. }) => {
                // The error response also carries the offset to continue from.
                let mut response = super::error_response(&error);
                let headers = accepted(StatusCode::ACCEPTED, &base_url, &name, &id, at)
                    .into_parts()
                    .0
                    .headers;
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
    ) -> HandlerResult {
        let text = query_value(head.uri.query(), "digest");
        let digest = digest(&text.ok_or(NameError::Digest(String::new()))?)?;
        self.finish_with_body(name, id, digest, head, body).await
    }

    /// Appends a part within the quota. A part of unannounced length is checked while it arrives;
    /// if it exceeds the quota, the whole upload is removed.
    async fn append_within_quota(
        &self,
        name: &Repository,
        id: &UploadId,
        mut part: UploadPart,
    ) -> Result<u64, MirrorError> {
        let reservation = self.namespace_index().reserve_upload(name, id).await?.map(Arc::new);
        if let Some(reservation) = &reservation {
            let received = reservation.received();
            let first = part.at.map_or(received, |at| at.min(received));
            reservation.reserve(first.saturating_add(part.len.unwrap_or(0))).await?;
            part.body = reserve_pieces(reservation.clone(), first, part.body);
        }
        let body = self.metrics().count_received(part.body);
        let added = self.storage().uploads.append(name, id, UploadPart { body, ..part }).await;
        match &added {
            Ok(len) => _ = reservation.inspect(|reservation| reservation.complete(*len)),
            Err(MirrorError::Quota { .. }) => {
                self.namespace_index().reservations.cancel(name, id).await?
            }
            Err(_) => {}
        }
        added
    }

    /// Appends the last part, if the request has one, and makes the blob.
    async fn finish_with_body(
        &self,
        name: Repository,
        id: UploadId,
        digest: Digest,
        head: &Parts,
        body: Content,
    ) -> HandlerResult {
        if !is_empty(&head.headers) {
            self.append_within_quota(&name, &id, part(head, body)?).await?;
        }
        self.namespace_index().finish(&name, &id, digest).await?;
        Ok(created(&name, &digest))
    }

    pub(super) async fn cancel(&self, name: Repository, id: UploadId) -> HandlerResult {
        self.namespace_index().reservations.cancel(&name, &id).await?;
        let mut response = empty_response(StatusCode::NO_CONTENT);
        response.headers_mut().remove(header::CONTENT_LENGTH);
        Ok(response)
    }
}

/// Whether a request has no body.
fn is_empty(headers: &HeaderMap) -> bool {
    let len = header_text(headers, header::CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    len.unwrap_or(0) == 0 && !headers.contains_key(header::TRANSFER_ENCODING)
}

/// Reads the part of an upload from a request.
fn part(head: &Parts, body: Content) -> Result<UploadPart, MirrorError> {
    let headers = &head.headers;
    let len = header_text(headers, header::CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
    let range = header_text(headers, header::CONTENT_RANGE).map(content_range).transpose()?;
    let wanted = range.map(|(first, last)| last - first + 1);
    if let (Some(len), Some(wanted)) = (len, wanted)
        && len != wanted
    {
        return Err(MirrorError::SizeMismatch { received: len, announced: wanted });
    }
    let body: ByteStream = body
        .into_data_stream()
        .map(|piece| piece.map_err(|e| MirrorError::BodyInterrupted { reason: e.to_string() }))
        .boxed();
    Ok(UploadPart { at: range.map(|(first, _)| first), len: wanted.or(len), body })
}

/// Wraps the body of a part at offset `first`: each piece reserves its bytes before it is passed
/// on.
fn reserve_pieces(reservation: Arc<UploadReservation>, first: u64, body: ByteStream) -> ByteStream {
    let pieces =
        stream::try_unfold((body, reservation, first), |(mut body, reservation, end)| async move {
            let Some(piece) = body.next().await.transpose()? else { return Ok(None) };
            let end = end.saturating_add(piece.len() as u64);
            reservation.reserve(end).await?;
            reservation.record_received(end);
            Ok(Some((piece, (body, reservation, end))))
        });
    pieces.boxed()
}

/// Parses `first-last`. The distribution specification uses no unit here.
fn content_range(text: &str) -> Result<(u64, u64), UploadProblem> {
    let read = || {
        let (first, last) = text.split_once('-')?;
        let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
        let (first, last) = (
            digits(first).then_some(first)?.parse().ok()?,
            digits(last).then_some(last)?.parse().ok()?,
        );
        (first <= last && last < u64::MAX).then_some((first, last))
    };
    read().ok_or_else(|| UploadProblem::ContentRange(text.to_owned()))
}

fn accepted(
    status: StatusCode,
    base_url: &str,
    name: &Repository,
    id: &UploadId,
    len: u64,
) -> Response {
    let mut response = empty_response(status);
    let headers = response.headers_mut();
    if status == StatusCode::NO_CONTENT {
        headers.remove(header::CONTENT_LENGTH);
    }
    // Ollama's client needs an absolute URL.
    headers.insert(
        header::LOCATION,
        header_value(&format!("{base_url}/v2/{name}/blobs/uploads/{id}")),
    );
    headers.insert(header::RANGE, header_value(&format!("0-{}", len.saturating_sub(1))));
    headers.insert(UUID, header_value(id.as_str()));
    response
}

fn created(name: &Repository, digest: &Digest) -> Response {
    let mut response = empty_response(StatusCode::CREATED);
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, header_value(&format!("/v2/{name}/blobs/{digest}")));
    headers.insert(CONTENT_DIGEST, header_value(&digest.to_string()));
    response
}
