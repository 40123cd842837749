//! Task that drives the scheduler: it starts and stops runners and grants them to requests.

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

use crate::bounded_channel::{self, Receiver, Sender};
use crate::canonical::{ApiError, Task};
use crate::http::body_budget::BodyReservation;
use crate::memory::human;
use crate::metrics::ServerMetrics;
use crate::panic_message::panic_message;
use crate::runner::launch::Launcher;
use crate::runner::link::{Events, Link, RunnerEvent};
use crate::runner::protocol::{Counts, Heartbeat, LoadSpec};
use crate::scheduler::{
    Action, Event, Limits, Memory, MemoryNeed, ModelKey, Phase, Refusal, Request, RequestId,
    RunnerExit, RunnerId, Scheduler, UnloadReason,
};
use crate::shutdown::shutting_down;

/// Time that runners get to exit at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum requests and queries queued for the manager, which bounds memory while the manager is
/// delayed.
const MAX_PENDING_REQUESTS: usize = 256;

/// Maximum number of alias names stored per runner.
const MAX_ALIASES: usize = 64;

/// Request for a loaded model.
#[derive(Debug, Clone)]
pub(crate) struct AcquireRequest {
    /// Client that the request counts against.
    pub(crate) client: u64,
    /// Identifies the model.
    pub(crate) key: ModelKey,
    /// Specification to load the model with.
    pub(crate) spec: LoadSpec,
    /// Limit of the request's context in tokens.
    pub(crate) num_ctx: Option<u32>,
    /// How long the model stays loaded afterwards.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Description of the model in listings of loaded models.
    pub(crate) listing: ModelListing,
}

/// Description of a model in listings of loaded models.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ModelListing {
    pub(crate) name: String,
    pub(crate) digest: String,
    pub(crate) details: ModelDetails,
}

/// A model in memory, or on its way there.
#[derive(Debug, Clone)]
pub(crate) struct ResidentModel {
    pub(crate) key: ModelKey,
    pub(crate) listing: ModelListing,
    /// Other names under which requests used it.
    pub(crate) aliases: Vec<String>,
    pub(crate) size: u64,
    /// Tokens of one conversation, limited by the most recent request.
    pub(crate) context: u32,
    /// Tokens of one conversation where a request sets no limit.
    pub(crate) window: u32,
    /// When it is unloaded unless a request uses it; `None` is never.
    pub(crate) expires: Option<SystemTime>,
    /// Loading state.
    pub(crate) phase: Phase,
}

/// Totals and present state of all runners.
#[derive(Debug, Default)]
pub(crate) struct RunnersSnapshot {
    /// Requests that wait for a model.
    pub(crate) waiting: usize,
    /// By the name under which the model was loaded.
    pub(crate) models: BTreeMap<String, RunnerTotals>,
}

/// Totals and present state of one model's runners.
#[derive(Debug, Default)]
pub(crate) struct RunnerTotals {
    /// Sums over all runners of the model, including ended ones.
    pub(crate) counts: Counts,
    /// Latest heartbeat of each running runner.
    pub(crate) current: Vec<Heartbeat>,
}

/// Lease on a loaded model. The model stays loaded until the lease is dropped.
pub(crate) struct Lease {
    link: Link,
    _guard: RequestGuard,
}

impl Lease {
    /// Submits a task for a client. The runner's acceptance of the task releases `reservation`.
    pub(crate) async fn submit(
        &self,
        client: u64,
        task: Task,
        reservation: Option<Arc<BodyReservation>>,
    ) -> Events {
        self.link.submit_holding(client, task, reservation).await
    }
}

/// Tells the manager on drop that a request has ended or no longer waits.
struct RequestGuard {
    id: RequestId,
    /// `None` once another guard reports the end.
    to: Option<Sender<Command>>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if let Some(to) = &self.to {
            to.send_unbounded(Command::Event(Event::Finished(self.id)));
        }
    }
}

/// Requests and queries wait for one of [`MAX_PENDING_REQUESTS`] permits. Notifications do not:
/// runners and granted requests bound their number.
enum Command {
    Acquire(RequestId, Box<AcquireRequest>, oneshot::Sender<Result<Lease, ApiError>>),
    Event(Event),
    RunnerEvent(RunnerId, RunnerEvent),
    Stalled(RunnerId, u32),
    List(oneshot::Sender<Vec<ResidentModel>>),
    Links(oneshot::Sender<Vec<Link>>),
    Runners(oneshot::Sender<RunnersSnapshot>),
    Shutdown(oneshot::Sender<()>),
}

/// Time limits of runners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunnerTimeouts {
    /// Limit for each phase of loading; `None` is no limit.
    pub(crate) load: Option<Duration>,
    /// Limit for one step of the model; `None` is no limit.
    pub(crate) step: Option<Duration>,
}

/// Reads the machine's memory.
pub(crate) type MemorySource = fn() -> Memory;

/// Handle to the manager task. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ModelManager {
    to: Sender<Command>,
    next_request: Arc<AtomicU64>,
    /// Panic message of the manager task.
    failure: watch::Receiver<Option<String>>,
}

impl ModelManager {
    /// Starts the task.
    pub(crate) fn start(
        limits: Limits,
        launcher: Arc<dyn Launcher>,
        memory: MemorySource,
        timeouts: RunnerTimeouts,
        metrics: Arc<ServerMetrics>,
    ) -> Self {
        let (to, commands) = bounded_channel::channel(MAX_PENDING_REQUESTS);
        let manager = ManagerTask {
            scheduler: Scheduler::new(limits),
            launcher,
            memory,
            timeouts,
            metrics,
            ended_totals: BTreeMap::new(),
            runners: HashMap::new(),
            waiting: HashMap::new(),
            to: to.clone(),
        };
        let (failure_sender, failure) = watch::channel(None);
        puna_tasks::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(manager.run(commands)).catch_unwind().await {
                failure_sender.send_replace(Some(panic_message(&*panic).to_owned()));
            }
        });
        Self { to, next_request: Arc::new(AtomicU64::new(1)), failure }
    }

    /// Waits until the manager task panics, and returns the panic message. Without the task no
    /// model can be used.
    pub(crate) async fn wait_for_failure(&self) -> String {
        let mut failure = self.failure.clone();
        let reason = failure.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // The task has ended normally.
            None => std::future::pending().await,
        }
    }

    /// Waits until a model is ready for a request. The future may be dropped at any time.
    pub(crate) async fn acquire(&self, request: AcquireRequest) -> Result<Lease, ApiError> {
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let mut guard = RequestGuard { id, to: None };
        let (reply, answer) = oneshot::channel();
        if !self.to.send(Command::Acquire(id, Box::new(request), reply)).await {
            return Err(shutting_down());
        }
        guard.to = Some(self.to.clone());
        let answer = answer.await;
        // From here on the lease reports the end of the request.
        guard.to = None;
        answer.map_err(|_| shutting_down())?
    }

    /// Sends a query and returns the reply; `None` if the manager has ended.
    async fn query<T>(
        &self,
        make_command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.to.send(make_command(reply)).await;
        answer.await.ok()
    }

    /// Unloads a model as soon as it is idle.
    pub(crate) async fn expire(&self, key: ModelKey) {
        self.to.send(Command::Event(Event::Expire(key))).await;
    }

    /// Lists the models in memory.
    pub(crate) async fn list(&self) -> Vec<ResidentModel> {
        self.query(Command::List).await.unwrap_or_default()
    }

    /// Collects totals and present state of all runners.
    pub(crate) async fn runners(&self) -> RunnersSnapshot {
        let links = self.query(Command::Links).await.unwrap_or_default();
        join_all(links.iter().map(Link::refresh)).await;
        self.query(Command::Runners).await.unwrap_or_default()
    }

    /// Stops all runners and the manager task.
    pub(crate) async fn shutdown(&self) {
        let (reply, answer) = oneshot::channel();
        self.to.send_unbounded(Command::Shutdown(reply));
        let _ = answer.await;
    }
}

struct PendingAcquire {
    request: AcquireRequest,
    reply: oneshot::Sender<Result<Lease, ApiError>>,
}

struct RunnerEntry {
    link: Link,
    listing: ModelListing,
    /// Other names of the same weights under which requests used it.
    aliases: Vec<String>,
    spec: LoadSpec,
    /// Number of the present loading phase. Timers of earlier phases have no effect.
    phase: u32,
    pid: u32,
    started: Instant,
    loaded: bool,
    /// The manager has sent the command to exit.
    stopping: bool,
}

impl RunnerEntry {
    /// Records a name under which a request uses the model.
    fn add_alias(&mut self, name: &str) {
        let is_new = self.listing.name != name && !self.aliases.iter().any(|other| other == name);
        if is_new && self.aliases.len() < MAX_ALIASES {
            self.aliases.push(name.to_owned());
        }
    }
}

struct ManagerTask {
    scheduler: Scheduler,
    launcher: Arc<dyn Launcher>,
    memory: MemorySource,
    timeouts: RunnerTimeouts,
    metrics: Arc<ServerMetrics>,
    /// Totals of ended runners, by model name.
    ended_totals: BTreeMap<String, Counts>,
    runners: HashMap<RunnerId, RunnerEntry>,
    waiting: HashMap<RequestId, PendingAcquire>,
    to: Sender<Command>,
}

impl ManagerTask {
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
                    let _ = timeout(SHUTDOWN_TIMEOUT, self.stop_all(&mut commands)).await;
                    let _ = done.send(());
                    return;
                }
                Some(command) => self.handle_command(command),
            }
        }
    }

    /// Stops all runners and waits until they have exited.
    async fn stop_all(&mut self, commands: &mut Receiver<Command>) {
        self.waiting.clear();
        self.runners.values().for_each(|runner| runner.link.dismiss(&shutting_down()));
        while !self.runners.is_empty()
            && let Some(command) = commands.recv().await
        {
            if let Command::RunnerEvent(run, RunnerEvent::Exited(_)) = command {
                self.runners.remove(&run);
            }
        }
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Acquire(id, acquire, reply) => {
                let (options, key) = (acquire.spec.options.clone(), acquire.key.clone());
                let AcquireRequest { client, num_ctx, keep_alive, .. } = *acquire;
                let request = Request { id, client, key, options, num_ctx, keep_alive };
                self.waiting.insert(id, PendingAcquire { request: *acquire, reply });
                self.refresh_memory();
                self.handle_event(Event::Request(request));
            }
            Command::Event(event) => {
                if let Event::Finished(id) = event {
                    self.waiting.remove(&id);
                }
                self.handle_event(event);
            }
            Command::RunnerEvent(run, RunnerEvent::Planned(memory)) => {
                tracing::debug!(run, need = %human(memory.total()), weights = %human(memory.weights), "planned");
                if let Some(runner) = self.runners.get_mut(&run) {
                    // The planning phase is over. Time that other models need to leave memory does
                    // not count against this runner.
                    runner.phase += 1;
                }
                self.read_memory();
                let need = MemoryNeed { total: memory.total(), cache: memory.kv };
                self.handle_event(Event::Planned(run, need));
            }
            Command::RunnerEvent(run, RunnerEvent::Loaded(loaded)) => {
                if let Some(runner) = self.runners.get_mut(&run) {
                    runner.phase += 1;
                    runner.loaded = true;
                    self.metrics
                        .model(&runner.listing.name)
                        .loads
                        .observe(runner.started.elapsed());
                }
                self.handle_event(Event::Loaded(run, loaded.num_ctx, loaded.memory.total()));
            }
            Command::RunnerEvent(run, RunnerEvent::Exited(exit)) => {
                if let Some(runner) = self.remove(run).filter(|runner| !runner.stopping) {
                    if runner.loaded {
                        self.metrics.model(&runner.listing.name).crashes.add(1);
                    }
                    let (model, pid) = (runner.listing.name.as_str(), runner.pid);
                    tracing::error!(
                        model,
                        pid,
                        reason = exit.reason,
                        "model runner exited unexpectedly"
                    );
                }
                self.refresh_memory();
                self.handle_event(Event::Exited(run, exit));
            }
            Command::Stalled(run, phase) => self.handle_stalled_load(run, phase),
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

    /// Removes an ended runner and keeps its totals.
    fn remove(&mut self, run: RunnerId) -> Option<RunnerEntry> {
        let runner = self.runners.remove(&run)?;
        let totals = self.ended_totals.entry(runner.listing.name.clone()).or_default();
        *totals = totals.plus(runner.link.heartbeat().counts);
        Some(runner)
    }

    /// Lets the scheduler re-evaluate. It reads the machine's memory only if a decision depends on
    /// it, because that reads system files and most requests use loaded models.
    fn refresh_memory(&mut self) {
        match self.scheduler.needs_memory_reading() {
            true => self.read_memory(),
            false => self.handle_event(Event::Tick),
        }
    }

    fn read_memory(&mut self) {
        self.handle_event(Event::Memory((self.memory)()));
    }

    fn handle_event(&mut self, event: Event) {
        for action in self.scheduler.handle(Instant::now(), event) {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        tracing::trace!(?action, "scheduler");
        match action {
            Action::Grant(id, run) => {
                let Some(waiting) = self.waiting.remove(&id) else { return };
                let guard = RequestGuard { id, to: Some(self.to.clone()) };
                let lease = match self.runners.get_mut(&run) {
                    Some(runner) => {
                        runner.add_alias(&waiting.request.listing.name);
                        Ok(Lease { link: runner.link.clone(), _guard: guard })
                    }
                    // The runner's exit event is still queued. Dropping the guard ends the request
                    // here.
                    None => Err(ApiError::internal("the model runner has just exited: try again")),
                };
                // If the client has disconnected, the lease is dropped here, which ends the
                // request.
                let _ = waiting.reply.send(lease);
            }
            Action::Refuse(id, refusal) => {
                if let Some(waiting) = self.waiting.remove(&id) {
                    match refusal {
                        Refusal::Busy => self.metrics.refused.add(1),
                        _ => self.metrics.model(&waiting.request.listing.name).failed_loads.add(1),
                    }
                    let failure = self.refusal_error(&refusal, &waiting.request);
                    let _ = waiting.reply.send(Err(failure));
                }
            }
            Action::Start(run, key, options) => self.start(run, &key, options),
            Action::Replan(run, options) => {
                if let Some(runner) = self.runners.get_mut(&run) {
                    runner.spec.options = options;
                    runner.link.plan(runner.spec.clone());
                    self.start_load_timeout(run);
                }
            }
            Action::Load(run) => {
                if let Some(runner) = self.runners.get(&run) {
                    runner.link.load();
                    self.start_load_timeout(run);
                }
            }
            Action::Stop(run) => {
                if let Some(runner) = self.runners.get_mut(&run) {
                    tracing::debug!(run, model = runner.listing.name, "unloading");
                    let why = self.scheduler.unload_reason(run).unwrap_or(UnloadReason::Idle);
                    self.metrics.model(&runner.listing.name).record_unload(why);
                    runner.stopping = true;
                    runner.link.kill();
                }
            }
        }
    }

    fn start(&mut self, run: RunnerId, key: &ModelKey, options: crate::scheduler::LoadOptions) {
        let first =
            self.waiting.iter().filter(|(_, w)| w.request.key == *key).min_by_key(|(id, _)| **id);
        let Some((_, waiting)) = first else {
            return self.failed_to_start(run, "its request was cancelled".into());
        };
        let spec = LoadSpec { options, ..waiting.request.spec.clone() };
        let listing = waiting.request.listing.clone();
        let launched = match self.launcher.launch() {
            Ok(launched) => launched,
            Err(e) => {
                return self.failed_to_start(run, format!("cannot start the model runner: {e}"));
            }
        };
        let pid = launched.pid;
        tracing::debug!(run, pid, model = listing.name, "starting runner");
        let to = self.to.clone();
        let on_event = Box::new(move |event| to.send_unbounded(Command::RunnerEvent(run, event)));
        let link = Link::new(launched, self.timeouts.step, on_event);
        link.plan(spec.clone());
        let started = Instant::now();
        let runner = RunnerEntry {
            link,
            listing,
            aliases: Vec::new(),
            spec,
            phase: 0,
            pid,
            started,
            loaded: false,
            stopping: false,
        };
        self.runners.insert(run, runner);
        self.start_load_timeout(run);
    }

    fn failed_to_start(&self, run: RunnerId, reason: String) {
        self.to.send_unbounded(Command::Event(Event::Exited(
            run,
            RunnerExit { reason, out_of_memory: false },
        )));
    }

    /// Starts the timeout of a loading phase.
    fn start_load_timeout(&mut self, run: RunnerId) {
        let (Some(limit), Some(runner)) = (self.timeouts.load, self.runners.get_mut(&run)) else {
            return;
        };
        runner.phase += 1;
        let (phase, to) = (runner.phase, self.to.clone());
        puna_tasks::spawn(async move {
            tokio::time::sleep(limit).await;
            to.send_unbounded(Command::Stalled(run, phase));
        });
    }

    fn handle_stalled_load(&mut self, run: RunnerId, phase: u32) {
        let Some(runner) = self.runners.get(&run).filter(|runner| runner.phase == phase) else {
            return;
        };
        runner.link.kill();
        tracing::error!(
            model = runner.listing.name,
            pid = runner.pid,
            "model runner took too long to load"
        );
        let limit = self
            .timeouts
            .load
            .map_or_else(String::new, |t| format!(" within {} seconds", t.as_secs()));
        self.remove(run);
        self.failed_to_start(
            run,
            format!("timed out waiting for the model runner to load the model{limit}"),
        );
    }

    fn refusal_error(&self, refusal: &Refusal, request: &AcquireRequest) -> ApiError {
        match refusal {
            Refusal::Busy => ApiError::new(
                503,
                "server busy, please try again.  maximum pending requests exceeded",
            ),
            Refusal::TooLarge { need, available } => ApiError::internal(format!(
                "model requires more system memory ({}) than is available ({})",
                human(*need),
                human(*available)
            )),
            Refusal::LoadFailed(exit) => ApiError::internal(format!(
                "the model {} could not be loaded: {}",
                request.listing.name, exit.reason
            )),
        }
    }

    fn list(&self) -> Vec<ResidentModel> {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let one = |view: crate::scheduler::ModelView| {
            let runner = self.runners.get(&view.runner_id)?;
            // A time beyond the clock's range counts as never.
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
            Some(ResidentModel {
                key: view.key,
                listing: runner.listing.clone(),
                aliases: runner.aliases.clone(),
                size,
                context: view.context,
                window: view.window,
                expires,
                phase: view.phase,
            })
        };
        self.scheduler.view(now).into_iter().filter_map(one).collect()
    }

    fn runners(&self) -> RunnersSnapshot {
        let ended = self.ended_totals.iter().map(|(name, counts)| {
            let gone = RunnerTotals { counts: *counts, current: Vec::new() };
            (name.clone(), gone)
        });
        let mut models: BTreeMap<String, RunnerTotals> = ended.collect();
        for runner in self.runners.values() {
            let (totals, heartbeat) =
                (models.entry(runner.listing.name.clone()).or_default(), runner.link.heartbeat());
            totals.counts = totals.counts.plus(heartbeat.counts);
            totals.current.push(heartbeat);
        }
        RunnersSnapshot { waiting: self.scheduler.waiting(), models }
    }
}
