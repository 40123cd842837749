//! What the server counts about requests and models, for `GET /metrics`.
//!
//! Counts only grow as long as the server runs. Nothing here happens for every token: requests are counted when they
//! begin to be answered and when they end, models when they load and go. What runners say of themselves is summed up by
//! the `manager`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};

use crate::canonical::{Done, Embedded, Event, Failure, Ranked};
use crate::lock::lock;
use crate::scheduler::Unload;

/// Everything that is counted.
#[derive(Default)]
pub(crate) struct Figures {
    answers: Mutex<BTreeMap<Answered, u64>>,
    models: Mutex<BTreeMap<String, Arc<OfModel>>>,
    /// Requests that found the queue full.
    pub(crate) refused: Count,
}

/// Answers that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answered {
    /// The route's pattern, or [`NO_ROUTE`]: other paths are without number.
    pub(crate) route: &'static str,
    pub(crate) method: &'static str,
    pub(crate) status: u16,
}

/// Stands for all paths that have no route.
pub(crate) const NO_ROUTE: &str = "other";

impl Figures {
    /// A request that came in for a route, if it has one.
    pub(crate) fn asked(self: &Arc<Self>, route: Option<&'static str>, method: &Method) -> Asked {
        const METHODS: [&str; 7] = ["GET", "POST", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH"];
        let method =
            METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or(NO_ROUTE);
        let answered = Answered { route: route.unwrap_or(NO_ROUTE), method, status: Failure::LEFT };
        Asked { figures: self.clone(), answered }
    }

    /// The figures of a stored model.
    pub(crate) fn of(&self, model: &str) -> Arc<OfModel> {
        let mut models = lock(&self.models);
        if let Some(found) = models.get(model) {
            return found.clone();
        }
        models.entry(model.to_owned()).or_default().clone()
    }

    /// Answers so far.
    pub(crate) fn answers(&self) -> BTreeMap<Answered, u64> {
        lock(&self.answers).clone()
    }

    /// All models that were ever asked for, by name.
    pub(crate) fn models(&self) -> BTreeMap<String, Arc<OfModel>> {
        lock(&self.models).clone()
    }
}

/// A request until its answer begins. Dropped before, its client has left.
pub(crate) struct Asked {
    figures: Arc<Figures>,
    answered: Answered,
}

impl Asked {
    /// The answer begins.
    pub(crate) fn answered(mut self, status: StatusCode) {
        self.answered.status = status.as_u16();
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        *lock(&self.figures.answers).entry(self.answered).or_default() += 1;
    }
}

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What is counted for each model.
pub(crate) struct OfModel {
    /// Requests that ended, by [`Outcome`].
    outcomes: [Count; Outcome::ALL.len()],
    /// Prompt tokens of finished generations that were found in the cache.
    pub(crate) cached_tokens: Count,
    /// Tokens of texts that became vectors.
    pub(crate) embedded_tokens: Count,
    /// From a request to the first token of its answer.
    pub(crate) first_token: Histogram,
    /// From token to token, the mean of each answer.
    pub(crate) per_token: Histogram,
    /// From a request until its model is in memory.
    pub(crate) model_wait: Histogram,
    /// From then until its prompt is begun with.
    pub(crate) line_wait: Histogram,
    /// From the start of a runner until its model is ready.
    pub(crate) loads: Histogram,
    /// Loads that were given up with an error.
    pub(crate) failed_loads: Count,
    /// Models told to leave memory, by [`Unload`].
    unloads: [Count; Unload::ALL.len()],
    /// Runners of loaded models that ended by themselves.
    pub(crate) crashes: Count,
}

impl Default for OfModel {
    fn default() -> Self {
        Self {
            outcomes: Default::default(),
            cached_tokens: Count::default(),
            embedded_tokens: Count::default(),
            first_token: Histogram::new(&WAITS),
            per_token: Histogram::new(&TOKENS),
            model_wait: Histogram::new(&WAITS),
            line_wait: Histogram::new(&WAITS),
            loads: Histogram::new(&WAITS),
            failed_loads: Count::default(),
            unloads: Default::default(),
            crashes: Count::default(),
        }
    }
}

/// How a request to a model ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Error,
    /// Nobody listened any more.
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

impl OfModel {
    pub(crate) fn outcomes(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize].get()
    }

    pub(crate) fn unloaded(&self, why: Unload) {
        self.unloads[why as usize].add(1);
    }

    pub(crate) fn unloads(&self, why: Unload) -> u64 {
        self.unloads[why as usize].get()
    }

    /// A request begins to wait for the model.
    pub(crate) fn wait(self: Arc<Self>) -> Waiting {
        Waiting { model: self, since: Instant::now(), outcome: Some(Outcome::Cancelled) }
    }

    /// The model has something to do for a request that arrived some time ago.
    pub(crate) fn begin(self: Arc<Self>, arrived: Instant) -> Tally {
        Tally {
            model: self,
            arrived,
            ready: Instant::now(),
            first: None,
            outcome: Some(Outcome::Cancelled),
        }
    }

    fn end(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].add(1);
    }
}

/// A request that waits for a model. Dropped, its client has left.
pub(crate) struct Waiting {
    model: Arc<OfModel>,
    since: Instant,
    outcome: Option<Outcome>,
}

impl Waiting {
    /// The model is there, or the request ends with an error.
    pub(crate) fn over(mut self, ready: bool) {
        self.outcome = (!ready).then_some(Outcome::Error);
        if ready {
            self.model.model_wait.observe(self.since.elapsed());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.outcome.into_iter().for_each(|outcome| self.model.end(outcome));
    }
}

/// A request that a model works on. Dropped before the end, it is cancelled.
pub(crate) struct Tally {
    model: Arc<OfModel>,
    arrived: Instant,
    ready: Instant,
    /// When the first token came.
    first: Option<Instant>,
    /// What it comes to if it ends now; nothing once it has ended.
    outcome: Option<Outcome>,
}

impl Tally {
    /// Takes note of an event on its way to the client.
    pub(crate) fn take(&mut self, event: &Event) {
        match event {
            Event::Thinking(_) | Event::Content(_) | Event::CallStart { .. }
                if self.first.is_none() =>
            {
                let now = Instant::now();
                self.first = Some(now);
                self.model.first_token.observe(now.duration_since(self.arrived));
            }
            Event::Done(done) => self.done(done),
            Event::Embedded(Embedded { tokens, .. }) | Event::Ranked(Ranked { tokens, .. }) => {
                self.model.embedded_tokens.add(*tokens);
            }
            _ => {}
        }
        if event.is_end()
            && let Some(outcome) = &mut self.outcome
        {
            *outcome = if matches!(event, Event::Error(_)) { Outcome::Error } else { Outcome::Ok };
            self.model.end(*outcome);
            self.outcome = None;
        }
    }

    fn done(&self, done: &Done) {
        self.model.cached_tokens.add(done.cached_tokens);
        if let Some(first) = self.first {
            self.model
                .line_wait
                .observe(first.duration_since(self.ready).saturating_sub(done.prefill));
        }
        // Time runs from the first token on.
        if let Some(steps @ 1..) = done.generated_tokens.checked_sub(1) {
            self.model.per_token.observe(done.decode / u32::try_from(steps).unwrap_or(u32::MAX));
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.outcome.into_iter().for_each(|outcome| self.model.end(outcome));
    }
}

/// Bounds in seconds of times that a person or a program waits.
const WAITS: [f64; 14] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// Bounds in seconds of the time that a token takes: from 1000 to half a token a second.
const TOKENS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.0];

/// How often which times occurred.
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last is for everything above them.
    counts: Box<[Count]>,
    nanos: Count,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| Count::default()).collect();
        Self { bounds, counts, nanos: Count::default() }
    }

    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.nanos.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.counts[self.bounds.partition_point(|bound| *bound < seconds)].add(1);
    }

    /// For each bound how many times were at most as long, then for infinity.
    pub(crate) fn at_most(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let sums = self.counts.iter().scan(0, |sum, count| {
            *sum += count.get();
            Some(*sum)
        });
        bounds.zip(sums).collect()
    }

    /// All times together, in seconds.
    pub(crate) fn sum(&self) -> f64 {
        Duration::from_nanos(self.nanos.get()).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::{Piece, Reason};

    fn done(cached: u64, generated: u64, decode: u64) -> Event {
        Event::Done(Box::new(Done {
            reason: Reason::Stop,
            has_usage: true,
            stop: None,
            prompt_tokens: 20,
            cached_tokens: cached,
            prefill: Duration::ZERO,
            generated_tokens: generated,
            thought_tokens: 0,
            decode: Duration::from_millis(decode),
            guesses: Default::default(),
            dropped_messages: 0,
            dropped_tokens: 0,
            context: Vec::new(),
            schema_violations: None,
        }))
    }

    fn outcomes(model: &OfModel) -> [u64; 3] {
        Outcome::ALL.map(|outcome| model.outcomes(outcome))
    }

    #[test]
    fn times_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        let times = Histogram::new(&WAITS);
        for millis in [0, 10, 11, 300_000, 300_001] {
            times.observe(Duration::from_millis(millis));
        }
        let at_most = times.at_most();
        assert_eq!((at_most[0], at_most[1], at_most[12]), ((0.01, 2), (0.025, 3), (120.0, 3)));
        assert_eq!((at_most[13], at_most[14]), ((300.0, 4), (f64::INFINITY, 5)));
        assert!((times.sum() - 600.022).abs() < 1e-9, "{}", times.sum());
    }

    #[test]
    fn bounds_grow() {
        assert!(WAITS.is_sorted_by(|a, b| a < b) && TOKENS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_finished_generation_counts_once_with_its_times() {
        let model = Arc::new(OfModel::default());
        let mut tally = model.clone().begin(Instant::now() - Duration::from_secs(3));
        let piece = || Event::Content(Piece::default());
        [piece(), piece(), done(16, 5, 80)].iter().for_each(|event| tally.take(event));
        drop(tally);
        assert_eq!((outcomes(&model), model.cached_tokens.get()), ([1, 0, 0], 16));
        let first = model.first_token.at_most();
        assert_eq!((first[7], first[8]), ((2.5, 0), (5.0, 1)), "once, after three seconds");
        let per_token = model.per_token.sum();
        assert!((per_token - 0.02).abs() < 1e-9, "four steps of 20 ms: {per_token}");
        assert_eq!(model.line_wait.at_most()[14].1, 1);
    }

    #[test]
    fn requests_that_fail_or_are_left_count_as_such() {
        let model = Arc::new(OfModel::default());
        drop(model.clone().begin(Instant::now()));
        drop(model.clone().wait());
        assert_eq!(outcomes(&model), [0, 0, 2]);
        model.clone().begin(Instant::now()).take(&Event::Error(Failure::internal("x")));
        model.clone().wait().over(false);
        assert_eq!(outcomes(&model), [0, 2, 2]);
        model.clone().wait().over(true);
        model
            .clone()
            .begin(Instant::now())
            .take(&Event::Embedded(Embedded { tokens: 7, ..Embedded::default() }));
        assert_eq!((outcomes(&model), model.embedded_tokens.get()), ([1, 2, 2], 7));
        assert_eq!(model.model_wait.at_most()[14].1, 1, "only those that got the model");
    }

    #[test]
    fn an_answer_of_one_token_has_no_time_from_token_to_token() {
        let model = Arc::new(OfModel::default());
        model.clone().begin(Instant::now()).take(&done(0, 1, 80));
        model.clone().begin(Instant::now()).take(&done(0, 0, 0));
        assert_eq!(model.per_token.at_most()[14].1, 0);
    }

    #[test]
    fn answers_are_counted_by_route_method_and_status() {
        let figures = Arc::<Figures>::default();
        figures.asked(Some("/api/chat"), &Method::POST).answered(StatusCode::OK);
        figures.asked(Some("/api/chat"), &Method::POST).answered(StatusCode::OK);
        drop(figures.asked(Some("/api/chat"), &Method::POST));
        figures.asked(None, &"BREW".parse().unwrap()).answered(StatusCode::NOT_FOUND);
        let answers: Vec<_> =
            figures.answers().into_iter().map(|(a, n)| (a.route, a.method, a.status, n)).collect();
        assert_eq!(
            answers,
            [
                ("/api/chat", "POST", 200, 2),
                ("/api/chat", "POST", 499, 1),
                ("other", "other", 404, 1)
            ]
        );
    }
}
