//! Manifests.

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use http_body_util::{BodyExt, Limited};

use super::{Answered, CONTENT_DIGEST, Mirror, asker, bare, check_match, is_known, value};
use crate::access::Holder;
use crate::error::MirrorError;
use crate::history::By;
use crate::library::Asker;
use crate::manifest::{MAX_MANIFEST, Manifest};
use crate::manifest_list::{accepts_lists, default_child, describe};
use crate::name::{Reference, Repository};
use crate::place::text;

/// Says that the subject of a manifest was understood.
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");

impl Mirror {
    pub(super) async fn manifest(
        &self,
        name: Repository,
        of: Reference,
        head: &Parts,
        holder: Option<&Holder>,
    ) -> Answered {
        let found = self.library().manifest_for(&name, &of, asker(head, holder)).await?;
        let unknown =
            || MirrorError::ManifestUnknown { name: name.clone(), reference: of.to_string() };
        let mut manifest = found.ok_or_else(unknown)?;
        let is_negotiated = matches!(of, Reference::Tag(_)) && manifest.list.is_some();
        if is_negotiated && !accepts_lists(&head.headers) {
            manifest = self.default_child(&name, &of, &manifest, asker(head, holder)).await?;
        }
        let etag = format!("\"{}\"", manifest.digest);
        check_match(&head.headers, Some(&etag))?;
        if head.method == Method::GET {
            self.history().pulled(&name, &of);
        }
        let known = is_known(&head.headers, &etag);
        let mut response = bare(if known { StatusCode::NOT_MODIFIED } else { StatusCode::OK });
        let headers = response.headers_mut();
        headers.insert(header::ETAG, value(&etag));
        headers.insert(CONTENT_DIGEST, value(&manifest.digest.to_string()));
        if is_negotiated {
            headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        }
        if known {
            headers.remove(header::CONTENT_LENGTH);
            return Ok(response);
        }
        if let Reference::Tag(tag) = &of
            && head.method == Method::GET
        {
            self.pulls().note(head, &name, tag);
        }
        headers.insert(header::CONTENT_TYPE, value(&manifest.media_type));
        headers.insert(header::CONTENT_LENGTH, manifest.bytes.len().into());
        *response.body_mut() = Body::from(manifest.bytes);
        Ok(response)
    }

    /// Returns the manifest that stands for a list of a tag where the client does not know lists.
    async fn default_child(
        &self,
        name: &Repository,
        tag: &Reference,
        list: &Manifest,
        asker: Asker,
    ) -> Result<Manifest, MirrorError> {
        let unknown =
            |child| MirrorError::ChildUnknown { name: name.clone(), tag: tag.to_string(), child };
        let Some(list) = &list.list else { return Ok(list.clone()) };
        let child = default_child(list).ok_or_else(|| unknown("default child".into()))?;
        let found =
            self.library().manifest_for(name, &Reference::Digest(child.digest), asker).await?;
        found.ok_or_else(|| unknown(describe(list, child)))
    }

    pub(super) async fn put_manifest(
        &self,
        name: Repository,
        of: Reference,
        head: &Parts,
        body: Body,
        holder: Option<&Holder>,
    ) -> Answered {
        let read = Limited::new(body, MAX_MANIFEST).collect().await;
        let bytes = read.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
            true => MirrorError::ManifestTooLarge { most: MAX_MANIFEST },
            false => MirrorError::Broken(e.to_string()),
        })?;
        let manifest =
            Manifest::pushed(bytes.to_bytes(), text(&head.headers, header::CONTENT_TYPE))?;
        if let Reference::Digest(expected) = &of
            && *expected != manifest.digest
        {
            return Err(MirrorError::DigestMismatch {
                expected: *expected,
                found: manifest.digest,
            });
        }
        for blob in &manifest.blobs {
            if !self.sees(holder, &name, blob.digest).await? {
                return Err(MirrorError::ManifestBlobUnknown(blob.digest));
            }
        }
        let _turn = self.turn(&name).await;
        self.check_meant(&name, &of, head).await?;
        // Until the manifest counts: two at once would each find the room that there is for one.
        let _room = self.stock().turn_for(self.library(), &name, &manifest).await?;
        let (digest, subject) = (manifest.digest, manifest.subject);
        let replaced = self.library().put_manifest(&name, &of, manifest).await?;
        let notes = self.library().notes();
        self.history().came(notes, &name, &of, digest, By::Push, replaced.as_ref()).await;
        self.stock().changed();
        let mut response = bare(StatusCode::CREATED);
        let headers = response.headers_mut();
        headers.insert(header::LOCATION, value(&format!("/v2/{name}/manifests/{digest}")));
        headers.insert(CONTENT_DIGEST, value(&digest.to_string()));
        if let Some(subject) = subject {
            headers.insert(SUBJECT, value(&subject.to_string()));
        }
        tracing::info!(repository = %name, reference = %of, %digest, "pushed");
        Ok(response)
    }

    /// Refuses to change what is not what the request says it changes. Whoever asks has the repository's turn.
    async fn check_meant(
        &self,
        name: &Repository,
        of: &Reference,
        head: &Parts,
    ) -> Result<(), MirrorError> {
        if !head.headers.contains_key(header::IF_MATCH) {
            return Ok(());
        }
        let here = self.library().manifest(name, of).await?;
        check_match(&head.headers, here.map(|here| format!("\"{}\"", here.digest)).as_deref())
    }

    pub(super) async fn remove_manifest(
        &self,
        name: Repository,
        of: Reference,
        head: &Parts,
    ) -> Answered {
        let _turn = self.turn(&name).await;
        self.check_meant(&name, &of, head).await?;
        if !self.library().remove_manifest(&name, &of).await? {
            return Err(MirrorError::ManifestUnknown { name, reference: of.to_string() });
        }
        self.stock().changed();
        tracing::info!(repository = %name, reference = %of, "removed");
        Ok::<Response, _>(bare(StatusCode::ACCEPTED))
    }
}
