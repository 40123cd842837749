//! Listings: repositories, tags, and referrers of a manifest.

use std::cmp::Ordering;

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use puna_store::Digest;
use serde_json::json;

use super::{HandlerResult, Mirror, header_value, json_response};
use crate::auth::{Permission, Principal};
use crate::error::MirrorError;
use crate::http::target::query_value;
use crate::types::manifest::OCI_INDEX;
use crate::types::repository::Repository;

/// Largest number of entries on a page.
const MAX_PAGE_ENTRIES: usize = 10_000;

/// Number of characters of an invalid number that an error shows.
const MAX_SHOWN_CHARS: usize = 40;

/// States which filters were applied to a listing.
const FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");

impl Mirror {
    pub(super) async fn catalog(
        &self,
        head: &Parts,
        principal: Option<&Principal>,
    ) -> HandlerResult {
        let mut all = self.storage().inventory.repositories().await?;
        // Repositories that the principal may not read are not listed.
        all.retain(|name| {
            principal.is_none_or(|principal| principal.is_allowed(Permission::Read, Some(name)))
        });
        let page = ListPage::from_request(all.iter().map(|name| name.to_string()).collect(), head)?;
        let answer = json_response(StatusCode::OK, &json!({"repositories": page.entries}));
        Ok(page.with_link(answer, "/v2/_catalog"))
    }

    pub(super) async fn tags(&self, name: Repository, head: &Parts) -> HandlerResult {
        let tags = self.storage().manifests.tags(&name).await?;
        let tags = tags.ok_or_else(|| MirrorError::NameUnknown(name.clone()))?;
        let page = ListPage::from_request(tags, head)?;
        let answer =
            json_response(StatusCode::OK, &json!({"name": name.as_str(), "tags": page.entries}));
        Ok(page.with_link(answer, &format!("/v2/{name}/tags/list")))
    }

    pub(super) async fn referrers(
        &self,
        name: Repository,
        subject: Digest,
        head: &Parts,
    ) -> HandlerResult {
        let mut found = self.storage().manifests.referrers(&name, subject).await?;
        let kind = query_value(head.uri.query(), "artifactType");
        if let Some(kind) = &kind {
            found.retain(|manifest| manifest.artifact_type.as_ref() == Some(kind));
        }
        found.sort_by_key(|manifest| manifest.digest);
        let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": found});
        let mut response = json_response(StatusCode::OK, &list);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(OCI_INDEX));
        if kind.is_some() {
            response
                .headers_mut()
                .insert(FILTERS_APPLIED, HeaderValue::from_static("artifactType"));
        }
        Ok(response)
    }
}

/// One page of a listing.
struct ListPage {
    entries: Vec<String>,
    /// Page size for the link to the next page, if there is one.
    next_page_size: Option<usize>,
}

impl ListPage {
    /// Cuts the requested page (`n` entries after `last`) out of an unsorted list.
    fn from_request(mut entries: Vec<String>, head: &Parts) -> Result<Self, MirrorError> {
        let parameter = |key| query_value(head.uri.query(), key);
        let n = match parameter("n").filter(|n| !n.is_empty()) {
            // Numbers too large for the type exceed any page size.
            Some(n) if n.bytes().all(|c| c.is_ascii_digit()) => {
                n.parse().unwrap_or(MAX_PAGE_ENTRIES)
            }
            Some(n) => {
                return Err(MirrorError::InvalidPageSize(
                    n.chars().take(MAX_SHOWN_CHARS).collect(),
                ));
            }
            None => MAX_PAGE_ENTRIES,
        };
        let n = n.min(MAX_PAGE_ENTRIES);
        entries.sort_by(|a, b| compare_names(a, b));
        if let Some(last) = parameter("last") {
            entries.retain(|entry| compare_names(entry, &last).is_gt());
        }
        let next_page_size = (entries.len() > n && n > 0).then_some(n);
        entries.truncate(n);
        Ok(Self { entries, next_page_size })
    }

    /// Adds the link to the next page.
    fn with_link(self, mut response: Response, path: &str) -> Response {
        if let (Some(n), Some(last)) = (self.next_page_size, self.entries.last()) {
            let with_link = header_value(&format!("<{path}?n={n}&last={last}>; rel=\"next\""));
            response.headers_mut().insert(header::LINK, with_link);
        }
        response
    }
}

/// Orders names without regard to case, then by case.
fn compare_names(a: &str, b: &str) -> Ordering {
    let fold = |text: &str| text.to_ascii_lowercase();
    fold(a).cmp(&fold(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;

    use super::*;

    fn page(query: &str) -> Result<(Vec<String>, Option<usize>), MirrorError> {
        let head = Request::get(format!("/v2/_catalog?{query}"))
            .body(Body::empty())
            .unwrap()
            .into_parts()
            .0;
        let all = ["c", "B", "a"].map(str::to_owned).to_vec();
        ListPage::from_request(all, &head).map(|page| (page.entries, page.next_page_size))
    }

    #[test]
    fn pages_have_the_requested_size() {
        for (query, entries, next_page_size) in [
            ("", &["a", "B", "c"][..], None),
            ("n=", &["a", "B", "c"], None),
            ("n=0", &[], None),
            ("n=1", &["a"], Some(1)),
            ("n=2&last=a", &["B", "c"], None),
            ("n=3", &["a", "B", "c"], None),
            ("last=b", &["c"], None),
            ("n=99999999999999999999999", &["a", "B", "c"], None),
        ] {
            assert_eq!(
                page(query),
                Ok((entries.iter().map(|one| (*one).to_owned()).collect(), next_page_size)),
                "{query}"
            );
        }
    }

    #[test]
    fn invalid_page_sizes_are_rejected() {
        for bad in ["-1", "+1", "x", "1.5", "0x10", "%20"] {
            let error = page(&format!("n={bad}")).unwrap_err();
            assert_eq!(error.code(), (400, "PAGINATION_NUMBER_INVALID"), "{bad}: {error}");
        }
    }
}
