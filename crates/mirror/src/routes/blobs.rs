//! Blobs, whole and in parts.

use std::ops::Range;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use puna_store::Digest;

use super::{Answered, CONTENT_DIGEST, Mirror, asker, bare, check_match, is_known, value};
use crate::access::Holder;
use crate::error::MirrorError;
use crate::name::Repository;
use crate::path::Target;
use crate::place::text;
use crate::range::{Wanted, wanted};

impl Mirror {
    pub(super) async fn blob(
        &self,
        name: Repository,
        of: Digest,
        head: &Parts,
        holder: Option<&Holder>,
    ) -> Answered {
        let asker = asker(head, holder);
        let blob =
            self.library().blob_for(&name, of, asker).await?.ok_or(MirrorError::BlobUnknown(of))?;
        if !self.sees(holder, &name, of).await? && !self.library().vouches(&name, of).await? {
            return Err(MirrorError::BlobUnknown(of));
        }
        let etag = format!("\"{of}\"");
        check_match(&head.headers, Some(&etag))?;
        let (status, part) = asked_for(&head.headers, &etag, blob.size());
        let mut response = bare(status);
        let headers = response.headers_mut();
        describe(headers, &of, &etag);
        match status {
            StatusCode::NOT_MODIFIED => {
                headers.remove(header::CONTENT_LENGTH);
                return Ok(response);
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                headers.insert(header::CONTENT_RANGE, value(&format!("bytes */{}", blob.size())));
                return Ok(response);
            }
            StatusCode::PARTIAL_CONTENT => {
                let text = format!("bytes {}-{}/{}", part.start, part.end - 1, blob.size());
                headers.insert(header::CONTENT_RANGE, value(&text));
            }
            // Ollama's client fetches the parts of a blob from where this points, and gives up without it.
            _ => {
                let payer = self.access().payer(head, holder, &Target::Blob(name.clone(), of));
                let address = self.access().address(&name, &of, payer.as_deref());
                headers.insert(header::LOCATION, value(&address));
            }
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, (part.end - part.start).into());
        if head.method != Method::HEAD {
            *response.body_mut() = Body::from_stream(self.figures().sent(blob.read(part)));
        }
        Ok(response)
    }

    pub(super) async fn remove_blob(
        &self,
        name: Repository,
        of: Digest,
        head: &Parts,
        holder: Option<&Holder>,
    ) -> Answered {
        if !self.sees(holder, &name, of).await? {
            return Err(MirrorError::BlobUnknown(of));
        }
        check_match(&head.headers, Some(&format!("\"{of}\"")))?;
        match self.library().remove_blob(of).await? {
            true => Ok(bare(StatusCode::ACCEPTED)),
            false => Err(MirrorError::BlobUnknown(of)),
        }
    }
}

/// Which bytes of a blob of a size are asked for, and as what they are answered.
fn asked_for(headers: &HeaderMap, etag: &str, size: u64) -> (StatusCode, Range<u64>) {
    if is_known(headers, etag) {
        return (StatusCode::NOT_MODIFIED, 0..0);
    }
    let same = text(headers, header::IF_RANGE).is_none_or(|tag| tag == etag);
    match wanted(text(headers, header::RANGE).filter(|_| same), size) {
        Wanted::Beyond => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
        Wanted::Whole => (StatusCode::OK, 0..size),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
    }
}

/// Says of every answer which blob it is about.
fn describe(headers: &mut HeaderMap, of: &Digest, etag: &str) {
    headers.insert(header::ETAG, value(etag));
    headers.insert(CONTENT_DIGEST, value(&of.to_string()));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // A blob never changes, and nobody may pack it anew on the way: ranges would mean something else.
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("max-age=31536000, immutable, no-transform"),
    );
}
