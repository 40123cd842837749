//! The most recent pulls, and the address of a client.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

use axum::http::header;
use axum::http::request::Parts;

use crate::http::base_url::header_text;
use crate::locks::lock;
use crate::types::repository::Repository;

/// Number of recent pulls that are remembered.
const MAX_PULLS: usize = 50;
/// Number of characters of address and user agent that are kept.
const MAX_CLIENT_CHARS: usize = 80;

/// Address of the client of a connection. The server adds it to the request extensions.
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
        let forwarded =
            head.headers.get("x-forwarded-for").and_then(|header_value| header_value.to_str().ok());
        let forwarded =
            forwarded.and_then(|all| all.split(',').next()).map(|one| one.trim().to_owned());
        let caller = || head.extensions.get::<ClientAddress>().map(|caller| caller.0.clone());
        let agent = header_text(&head.headers, header::USER_AGENT).unwrap_or_default();
        let client = format!("{} {agent}", forwarded.or_else(caller).unwrap_or_default());
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
