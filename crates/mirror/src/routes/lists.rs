//! Lists: of repositories, of tags, of what is about a manifest.

use std::cmp::Ordering;

use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use puna_store::Digest;
use serde_json::json;

use super::{Answered, Mirror, document, value};
use crate::access::{Holder, Right};
use crate::error::MirrorError;
use crate::manifest::OCI_INDEX;
use crate::name::Repository;
use crate::path::query;

/// Entries of a page at most.
const MAX_PAGE: usize = 10_000;

/// Letters of a number that is none which are shown.
const MAX_SHOWN: usize = 40;

/// Says that a list was filtered.
const FILTERS: HeaderName = HeaderName::from_static("oci-filters-applied");

impl Mirror {
    pub(super) async fn catalog(&self, head: &Parts, holder: Option<&Holder>) -> Answered {
        let mut all = self.library().repositories().await?;
        // What somebody may not pull is not shown to him.
        all.retain(|name| holder.is_none_or(|holder| holder.may(Right::Read, Some(name))));
        let page = Page::of(all.iter().map(|name| name.to_string()).collect(), head)?;
        let answer = document(StatusCode::OK, &json!({"repositories": page.entries}));
        Ok(page.link(answer, "/v2/_catalog"))
    }

    pub(super) async fn tags(&self, name: Repository, head: &Parts) -> Answered {
        let tags = self.library().tags(&name).await?;
        let tags = tags.ok_or_else(|| MirrorError::NameUnknown(name.clone()))?;
        let page = Page::of(tags, head)?;
        let answer =
            document(StatusCode::OK, &json!({"name": name.as_str(), "tags": page.entries}));
        Ok(page.link(answer, &format!("/v2/{name}/tags/list")))
    }

    pub(super) async fn referrers(&self, name: Repository, of: Digest, head: &Parts) -> Answered {
        let mut found = self.library().referrers(&name, of).await?;
        let kind = query(head.uri.query(), "artifactType");
        if let Some(kind) = &kind {
            found.retain(|manifest| manifest.artifact_type.as_ref() == Some(kind));
        }
        found.sort_by_key(|manifest| manifest.digest);
        let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": found});
        let mut response = document(StatusCode::OK, &list);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(OCI_INDEX));
        if kind.is_some() {
            response.headers_mut().insert(FILTERS, HeaderValue::from_static("artifactType"));
        }
        Ok(response)
    }
}

/// A part of a list.
struct Page {
    entries: Vec<String>,
    /// How many were asked for, if there are more.
    more: Option<usize>,
}

impl Page {
    /// What a request asks for (`n` entries behind `last`) of a list in any order.
    fn of(mut entries: Vec<String>, head: &Parts) -> Result<Self, MirrorError> {
        let asked = |key| query(head.uri.query(), key);
        let n = match asked("n").filter(|n| !n.is_empty()) {
            // What is too large for a number is more than there is.
            Some(n) if n.bytes().all(|c| c.is_ascii_digit()) => n.parse().unwrap_or(MAX_PAGE),
            Some(n) => return Err(MirrorError::Page(n.chars().take(MAX_SHOWN).collect())),
            None => MAX_PAGE,
        };
        let n = n.min(MAX_PAGE);
        entries.sort_by(|a, b| by_letter(a, b));
        if let Some(last) = asked("last") {
            entries.retain(|entry| by_letter(entry, &last).is_gt());
        }
        let more = (entries.len() > n && n > 0).then_some(n);
        entries.truncate(n);
        Ok(Self { entries, more })
    }

    /// Says where the next part is.
    fn link(self, mut response: Response, path: &str) -> Response {
        if let (Some(n), Some(last)) = (self.more, self.entries.last()) {
            let link = value(&format!("<{path}?n={n}&last={last}>; rel=\"next\""));
            response.headers_mut().insert(header::LINK, link);
        }
        response
    }
}

/// Without regard to case, and then with it.
fn by_letter(a: &str, b: &str) -> Ordering {
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
        Page::of(all, &head).map(|page| (page.entries, page.more))
    }

    #[test]
    fn a_page_has_as_many_entries_as_were_asked_for() {
        for (query, entries, more) in [
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
                Ok((entries.iter().map(|one| (*one).to_owned()).collect(), more)),
                "{query}"
            );
        }
    }

    #[test]
    fn what_is_no_number_of_entries_is_a_bad_request() {
        for bad in ["-1", "+1", "x", "1.5", "0x10", "%20"] {
            let error = page(&format!("n={bad}")).unwrap_err();
            assert_eq!(error.code(), (400, "PAGINATION_NUMBER_INVALID"), "{bad}: {error}");
        }
    }
}
