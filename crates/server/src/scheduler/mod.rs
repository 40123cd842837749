//! Which models are in memory, and which request runs on which of them.
//!
//! [`Scheduler`] is a pure state machine: events go in, actions come out, and time is an argument. It knows models
//! only as a key, load options, bytes of memory, the requests that run on them and how long they stay. The task that
//! drives it is in `manager`.
//!
//! - Requests for a model that is ready are granted at once. All others wait in one queue, in order.
//! - At most one model is loaded at a time. A new runner first reports how much memory it is going to need; only when
//!   that fits does it load.
//! - Room is made by unloading idle models, the least recently used first. Where none is idle, the least recently
//!   used one takes no new requests and goes when its last one has ended.

mod options;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use puna_api::KeepAlive;

pub use options::{LoadOptions, REDUCED_CONTEXTS};

/// A request's number.
pub type RequestId = u64;

/// The number of one runner; never used again for another.
pub type RunId = u64;

/// What models are told apart by: the weights.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub String);

/// Limits of the whole server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Models in memory at once.
    pub max_loaded: usize,
    /// Requests that may wait for a model that is not ready.
    pub max_queue: usize,
    /// How long a model stays unless a request says otherwise.
    pub keep_alive: KeepAlive,
}

/// A request that needs a model.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// The model.
    pub key: Key,
    /// How the model is to be loaded.
    pub options: LoadOptions,
    /// How long it stays afterwards.
    pub keep_alive: Option<KeepAlive>,
}

/// What happens to the scheduler.
#[derive(Debug, Clone)]
pub enum Event {
    /// Somebody needs a model.
    Request(Request),
    /// A request has ended, or whoever waits for it has gone.
    Finished(RequestId),
    /// A runner knows how many bytes it is going to need.
    Planned(RunId, u64),
    /// A runner is ready, with this context length and this many bytes.
    Loaded(RunId, u32, u64),
    /// A runner has ended, wanted or not.
    Exited(RunId, Exit),
    /// A model is to go as soon as it is idle.
    Expire(Key),
    /// How much memory the machine has.
    Memory(Memory),
    /// Time has passed.
    Tick,
}

/// Why a runner ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// In words.
    pub reason: String,
    /// Whether it was for want of memory.
    pub out_of_memory: bool,
}

/// The machine's memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All that this process and its runners may use.
    pub total: u64,
    /// What could be had now without swapping.
    pub available: u64,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The request runs on this runner.
    Grant(RequestId, RunId),
    /// The request gets an error.
    Refuse(RequestId, Refusal),
    /// Start a runner and have it plan its memory.
    Start(RunId, Key, LoadOptions),
    /// Have a runner plan anew, with other options.
    Replan(RunId, LoadOptions),
    /// The planned memory fits: load.
    Load(RunId),
    /// End a runner.
    Stop(RunId),
}

/// Why a request gets no model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Too many requests wait.
    Busy,
    /// The model is larger than the memory.
    TooLarge {
        /// Bytes it needs.
        need: u64,
        /// Bytes there are.
        available: u64,
    },
    /// The runner ended before it was ready.
    LoadFailed(Exit),
}

/// Why a runner is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unload {
    /// Its time is over, or somebody asked for it.
    Idle,
    /// Another model needs its room.
    Room,
    /// It is to be loaded anew with other options.
    Reload,
    /// It was not ready yet, and nobody waits for it any more or it is too large.
    Unwanted,
}

impl Unload {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Room, Self::Reload, Self::Unwanted];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Room => "room",
            Self::Reload => "reload",
            Self::Unwanted => "unwanted",
        }
    }
}

/// A model that is or will be in memory, as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Which.
    pub key: Key,
    /// Its runner.
    pub run: RunId,
    /// Bytes it uses, or is going to use.
    pub size: u64,
    /// Tokens of one conversation.
    pub context: u32,
    /// When it goes unless it is used; `None` is never.
    pub expires: Option<Instant>,
    /// Whether it takes requests.
    pub ready: bool,
    /// Requests that run on it.
    pub in_flight: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its memory plan is awaited.
    Planning,
    /// Its memory plan waits for others to leave.
    Waiting,
    Loading,
    Ready,
    /// Told to end, and still there.
    Stopping,
}

#[derive(Debug)]
struct Run {
    id: RunId,
    /// As it was asked for.
    options: LoadOptions,
    /// Tokens of one conversation; once it is loaded, what the runner says.
    context: u32,
    state: State,
    size: u64,
    keep: KeepAlive,
    in_flight: BTreeSet<RequestId>,
    last_use: Instant,
    expires: Option<Instant>,
    /// Takes no new requests: somebody waits for its room.
    draining: bool,
    /// Why it goes, when it goes.
    leaves: Unload,
}

impl Run {
    fn is_idle(&self) -> bool {
        self.state == State::Ready && self.in_flight.is_empty()
    }

    fn takes(&self, request: &Request) -> bool {
        self.state == State::Ready && !self.draining && self.fits(&request.options)
    }

    /// Whether it serves requests with these options: those for which it was loaded, whatever context came of them, and
    /// those that name that context.
    fn fits(&self, wanted: &LoadOptions) -> bool {
        let actual = || LoadOptions { num_ctx: self.context, ..self.options.clone() };
        !self.options.needs_reload(wanted) || !actual().needs_reload(wanted)
    }
}

/// The state machine.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    memory: Option<Memory>,
    runs: BTreeMap<Key, Run>,
    queue: VecDeque<Request>,
    /// The head of the queue has had everybody else unloaded after a failure for want of memory.
    retried: bool,
    next_run: RunId,
    actions: Vec<Action>,
}

impl Scheduler {
    /// A scheduler without models.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            memory: None,
            runs: BTreeMap::new(),
            queue: VecDeque::new(),
            retried: false,
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
            Event::Loaded(run, context, size) => self.loaded(run, context, size),
            Event::Exited(run, exit) => self.exited(now, run, exit),
            Event::Expire(key) => self.expire(now, &key),
            Event::Memory(memory) => self.memory = Some(memory),
            Event::Tick => {}
        }
        self.unload_expired(now);
        self.advance(now);
        std::mem::take(&mut self.actions)
    }

    /// When [`Event::Tick`] is due next.
    pub fn deadline(&self) -> Option<Instant> {
        self.runs.values().filter(|run| run.is_idle()).filter_map(|run| run.expires).min()
    }

    /// The models in memory.
    pub fn view(&self, now: Instant) -> Vec<View> {
        let one = |(key, run): (&Key, &Run)| View {
            key: key.clone(),
            run: run.id,
            size: run.size,
            context: run.context,
            expires: if run.is_idle() { run.expires } else { expiry(now, run.keep) },
            ready: run.state == State::Ready,
            in_flight: run.in_flight.len(),
        };
        self.runs.iter().filter(|(_, run)| run.state != State::Stopping).map(one).collect()
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
            return grant(&mut self.actions, now, run, &request);
        }
        // The request whose load is under way does not wait any more.
        let waiting = self.queue.len() - usize::from(self.head_is_loading());
        if waiting >= self.limits.max_queue && !self.queue.is_empty() {
            return self.actions.push(Action::Refuse(request.id, Refusal::Busy));
        }
        self.queue.push_back(request);
    }

    fn finished(&mut self, now: Instant, id: RequestId) {
        for run in self.runs.values_mut() {
            if run.in_flight.remove(&id) {
                run.last_use = now;
                run.expires = expiry(now, run.keep);
                return;
            }
        }
        let Some(at) = self.queue.iter().position(|request| request.id == id) else { return };
        let loading = self.head_is_loading();
        let Some(request) = self.queue.remove(at) else { return };
        if at == 0 {
            self.head_has_left();
            // Nobody else wants what is being loaded: stop it.
            let wanted = self.queue.iter().any(|other| other.key == request.key);
            if loading && !wanted {
                self.stop(&request.key);
            }
        }
    }

    fn planned(&mut self, id: RunId, need: u64) {
        if let Some((_, run)) = self.find(id)
            && run.state == State::Planning
        {
            run.size = need;
            run.state = State::Waiting;
        }
    }

    fn loaded(&mut self, id: RunId, context: u32, size: u64) {
        if let Some((_, run)) = self.find(id)
            && run.state == State::Loading
        {
            run.context = context;
            run.size = size;
            run.state = State::Ready;
        }
    }

    fn exited(&mut self, now: Instant, id: RunId, exit: Exit) {
        let Some((key, run)) = self.find(id) else { return };
        let (key, state, mut options) = (key.clone(), run.state, run.options.clone());
        self.runs.remove(&key);
        match state {
            State::Ready if exit.out_of_memory => self.expire_all(now),
            State::Planning | State::Waiting | State::Loading => {
                let wants = self.queue.front().is_some_and(|head| head.key == key);
                if !wants {
                    return;
                }
                if exit.out_of_memory && options.reduce() {
                    if let Some(head) = self.queue.front_mut() {
                        head.options = options;
                    }
                    self.expire_all(now);
                } else if exit.out_of_memory && !self.retried && !self.runs.is_empty() {
                    self.retried = true;
                    self.expire_all(now);
                } else {
                    self.refuse_head(Refusal::LoadFailed(exit));
                }
            }
            State::Ready | State::Stopping => {}
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
            self.set_leaves(key, Unload::Room);
        }
    }

    /// Stops every idle model whose time is over or whose room is wanted.
    fn unload_expired(&mut self, now: Instant) {
        let over = |run: &Run| run.is_idle() && (run.draining || run.expires.is_some_and(|at| at <= now));
        // A model that was just loaded is not idle: the head of the queue is about to use it.
        let next = self.queue.front().map(|head| &head.key);
        let keys: Vec<Key> = self
            .runs
            .iter()
            .filter(|(key, run)| over(run) && (Some(*key) != next || run.draining))
            .map(|(key, _)| key.clone())
            .collect();
        keys.iter().for_each(|key| self.stop(key));
    }

    /// Serves the queue in order, as far as that is possible now.
    fn advance(&mut self, now: Instant) {
        loop {
            self.grant_ready(now);
            let Some(head) = self.queue.front().cloned() else { return };
            let goes_on = match self.runs.get(&head.key) {
                None => self.start(now, &head),
                Some(run) => match run.state {
                    State::Ready => self.evict_key(&head.key, Unload::Reload),
                    State::Waiting => self.fit(&head),
                    State::Planning | State::Loading | State::Stopping => false,
                },
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Grants what waits for a model that is ready by now, wherever in the queue.
    fn grant_ready(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.queue.len() {
            let request = &self.queue[at];
            match self.runs.get_mut(&request.key) {
                Some(run) if run.takes(request) => {
                    grant(&mut self.actions, now, run, request);
                    self.queue.remove(at);
                    if at == 0 {
                        self.head_has_left();
                    }
                }
                _ => at += 1,
            }
        }
    }

    /// Starts a runner for the head of the queue, or makes room in the number of models.
    fn start(&mut self, now: Instant, head: &Request) -> bool {
        if self.runs.len() >= self.limits.max_loaded.max(1) {
            self.evict_one(&head.key);
            return false;
        }
        let id = self.next_run;
        self.next_run += 1;
        let run = Run {
            id,
            options: head.options.clone(),
            context: head.options.num_ctx,
            state: State::Planning,
            size: 0,
            keep: head.keep_alive.unwrap_or(self.limits.keep_alive),
            in_flight: BTreeSet::new(),
            last_use: now,
            expires: None,
            draining: false,
            leaves: Unload::Idle,
        };
        self.runs.insert(head.key.clone(), run);
        self.actions.push(Action::Start(id, head.key.clone(), head.options.clone()));
        false
    }

    /// Loads the planned model if it fits, else makes room, else shrinks its context, else refuses.
    /// Returns whether the queue has a new head.
    fn fit(&mut self, head: &Request) -> bool {
        let memory = self.memory.unwrap_or(Memory { total: u64::MAX, available: u64::MAX });
        let others = || self.runs.iter().filter(|(key, _)| **key != head.key).map(|(_, run)| run);
        let used: u64 = others().map(|run| run.size).sum();
        let alone = others().next().is_none();
        let Some(run) = self.runs.get(&head.key) else { return false };
        let (id, need) = (run.id, run.size);
        // Mapped weights of others count as available to the system; the plan's sum holds in any case.
        let room = memory.total.saturating_sub(used).min(memory.available.max(if alone { 0 } else { need }));
        if need <= room {
            self.actions.push(Action::Load(id));
            self.set_state(&head.key, State::Loading);
            return false;
        }
        let fits_alone = need <= memory.total;
        if !alone && fits_alone {
            self.evict_one(&head.key);
            return false;
        }
        let Some(run) = self.runs.get_mut(&head.key) else { return false };
        if run.options.reduce() {
            let options = run.options.clone();
            run.context = options.num_ctx;
            run.state = State::Planning;
            if let Some(head) = self.queue.front_mut() {
                head.options = options.clone();
            }
            self.actions.push(Action::Replan(id, options));
            return false;
        }
        self.stop(&head.key);
        let available = if fits_alone { memory.available } else { memory.total };
        self.refuse_head(Refusal::TooLarge { need, available });
        true
    }

    /// Makes the least valuable model leave, unless one is leaving already.
    fn evict_one(&mut self, except: &Key) {
        let leaving = |run: &Run| run.state == State::Stopping || run.draining;
        if self.runs.values().any(leaving) {
            return;
        }
        let candidates = self.runs.iter().filter(|(key, run)| *key != except && run.state == State::Ready);
        let victim =
            candidates.min_by_key(|(_, run)| (!run.is_idle(), run.last_use)).map(|(key, _)| key.clone());
        if let Some(key) = victim {
            self.evict_key(&key, Unload::Room);
        }
    }

    /// Makes a model leave: at once if it is idle, else when its last request ends.
    fn evict_key(&mut self, key: &Key, why: Unload) -> bool {
        let Some(run) = self.runs.get_mut(key) else { return false };
        (run.draining, run.leaves) = (true, why);
        if run.is_idle() {
            self.stop(key);
        }
        false
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

    fn refuse_head(&mut self, refusal: Refusal) {
        if let Some(head) = self.queue.pop_front() {
            self.actions.push(Action::Refuse(head.id, refusal));
        }
        self.head_has_left();
    }

    /// What was done for the head of the queue is undone: models that were to make room for it take requests again. The
    /// next head chooses anew.
    fn head_has_left(&mut self) {
        self.retried = false;
        for run in self.runs.values_mut().filter(|run| run.state == State::Ready && run.draining) {
            (run.draining, run.leaves) = (false, Unload::Idle);
        }
    }

    fn head_is_loading(&self) -> bool {
        let run = self.queue.front().and_then(|head| self.runs.get(&head.key));
        run.is_some_and(|run| matches!(run.state, State::Planning | State::Waiting | State::Loading))
    }

    fn set_state(&mut self, key: &Key, state: State) {
        if let Some(run) = self.runs.get_mut(key) {
            run.state = state;
        }
    }

    fn set_leaves(&mut self, key: &Key, why: Unload) {
        if let Some(run) = self.runs.get_mut(key) {
            run.leaves = why;
        }
    }

    fn find(&mut self, id: RunId) -> Option<(&Key, &mut Run)> {
        self.runs.iter_mut().find(|(_, run)| run.id == id)
    }
}

fn grant(actions: &mut Vec<Action>, now: Instant, run: &mut Run, request: &Request) {
    if let Some(keep) = request.keep_alive {
        run.keep = keep;
    }
    run.in_flight.insert(request.id);
    run.last_use = now;
    run.expires = expiry(now, run.keep);
    actions.push(Action::Grant(request.id, run.id));
}

fn expiry(now: Instant, keep: KeepAlive) -> Option<Instant> {
    match keep {
        KeepAlive::For(time) => now.checked_add(time),
        KeepAlive::Forever => None,
    }
}
