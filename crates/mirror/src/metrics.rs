//! Metrics of the registry protocol.

pub(crate) mod families;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use axum::http::{Method, StatusCode};
use futures_util::{StreamExt, TryStreamExt};

use crate::http::target::Target;
use crate::locks::lock;
use crate::storage::ByteStream;

pub use families::{METRIC_FAMILIES, MetricFamily, MetricKind};

/// A metric with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// Definition of the metric.
    pub family: &'static MetricFamily,
    /// Values by labels.
    pub samples: Vec<(Vec<(&'static str, String)>, u64)>,
}

impl Metric {
    /// A metric without labels.
    pub(crate) fn new(family: &'static MetricFamily, value: u64) -> Self {
        Self { family, samples: vec![(Vec::new(), value)] }
    }
}

/// Counters of the HTTP layer.
#[derive(Default)]
pub(crate) struct Metrics {
    responses: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    sent_bytes: Arc<AtomicU64>,
    received_bytes: Arc<AtomicU64>,
    removed_manifests: AtomicU64,
    freed_bytes: AtomicU64,
}

impl Metrics {
    /// Counts a response when it starts.
    pub(crate) fn count_response(
        &self,
        target: Option<&Target>,
        method: &Method,
        status: StatusCode,
    ) {
        const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
        let method = METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other");
        let key = (target.map_or("other", Target::label), method, status.as_u16());
        *lock(&self.responses).entry(key).or_default() += 1;
    }

    /// Counts the bytes of a blob while they are sent.
    pub(crate) fn count_sent(&self, body: ByteStream) -> ByteStream {
        count_bytes(body, self.sent_bytes.clone())
    }

    /// Counts the bytes of an upload while they arrive.
    pub(crate) fn count_received(&self, body: ByteStream) -> ByteStream {
        count_bytes(body, self.received_bytes.clone())
    }

    /// Counts manifests that retention has removed, and the bytes it has freed.
    pub(crate) fn count_removed(&self, manifests: u64, bytes: u64) {
        self.removed_manifests.fetch_add(manifests, Relaxed);
        self.freed_bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Vec<Metric> {
        let responses = lock(&self.responses);
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
            Metric { family: &families::REQUESTS, samples: responses.iter().map(sample).collect() },
            Metric::new(&families::SENT_BYTES, self.sent_bytes.load(Relaxed)),
            Metric::new(&families::RECEIVED_BYTES, self.received_bytes.load(Relaxed)),
            Metric::new(&families::RETIRED, self.removed_manifests.load(Relaxed)),
            Metric::new(&families::RETIRED_BYTES, self.freed_bytes.load(Relaxed)),
        ]
    }
}

fn count_bytes(body: ByteStream, count: Arc<AtomicU64>) -> ByteStream {
    body.inspect_ok(move |bytes| _ = count.fetch_add(bytes.len() as u64, Relaxed)).boxed()
}
