//! The task that executes the scheduler's actions and reports events to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout};

use super::command::{AcquireRequest, Command, Lease, RequestGuard};
use super::listing::{ModelListing, ResidentModel, RunnerTotals, RunnersSnapshot};
use crate::canonical::ApiError;
use crate::metrics::ServerMetrics;
use crate::model_scheduler::{
    Action, Event, LoadOptions, Memory, MemoryNeed, ModelKey, ModelView, Phase, Refusal, Request,
    RequestId, RunnerExit, RunnerId, Scheduler, UnloadReason,
};
use crate::models::memory::human;
use crate::runner::connection::{RunnerConnection, RunnerEvent};
use crate::runner::launch::Launcher;
use crate::runner::protocol::{Counts, LoadSpec};
use crate::util::bounded_channel::{Receiver, Sender};
use crate::util::shutdown::shutting_down;

/// Time that runners get to exit at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of alias names stored per runner.
const MAX_ALIASES: usize = 64;

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

struct PendingAcquire {
    request: AcquireRequest,
    reply: oneshot::Sender<Result<Lease, ApiError>>,
}

struct RunnerEntry {
    connection: RunnerConnection,
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

/// State of the manager task.
pub(super) struct ManagerTask {
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
    pub(super) fn new(
        scheduler: Scheduler,
        launcher: Arc<dyn Launcher>,
        memory: MemorySource,
        timeouts: RunnerTimeouts,
        metrics: Arc<ServerMetrics>,
        to: Sender<Command>,
    ) -> Self {
        Self {
            scheduler,
            launcher,
            memory,
            timeouts,
            metrics,
            ended_totals: BTreeMap::new(),
            runners: HashMap::new(),
            waiting: HashMap::new(),
            to,
        }
    }

    /// Handles commands until the manager is shut down.
    pub(super) async fn run(mut self, mut commands: Receiver<Command>) {
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
        self.runners
            .values()
            .for_each(|runner| runner.connection.fail_tasks_and_kill(&shutting_down()));
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
                    let reason = exit.reason.as_str();
                    match exit.is_invalid_model && !runner.loaded {
                        true => tracing::warn!(model, pid, reason, "cannot load the model"),
                        false => {
                            tracing::error!(model, pid, reason, "model runner exited unexpectedly");
                        }
                    }
                }
                self.refresh_memory();
                self.handle_event(Event::Exited(run, exit));
            }
            Command::Stalled(run, phase) => self.handle_stalled_load(run, phase),
            Command::List(reply) => drop(reply.send(self.list())),
            Command::Connections(reply) => {
                let loaded =
                    self.runners.values().filter(|runner| runner.loaded && !runner.stopping);
                let _ = reply.send(loaded.map(|runner| runner.connection.clone()).collect());
            }
            Command::Runners(reply) => drop(reply.send(self.runners())),
            Command::Shutdown(_) => {}
        }
    }

    /// Removes an ended runner and keeps its totals.
    fn remove(&mut self, run: RunnerId) -> Option<RunnerEntry> {
        let runner = self.runners.remove(&run)?;
        let totals = self.ended_totals.entry(runner.listing.name.clone()).or_default();
        *totals = totals.plus(runner.connection.heartbeat().counts);
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
                        Ok(Lease { connection: runner.connection.clone(), _guard: guard })
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
                    runner.connection.plan(runner.spec.clone());
                    self.start_load_timeout(run);
                }
            }
            Action::Load(run) => {
                if let Some(runner) = self.runners.get(&run) {
                    runner.connection.load();
                    self.start_load_timeout(run);
                }
            }
            Action::Stop(run) => {
                if let Some(runner) = self.runners.get_mut(&run) {
                    tracing::debug!(run, model = runner.listing.name, "unloading");
                    let why = self.scheduler.unload_reason(run).unwrap_or(UnloadReason::Idle);
                    self.metrics.model(&runner.listing.name).record_unload(why);
                    runner.stopping = true;
                    runner.connection.kill();
                }
            }
        }
    }

    fn start(&mut self, run: RunnerId, key: &ModelKey, options: LoadOptions) {
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
        let connection = RunnerConnection::new(launched, self.timeouts.step, on_event);
        connection.plan(spec.clone());
        let started = Instant::now();
        let runner = RunnerEntry {
            connection,
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
            RunnerExit { reason, ..RunnerExit::default() },
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
        runner.connection.kill();
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
            Refusal::LoadFailed(exit) => ApiError::new(
                if exit.is_invalid_model { 400 } else { 500 },
                format!("the model {} could not be loaded: {}", request.listing.name, exit.reason),
            ),
        }
    }

    fn list(&self) -> Vec<ResidentModel> {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let one = |view: ModelView| {
            let runner = self.runners.get(&view.runner_id)?;
            // A time beyond the clock's range counts as never.
            let expires = view.expires.and_then(|at| match at.checked_duration_since(now) {
                Some(left) => wall.checked_add(left),
                None => wall.checked_sub(now.duration_since(at)),
            });
            let memory = runner.connection.memory();
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
                sandbox: runner.connection.sandbox().map(|report| report.to_string()),
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
            let (totals, heartbeat) = (
                models.entry(runner.listing.name.clone()).or_default(),
                runner.connection.heartbeat(),
            );
            totals.counts = totals.counts.plus(heartbeat.counts);
            totals.current.push(heartbeat);
        }
        RunnersSnapshot { waiting: self.scheduler.waiting(), models }
    }
}
