//! What is counted, for those who watch the mirror.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use axum::http::{Method, StatusCode};
use futures_util::{StreamExt, TryStreamExt};

use crate::library::Body;
use crate::lock::lock;
use crate::path::Target;

/// A figure, in the terms of Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// `counter`, which only grows, or `gauge`.
    pub kind: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Its values, by labels.
    pub samples: Vec<(Vec<(&'static str, String)>, u64)>,
}

impl Figure {
    pub(crate) fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, kind: "counter", help, samples: vec![(Vec::new(), value)] }
    }

    pub(crate) fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, kind: "gauge", help, samples: vec![(Vec::new(), value)] }
    }
}

/// What the protocol counts.
#[derive(Default)]
pub(crate) struct Figures {
    answers: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    retired: AtomicU64,
    freed: AtomicU64,
}

impl Figures {
    /// An answer begins.
    pub(crate) fn answered(&self, target: Option<&Target>, method: &Method, status: StatusCode) {
        const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
        let method = METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other");
        let key = (target.map_or("other", Target::kind), method, status.as_u16());
        *lock(&self.answers).entry(key).or_default() += 1;
    }

    /// Bytes of a blob on their way to a client.
    pub(crate) fn sent(&self, body: Body) -> Body {
        counted(body, self.sent.clone())
    }

    /// Bytes of an upload.
    pub(crate) fn received(&self, body: Body) -> Body {
        counted(body, self.received.clone())
    }

    /// Manifests were removed that no rule keeps.
    pub(crate) fn retired(&self, manifests: u64, bytes: u64) {
        self.retired.fetch_add(manifests, Relaxed);
        self.freed.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn all(&self) -> Vec<Figure> {
        let answers = lock(&self.answers);
        let sample =
            |((route, method, status), count): (&(&'static str, &'static str, u16), &u64)| {
                let labels = [
                    ("route", (*route).to_owned()),
                    ("method", (*method).to_owned()),
                    ("status", status.to_string()),
                ];
                (labels.to_vec(), *count)
            };
        vec![
            Figure {
                name: "puna_mirror_requests_total",
                kind: "counter",
                help: "Requests to the registry by what they are for, method and status of the answer.",
                samples: answers.iter().map(sample).collect(),
            },
            Figure::counter(
                "puna_mirror_sent_bytes_total",
                "Bytes of blobs sent to clients.",
                self.sent.load(Relaxed),
            ),
            Figure::counter(
                "puna_mirror_received_bytes_total",
                "Bytes of uploads that clients have sent.",
                self.received.load(Relaxed),
            ),
            Figure::counter(
                "puna_mirror_retired_total",
                "Tags and manifests that the rules of mirror.retention have removed.",
                self.retired.load(Relaxed),
            ),
            Figure::counter(
                "puna_mirror_retired_bytes_total",
                "Bytes of blobs that nothing needed any more behind them.",
                self.freed.load(Relaxed),
            ),
        ]
    }
}

fn counted(body: Body, count: Arc<AtomicU64>) -> Body {
    body.inspect_ok(move |bytes| _ = count.fetch_add(bytes.len() as u64, Relaxed)).boxed()
}
