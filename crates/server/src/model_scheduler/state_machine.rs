//! The scheduler's state machine.
//!
//! One waiting request is the *head*: its model is planned, gets memory and is loaded. While it
//! waits for memory, smaller models may overtake it for a limited time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::memory_fit::{FitStep, MemorySpace, next_step};
use super::queue::{Queue, WaitingRequest};
use super::runner_state::Runner;
use super::{
    Action, Event, Limits, LoadOptions, Memory, MemoryNeed, ModelKey, ModelView, Phase, Refusal,
    Request, RequestId, RunnerExit, RunnerId, RunnerState, UnloadReason,
};

/// Waiting time after which a request evicts models as soon as possible and is not overtaken any
/// more.
const MAX_OVERTAKEN: Duration = Duration::from_secs(15);

/// The state machine.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    memory: Option<Memory>,
    runners: BTreeMap<ModelKey, Runner>,
    queue: Queue,
    /// The request with the model that is loaded next.
    head: Option<RequestId>,
    /// Whether all other models were unloaded for the head after it ran out of memory.
    evicted_for_retry: bool,
    /// When a model that is still protected may be evicted.
    next_check: Option<Instant>,
    next_id: RunnerId,
    actions: Vec<Action>,
}

/// Result of an attempt to serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The state has changed: try again.
    Changed,
    /// A runner is planning, loading or exiting.
    Busy,
    /// The request waits for memory.
    Blocked,
}

impl Scheduler {
    /// Creates a scheduler without models.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            memory: None,
            runners: BTreeMap::new(),
            queue: Queue::default(),
            head: None,
            evicted_for_retry: false,
            next_check: None,
            next_id: 1,
            actions: Vec::new(),
        }
    }

    /// Handles an event and returns the actions to execute.
    pub fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Request(request) => self.request(now, request),
            Event::Finished(id) => self.finished(now, id),
            Event::Planned(runner, need) => self.planned(runner, need),
            Event::Loaded(runner, context, size) => self.loaded(now, runner, context, size),
            Event::Exited(runner, exit) => self.exited(now, runner, exit),
            Event::Expire(key, client) => self.expire(now, &key, client),
            Event::Memory(memory) => self.memory = Some(memory),
            Event::Tick => {}
        }
        // Grants come first: a model that was just loaded has a waiting request and is not idle.
        self.grant_ready(now);
        self.unload_expired(now);
        self.advance(now);
        std::mem::take(&mut self.actions)
    }

    /// Time of the next [`Event::Tick`].
    pub fn deadline(&self) -> Option<Instant> {
        let expiries = self
            .runners
            .values()
            .filter(|runner| runner.is_idle())
            .filter_map(|runner| runner.keep_alives.end());
        expiries.chain(self.next_check).min()
    }

    /// Lists the models in memory.
    pub fn view(&self, now: Instant) -> Vec<ModelView> {
        let one = |(key, runner): (&ModelKey, &Runner)| ModelView {
            key: key.clone(),
            runner_id: runner.id,
            size: runner.size,
            context: runner.limit.map_or(runner.context, |limit| limit.min(runner.context)),
            window: runner.context,
            expires: runner.expires(now),
            phase: match runner.state {
                RunnerState::Planning => Phase::Planning,
                RunnerState::Waiting => Phase::Waiting,
                RunnerState::Loading => Phase::Loading,
                RunnerState::Ready | RunnerState::Stopping => Phase::Ready,
            },
            in_flight: runner.in_flight.len(),
        };
        self.runners
            .iter()
            .filter(|(_, runner)| runner.state != RunnerState::Stopping)
            .map(one)
            .collect()
    }

    /// Whether the next event compares a plan with the machine's memory. Otherwise
    /// [`Event::Memory`] has no effect. After [`Event::Planned`] it always has.
    pub fn needs_memory_reading(&self) -> bool {
        self.runners.values().any(|runner| runner.state == RunnerState::Waiting)
    }

    /// Number of requests that wait for a model.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Reason for which a runner is stopped.
    pub fn unload_reason(&self, id: RunnerId) -> Option<UnloadReason> {
        self.runners.values().find(|runner| runner.id == id).map(|runner| runner.unload_reason)
    }

    fn request(&mut self, now: Instant, request: Request) {
        if let Some(runner) = self.runners.get_mut(&request.key)
            && runner.can_serve(&request)
        {
            runner.start_request(now, &request);
            return self.actions.push(Action::Grant(request.id, runner.id));
        }
        // The request that waits for a running load does not count as waiting.
        let loading = self.head.filter(|id| self.is_loading(*id));
        let waiting = self.queue.len() - usize::from(loading.is_some());
        if waiting >= self.limits.max_queue && self.queue.len() > 0 {
            let Some(other) = self.queue.request_to_displace(request.client, loading) else {
                return self.actions.push(Action::Refuse(request.id, Refusal::Busy));
            };
            self.queue.remove(other);
            self.actions.push(Action::Refuse(other, Refusal::Busy));
            self.request_removed(other);
        }
        self.queue.push(now, request);
    }

    /// Whether the model of a request is being planned or loaded.
    fn is_loading(&self, id: RequestId) -> bool {
        let runner = self.queue.get(id).and_then(|w| self.runners.get(&w.request.key));
        runner.is_some_and(|runner| {
            matches!(
                runner.state,
                RunnerState::Planning | RunnerState::Waiting | RunnerState::Loading
            )
        })
    }

    fn finished(&mut self, now: Instant, id: RequestId) {
        for runner in self.runners.values_mut() {
            if runner.finish_request(now, id) {
                return;
            }
        }
        if self.queue.remove(id).is_some() {
            self.request_removed(id);
        }
    }

    /// Handles a request that no longer waits. Models that were draining for it accept requests
    /// again, and the scheduler chooses a new head. A load that no other request needs is stopped.
    fn request_removed(&mut self, id: RequestId) {
        if self.head == Some(id) {
            self.head = None;
            self.evicted_for_retry = false;
            for runner in self
                .runners
                .values_mut()
                .filter(|runner| runner.state == RunnerState::Ready && runner.draining)
            {
                (runner.draining, runner.unload_reason) = (false, UnloadReason::Idle);
            }
            self.queue.iter_mut().for_each(|waiting| waiting.cannot_overtake = false);
        }
        let wanted = |key: &ModelKey| self.queue.iter().any(|w| w.request.key == *key);
        let early = |runner: &Runner| {
            matches!(
                runner.state,
                RunnerState::Planning | RunnerState::Waiting | RunnerState::Loading
            )
        };
        let unwanted: Vec<ModelKey> = self
            .runners
            .iter()
            .filter(|(key, runner)| early(runner) && !wanted(key))
            .map(|(key, _)| key.clone())
            .collect();
        unwanted.iter().for_each(|key| self.stop(key));
    }

    fn planned(&mut self, id: RunnerId, need: MemoryNeed) {
        if let Some((_, runner)) = self.find(id)
            && runner.state == RunnerState::Planning
        {
            (runner.size, runner.cache) = (need.total, need.cache);
            runner.state = RunnerState::Waiting;
        }
    }

    fn loaded(&mut self, now: Instant, id: RunnerId, context: u32, size: u64) {
        if let Some((_, runner)) = self.find(id)
            && runner.state == RunnerState::Loading
        {
            runner.context = context;
            runner.size = size;
            runner.state = RunnerState::Ready;
            runner.load_time = now.duration_since(runner.started);
            runner.last_use = now;
        }
    }

    fn exited(&mut self, now: Instant, id: RunnerId, exit: RunnerExit) {
        let Some((key, runner)) = self.find(id) else { return };
        let (key, state, mut options, requested) =
            (key.clone(), runner.state, runner.options.clone(), runner.requested.clone());
        self.runners.remove(&key);
        match state {
            RunnerState::Ready if exit.out_of_memory => self.expire_all(now),
            RunnerState::Planning | RunnerState::Waiting | RunnerState::Loading => {
                let first = !self.queue.iter().any(|w| w.request.key == key && w.reduced.is_some());
                if exit.out_of_memory && first && options.reduce_once() {
                    let all = self.waiting_for(&key, &requested);
                    all.for_each(|waiting| waiting.reduced = Some(options.clone()));
                    return self.expire_all(now);
                }
                let head = self.head.and_then(|id| self.queue.get(id));
                let is_head = head.is_some_and(|w| w.request.key == key);
                if exit.out_of_memory
                    && is_head
                    && !self.evicted_for_retry
                    && !self.runners.is_empty()
                {
                    self.evicted_for_retry = true;
                    return self.expire_all(now);
                }
                self.refuse_all(&key, &requested, &Refusal::LoadFailed(exit));
            }
            RunnerState::Ready | RunnerState::Stopping => {}
        }
    }

    /// Requests that wait for a model with the same options.
    fn waiting_for(
        &mut self,
        key: &ModelKey,
        requested: &LoadOptions,
    ) -> impl Iterator<Item = &mut WaitingRequest> {
        self.queue.iter_mut().filter(|w| w.request.key == *key && w.request.options == *requested)
    }

    fn refuse_all(&mut self, key: &ModelKey, requested: &LoadOptions, refusal: &Refusal) {
        let same =
            |w: &mut WaitingRequest| w.request.key == *key && w.request.options == *requested;
        for WaitingRequest { request, .. } in self.queue.remove_if(same) {
            self.actions.push(Action::Refuse(request.id, refusal.clone()));
            self.request_removed(request.id);
        }
    }

    fn expire(&mut self, now: Instant, key: &ModelKey, client: Option<u64>) {
        if let Some(runner) = self.runners.get_mut(key) {
            runner.keep_alives.release(now, client);
        }
    }

    fn expire_all(&mut self, now: Instant) {
        let keys: Vec<ModelKey> = self.runners.keys().cloned().collect();
        for key in &keys {
            self.expire(now, key, None);
            if let Some(runner) = self.runners.get_mut(key) {
                runner.unload_reason = UnloadReason::MemoryNeeded;
            }
        }
    }

    /// Stops idle models after their keep-alive time, or if their memory is needed.
    fn unload_expired(&mut self, now: Instant) {
        let over = |runner: &Runner| {
            runner.is_idle()
                && (runner.draining || runner.keep_alives.end().is_some_and(|at| at <= now))
        };
        let keys: Vec<ModelKey> = self
            .runners
            .iter()
            .filter(|(_, runner)| over(runner))
            .map(|(key, _)| key.clone())
            .collect();
        keys.iter().for_each(|key| self.stop(key));
    }

    /// Grants all requests for ready models, anywhere in the queue.
    fn grant_ready(&mut self, now: Instant) {
        let runners = &mut self.runners;
        let mut grants = Vec::new();
        self.queue.remove_if(|waiting| {
            let Some(runner) = runners.get_mut(&waiting.request.key) else { return false };
            let is_served = runner.can_serve(&waiting.request);
            if is_served {
                runner.start_request(now, &waiting.request);
                grants.push((waiting.request.id, runner.id));
            }
            is_served
        });
        for (id, runner) in grants {
            self.actions.push(Action::Grant(id, runner));
            self.request_removed(id);
        }
    }

    /// Serves the queue until it must wait.
    fn advance(&mut self, now: Instant) {
        self.next_check = None;
        loop {
            self.grant_ready(now);
            let Some(id) = self.head.or_else(|| self.queue.service_order().first().copied()) else {
                return;
            };
            self.head = Some(id);
            match self.advance_request(now, id) {
                Progress::Changed => {}
                Progress::Busy => return,
                Progress::Blocked => match self.serve_overtaking(now, id) {
                    Progress::Changed => {}
                    Progress::Busy | Progress::Blocked => return,
                },
            }
        }
    }

    /// Advances the head until it must wait.
    fn advance_request(&mut self, now: Instant, id: RequestId) -> Progress {
        let Some(waiting) = self.queue.get(id) else { return Progress::Changed };
        let (key, since) = (waiting.request.key.clone(), waiting.since);
        match self.runners.get(&key).map(|runner| runner.state) {
            None if self.runners.len() >= self.limits.max_loaded.max(1) => {
                self.evict_one(now, since, &key, 0);
                Progress::Blocked
            }
            // Models load one at a time; an overtaking one is loading.
            None if self.is_loading_any() => Progress::Busy,
            None => self.start(now, id),
            Some(RunnerState::Ready) => {
                self.evict(now, since, &key, UnloadReason::Reload);
                Progress::Blocked
            }
            Some(RunnerState::Waiting) => self.fit_in_memory(now, id, &key),
            Some(RunnerState::Planning | RunnerState::Loading | RunnerState::Stopping) => {
                Progress::Busy
            }
        }
    }

    /// Whether any runner plans or loads.
    fn is_loading_any(&self) -> bool {
        self.runners
            .values()
            .any(|runner| matches!(runner.state, RunnerState::Planning | RunnerState::Loading))
    }

    /// Serves a request with a model that fits now, while the head waits for more memory.
    fn serve_overtaking(&mut self, now: Instant, next: RequestId) -> Progress {
        let Some(first) = self.queue.get(next) else { return Progress::Changed };
        let key = first.request.key.clone();
        let until = first.since + MAX_OVERTAKEN;
        if now >= until || self.is_loading_any() {
            return Progress::Blocked;
        }
        for id in self.queue.service_order() {
            let Some(other) = self.queue.get(id) else { continue };
            let (own, behind) = (other.request.key.clone(), other.cannot_overtake);
            if own == key || behind {
                continue;
            }
            match self.runners.get(&own).map(|runner| (runner.state, runner.id, runner.size)) {
                None if self.runners.len() < self.limits.max_loaded.max(1) => {
                    return self.start(now, id);
                }
                Some((RunnerState::Waiting, runner, need)) if need <= self.available_to(&own) => {
                    self.load(&own, runner);
                    return Progress::Busy;
                }
                Some((RunnerState::Waiting, ..)) => {
                    self.stop(&own);
                    self.queue
                        .iter_mut()
                        .filter(|w| w.request.key == own)
                        .for_each(|w| w.cannot_overtake = true);
                    return Progress::Busy;
                }
                _ => {}
            }
        }
        Progress::Blocked
    }

    /// Starts a runner for a request.
    fn start(&mut self, now: Instant, id: RequestId) -> Progress {
        let Some(WaitingRequest { request, reduced, .. }) = self.queue.get(id) else {
            return Progress::Changed;
        };
        let (runner_id, key, client) = (self.next_id, request.key.clone(), request.client);
        self.next_id += 1;
        let keep = request.keep_alive.unwrap_or(self.limits.keep_alive);
        let runner = Runner::new(now, runner_id, request, reduced.clone(), keep);
        self.actions.push(Action::Start(runner_id, key.clone(), runner.options.clone()));
        self.runners.insert(key, runner);
        self.queue.record_service(client);
        Progress::Busy
    }

    fn load(&mut self, key: &ModelKey, id: RunnerId) {
        self.actions.push(Action::Load(id));
        if let Some(runner) = self.runners.get_mut(key) {
            runner.state = RunnerState::Loading;
        }
    }

    fn memory(&self) -> Memory {
        self.memory.unwrap_or(Memory { total: u64::MAX, available: u64::MAX })
    }

    /// Bytes that a model may take in addition to the others. A plan that waits holds no memory
    /// yet.
    fn available_to(&self, key: &ModelKey) -> u64 {
        let Memory { total, available } = self.memory();
        let mut others = self
            .runners
            .iter()
            .filter(|(other, runner)| *other != key && runner.state != RunnerState::Waiting)
            .peekable();
        // The system counts mapped weights of other models as available, so their planned sizes are
        // subtracted instead.
        let max = if others.peek().is_none() { total.min(available) } else { total };
        max.saturating_sub(others.map(|(_, runner)| runner.size).fold(0, u64::saturating_add))
    }

    /// Loads the planned model if it fits. Otherwise evicts other models, reduces the context, or
    /// rejects the request.
    fn fit_in_memory(&mut self, now: Instant, id: RequestId, key: &ModelKey) -> Progress {
        let (room, Memory { total, available }) = (self.available_to(key), self.memory());
        let is_busy = self.is_loading_any();
        let alone = !self
            .runners
            .iter()
            .any(|(other, runner)| other != key && runner.state != RunnerState::Waiting);
        let since = self.queue.get(id).map_or(now, |waiting| waiting.since);
        let Some(runner) = self.runners.get_mut(key) else { return Progress::Changed };
        let (runner_id, need) = (runner.id, runner.size);
        match next_step(
            &runner.options,
            MemoryNeed { total: need, cache: runner.cache },
            MemorySpace { room, total, alone },
        ) {
            FitStep::HalveContext => {
                runner.options.halve_context();
                return self.replan(key);
            }
            FitStep::Load => {
                if !is_busy {
                    self.load(key, runner_id);
                }
                return Progress::Busy;
            }
            FitStep::EvictOthers => {
                self.evict_one(now, since, key, need - room);
                return Progress::Blocked;
            }
            FitStep::ReduceMemory if runner.options.reduce() => return self.replan(key),
            FitStep::ReduceMemory => {}
        }
        let requested = runner.requested.clone();
        self.stop(key);
        let available = if need <= total { available } else { total };
        self.refuse_all(key, &requested, &Refusal::TooLarge { need, available });
        Progress::Changed
    }

    /// Tells a runner to plan again with its reduced options.
    fn replan(&mut self, key: &ModelKey) -> Progress {
        if let Some(runner) = self.runners.get_mut(key) {
            runner.context = runner.options.num_ctx;
            runner.state = RunnerState::Planning;
            self.actions.push(Action::Replan(runner.id, runner.options.clone()));
        }
        Progress::Busy
    }

    /// Evicts the model with the lowest eviction order, unless one is leaving already. Prefers an
    /// idle model that alone frees `lack` bytes.
    fn evict_one(&mut self, now: Instant, since: Instant, except: &ModelKey, lack: u64) {
        if self.runners.values().any(Runner::is_leaving) {
            return;
        }
        let candidates = || {
            self.runners
                .iter()
                .filter(|(key, runner)| *key != except && runner.state == RunnerState::Ready)
        };
        let enough = candidates().filter(|(_, runner)| runner.is_idle() && runner.size >= lack);
        let victim = enough
            .min_by_key(|(_, runner)| runner.eviction_order(now))
            .or_else(|| candidates().min_by_key(|(_, runner)| runner.eviction_order(now)));
        if let Some(key) = victim.map(|(key, _)| key.clone()) {
            self.evict(now, since, &key, UnloadReason::MemoryNeeded);
        }
    }

    /// Evicts a model for a request that waits since `since`: at once if it is idle, else after its
    /// last request. A protected model is evicted later.
    fn evict(&mut self, now: Instant, since: Instant, key: &ModelKey, why: UnloadReason) {
        let Some(runner) = self.runners.get_mut(key) else { return };
        let at = runner.evictable_from().min(since + MAX_OVERTAKEN);
        if at > now {
            self.next_check = Some(at);
            return;
        }
        (runner.draining, runner.unload_reason) = (true, why);
        if runner.is_idle() {
            self.stop(key);
        }
    }

    fn stop(&mut self, key: &ModelKey) {
        if let Some(runner) = self.runners.get_mut(key)
            && runner.state != RunnerState::Stopping
        {
            if runner.state != RunnerState::Ready {
                runner.unload_reason = UnloadReason::LoadCancelled;
            }
            runner.state = RunnerState::Stopping;
            self.actions.push(Action::Stop(runner.id));
        }
    }

    fn find(&mut self, id: RunnerId) -> Option<(&ModelKey, &mut Runner)> {
        self.runners.iter_mut().find(|(_, runner)| runner.id == id)
    }
}
