//! The state machine itself.
//!
//! One request is the *next*: its model is planned, given room, loaded. Where it has to wait for room, smaller models may
//! pass it for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use puna_api::KeepAlive;

use super::fit::{Space, Step, next_step};
use super::queue::{Queue, Waiting};
use super::run::{Run, expiry};
use super::{
    Action, Event, Exit, Key, Limits, LoadOptions, Memory, Need, Phase, Refusal, Request,
    RequestId, RunId, State, Unload, View,
};

/// A request that has waited for so long has models leave as soon as it can, and nobody passes it any more.
const PATIENCE: Duration = Duration::from_secs(15);

/// The state machine.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    memory: Option<Memory>,
    runs: BTreeMap<Key, Run>,
    queue: Queue,
    /// Whose turn it is.
    next: Option<RequestId>,
    /// The next one has had everybody else unloaded after a failure for want of memory.
    retried: bool,
    /// When somebody may leave who may not yet.
    recheck: Option<Instant>,
    next_run: RunId,
    actions: Vec<Action>,
}

/// How far things are with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Something has changed: look again.
    Again,
    /// Its model is being planned or loaded, or a process is ending.
    UnderWay,
    /// It waits for room.
    Blocked,
}

impl Scheduler {
    /// A scheduler without models.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            memory: None,
            runs: BTreeMap::new(),
            queue: Queue::default(),
            next: None,
            retried: false,
            recheck: None,
            next_run: 1,
            actions: Vec::new(),
        }
    }

    /// Takes an event; returns what is to be done.
    pub fn handle(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Request(request) => self.request(now, request),
            Event::Finished(id) => self.finished(now, id),
            Event::Planned(run, need) => self.planned(run, need),
            Event::Loaded(run, context, size) => self.loaded(now, run, context, size),
            Event::Exited(run, exit) => self.exited(now, run, exit),
            Event::Expire(key) => self.expire(now, &key),
            Event::Memory(memory) => self.memory = Some(memory),
            Event::Tick => {}
        }
        // What was just loaded is not idle: somebody waits for it.
        self.grant_ready(now);
        self.unload_expired(now);
        self.advance(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Event::Tick`] is due next.
    pub fn deadline(&self) -> Option<Instant> {
        let expiries = self.runs.values().filter(|run| run.is_idle()).filter_map(|run| run.expires);
        expiries.chain(self.recheck).min()
    }

    /// The models in memory.
    pub fn view(&self, now: Instant) -> Vec<View> {
        let one = |(key, run): (&Key, &Run)| View {
            key: key.clone(),
            run: run.id,
            size: run.size,
            context: run.limit.map_or(run.context, |limit| limit.min(run.context)),
            window: run.context,
            expires: if run.is_idle() { run.expires } else { expiry(now, run.keep) },
            phase: match run.state {
                State::Planning => Phase::Planning,
                State::Waiting => Phase::Waiting,
                State::Loading => Phase::Loading,
                State::Ready | State::Stopping => Phase::Ready,
            },
            in_flight: run.in_flight.len(),
        };
        self.runs.iter().filter(|(_, run)| run.state != State::Stopping).map(one).collect()
    }

    /// Whether a plan is held against the machine's memory at the next event: else what [`Event::Memory`] said does not matter.
    /// After [`Event::Planned`] it always is.
    pub fn weighs_memory(&self) -> bool {
        self.runs.values().any(|run| run.state == State::Waiting)
    }

    /// Requests that wait for a model.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Why a runner is told to end.
    pub fn unload(&self, id: RunId) -> Option<Unload> {
        self.runs.values().find(|run| run.id == id).map(|run| run.leaves)
    }

    fn request(&mut self, now: Instant, request: Request) {
        if let Some(run) = self.runs.get_mut(&request.key)
            && run.takes(&request)
        {
            run.take(now, &request);
            return self.actions.push(Action::Grant(request.id, run.id));
        }
        // The request whose load is under way does not wait any more.
        let loading = self.next.filter(|id| self.is_loading(*id));
        let waiting = self.queue.len() - usize::from(loading.is_some());
        if waiting >= self.limits.max_queue && self.queue.len() > 0 {
            let Some(other) = self.queue.makes_place_for(request.client, loading) else {
                return self.actions.push(Action::Refuse(request.id, Refusal::Busy));
            };
            self.queue.remove(other);
            self.actions.push(Action::Refuse(other, Refusal::Busy));
            self.has_left(other);
        }
        self.queue.push(now, request);
    }

    /// Whether a request's model is on its way into memory.
    fn is_loading(&self, id: RequestId) -> bool {
        let run = self.queue.get(id).and_then(|w| self.runs.get(&w.request.key));
        run.is_some_and(|run| {
            matches!(run.state, State::Planning | State::Waiting | State::Loading)
        })
    }

    fn finished(&mut self, now: Instant, id: RequestId) {
        for run in self.runs.values_mut() {
            if run.in_flight.remove(&id) {
                run.last_use = now;
                run.expires = expiry(now, run.keep);
                return;
            }
        }
        if self.queue.remove(id).is_some() {
            self.has_left(id);
        }
    }

    /// A request waits no more. Models that were to make room for it take requests again; the next one chooses anew.
    /// What is being loaded and nobody else wants is stopped.
    fn has_left(&mut self, id: RequestId) {
        if self.next == Some(id) {
            self.next = None;
            self.retried = false;
            for run in
                self.runs.values_mut().filter(|run| run.state == State::Ready && run.draining)
            {
                (run.draining, run.leaves) = (false, Unload::Idle);
            }
            self.queue.iter_mut().for_each(|waiting| waiting.stays_behind = false);
        }
        let wanted = |key: &Key| self.queue.iter().any(|w| w.request.key == *key);
        let early =
            |run: &Run| matches!(run.state, State::Planning | State::Waiting | State::Loading);
        let unwanted: Vec<Key> = self
            .runs
            .iter()
            .filter(|(key, run)| early(run) && !wanted(key))
            .map(|(key, _)| key.clone())
            .collect();
        unwanted.iter().for_each(|key| self.stop(key));
    }

    fn planned(&mut self, id: RunId, need: Need) {
        if let Some((_, run)) = self.find(id)
            && run.state == State::Planning
        {
            (run.size, run.cache) = (need.total, need.cache);
            run.state = State::Waiting;
        }
    }

    fn loaded(&mut self, now: Instant, id: RunId, context: u32, size: u64) {
        if let Some((_, run)) = self.find(id)
            && run.state == State::Loading
        {
            run.context = context;
            run.size = size;
            run.state = State::Ready;
            run.load = now.duration_since(run.started);
            run.last_use = now;
        }
    }

    fn exited(&mut self, now: Instant, id: RunId, exit: Exit) {
        let Some((key, run)) = self.find(id) else { return };
        let (key, state, mut options, asked) =
            (key.clone(), run.state, run.options.clone(), run.asked.clone());
        self.runs.remove(&key);
        match state {
            State::Ready if exit.out_of_memory => self.expire_all(now),
            State::Planning | State::Waiting | State::Loading => {
                let first = !self.queue.iter().any(|w| w.request.key == key && w.reduced.is_some());
                if exit.out_of_memory && first && options.reduce_once() {
                    let all = self.waits_for(&key, &asked);
                    all.for_each(|waiting| waiting.reduced = Some(options.clone()));
                    return self.expire_all(now);
                }
                let next = self.next.and_then(|id| self.queue.get(id));
                let is_next = next.is_some_and(|w| w.request.key == key);
                if exit.out_of_memory && is_next && !self.retried && !self.runs.is_empty() {
                    self.retried = true;
                    return self.expire_all(now);
                }
                self.refuse_all(&key, &asked, &Refusal::LoadFailed(exit));
            }
            State::Ready | State::Stopping => {}
        }
    }

    /// Those that wait for a model with the same options.
    fn waits_for(&mut self, key: &Key, asked: &LoadOptions) -> impl Iterator<Item = &mut Waiting> {
        self.queue.iter_mut().filter(|w| w.request.key == *key && w.request.options == *asked)
    }

    fn refuse_all(&mut self, key: &Key, asked: &LoadOptions, refusal: &Refusal) {
        let same = |w: &mut Waiting| w.request.key == *key && w.request.options == *asked;
        for Waiting { request, .. } in self.queue.remove_if(same) {
            self.actions.push(Action::Refuse(request.id, refusal.clone()));
            self.has_left(request.id);
        }
    }

    fn expire(&mut self, now: Instant, key: &Key) {
        if let Some(run) = self.runs.get_mut(key) {
            run.keep = KeepAlive::For(Duration::ZERO);
            run.expires = Some(now);
        }
    }

    fn expire_all(&mut self, now: Instant) {
        let keys: Vec<Key> = self.runs.keys().cloned().collect();
        for key in &keys {
            self.expire(now, key);
            if let Some(run) = self.runs.get_mut(key) {
                run.leaves = Unload::Room;
            }
        }
    }

    /// Stops every idle model whose time is over or whose room is wanted.
    fn unload_expired(&mut self, now: Instant) {
        let over =
            |run: &Run| run.is_idle() && (run.draining || run.expires.is_some_and(|at| at <= now));
        let keys: Vec<Key> =
            self.runs.iter().filter(|(_, run)| over(run)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.stop(key));
    }

    /// Grants what waits for a model that is ready by now, wherever in the queue.
    fn grant_ready(&mut self, now: Instant) {
        let runs = &mut self.runs;
        let mut grants = Vec::new();
        self.queue.remove_if(|waiting| {
            let Some(run) = runs.get_mut(&waiting.request.key) else { return false };
            let takes = run.takes(&waiting.request);
            if takes {
                run.take(now, &waiting.request);
                grants.push((waiting.request.id, run.id));
            }
            takes
        });
        for (id, run) in grants {
            self.actions.push(Action::Grant(id, run));
            self.has_left(id);
        }
    }

    /// Serves the queue as far as that is possible now.
    fn advance(&mut self, now: Instant) {
        self.recheck = None;
        loop {
            self.grant_ready(now);
            let Some(id) = self.next.or_else(|| self.queue.in_turn().first().copied()) else {
                return;
            };
            self.next = Some(id);
            match self.work_for(now, id) {
                Progress::Again => {}
                Progress::UnderWay => return,
                Progress::Blocked => match self.let_pass(now, id) {
                    Progress::Again => {}
                    Progress::UnderWay | Progress::Blocked => return,
                },
            }
        }
    }

    /// Does what can be done now for the request whose turn it is.
    fn work_for(&mut self, now: Instant, id: RequestId) -> Progress {
        let Some(waiting) = self.queue.get(id) else { return Progress::Again };
        let (key, since) = (waiting.request.key.clone(), waiting.since);
        match self.runs.get(&key).map(|run| run.state) {
            None if self.runs.len() >= self.limits.max_loaded.max(1) => {
                self.evict_one(now, since, &key, 0);
                Progress::Blocked
            }
            // One model after the other: somebody passes.
            None if self.is_busy_loading() => Progress::UnderWay,
            None => self.start(now, id),
            Some(State::Ready) => {
                self.evict(now, since, &key, Unload::Reload);
                Progress::Blocked
            }
            Some(State::Waiting) => self.fit(now, id, &key),
            Some(State::Planning | State::Loading | State::Stopping) => Progress::UnderWay,
        }
    }

    /// Whether a runner plans or loads.
    fn is_busy_loading(&self) -> bool {
        self.runs.values().any(|run| matches!(run.state, State::Planning | State::Loading))
    }

    /// Serves somebody for whom there is room now, while the next one waits for more.
    fn let_pass(&mut self, now: Instant, next: RequestId) -> Progress {
        let Some(first) = self.queue.get(next) else { return Progress::Again };
        let key = first.request.key.clone();
        let until = first.since + PATIENCE;
        if now >= until || self.is_busy_loading() {
            return Progress::Blocked;
        }
        for id in self.queue.in_turn() {
            let Some(other) = self.queue.get(id) else { continue };
            let (own, behind) = (other.request.key.clone(), other.stays_behind);
            if own == key || behind {
                continue;
            }
            match self.runs.get(&own).map(|run| (run.state, run.id, run.size)) {
                None if self.runs.len() < self.limits.max_loaded.max(1) => {
                    return self.start(now, id);
                }
                Some((State::Waiting, run, need)) if need <= self.room(&own) => {
                    self.load(&own, run);
                    return Progress::UnderWay;
                }
                Some((State::Waiting, ..)) => {
                    self.stop(&own);
                    self.queue
                        .iter_mut()
                        .filter(|w| w.request.key == own)
                        .for_each(|w| w.stays_behind = true);
                    return Progress::UnderWay;
                }
                _ => {}
            }
        }
        Progress::Blocked
    }

    /// Starts a runner for a request.
    fn start(&mut self, now: Instant, id: RequestId) -> Progress {
        let Some(Waiting { request, reduced, .. }) = self.queue.get(id) else {
            return Progress::Again;
        };
        let (run_id, key, client) = (self.next_run, request.key.clone(), request.client);
        self.next_run += 1;
        let keep = request.keep_alive.unwrap_or(self.limits.keep_alive);
        let run = Run::new(now, run_id, request, reduced.clone(), keep);
        self.actions.push(Action::Start(run_id, key.clone(), run.options.clone()));
        self.runs.insert(key, run);
        self.queue.had_turn(client);
        Progress::UnderWay
    }

    fn load(&mut self, key: &Key, id: RunId) {
        self.actions.push(Action::Load(id));
        if let Some(run) = self.runs.get_mut(key) {
            run.state = State::Loading;
        }
    }

    fn memory(&self) -> Memory {
        self.memory.unwrap_or(Memory { total: u64::MAX, available: u64::MAX })
    }

    /// Bytes that a model may take beside the others. A plan that waits holds nothing yet.
    fn room(&self, key: &Key) -> u64 {
        let Memory { total, available } = self.memory();
        let mut others = self
            .runs
            .iter()
            .filter(|(other, run)| *other != key && run.state != State::Waiting)
            .peekable();
        // Mapped weights of others count as available to the system; the plan's sum holds in any case.
        let most = if others.peek().is_none() { total.min(available) } else { total };
        most.saturating_sub(others.map(|(_, run)| run.size).fold(0, u64::saturating_add))
    }

    /// Loads the planned model if it fits, else makes room, else shrinks its context, else refuses.
    fn fit(&mut self, now: Instant, id: RequestId, key: &Key) -> Progress {
        let (room, Memory { total, available }) = (self.room(key), self.memory());
        let is_busy = self.is_busy_loading();
        let alone =
            !self.runs.iter().any(|(other, run)| other != key && run.state != State::Waiting);
        let since = self.queue.get(id).map_or(now, |waiting| waiting.since);
        let Some(run) = self.runs.get_mut(key) else { return Progress::Again };
        let (run_id, need) = (run.id, run.size);
        match next_step(
            &run.options,
            Need { total: need, cache: run.cache },
            Space { room, total, alone },
        ) {
            Step::HalveContext => {
                run.options.halve_context();
                return self.replan(key);
            }
            Step::Load => {
                if !is_busy {
                    self.load(key, run_id);
                }
                return Progress::UnderWay;
            }
            Step::MakeRoom => {
                self.evict_one(now, since, key, need - room);
                return Progress::Blocked;
            }
            Step::Reduce if run.options.reduce() => return self.replan(key),
            Step::Reduce => {}
        }
        let asked = run.asked.clone();
        self.stop(key);
        let available = if need <= total { available } else { total };
        self.refuse_all(key, &asked, &Refusal::TooLarge { need, available });
        Progress::Again
    }

    /// Has a runner plan with its reduced options.
    fn replan(&mut self, key: &Key) -> Progress {
        if let Some(run) = self.runs.get_mut(key) {
            run.context = run.options.num_ctx;
            run.state = State::Planning;
            self.actions.push(Action::Replan(run.id, run.options.clone()));
        }
        Progress::UnderWay
    }

    /// Makes the least valuable model leave, unless one is leaving already: of idle ones that one alone which makes room
    /// enough for `lack` bytes, if there is one.
    fn evict_one(&mut self, now: Instant, since: Instant, except: &Key, lack: u64) {
        if self.runs.values().any(Run::is_leaving) {
            return;
        }
        let candidates =
            || self.runs.iter().filter(|(key, run)| *key != except && run.state == State::Ready);
        let enough = candidates().filter(|(_, run)| run.is_idle() && run.size >= lack);
        let victim = enough
            .min_by_key(|(_, run)| run.value(now))
            .or_else(|| candidates().min_by_key(|(_, run)| run.value(now)));
        if let Some(key) = victim.map(|(key, _)| key.clone()) {
            self.evict(now, since, &key, Unload::Room);
        }
    }

    /// Makes a model leave for a request that waits since then: at once if it is idle, else when its last request ends;
    /// and not before it has been of some use.
    fn evict(&mut self, now: Instant, since: Instant, key: &Key, why: Unload) {
        let Some(run) = self.runs.get_mut(key) else { return };
        let at = run.may_leave().min(since + PATIENCE);
        if at > now {
            self.recheck = Some(at);
            return;
        }
        (run.draining, run.leaves) = (true, why);
        if run.is_idle() {
            self.stop(key);
        }
    }

    fn stop(&mut self, key: &Key) {
        if let Some(run) = self.runs.get_mut(key)
            && run.state != State::Stopping
        {
            if run.state != State::Ready {
                run.leaves = Unload::Unwanted;
            }
            run.state = State::Stopping;
            self.actions.push(Action::Stop(run.id));
        }
    }

    fn find(&mut self, id: RunId) -> Option<(&Key, &mut Run)> {
        self.runs.iter_mut().find(|(_, run)| run.id == id)
    }
}
