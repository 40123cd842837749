//! Definitions of all metrics of the server. `GET /metrics` and the table of
//! `docs/reference/metrics.md` come from them.

use puna_mirror::{MetricFamily, MetricKind};

/// All metrics of the server, in the order of the manual.
#[cfg(test)]
pub(crate) static METRIC_FAMILIES: &[&MetricFamily] = &[
    &BUILD_INFO,
    &HTTP_REQUESTS,
    &QUEUE_LENGTH,
    &QUEUE_REFUSED,
    &MODEL_REQUESTS,
    &PROMPT_TOKENS,
    &CACHED_PROMPT_TOKENS,
    &GENERATED_TOKENS,
    &EMBEDDED_TOKENS,
    &DRAFT_TOKENS,
    &DRAFT_ACCEPTED_TOKENS,
    &STEPS,
    &PREEMPTIONS,
    &MODEL_WAIT,
    &QUEUE_WAIT,
    &TIME_TO_FIRST_TOKEN,
    &TIME_PER_TOKEN,
    &RUNNING_SEQUENCES,
    &WAITING_SEQUENCES,
    &KV_PAGES,
    &KV_PAGES_IN_USE,
    &KV_WINDOW_PAGES,
    &KV_WINDOW_PAGES_IN_USE,
    &KV_RECENT_PAGES,
    &KV_RECENT_PAGES_IN_USE,
    &MEMORY,
    &MODEL_LOAD,
    &MODEL_LOAD_FAILURES,
    &MODEL_UNLOADS,
    &RUNNER_CRASHES,
];

pub(crate) static BUILD_INFO: MetricFamily = MetricFamily {
    name: "puna_build_info",
    kind: MetricKind::Gauge,
    labels: &["version"],
    help: "Version of the server; always 1.",
};

pub(crate) static HTTP_REQUESTS: MetricFamily = MetricFamily {
    name: "puna_http_requests_total",
    kind: MetricKind::Counter,
    labels: &["route", "method", "status"],
    help: "Requests by route, method and response status; 499: the client disconnected before the response.",
};

pub(crate) static QUEUE_LENGTH: MetricFamily = MetricFamily {
    name: "puna_queue_length",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Requests that wait for a model to be loaded.",
};

pub(crate) static QUEUE_REFUSED: MetricFamily = MetricFamily {
    name: "puna_queue_refused_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Requests rejected with status 503 because the queue was full.",
};

pub(crate) static MODEL_REQUESTS: MetricFamily = MetricFamily {
    name: "puna_model_requests_total",
    kind: MetricKind::Counter,
    labels: &["model", "outcome"],
    help: "Finished requests: ok, error, or cancelled (the client disconnected). Several answers to one request count separately.",
};

pub(crate) static PROMPT_TOKENS: MetricFamily = MetricFamily {
    name: "puna_prompt_tokens_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Prompt tokens computed, without cached ones.",
};

pub(crate) static CACHED_PROMPT_TOKENS: MetricFamily = MetricFamily {
    name: "puna_cached_prompt_tokens_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Prompt tokens of finished generations that were found in the prefix cache.",
};

pub(crate) static GENERATED_TOKENS: MetricFamily = MetricFamily {
    name: "puna_generated_tokens_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Tokens generated.",
};

pub(crate) static EMBEDDED_TOKENS: MetricFamily = MetricFamily {
    name: "puna_embedded_tokens_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Tokens of embedded or reranked texts.",
};

pub(crate) static DRAFT_TOKENS: MetricFamily = MetricFamily {
    name: "puna_draft_tokens_total",
    kind: MetricKind::Counter,
    labels: &["model", "source"],
    help: "Draft tokens that were verified, from the text (ngram) or from a draft model (model).",
};

pub(crate) static DRAFT_ACCEPTED_TOKENS: MetricFamily = MetricFamily {
    name: "puna_draft_accepted_tokens_total",
    kind: MetricKind::Counter,
    labels: &["model", "source"],
    help: "Draft tokens that were accepted, from the text (ngram) or from a draft model (model).",
};

pub(crate) static STEPS: MetricFamily = MetricFamily {
    name: "puna_steps_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Steps of the model, each for all sequences of a batch.",
};

pub(crate) static PREEMPTIONS: MetricFamily = MetricFamily {
    name: "puna_preemptions_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Sequences preempted because no KV page was free.",
};

pub(crate) static MODEL_WAIT: MetricFamily = MetricFamily {
    name: "puna_model_wait_seconds",
    kind: MetricKind::Histogram,
    labels: &["model"],
    help: "Time from a request until its model is in memory.",
};

pub(crate) static QUEUE_WAIT: MetricFamily = MetricFamily {
    name: "puna_queue_wait_seconds",
    kind: MetricKind::Histogram,
    labels: &["model"],
    help: "Time from the model being in memory until the prefill of the prompt starts.",
};

pub(crate) static TIME_TO_FIRST_TOKEN: MetricFamily = MetricFamily {
    name: "puna_time_to_first_token_seconds",
    kind: MetricKind::Histogram,
    labels: &["model"],
    help: "Time from a request to the first token of its answer, including loading and waiting.",
};

pub(crate) static TIME_PER_TOKEN: MetricFamily = MetricFamily {
    name: "puna_time_per_token_seconds",
    kind: MetricKind::Histogram,
    labels: &["model"],
    help: "Time from one generated token to the next, the mean of each finished answer.",
};

pub(crate) static RUNNING_SEQUENCES: MetricFamily = MetricFamily {
    name: "puna_running_sequences",
    kind: MetricKind::Gauge,
    labels: &["model"],
    help: "Sequences in the steps of the model: the batch size.",
};

pub(crate) static WAITING_SEQUENCES: MetricFamily = MetricFamily {
    name: "puna_waiting_sequences",
    kind: MetricKind::Gauge,
    labels: &["model"],
    help: "Sequences and texts that wait for a loaded model.",
};

pub(crate) static KV_PAGES: MetricFamily = MetricFamily {
    name: "puna_kv_pages",
    kind: MetricKind::Gauge,
    labels: &["model"],
    help: "KV pages of the model.",
};

pub(crate) static KV_PAGES_IN_USE: MetricFamily = MetricFamily {
    name: "puna_kv_pages_in_use",
    kind: MetricKind::Gauge,
    labels: &["model", "by"],
    help: "KV pages in use, by running sequences (running) or by the prefix cache (cache).",
};

pub(crate) static KV_WINDOW_PAGES: MetricFamily = MetricFamily {
    name: "puna_kv_window_pages",
    kind: MetricKind::Gauge,
    labels: &["model"],
    help: "Window pages: KV pages of layers with a sliding window, released behind it; 0 for models without.",
};

pub(crate) static KV_WINDOW_PAGES_IN_USE: MetricFamily = MetricFamily {
    name: "puna_kv_window_pages_in_use",
    kind: MetricKind::Gauge,
    labels: &["model", "by"],
    help: "Window pages in use, by running sequences (running) or by the prefix cache (cache).",
};

pub(crate) static KV_RECENT_PAGES: MetricFamily = MetricFamily {
    name: "puna_kv_recent_pages",
    kind: MetricKind::Gauge,
    labels: &["model"],
    help: "Former name of puna_kv_window_pages.",
};

pub(crate) static KV_RECENT_PAGES_IN_USE: MetricFamily = MetricFamily {
    name: "puna_kv_recent_pages_in_use",
    kind: MetricKind::Gauge,
    labels: &["model", "by"],
    help: "Former name of puna_kv_window_pages_in_use.",
};

pub(crate) static MEMORY: MetricFamily = MetricFamily {
    name: "puna_memory_bytes",
    kind: MetricKind::Gauge,
    labels: &["model", "part"],
    help: "Planned memory: weights, kv, scratch, draft or other.",
};

pub(crate) static MODEL_LOAD: MetricFamily = MetricFamily {
    name: "puna_model_load_seconds",
    kind: MetricKind::Histogram,
    labels: &["model"],
    help: "Time of successful loads, from the start of a runner until its model is ready.",
};

pub(crate) static MODEL_LOAD_FAILURES: MetricFamily = MetricFamily {
    name: "puna_model_load_failures_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Requests that failed because the model could not be loaded.",
};

pub(crate) static MODEL_UNLOADS: MetricFamily = MetricFamily {
    name: "puna_model_unloads_total",
    kind: MetricKind::Counter,
    labels: &["model", "reason"],
    help: "Unloaded models: idle (keep-alive over, or unload requested), room (evicted for another model), reload (other options), unwanted (not ready yet, and too large or without a waiting request).",
};

pub(crate) static RUNNER_CRASHES: MetricFamily = MetricFamily {
    name: "puna_runner_crashes_total",
    kind: MetricKind::Counter,
    labels: &["model"],
    help: "Runners of loaded models that ended unexpectedly.",
};
