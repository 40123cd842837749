//! Blob requests, whole and by range.

use std::ops::Range;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use puna_store::Digest;

use super::{
    CONTENT_DIGEST, HandlerResult, Mirror, check_if_match, empty_response, etag_of, header_value,
    matches_etag, requester,
};
use crate::auth::Principal;
use crate::error::MirrorError;
use crate::http::base_url::header_text;
use crate::http::range::{ByteRange, parse_range};
use crate::http::target::Target;
use crate::types::repository::Repository;

impl Mirror {
    pub(super) async fn blob(
        &self,
        name: Repository,
        digest: Digest,
        head: &Parts,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        // In this order, the time does not tell whether others have the blob.
        if !self.namespace_index().can_see_blob(principal, &name, digest).await?
            && !self.upstream_confirms_blob(&name, digest).await?
        {
            return Err(MirrorError::BlobUnknown(digest));
        }
        let blob = self.find_blob(&name, digest, requester(head, principal)).await?;
        let blob = blob.ok_or(MirrorError::BlobUnknown(digest))?;
        let etag = etag_of(&digest);
        check_if_match(&head.headers, Some(digest))?;
        let (status, range) = requested_range(&head.headers, &etag, blob.size());
        let mut response = empty_response(status);
        let headers = response.headers_mut();
        set_blob_headers(headers, &digest, &etag);
        match status {
            StatusCode::NOT_MODIFIED => {
                headers.remove(header::CONTENT_LENGTH);
                return Ok(response);
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                headers.insert(
                    header::CONTENT_RANGE,
                    header_value(&format!("bytes */{}", blob.size())),
                );
                return Ok(response);
            }
            StatusCode::PARTIAL_CONTENT => {
                let content_range =
                    format!("bytes {}-{}/{}", range.start, range.end - 1, blob.size());
                headers.insert(header::CONTENT_RANGE, header_value(&content_range));
            }
            // Ollama's client fetches the ranges of a blob from this URL, and fails without it.
            _ => {
                let accountable_key = self.authenticator().accountable_key(
                    head,
                    principal,
                    &Target::Blob(name.clone(), digest),
                );
                let url = self.authenticator().blob_url(&name, &digest, accountable_key.as_deref());
                headers.insert(header::LOCATION, header_value(&url));
            }
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, (range.end - range.start).into());
        if head.method != Method::HEAD {
            *response.body_mut() = Body::from_stream(self.metrics().count_sent(blob.read(range)));
        }
        Ok(response)
    }

    pub(super) async fn remove_blob(
        &self,
        name: Repository,
        digest: Digest,
        head: &Parts,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        if !self.namespace_index().can_see_blob(principal, &name, digest).await? {
            return Err(MirrorError::BlobUnknown(digest));
        }
        check_if_match(&head.headers, Some(digest))?;
        let removed = self.storage().blobs.remove_blob(digest).await?;
        self.namespace_index().record_change();
        match removed {
            true => Ok(empty_response(StatusCode::ACCEPTED)),
            false => Err(MirrorError::BlobUnknown(digest)),
        }
    }
}

/// Returns the status and byte range of the response to a request for a blob.
fn requested_range(headers: &HeaderMap, etag: &str, size: u64) -> (StatusCode, Range<u64>) {
    if matches_etag(headers, etag) {
        return (StatusCode::NOT_MODIFIED, 0..0);
    }
    let same = header_text(headers, header::IF_RANGE).is_none_or(|tag| tag == etag);
    match parse_range(header_text(headers, header::RANGE).filter(|_| same), size) {
        ByteRange::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
        ByteRange::Whole => (StatusCode::OK, 0..size),
        ByteRange::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
    }
}

/// Sets the headers that every blob response has.
fn set_blob_headers(headers: &mut HeaderMap, digest: &Digest, etag: &str) {
    headers.insert(header::ETAG, header_value(etag));
    headers.insert(CONTENT_DIGEST, header_value(&digest.to_string()));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Blobs are immutable. `no-transform` forbids proxies to compress them, which would break
    // ranges.
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("max-age=31536000, immutable, no-transform"),
    );
}
