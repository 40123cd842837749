//! Metrics of requests and models for `GET /metrics`.
//!
//! Counters only grow while the server runs. No counter changes per token: requests count when
//! their response starts and ends, models when they load and unload. The `manager` adds up the
//! reports of the runners.

pub(crate) mod families;
#[cfg(test)]
mod page_tests;
pub(crate) mod prometheus;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use puna_mirror::{SharedTable, TableLimit};

use crate::canonical::{ApiError, EmbedResult, Event, GenerationSummary, RerankScores};
use crate::model_scheduler::UnloadReason;
use crate::util::lock::lock;

/// Description of the metrics of models.
pub(crate) static MODEL_METRICS: SharedTable = SharedTable {
    name: "metrics of models",
    holders: &["puna_server::metrics::ServerMetrics"],
    limits: &[TableLimit::Entries(MAX_MODELS)],
    shares: &[TableLimit::Rule("none: further models count together")],
    when_full: "the label `model` is `other`",
    test: "models_of_one_client_do_not_take_the_metrics_of_another",
};

/// All metrics of the server.
#[derive(Default)]
pub(crate) struct ServerMetrics {
    responses: Mutex<BTreeMap<ResponseLabels, u64>>,
    models: Mutex<BTreeMap<String, Arc<ModelMetrics>>>,
    /// Requests rejected because the queue was full.
    pub(crate) refused: Counter,
}

/// Labels of a response counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResponseLabels {
    /// Pattern of the route, or [`NO_ROUTE`], since the number of other paths is unbounded.
    pub(crate) route: &'static str,
    pub(crate) method: &'static str,
    pub(crate) status: u16,
}

/// Label of all paths without a route.
pub(crate) const NO_ROUTE: &str = "other";

/// Maximum number of models with metrics of their own. Clients that create models choose the names.
const MAX_MODELS: usize = 10_000;

/// Label of all models beyond [`MAX_MODELS`].
const OTHER_MODELS: &str = "other";

impl ServerMetrics {
    /// Starts counting a request; `route` is the pattern of its route.
    pub(crate) fn start_request(
        self: &Arc<Self>,
        route: Option<&'static str>,
        method: &Method,
    ) -> PendingResponse {
        const METHODS: [&str; 7] = ["GET", "POST", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH"];
        let method =
            METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or(NO_ROUTE);
        let labels = ResponseLabels {
            route: route.unwrap_or(NO_ROUTE),
            method,
            status: ApiError::CLIENT_CLOSED_REQUEST,
        };
        PendingResponse { metrics: self.clone(), labels }
    }

    /// Metrics of a stored model. Models beyond [`MAX_MODELS`] count together.
    pub(crate) fn model(&self, model: &str) -> Arc<ModelMetrics> {
        let mut models = lock(&self.models);
        if let Some(found) = models.get(model) {
            return found.clone();
        }
        let model = if models.len() < MAX_MODELS { model } else { OTHER_MODELS };
        models.entry(model.to_owned()).or_default().clone()
    }

    /// Number of responses by labels.
    pub(crate) fn response_counts(&self) -> BTreeMap<ResponseLabels, u64> {
        lock(&self.responses).clone()
    }

    /// Metrics of all models requested so far, by name.
    pub(crate) fn models(&self) -> BTreeMap<String, Arc<ModelMetrics>> {
        lock(&self.models).clone()
    }
}

/// A request without a response so far. Dropped before that, it counts as closed by the client.
pub(crate) struct PendingResponse {
    metrics: Arc<ServerMetrics>,
    labels: ResponseLabels,
}

impl PendingResponse {
    /// Records that the response starts with this status.
    pub(crate) fn finish(mut self, status: StatusCode) {
        self.labels.status = status.as_u16();
    }
}

impl Drop for PendingResponse {
    fn drop(&mut self) {
        *lock(&self.metrics.responses).entry(self.labels).or_default() += 1;
    }
}

/// A counter.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Metrics of one model.
pub(crate) struct ModelMetrics {
    /// Number of ended requests, by [`Outcome`].
    outcomes: [Counter; Outcome::ALL.len()],
    /// Prompt tokens of finished generations that came from the prefix cache.
    pub(crate) cached_tokens: Counter,
    /// Input tokens of embeddings and rankings.
    pub(crate) embedded_tokens: Counter,
    /// Time from a request to the first token of its response.
    pub(crate) first_token: Histogram,
    /// Mean time per generated token, one value per response.
    pub(crate) per_token: Histogram,
    /// Time from a request until its model is in memory.
    pub(crate) model_wait: Histogram,
    /// Time from the model being in memory until the prefill of the prompt starts.
    pub(crate) queue_wait: Histogram,
    /// Time from the start of a runner until its model is ready.
    pub(crate) loads: Histogram,
    /// Loads that ended with an error.
    pub(crate) failed_loads: Counter,
    /// Unloads by [`UnloadReason`].
    unloads: [Counter; UnloadReason::ALL.len()],
    /// Runners that ended unexpectedly after loading.
    pub(crate) crashes: Counter,
}

impl Default for ModelMetrics {
    fn default() -> Self {
        Self {
            outcomes: Default::default(),
            cached_tokens: Counter::default(),
            embedded_tokens: Counter::default(),
            first_token: Histogram::new(&WAIT_BOUNDS),
            per_token: Histogram::new(&TOKEN_BOUNDS),
            model_wait: Histogram::new(&WAIT_BOUNDS),
            queue_wait: Histogram::new(&WAIT_BOUNDS),
            loads: Histogram::new(&WAIT_BOUNDS),
            failed_loads: Counter::default(),
            unloads: Default::default(),
            crashes: Counter::default(),
        }
    }
}

/// How a request to a model ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Error,
    /// The client disconnected.
    Cancelled,
}

impl Outcome {
    pub(crate) const ALL: [Self; 3] = [Self::Ok, Self::Error, Self::Cancelled];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

impl ModelMetrics {
    pub(crate) fn outcome_count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].get()
    }

    pub(crate) fn record_unload(&self, why: UnloadReason) {
        self.unloads[why as usize].add(1);
    }

    pub(crate) fn unload_count(&self, why: UnloadReason) -> u64 {
        self.unloads[why as usize].get()
    }

    /// Starts measuring a request's wait for the model.
    pub(crate) fn start_model_wait(self: Arc<Self>) -> ModelWait {
        ModelWait { model: self, since: Instant::now(), outcome: Some(Outcome::Cancelled) }
    }

    /// Starts measuring a task of a request that arrived at `arrived`.
    pub(crate) fn start_task(self: Arc<Self>, arrived: Instant) -> TaskMetrics {
        TaskMetrics {
            model: self,
            arrived,
            ready: Instant::now(),
            first: None,
            outcome: Some(Outcome::Cancelled),
        }
    }

    fn count_outcome(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].add(1);
    }
}

/// A request that waits for a model. If dropped before [`Self::finish`], it counts as cancelled.
pub(crate) struct ModelWait {
    model: Arc<ModelMetrics>,
    since: Instant,
    outcome: Option<Outcome>,
}

impl ModelWait {
    /// Records that the model is ready, or that the request ends with an error.
    pub(crate) fn finish(mut self, ready: bool) {
        self.outcome = (!ready).then_some(Outcome::Error);
        if ready {
            self.model.model_wait.observe(self.since.elapsed());
        }
    }
}

impl Drop for ModelWait {
    fn drop(&mut self) {
        self.outcome.into_iter().for_each(|outcome| self.model.count_outcome(outcome));
    }
}

/// A task that a model executes. If dropped before its final event, it counts as cancelled.
pub(crate) struct TaskMetrics {
    model: Arc<ModelMetrics>,
    arrived: Instant,
    ready: Instant,
    /// Arrival of the first token.
    first: Option<Instant>,
    /// Outcome if the task ends now; `None` once it has ended.
    outcome: Option<Outcome>,
}

impl TaskMetrics {
    /// Records an event on its way to the client.
    pub(crate) fn record(&mut self, event: &Event) {
        match event {
            Event::Thinking(_) | Event::Content(_) | Event::CallStart { .. }
                if self.first.is_none() =>
            {
                let now = Instant::now();
                self.first = Some(now);
                self.model.first_token.observe(now.duration_since(self.arrived));
            }
            Event::Done(done) => self.record_generation(done),
            Event::Embedded(EmbedResult { tokens, .. })
            | Event::Reranked(RerankScores { tokens, .. }) => {
                self.model.embedded_tokens.add(*tokens);
            }
            _ => {}
        }
        if event.is_end()
            && let Some(outcome) = &mut self.outcome
        {
            *outcome = if matches!(event, Event::Error(_)) { Outcome::Error } else { Outcome::Ok };
            self.model.count_outcome(*outcome);
            self.outcome = None;
        }
    }

    fn record_generation(&self, done: &GenerationSummary) {
        self.model.cached_tokens.add(done.cached_tokens);
        if let Some(first) = self.first {
            self.model
                .queue_wait
                .observe(first.duration_since(self.ready).saturating_sub(done.prefill));
        }
        // `decode` is measured from the first token.
        if let Some(steps @ 1..) = done.generated_tokens.checked_sub(1) {
            self.model.per_token.observe(done.decode / u32::try_from(steps).unwrap_or(u32::MAX));
        }
    }
}

impl Drop for TaskMetrics {
    fn drop(&mut self) {
        self.outcome.into_iter().for_each(|outcome| self.model.count_outcome(outcome));
    }
}

/// Bucket bounds in seconds for waiting times.
const WAIT_BOUNDS: [f64; 14] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Bucket bounds in seconds for times per token: from 1000 tokens a second to half a token a
/// second.
const TOKEN_BOUNDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.0];

/// Histogram of durations.
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One counter per bound and one for longer durations.
    counts: Box<[Counter]>,
    nanos: Counter,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Self { bounds, counts, nanos: Counter::default() }
    }

    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.nanos.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.counts[self.bounds.partition_point(|bound| *bound < seconds)].add(1);
    }

    /// Number of durations up to each bound in seconds, then up to infinity.
    pub(crate) fn cumulative_counts(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += count.get();
            Some(*sum)
        });
        bounds.zip(sums).collect()
    }

    /// Sum of all durations in seconds.
    pub(crate) fn sum(&self) -> f64 {
        Duration::from_nanos(self.nanos.get()).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::{FinishReason, Piece};

    fn done(cached: u64, generated: u64, decode: u64) -> Event {
        Event::Done(Box::new(GenerationSummary {
            reason: FinishReason::Stop,
            has_usage: true,
            stop: None,
            prompt_tokens: 20,
            cached_tokens: cached,
            prefill: Duration::ZERO,
            generated_tokens: generated,
            thought_tokens: 0,
            decode: Duration::from_millis(decode),
            draft_counts: Default::default(),
            dropped_messages: 0,
            dropped_tokens: 0,
            context: Vec::new(),
            schema_violations: None,
        }))
    }

    fn outcomes(model: &ModelMetrics) -> [u64; 3] {
        Outcome::ALL.map(|outcome| model.outcome_count(outcome))
    }

    #[test]
    fn models_of_one_client_do_not_take_the_metrics_of_another() {
        let metrics = ServerMetrics::default();
        let other = metrics.model("other-client/m");
        (0..MAX_MODELS + 10).for_each(|i| drop(metrics.model(&format!("greedy/{i}"))));
        assert!(Arc::ptr_eq(&metrics.model("other-client/m"), &other));
        assert_eq!(metrics.models().len(), MAX_MODELS + 1);
        assert!(Arc::ptr_eq(&metrics.model("greedy/last"), &metrics.model(OTHER_MODELS)));
    }

    #[test]
    fn durations_count_in_the_first_bucket_that_includes_them() {
        let times = Histogram::new(&WAIT_BOUNDS);
        for millis in [0, 10, 11, 300_000, 300_001] {
            times.observe(Duration::from_millis(millis));
        }
        let cumulative_counts = times.cumulative_counts();
        assert_eq!(
            (cumulative_counts[0], cumulative_counts[1], cumulative_counts[12]),
            ((0.01, 2), (0.025, 3), (120.0, 3))
        );
        assert_eq!(
            (cumulative_counts[13], cumulative_counts[14]),
            ((300.0, 4), (f64::INFINITY, 5))
        );
        assert!((times.sum() - 600.022).abs() < 1e-9, "{}", times.sum());
    }

    #[test]
    fn histogram_bounds_increase() {
        assert!(WAIT_BOUNDS.is_sorted_by(|a, b| a < b) && TOKEN_BOUNDS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_finished_generation_counts_once_with_its_times() {
        let model = Arc::new(ModelMetrics::default());
        let mut metrics = model.clone().start_task(Instant::now() - Duration::from_secs(3));
        let piece = || Event::Content(Piece::default());
        [piece(), piece(), done(16, 5, 80)].iter().for_each(|event| metrics.record(event));
        drop(metrics);
        assert_eq!((outcomes(&model), model.cached_tokens.get()), ([1, 0, 0], 16));
        let first = model.first_token.cumulative_counts();
        assert_eq!((first[7], first[8]), ((2.5, 0), (5.0, 1)), "once, after three seconds");
        let per_token = model.per_token.sum();
        assert!((per_token - 0.02).abs() < 1e-9, "four steps of 20 ms: {per_token}");
        assert_eq!(model.queue_wait.cumulative_counts()[14].1, 1);
    }

    #[test]
    fn failed_and_cancelled_requests_count_as_such() {
        let model = Arc::new(ModelMetrics::default());
        drop(model.clone().start_task(Instant::now()));
        drop(model.clone().start_model_wait());
        assert_eq!(outcomes(&model), [0, 0, 2]);
        model.clone().start_task(Instant::now()).record(&Event::Error(ApiError::internal("x")));
        model.clone().start_model_wait().finish(false);
        assert_eq!(outcomes(&model), [0, 2, 2]);
        model.clone().start_model_wait().finish(true);
        model
            .clone()
            .start_task(Instant::now())
            .record(&Event::Embedded(EmbedResult { tokens: 7, ..EmbedResult::default() }));
        assert_eq!((outcomes(&model), model.embedded_tokens.get()), ([1, 2, 2], 7));
        assert_eq!(model.model_wait.cumulative_counts()[14].1, 1, "only those that got the model");
    }

    #[test]
    fn a_response_of_one_token_has_no_time_per_token() {
        let model = Arc::new(ModelMetrics::default());
        model.clone().start_task(Instant::now()).record(&done(0, 1, 80));
        model.clone().start_task(Instant::now()).record(&done(0, 0, 0));
        assert_eq!(model.per_token.cumulative_counts()[14].1, 0);
    }

    #[test]
    fn responses_are_counted_by_route_method_and_status() {
        let metrics = Arc::<ServerMetrics>::default();
        metrics.start_request(Some("/api/chat"), &Method::POST).finish(StatusCode::OK);
        metrics.start_request(Some("/api/chat"), &Method::POST).finish(StatusCode::OK);
        drop(metrics.start_request(Some("/api/chat"), &Method::POST));
        metrics.start_request(None, &"BREW".parse().unwrap()).finish(StatusCode::NOT_FOUND);
        let responses: Vec<_> = metrics
            .response_counts()
            .into_iter()
            .map(|(a, n)| (a.route, a.method, a.status, n))
            .collect();
        assert_eq!(
            responses,
            [
                ("/api/chat", "POST", 200, 2),
                ("/api/chat", "POST", 499, 1),
                ("other", "other", 404, 1)
            ]
        );
    }
}
