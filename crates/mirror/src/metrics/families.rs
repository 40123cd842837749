//! Definitions of all metrics of the mirror. `GET /metrics` and the table of
//! `docs/reference/metrics.md` come from them.

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows while the program runs.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Number of values up to each bound, and their sum.
    Histogram,
}

impl MetricKind {
    /// Name in the text format of Prometheus.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Definition of a metric.
#[derive(Debug, PartialEq, Eq)]
pub struct MetricFamily {
    /// Name, with its unit; that of a counter ends with `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// Names of the labels of each sample, in their order.
    pub labels: &'static [&'static str],
    /// Meaning in one line of plain text.
    pub help: &'static str,
}

/// All metrics of the mirror, in the order of the manual.
pub static METRIC_FAMILIES: &[&MetricFamily] = &[
    &REQUESTS,
    &SENT_BYTES,
    &RECEIVED_BYTES,
    &HITS,
    &MISSES,
    &FETCHED_BYTES,
    &FETCH_FAILURES,
    &FETCHING,
    &FETCHES_REFUSED,
    &RETIRED,
    &RETIRED_BYTES,
    &LIBRARY_BYTES,
    &MANIFESTS,
    &QUOTA_USED_BYTES,
    &QUOTA_BYTES,
    &QUOTA_USED_OBJECTS,
    &QUOTA_OBJECTS,
];

pub(crate) static REQUESTS: MetricFamily = MetricFamily {
    name: "puna_mirror_requests_total",
    kind: MetricKind::Counter,
    labels: &["route", "method", "status"],
    help: "Requests, by route (manifest, blob, upload and others), method and status.",
};

pub(crate) static SENT_BYTES: MetricFamily = MetricFamily {
    name: "puna_mirror_sent_bytes_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Bytes of blobs sent to clients.",
};

pub(crate) static RECEIVED_BYTES: MetricFamily = MetricFamily {
    name: "puna_mirror_received_bytes_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Bytes of uploads received from clients.",
};

pub(crate) static HITS: MetricFamily = MetricFamily {
    name: "puna_mirror_hits_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Requests for upstream tags served from the storage.",
};

pub(crate) static MISSES: MetricFamily = MetricFamily {
    name: "puna_mirror_misses_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Upstream tags and manifests that had to be fetched.",
};

pub(crate) static FETCHED_BYTES: MetricFamily = MetricFamily {
    name: "puna_mirror_fetched_bytes_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Bytes fetched from upstreams; resumed downloads count only new bytes.",
};

pub(crate) static FETCH_FAILURES: MetricFamily = MetricFamily {
    name: "puna_mirror_fetch_failures_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Failed fetches from upstreams.",
};

pub(crate) static FETCHING: MetricFamily = MetricFamily {
    name: "puna_mirror_fetching",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Running fetches from upstreams.",
};

pub(crate) static FETCHES_REFUSED: MetricFamily = MetricFamily {
    name: "puna_mirror_fetches_refused_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Requests rejected by mirror.fetch, mirror.fetch_limit or mirror.fetch_parallel.",
};

pub(crate) static RETIRED: MetricFamily = MetricFamily {
    name: "puna_mirror_retired_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Tags and manifests removed by mirror.retention.",
};

pub(crate) static RETIRED_BYTES: MetricFamily = MetricFamily {
    name: "puna_mirror_retired_bytes_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Bytes of blobs that became unreferenced by mirror.retention.",
};

pub(crate) static LIBRARY_BYTES: MetricFamily = MetricFamily {
    name: "puna_mirror_library_bytes",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Bytes of all blobs that manifests reference.",
};

pub(crate) static MANIFESTS: MetricFamily = MetricFamily {
    name: "puna_mirror_manifests",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Stored manifests.",
};

pub(crate) static QUOTA_USED_BYTES: MetricFamily = MetricFamily {
    name: "puna_mirror_quota_used_bytes",
    kind: MetricKind::Gauge,
    labels: &["namespace"],
    help: "Bytes used by namespaces with a quota.",
};

pub(crate) static QUOTA_BYTES: MetricFamily = MetricFamily {
    name: "puna_mirror_quota_bytes",
    kind: MetricKind::Gauge,
    labels: &["namespace"],
    help: "Quotas of namespaces in bytes.",
};

pub(crate) static QUOTA_USED_OBJECTS: MetricFamily = MetricFamily {
    name: "puna_mirror_quota_used_objects",
    kind: MetricKind::Gauge,
    labels: &["namespace"],
    help: "Objects (blobs, manifests, tags and other files) of namespaces with a quota.",
};

pub(crate) static QUOTA_OBJECTS: MetricFamily = MetricFamily {
    name: "puna_mirror_quota_objects",
    kind: MetricKind::Gauge,
    labels: &["namespace"],
    help: "Largest number of objects of namespaces with a quota.",
};
