//! Blobs, whole and in parts.

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
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
        let blob = self.library().blob_for(&name, of, asker).await?.ok_or(MirrorError::BlobUnknown(of))?;
        if !self.sees(holder, &name, of).await? && !self.library().vouches(&name, of).await? {
            return Err(MirrorError::BlobUnknown(of));
        }
        let payer = self.access().payer(head, holder, &Target::Blob(name.clone(), of));
        let (size, etag) = (blob.size(), format!("\"{of}\""));
        let headers = &head.headers;
        check_match(headers, Some(&etag))?;
        let same = text(headers, header::IF_RANGE).is_none_or(|tag| tag == etag);
        let range = match wanted(text(headers, header::RANGE).filter(|_| same), size) {
            _ if is_known(headers, &etag) => None,
            wanted => Some(wanted),
        };
        let (status, part) = match range {
            None => (StatusCode::NOT_MODIFIED, 0..0),
            Some(Wanted::Beyond) => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
            Some(Wanted::Whole) => (StatusCode::OK, 0..size),
            Some(Wanted::Part(part)) => (StatusCode::PARTIAL_CONTENT, part),
        };
        let mut response = bare(status);
        let headers = response.headers_mut();
        headers.insert(header::ETAG, value(&etag));
        headers.insert(CONTENT_DIGEST, value(&of.to_string()));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        // A blob never changes, and nobody may pack it anew on the way: ranges would mean something else.
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("max-age=31536000, immutable, no-transform"),
        );
        match status {
            StatusCode::NOT_MODIFIED => {
                headers.remove(header::CONTENT_LENGTH);
                return Ok(response);
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                headers.insert(header::CONTENT_RANGE, value(&format!("bytes */{size}")));
                return Ok(response);
            }
            StatusCode::PARTIAL_CONTENT => {
                let text = format!("bytes {}-{}/{size}", part.start, part.end - 1);
                headers.insert(header::CONTENT_RANGE, value(&text));
            }
            // Ollama's client fetches the parts of a blob from where this points, and gives up without it.
            _ => {
                _ = headers
                    .insert(header::LOCATION, value(&self.access().address(&name, &of, payer.as_deref())))
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
