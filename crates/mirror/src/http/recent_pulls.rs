//! The most recent pulls, and the address of a client.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

use axum::http::header;
use axum::http::request::Parts;

use crate::http::base_url::header_text;
use crate::locks::lock;
use crate::types::repository::Repository;
use crate::types::shared_table::{SharedTable, TableLimit};

/// Number of recent pulls that are remembered.
const MAX_PULLS: usize = 50;
/// Number of characters of address and user agent that are kept.
const MAX_CLIENT_CHARS: usize = 80;

/// Description of [`RecentPulls`].
pub(crate) static RECENT_PULLS: SharedTable = SharedTable {
    name: "mirror: recent pulls on the web page",
    holders: &["puna_mirror::http::recent_pulls::RecentPulls"],
    limits: &[TableLimit::Entries(MAX_PULLS)],
    shares: &[TableLimit::Rule("none: the page only shows them")],
    when_full: "the oldest is dropped",
    test: "a_client_with_many_pulls_does_not_hide_the_next_of_another",
};

/// Address of the client of a request, which a trusted proxy may have forwarded. The server adds it
/// to the request extensions.
#[derive(Debug, Clone)]
pub struct ClientAddress(pub String);

/// The most recent pulls, newest first.
#[derive(Default)]
pub(crate) struct RecentPulls(Mutex<VecDeque<Pull>>);

/// A pull of a manifest.
#[derive(Clone)]
pub(crate) struct Pull {
    pub(crate) at: Instant,
    pub(crate) name: Repository,
    pub(crate) tag: String,
    /// Address and user agent of the client.
    pub(crate) client: String,
}

impl RecentPulls {
    /// Records that a client pulled a manifest.
    pub(crate) fn record(&self, head: &Parts, name: &Repository, tag: &str) {
        // The server has read the headers of trusted proxies. Another client may write anything.
        let caller = head.extensions.get::<ClientAddress>();
        let caller = caller.map(|caller| caller.0.as_str()).unwrap_or_default();
        let agent = header_text(&head.headers, header::USER_AGENT).unwrap_or_default();
        let client = format!("{caller} {agent}");
        let client = client.trim().chars().take(MAX_CLIENT_CHARS).collect();
        let mut pulls = lock(&self.0);
        pulls.truncate(MAX_PULLS - 1);
        pulls.push_front(Pull {
            at: Instant::now(),
            name: name.clone(),
            tag: tag.to_owned(),
            client,
        });
    }

    /// Returns all remembered pulls.
    pub(crate) fn all(&self) -> Vec<Pull> {
        lock(&self.0).iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn a_client_with_many_pulls_does_not_hide_the_next_of_another() {
        let (pulls, name) = (RecentPulls::default(), Repository::parse("a/b").unwrap());
        let record = |address: &str, tag: &str| {
            let request = Request::builder().header("x-forwarded-for", "203.0.113.9").body(());
            let (mut head, ()) = request.unwrap().into_parts();
            head.extensions.insert(ClientAddress(address.to_owned()));
            pulls.record(&head, &name, tag);
        };
        (0..10 * MAX_PULLS).for_each(|_| record("192.0.2.1", "many"));
        record("192.0.2.2", "one");
        let all = pulls.all();
        assert_eq!(
            (all.len(), all[0].tag.as_str(), all[0].client.as_str()),
            (MAX_PULLS, "one", "192.0.2.2")
        );
    }
}
