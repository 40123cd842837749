//! The task that drives the scheduler: it starts and ends runners and hands them to requests.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::join_all;
use puna_api::KeepAlive;
use puna_api::native::ModelDetails;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep_until, timeout};

use crate::canonical::{Failure, Task};
use crate::end::shutting_down;
use crate::figures::Figures;
use crate::http::room::Share;
use crate::memory::human;
use crate::panics::text_of;
use crate::places::{self, Receiver, Sender};
use crate::runner::launch::Launcher;
use crate::runner::link::{Events, Link, Notice};
use crate::runner::protocol::{Counts, LoadSpec, Pulse};
use crate::scheduler::{
    Action, Event, Exit, Key, Limits, Memory, Need, Phase, Refusal, Request, RequestId, RunId,
    Scheduler, Unload,
};

/// How long runners may take to end with the server.
const FAREWELL: Duration = Duration::from_secs(2);

/// Questions that wait for the manager at once, so that no crowd fills the memory while it is held up.
const QUESTIONS: usize = 256;

/// Names of one runner that are remembered.
const NAMES: usize = 64;

/// A need for a model.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// Who asks.
    pub(crate) client: u64,
    /// The model.
    pub(crate) key: Key,
    /// What to load.
    pub(crate) spec: LoadSpec,
    /// Tokens of its context at most, if it says so.
    pub(crate) num_ctx: Option<u32>,
    /// How long it stays afterwards.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// What a list of loaded models shows.
    pub(crate) about: About,
}

/// What a list of loaded models shows about one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) details: ModelDetails,
}

/// A model in memory.
#[derive(Debug, Clone)]
pub(crate) struct Resident {
    pub(crate) key: Key,
    pub(crate) about: About,
    /// Other names that it was used by.
    pub(crate) also: Vec<String>,
    pub(crate) size: u64,
    /// Tokens of one conversation, as the last request had it.
    pub(crate) context: u32,
    /// Tokens of one conversation at most where a request sets no limit.
    pub(crate) window: u32,
    /// When it goes unless it is used; `None` is never.
    pub(crate) expires: Option<SystemTime>,
    /// How far it is on its way into memory.
    pub(crate) phase: Phase,
}

/// What all runners do and have done.
#[derive(Debug, Default)]
pub(crate) struct Runners {
    /// Requests that wait for a model.
    pub(crate) waiting: usize,
    /// By the name for which the model was loaded.
    pub(crate) models: BTreeMap<String, OfRunners>,
}

/// What the runners of a model do and have done.
#[derive(Debug, Default)]
pub(crate) struct OfRunners {
    /// All of them together, also those that are gone.
    pub(crate) counts: Counts,
    /// Those that are there.
    pub(crate) now: Vec<Pulse>,
}

/// A model that a request may use until this is dropped.
pub(crate) struct Lease {
    link: Link,
    _finished: Finished,
}

impl Lease {
    /// Has a task of a client done, with which that memory is held until the runner has taken it.
    pub(crate) async fn submit(
        &self,
        client: u64,
        task: Task,
        share: Option<Arc<Share>>,
    ) -> Events {
        self.link.submit_holding(client, task, share).await
    }
}

/// Tells the manager that a request has ended, or waits no more.
struct Finished {
    id: RequestId,
    /// Nothing, once somebody else tells it.
    to: Option<Sender<Command>>,
}

impl Drop for Finished {
    fn drop(&mut self) {
        if let Some(to) = &self.to {
            to.push(Command::Event(Event::Finished(self.id)));
        }
    }
}

/// What is asked waits for one of [`QUESTIONS`] places; what is told does not, and there is no more of it than there are runners,
/// and requests whose `Acquire` had one.
enum Command {
    Acquire(RequestId, Box<Ask>, oneshot::Sender<Result<Lease, Failure>>),
    Event(Event),
    Notice(RunId, Notice),
    Stalled(RunId, u32),
    List(oneshot::Sender<Vec<Resident>>),
    Links(oneshot::Sender<Vec<Link>>),
    Runners(oneshot::Sender<Runners>),
    Shutdown(oneshot::Sender<()>),
}

/// How long runners may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// For each phase of loading; `None` is for ever.
    pub(crate) load: Option<Duration>,
    /// For a single step of the model; `None` is for ever.
    pub(crate) step: Option<Duration>,
}

/// Reads the machine's memory.
pub(crate) type MemorySource = fn() -> Memory;

/// The models in memory. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Models {
    to: Sender<Command>,
    next_request: Arc<AtomicU64>,
    /// What the task has panicked with.
    broken: watch::Receiver<Option<String>>,
}

impl Models {
    /// Starts the task.
    pub(crate) fn start(
        limits: Limits,
        launcher: Arc<dyn Launcher>,
        memory: MemorySource,
        patience: Patience,
        figures: Arc<Figures>,
    ) -> Self {
        let (to, commands) = places::channel(QUESTIONS);
        let manager = Manager {
            scheduler: Scheduler::new(limits),
            launcher,
            memory,
            patience,
            figures,
            ended: BTreeMap::new(),
            runners: HashMap::new(),
            waiting: HashMap::new(),
            to: to.clone(),
        };
        let (tell, broken) = watch::channel(None);
        puna_tasks::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(manager.run(commands)).catch_unwind().await {
                tell.send_replace(Some(text_of(&*panic).to_owned()));
            }
        });
        Self { to, next_request: Arc::new(AtomicU64::new(1)), broken }
    }

    /// Waits until the task has broken down, without which no model can be used: what its panic says.
    pub(crate) async fn broken(&self) -> String {
        let mut broken = self.broken.clone();
        let reason = broken.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // It has ended as it should.
            None => std::future::pending().await,
        }
    }

    /// Waits until a model is ready for a request. Giving up is fine at any time.
    pub(crate) async fn acquire(&self, ask: Ask) -> Result<Lease, Failure> {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let mut waits = Finished { id, to: None };
        let (reply, answer) = oneshot::channel();
        if !self.to.send(Command::Acquire(id, Box::new(ask), reply)).await {
            return Err(shutting_down());
        }
        waits.to = Some(self.to.clone());
        let answer = answer.await;
        // From here on the lease tells when the request ends.
        waits.to = None;
        answer.map_err(|_| shutting_down())?
    }

    /// The answer to a question; nothing if the manager has ended.
    async fn answer<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.to.send(question(reply)).await;
        answer.await.ok()
    }

    /// Has a model unloaded as soon as it is idle.
    pub(crate) async fn expire(&self, key: Key) {
        self.to.send(Command::Event(Event::Expire(key))).await;
    }

    /// The models in memory.
    pub(crate) async fn list(&self) -> Vec<Resident> {
        self.answer(Command::List).await.unwrap_or_default()
    }

    /// What all runners do and have done.
    pub(crate) async fn runners(&self) -> Runners {
        let links = self.answer(Command::Links).await.unwrap_or_default();
        join_all(links.iter().map(Link::refresh)).await;
        self.answer(Command::Runners).await.unwrap_or_default()
    }

    /// Ends all runners and the task.
    pub(crate) async fn shutdown(&self) {
        let (reply, answer) = oneshot::channel();
        self.to.push(Command::Shutdown(reply));
        let _ = answer.await;
    }
}

struct Waiting {
    ask: Ask,
    reply: oneshot::Sender<Result<Lease, Failure>>,
}

struct Runner {
    link: Link,
    about: About,
    /// Other names of the same weights, by which it was used.
    also: Vec<String>,
    spec: LoadSpec,
    /// Number of the present phase of loading.
    phase: u32,
    pid: u32,
    started: Instant,
    loaded: bool,
    /// It was told to end.
    stopping: bool,
}

impl Runner {
    /// Notes a name by which it is used.
    fn is_used_by(&mut self, name: &str) {
        let is_new = self.about.name != name && !self.also.iter().any(|other| other == name);
        if is_new && self.also.len() < NAMES {
            self.also.push(name.to_owned());
        }
    }
}

struct Manager {
    scheduler: Scheduler,
    launcher: Arc<dyn Launcher>,
    memory: MemorySource,
    patience: Patience,
    figures: Arc<Figures>,
    /// What runners that are gone have done, by model.
    ended: BTreeMap<String, Counts>,
    runners: HashMap<RunId, Runner>,
    waiting: HashMap<RequestId, Waiting>,
    to: Sender<Command>,
}

impl Manager {
    async fn run(mut self, mut commands: Receiver<Command>) {
        loop {
            let deadline = self.scheduler.deadline();
            let tick = async {
                match deadline {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let command = tokio::select! {
                command = commands.recv() => command,
                () = tick => Some(Command::Event(Event::Tick)),
            };
            match command {
                None => return,
                Some(Command::Shutdown(done)) => {
                    let _ = timeout(FAREWELL, self.end_all(&mut commands)).await;
                    let _ = done.send(());
                    return;
                }
                Some(command) => self.take(command),
            }
        }
    }

    /// Ends all runners and waits until they are gone.
    async fn end_all(&mut self, commands: &mut Receiver<Command>) {
        self.waiting.clear();
        self.runners.values().for_each(|runner| runner.link.dismiss(&shutting_down()));
        while !self.runners.is_empty()
            && let Some(command) = commands.recv().await
        {
            if let Command::Notice(run, Notice::Exited(_)) = command {
                self.runners.remove(&run);
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Acquire(id, ask, reply) => {
                let (options, key) = (ask.spec.options.clone(), ask.key.clone());
                let Ask { client, num_ctx, keep_alive, .. } = *ask;
                let request = Request { id, client, key, options, num_ctx, keep_alive };
                self.waiting.insert(id, Waiting { ask: *ask, reply });
                self.weigh_memory();
                self.event(Event::Request(request));
            }
            Command::Event(event) => {
                if let Event::Finished(id) = event {
                    self.waiting.remove(&id);
                }
                self.event(event);
            }
            Command::Notice(run, Notice::Planned(memory)) => {
                tracing::debug!(run, need = %human(memory.total()), weights = %human(memory.weights), "planned");
                if let Some(runner) = self.runners.get_mut(&run) {
                    // The phase is over: how long others take to make room is not the runner's fault.
                    runner.phase += 1;
                }
                self.read_memory();
                let need = Need { total: memory.total(), cache: memory.kv };
                self.event(Event::Planned(run, need));
            }
            Command::Notice(run, Notice::Loaded(loaded)) => {
                if let Some(runner) = self.runners.get_mut(&run) {
                    runner.phase += 1;
                    runner.loaded = true;
                    self.figures.of(&runner.about.name).loads.observe(runner.started.elapsed());
                }
                self.event(Event::Loaded(run, loaded.num_ctx, loaded.memory.total()));
            }
            Command::Notice(run, Notice::Exited(exit)) => {
                if let Some(runner) = self.remove(run).filter(|runner| !runner.stopping) {
                    if runner.loaded {
                        self.figures.of(&runner.about.name).crashes.add(1);
                    }
                    let (model, pid) = (runner.about.name.as_str(), runner.pid);
                    tracing::error!(
                        model,
                        pid,
                        reason = exit.reason,
                        "a model runner has ended unexpectedly"
                    );
                }
                self.weigh_memory();
                self.event(Event::Exited(run, exit));
            }
            Command::Stalled(run, phase) => self.stalled(run, phase),
            Command::List(reply) => drop(reply.send(self.list())),
            Command::Links(reply) => {
                let loaded =
                    self.runners.values().filter(|runner| runner.loaded && !runner.stopping);
                let _ = reply.send(loaded.map(|runner| runner.link.clone()).collect());
            }
            Command::Runners(reply) => drop(reply.send(self.runners())),
            Command::Shutdown(_) => {}
        }
    }

    /// Forgets a runner that is gone, but not what it has done.
    fn remove(&mut self, run: RunId) -> Option<Runner> {
        let runner = self.runners.remove(&run)?;
        let ended = self.ended.entry(runner.about.name.clone()).or_default();
        *ended = ended.plus(runner.link.pulse().counts);
        Some(runner)
    }

    /// Has the scheduler look where things stand; with the memory only if anything is decided by it: that is read from files
    /// of the system, and most requests are for models that are there.
    fn weigh_memory(&mut self) {
        match self.scheduler.weighs_memory() {
            true => self.read_memory(),
            false => self.event(Event::Tick),
        }
    }

    fn read_memory(&mut self) {
        self.event(Event::Memory((self.memory)()));
    }

    fn event(&mut self, event: Event) {
        for action in self.scheduler.handle(Instant::now(), event) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        tracing::trace!(?action, "scheduler");
        match action {
            Action::Grant(id, run) => {
                let Some(waiting) = self.waiting.remove(&id) else { return };
                let finished = Finished { id, to: Some(self.to.clone()) };
                let lease = match self.runners.get_mut(&run) {
                    Some(runner) => {
                        runner.is_used_by(&waiting.ask.about.name);
                        Ok(Lease { link: runner.link.clone(), _finished: finished })
                    }
                    // Its end is on its way to the scheduler; the request ends here, with `finished`.
                    None => {
                        Err(Failure::internal("the model runner has just ended; please try again"))
                    }
                };
                // A client that has gone drops the lease, which ends the request.
                let _ = waiting.reply.send(lease);
            }
            Action::Refuse(id, refusal) => {
                if let Some(waiting) = self.waiting.remove(&id) {
                    match refusal {
                        Refusal::Busy => self.figures.refused.add(1),
                        _ => self.figures.of(&waiting.ask.about.name).failed_loads.add(1),
                    }
                    let failure = self.failure(&refusal, &waiting.ask);
                    let _ = waiting.reply.send(Err(failure));
                }
            }
            Action::Start(run, key, options) => self.start(run, &key, options),
            Action::Replan(run, options) => {
                if let Some(runner) = self.runners.get_mut(&run) {
                    runner.spec.options = options;
                    runner.link.plan(runner.spec.clone());
                    self.watch(run);
                }
            }
            Action::Load(run) => {
                if let Some(runner) = self.runners.get(&run) {
                    runner.link.load();
                    self.watch(run);
                }
            }
            Action::Stop(run) => {
                if let Some(runner) = self.runners.get_mut(&run) {
                    tracing::debug!(run, model = runner.about.name, "unloading");
                    let why = self.scheduler.unload(run).unwrap_or(Unload::Idle);
                    self.figures.of(&runner.about.name).unloaded(why);
                    runner.stopping = true;
                    runner.link.kill();
                }
            }
        }
    }

    fn start(&mut self, run: RunId, key: &Key, options: crate::scheduler::LoadOptions) {
        let first =
            self.waiting.iter().filter(|(_, w)| w.ask.key == *key).min_by_key(|(id, _)| **id);
        let Some((_, waiting)) = first else {
            return self.failed_to_start(run, "nobody waits for it any more".into());
        };
        let spec = LoadSpec { options, ..waiting.ask.spec.clone() };
        let about = waiting.ask.about.clone();
        let launched = match self.launcher.launch() {
            Ok(launched) => launched,
            Err(e) => {
                return self
                    .failed_to_start(run, format!("the model runner could not be started: {e}"));
            }
        };
        let pid = launched.pid;
        tracing::debug!(run, pid, model = about.name, "starting a runner");
        let to = self.to.clone();
        let on_notice = Box::new(move |notice| to.push(Command::Notice(run, notice)));
        let link = Link::new(launched, self.patience.step, on_notice);
        link.plan(spec.clone());
        let started = Instant::now();
        let runner = Runner {
            link,
            about,
            also: Vec::new(),
            spec,
            phase: 0,
            pid,
            started,
            loaded: false,
            stopping: false,
        };
        self.runners.insert(run, runner);
        self.watch(run);
    }

    fn failed_to_start(&self, run: RunId, reason: String) {
        self.to.push(Command::Event(Event::Exited(run, Exit { reason, out_of_memory: false })));
    }

    /// Gives a phase of loading its time.
    fn watch(&mut self, run: RunId) {
        let (Some(limit), Some(runner)) = (self.patience.load, self.runners.get_mut(&run)) else {
            return;
        };
        runner.phase += 1;
        let (phase, to) = (runner.phase, self.to.clone());
        puna_tasks::spawn(async move {
            tokio::time::sleep(limit).await;
            to.push(Command::Stalled(run, phase));
        });
    }

    fn stalled(&mut self, run: RunId, phase: u32) {
        let Some(runner) = self.runners.get(&run).filter(|runner| runner.phase == phase) else {
            return;
        };
        runner.link.kill();
        tracing::error!(
            model = runner.about.name,
            pid = runner.pid,
            "a model runner took too long to load"
        );
        let limit = self
            .patience
            .load
            .map_or_else(String::new, |t| format!(" within {} seconds", t.as_secs()));
        self.remove(run);
        self.failed_to_start(
            run,
            format!("timed out waiting for the model runner to load the model{limit}"),
        );
    }

    fn failure(&self, refusal: &Refusal, ask: &Ask) -> Failure {
        match refusal {
            Refusal::Busy => Failure::new(
                503,
                "server busy, please try again.  maximum pending requests exceeded",
            ),
            Refusal::TooLarge { need, available } => Failure::internal(format!(
                "model requires more system memory ({}) than is available ({})",
                human(*need),
                human(*available)
            )),
            Refusal::LoadFailed(exit) => Failure::internal(format!(
                "the model {} could not be loaded: {}",
                ask.about.name, exit.reason
            )),
        }
    }

    fn list(&self) -> Vec<Resident> {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let one = |view: crate::scheduler::View| {
            let runner = self.runners.get(&view.run)?;
            // What no clock can show is as good as never.
            let expires = view.expires.and_then(|at| match at.checked_duration_since(now) {
                Some(left) => wall.checked_add(left),
                None => wall.checked_sub(now.duration_since(at)),
            });
            let memory = runner.link.memory();
            let size = if view.phase == Phase::Ready && memory.total() > 0 {
                memory.total()
            } else {
                view.size
            };
            Some(Resident {
                key: view.key,
                about: runner.about.clone(),
                also: runner.also.clone(),
                size,
                context: view.context,
                window: view.window,
                expires,
                phase: view.phase,
            })
        };
        self.scheduler.view(now).into_iter().filter_map(one).collect()
    }

    fn runners(&self) -> Runners {
        let ended = self.ended.iter().map(|(name, counts)| {
            let gone = OfRunners { counts: *counts, now: Vec::new() };
            (name.clone(), gone)
        });
        let mut models: BTreeMap<String, OfRunners> = ended.collect();
        for runner in self.runners.values() {
            let (of, pulse) =
                (models.entry(runner.about.name.clone()).or_default(), runner.link.pulse());
            of.counts = of.counts.plus(pulse.counts);
            of.now.push(pulse);
        }
        Runners { waiting: self.scheduler.waiting(), models }
    }
}
