//! Detects request loops between mirrors by the `Via` header (RFC 9110, 7.6.3).
//!
//! A mirror may be its own upstream, directly or through other mirrors. It rejects such a request
//! at once instead of waiting for itself.

use axum::http::{HeaderMap, header};

use crate::error::{LoopProblem, MirrorError};
use crate::types::upload_id::UploadId;

/// Prefix of mirror ids in `Via` headers.
const PREFIX: &str = "puna-";
/// Largest length of a mirror id in characters.
const MAX_NAME: usize = 64;
/// Largest number of mirrors in a chain.
const MAX_MIRRORS: usize = 8;

tokio::task_local! {
    /// `Via` value of the request in progress: the ids of all mirrors it passed, this one last.
    static REQUEST_PATH: String;
}

/// Random id of this mirror process.
pub(crate) struct MirrorId(String);

impl MirrorId {
    pub(crate) fn new() -> Result<Self, MirrorError> {
        Ok(Self(format!("{PREFIX}{}", UploadId::random()?)))
    }

    /// Returns the path of a request, including this mirror.
    ///
    /// # Errors
    /// The request passed this mirror before, or too many mirrors.
    pub(crate) fn request_path(&self, headers: &HeaderMap) -> Result<RequestPath, MirrorError> {
        let all = headers.get_all(header::VIA).iter().filter_map(|value| value.to_str().ok());
        let names =
            all.flat_map(|all| all.split(',')).filter_map(|entry| entry.split_whitespace().nth(1));
        // Entries of other proxies are ignored, because they send no requests of their own.
        let mut mirrors: Vec<&str> =
            names.filter(|name| name.starts_with(PREFIX) && name.len() <= MAX_NAME).collect();
        if mirrors.contains(&self.0.as_str()) {
            return Err(LoopProblem::Own.into());
        }
        if mirrors.len() >= MAX_MIRRORS {
            return Err(LoopProblem::TooManyMirrors { max: MAX_MIRRORS }.into());
        }
        mirrors.push(&self.0);
        let entries: Vec<_> = mirrors.iter().map(|name| format!("1.1 {name}")).collect();
        Ok(RequestPath(entries.join(", ")))
    }
}

/// Mirrors that a request has passed, as a `Via` value.
pub(crate) struct RequestPath(String);

impl RequestPath {
    /// Runs a future that handles the request. Its requests to upstreams carry this path.
    pub(crate) async fn scope<T>(self, handler: impl Future<Output = T>) -> T {
        REQUEST_PATH.scope(self.0, handler).await
    }
}

/// `Via` value for upstream requests on behalf of the request in progress.
pub(crate) fn via_header() -> Option<String> {
    REQUEST_PATH.try_with(Clone::clone).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[&str]) -> HeaderMap {
        all.iter().map(|value| (header::VIA, value.parse().unwrap())).collect()
    }

    #[tokio::test]
    async fn the_path_lists_all_mirrors_and_this_one_last() {
        let (mirror, other) = (MirrorId::new().unwrap(), MirrorId::new().unwrap());
        let request_path = async |of: &MirrorId, via: &[&str]| {
            of.request_path(&headers(via)).unwrap().scope(async { via_header() }).await
        };
        let own = format!("1.1 {}", mirror.0);
        assert_eq!(request_path(&mirror, &[]).await.as_deref(), Some(own.as_str()));
        assert_eq!(
            request_path(&mirror, &["1.0 fred, 1.1 nginx (a, b)", "?"]).await.as_deref(),
            Some(own.as_str())
        );
        let both = format!("{own}, 1.1 {}", other.0);
        assert_eq!(
            request_path(&other, &[&own, "1.1 nginx"]).await.as_deref(),
            Some(both.as_str())
        );
        assert_eq!(via_header(), None);
    }

    #[test]
    fn a_request_loop_is_rejected() {
        let (mirror, other) = (MirrorId::new().unwrap(), MirrorId::new().unwrap());
        let request_path = format!("1.1 {},1.1 {} (Puna)", mirror.0, other.0);
        for of in [&mirror, &other] {
            let Err(refused) = of.request_path(&headers(&["1.1 nginx", &request_path])) else {
                panic!("it goes in a circle")
            };
            assert_eq!(refused.code().0, 508, "{refused}");
            assert!(refused.to_string().contains("request loop"), "{refused}");
        }
    }

    #[test]
    fn a_long_chain_is_not_reported_as_a_loop() {
        let mirror = MirrorId::new().unwrap();
        let mut others: Vec<String> =
            (0..MAX_MIRRORS).map(|n| format!("1.1 {PREFIX}{n}")).collect();
        assert!(mirror.request_path(&headers(&[&others[1..].join(", ")])).is_ok());
        let refusal = |request_path: &[String]| {
            mirror.request_path(&headers(&[&request_path.join(", ")])).map(drop).unwrap_err()
        };
        let refused = refusal(&others);
        assert_eq!(refused.code().0, 508, "{refused}");
        let said = refused.to_string();
        assert!(said.contains("more than 8 mirrors") && !said.contains("request loop"), "{said}");
        // A loop is reported as a loop however long the path is.
        others[0] = format!("1.1 {}", mirror.0);
        assert!(refusal(&others).to_string().contains("request loop"));
    }
}
