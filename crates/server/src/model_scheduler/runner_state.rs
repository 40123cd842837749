//! State of one runner in the scheduler.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use puna_api::KeepAlive;

use super::keep_alive::ClientKeepAlives;
use super::{LoadOptions, Request, RequestId, RunnerId, RunnerState, UnloadReason};

/// A used model that was just loaded is not evicted for this many times its load time. Otherwise
/// two busy models would evict each other for every request.
const MIN_RESIDENCE_LOADS: u32 = 4;

/// Upper bound of that time.
const MAX_RESIDENCE: Duration = Duration::from_secs(10);

/// Upper bound of the time that an idle model is spared, since its next request may be on its way.
/// The time is half of the load time.
const MAX_IDLE_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Runner {
    pub(super) id: RunnerId,
    /// Requested options.
    pub(super) requested: LoadOptions,
    /// Options in effect, which may be reduced.
    pub(super) options: LoadOptions,
    /// Tokens of one conversation: as planned, then as the runner reports.
    pub(super) context: u32,
    /// Context limit of the most recent request in tokens, if it set one.
    pub(super) limit: Option<u32>,
    pub(super) state: RunnerState,
    pub(super) size: u64,
    /// Bytes of `size` that the KV cache takes.
    pub(super) cache: u64,
    pub(super) keep_alives: ClientKeepAlives,
    /// Running requests with their clients.
    pub(super) in_flight: BTreeMap<RequestId, u64>,
    pub(super) started: Instant,
    /// Duration of the load.
    pub(super) load_time: Duration,
    pub(super) last_use: Instant,
    /// Accepts no new requests, because another request needs its memory.
    pub(super) draining: bool,
    /// Reason of its unload, once it is unloaded.
    pub(super) unload_reason: UnloadReason,
}

impl Runner {
    pub(super) fn new(
        now: Instant,
        id: RunnerId,
        request: &Request,
        reduced: Option<LoadOptions>,
        keep_alive: KeepAlive,
    ) -> Self {
        let options = reduced.unwrap_or_else(|| request.options.clone());
        Self {
            id,
            requested: request.options.clone(),
            context: options.num_ctx,
            limit: request.num_ctx,
            options,
            state: RunnerState::Planning,
            size: 0,
            cache: 0,
            keep_alives: ClientKeepAlives::new(keep_alive),
            in_flight: BTreeMap::new(),
            started: now,
            load_time: Duration::ZERO,
            last_use: now,
            draining: false,
            unload_reason: UnloadReason::Idle,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state == RunnerState::Ready && self.in_flight.is_empty()
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.state == RunnerState::Stopping || self.draining
    }

    pub(super) fn can_serve(&self, request: &Request) -> bool {
        self.state == RunnerState::Ready && !self.draining && self.serves_options(&request.options)
    }

    /// Whether it serves requests with these options: those requested for it, or those in effect.
    fn serves_options(&self, wanted: &LoadOptions) -> bool {
        !self.requested.needs_reload(wanted) || !self.options.needs_reload(wanted)
    }

    /// Earliest time at which it may be evicted for another model.
    pub(super) fn evictable_from(&self) -> Instant {
        let residence = (self.load_time * MIN_RESIDENCE_LOADS).min(MAX_RESIDENCE);
        let residence_end = self.started + self.load_time + residence;
        match self.in_flight.is_empty() {
            true => residence_end.min(self.last_use + (self.load_time / 2).min(MAX_IDLE_GRACE)),
            false => residence_end,
        }
    }

    /// Eviction order; smaller values are evicted first. Idle models precede busy ones, and models
    /// to keep forever are last. The cost is the load time in seconds relative to the idle time,
    /// since a model unused for long is less likely to be needed.
    pub(super) fn eviction_order(&self, now: Instant) -> (bool, bool, EvictionCost) {
        let unused = now.duration_since(self.last_use).as_secs_f64();
        let cost = (0.1 + self.load_time.as_secs_f64()) / (0.1 + unused);
        (!self.is_idle(), self.keep_alives.is_endless(), EvictionCost(cost))
    }

    /// Starts a request on this runner.
    pub(super) fn start_request(&mut self, now: Instant, request: &Request) {
        self.keep_alives.start_request(now, request.client, request.keep_alive);
        self.limit = request.num_ctx;
        self.in_flight.insert(request.id, request.client);
        self.last_use = now;
    }

    /// Ends a request; returns `false` if it does not run here.
    pub(super) fn finish_request(&mut self, now: Instant, id: RequestId) -> bool {
        let Some(client) = self.in_flight.remove(&id) else { return false };
        self.last_use = now;
        self.keep_alives.record_use(now, client);
        true
    }

    /// Time at which it is unloaded if no request comes; `None` if it never is. A running request
    /// postpones it.
    pub(super) fn expires(&self, now: Instant) -> Option<Instant> {
        let is_using = |client| self.in_flight.values().any(|user| *user == client);
        self.keep_alives.end_while_used(now, is_using)
    }
}

/// An `f64` with a total order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EvictionCost(f64);

impl Eq for EvictionCost {}

impl Ord for EvictionCost {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for EvictionCost {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
