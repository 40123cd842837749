//! Manifest requests.

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use http_body_util::{BodyExt, Limited};

use super::{
    CONTENT_DIGEST, HandlerResult, Mirror, check_if_match, empty_response, etag_of, header_value,
    matches_etag, requester,
};
use crate::auth::Principal;
use crate::error::MirrorError;
use crate::http::base_url::header_text;
use crate::pull_through::Requester;
use crate::retention::usage_log::ChangeSource;
use crate::types::manifest::{MAX_MANIFEST_BYTES, Manifest};
use crate::types::manifest_error::ManifestError;
use crate::types::manifest_list::{accepts_lists, default_child, describe};
use crate::types::repository::{Reference, Repository};

/// States that the registry has processed the subject of a manifest.
const SUBJECT: HeaderName = HeaderName::from_static("oci-subject");

impl Mirror {
    pub(super) async fn manifest(
        &self,
        name: Repository,
        reference: Reference,
        head: &Parts,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        let found = self.find_manifest(&name, &reference, requester(head, principal)).await?;
        let unknown = || MirrorError::ManifestUnknown {
            name: name.clone(),
            reference: reference.to_string(),
        };
        let mut manifest = found.ok_or_else(unknown)?;
        let is_negotiated = matches!(reference, Reference::Tag(_)) && manifest.list.is_some();
        if is_negotiated && !accepts_lists(&head.headers) {
            manifest = self
                .default_child(&name, &reference, &manifest, requester(head, principal))
                .await?;
        }
        let etag = etag_of(&manifest.digest);
        check_if_match(&head.headers, Some(manifest.digest))?;
        if head.method == Method::GET {
            self.usage_log().record_pull(&name, &reference);
        }
        let known = matches_etag(&head.headers, &etag);
        let mut response =
            empty_response(if known { StatusCode::NOT_MODIFIED } else { StatusCode::OK });
        let headers = response.headers_mut();
        headers.insert(header::ETAG, header_value(&etag));
        headers.insert(CONTENT_DIGEST, header_value(&manifest.digest.to_string()));
        if is_negotiated {
            headers.insert(header::VARY, HeaderValue::from_static("Accept"));
        }
        if known {
            headers.remove(header::CONTENT_LENGTH);
            return Ok(response);
        }
        if let Reference::Tag(tag) = &reference
            && head.method == Method::GET
        {
            self.pulls().record(head, &name, tag);
        }
        headers.insert(header::CONTENT_TYPE, header_value(&manifest.media_type));
        headers.insert(header::CONTENT_LENGTH, manifest.bytes.len().into());
        *response.body_mut() = Body::from(manifest.bytes);
        Ok(response)
    }

    /// Returns the manifest that represents a list for clients that do not accept lists.
    async fn default_child(
        &self,
        name: &Repository,
        tag: &Reference,
        list: &Manifest,
        requester: Requester,
    ) -> Result<Manifest, MirrorError> {
        let unknown =
            |child| MirrorError::ChildUnknown { name: name.clone(), tag: tag.to_string(), child };
        let Some(list) = &list.list else { return Ok(list.clone()) };
        let child = default_child(list).ok_or_else(|| unknown("default child".into()))?;
        let found = self.find_manifest(name, &Reference::Digest(child.digest), requester).await?;
        found.ok_or_else(|| unknown(describe(list, child)))
    }

    pub(super) async fn put_manifest(
        &self,
        name: Repository,
        reference: Reference,
        head: &Parts,
        body: Body,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        let read = Limited::new(body, MAX_MANIFEST_BYTES).collect().await;
        let bytes = read.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
            true => ManifestError::TooLarge { max: MAX_MANIFEST_BYTES }.into(),
            false => MirrorError::BodyInterrupted { reason: e.to_string() },
        })?;
        let manifest = Manifest::parse_pushed(
            bytes.to_bytes(),
            header_text(&head.headers, header::CONTENT_TYPE),
        )?;
        if let Reference::Digest(expected) = &reference
            && *expected != manifest.digest
        {
            return Err(MirrorError::DigestMismatch {
                expected: *expected,
                found: manifest.digest,
            });
        }
        for blob in &manifest.blobs {
            if !self.namespace_index().can_see_blob(principal, &name, blob.digest).await? {
                return Err(MirrorError::ManifestBlobUnknown(blob.digest));
            }
        }
        let _guard = self.lock_repository(&name).await;
        self.check_precondition(&name, &reference, head).await?;
        // Held until the manifest is stored. Otherwise two concurrent pushes could each use the
        // same remaining quota.
        let index = self.namespace_index();
        let _quota_guard = index.check_manifest_quota(&name, &reference, &manifest).await?;
        let (digest, subject) = (manifest.digest, manifest.subject);
        let stored = self.storage().manifests.put_manifest(&name, &reference, manifest).await;
        // A failed push may have written some of its objects.
        index.record_change();
        let replaced = stored?;
        let notes = self.storage().inventory.usage_notes();
        self.usage_log()
            .record_arrival_after_sync(
                notes,
                &name,
                &reference,
                digest,
                ChangeSource::Push,
                replaced.as_ref(),
            )
            .await;
        let mut response = empty_response(StatusCode::CREATED);
        let headers = response.headers_mut();
        headers.insert(header::LOCATION, header_value(&format!("/v2/{name}/manifests/{digest}")));
        headers.insert(CONTENT_DIGEST, header_value(&digest.to_string()));
        if let Some(subject) = subject {
            headers.insert(SUBJECT, header_value(&subject.to_string()));
        }
        tracing::info!(repository = %name, reference = %reference, %digest, "pushed");
        Ok(response)
    }

    /// Checks `If-Match` before a change. The caller holds the lock of the repository.
    async fn check_precondition(
        &self,
        name: &Repository,
        reference: &Reference,
        head: &Parts,
    ) -> Result<(), MirrorError> {
        if !head.headers.contains_key(header::IF_MATCH) {
            return Ok(());
        }
        let here = self.storage().manifests.manifest(name, reference).await?;
        check_if_match(&head.headers, here.map(|here| here.digest))
    }

    pub(super) async fn remove_manifest(
        &self,
        name: Repository,
        reference: Reference,
        head: &Parts,
    ) -> HandlerResult {
        let _guard = self.lock_repository(&name).await;
        self.check_precondition(&name, &reference, head).await?;
        if !self.storage().manifests.remove_manifest(&name, &reference).await? {
            return Err(MirrorError::ManifestUnknown { name, reference: reference.to_string() });
        }
        self.namespace_index().record_change();
        tracing::info!(repository = %name, reference = %reference, "removed");
        Ok::<Response, _>(empty_response(StatusCode::ACCEPTED))
    }
}
