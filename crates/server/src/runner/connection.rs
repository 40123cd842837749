//! The server's side of the connection to a runner.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::launch::RunnerProcess;
use super::protocol::{
    Counts, Heartbeat, INITIAL_EVENT_CREDIT, LoadReport, LoadSpec, MAX_CALLS, MemoryParts,
    RunnerRequest, RunnerResponse, VERSION, encode_message, read_async,
};
use super::sandbox::SandboxReport;
use super::text_limits::check_task_bytes;
use crate::canonical::{ApiError, Event, GenerationSummary, Task};
use crate::http::body_budget::BodyReservation;
use crate::model_scheduler::RunnerExit;
use crate::util::bounded_channel::{self, Receiver, SendPermit, Sender};
use crate::util::lock::lock;

/// Time without a message after which a loaded runner counts as dead; it sends a heartbeat every
/// two seconds. The timeout does not apply before loading ends: the runner may wait until other
/// models are unloaded, and the manager limits the loading time.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest time counted between two heartbeats, even if the clock shows more.
const MAX_HEARTBEAT_GAP: Duration = Duration::from_secs(5);

/// Number of intervals that [`SILENCE_TIMEOUT`] is divided into.
const SILENCE_CHECKS: u32 = 4;

/// How long [`RunnerConnection::refresh`] waits for a heartbeat.
const REFRESH_TIMEOUT: Duration = Duration::from_millis(200);

/// Number of messages that may wait to be sent.
const SEND_QUEUE_CAPACITY: usize = 256;

/// Tasks with more bytes than this are encoded on a thread for large bodies.
const LARGE_TASK_BYTES: usize = 64 << 10;

/// Largest number of characters of a reason that a runner gives for its end. Its model file may
/// control the runner.
pub(super) const MAX_REASON_CHARS: usize = 4000;

/// How long a runner may take to exit after its connection has ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Event in the life of a runner.
#[derive(Debug)]
pub(crate) enum RunnerEvent {
    /// The runner has planned its memory.
    Planned(MemoryParts),
    /// The model is ready.
    Loaded(LoadReport),
    /// The runner has exited.
    Exited(RunnerExit),
}

/// Callback that receives the events of a runner.
pub(crate) type OnRunnerEvent = Box<dyn Fn(RunnerEvent) + Send + Sync>;

/// Connection to a runner. Clones share it.
#[derive(Clone)]
pub(crate) struct RunnerConnection(Arc<Shared>);

/// State that the clones of a connection share.
struct Shared {
    /// Queue of messages to the runner. Tasks need a permit, so that the queue of a runner that
    /// does not read stays bounded, and a caller that stops waiting leaves nothing in it. Further
    /// messages about a submitted task need no permit.
    out: Sender<Outgoing>,
    tasks: Mutex<Tasks>,
    kill: Mutex<Option<oneshot::Sender<()>>>,
    heartbeat: Mutex<Heartbeat>,
    /// Counters summed over finished generations.
    finished: Mutex<Counts>,
    next_task: AtomicU64,
    /// Maximum bytes of a text in a task, once the model is loaded.
    max_text_bytes: AtomicUsize,
    /// Sandbox of the runner, once it has entered it.
    sandbox: Mutex<Option<SandboxReport>>,
    /// Notified of every heartbeat.
    heartbeat_received: Notify,
}

/// Message in the queue, and the memory reservation of its request.
type Outgoing = (OutgoingMessage, Option<Arc<BodyReservation>>);

/// Message to the runner.
enum OutgoingMessage {
    Small(RunnerRequest),
    /// Encoded message that submits the task of this number. It is encoded before it is queued, so
    /// that the tasks behind it do not wait for that.
    EncodedTask(u64, io::Result<Vec<u8>>),
}

/// Task that has not ended.
struct OpenTask {
    events: mpsc::Sender<Event>,
    /// Number of tool calls so far.
    calls: usize,
    /// Memory reservation of the request. The first event of the runner releases it; until then,
    /// the request may wait in the runner in its original size.
    reservation: Option<Arc<BodyReservation>>,
}

/// Tasks of a runner, by number.
#[derive(Default)]
struct Tasks {
    open: HashMap<u64, OpenTask>,
    /// Error of all further tasks, once the runner has ended.
    ended: Option<ApiError>,
}

impl RunnerConnection {
    /// Opens the connection to a newly started runner. Kills a runner if a single step of its model
    /// takes longer than `step_timeout`.
    pub(crate) fn new(
        process: RunnerProcess,
        step_timeout: Option<Duration>,
        on_event: OnRunnerEvent,
    ) -> Self {
        let (out, outgoing) = bounded_channel::channel(SEND_QUEUE_CAPACITY);
        let connection = Self(Arc::new(Shared {
            out,
            tasks: Mutex::default(),
            kill: Mutex::new(Some(process.kill)),
            heartbeat: Mutex::default(),
            finished: Mutex::default(),
            next_task: AtomicU64::new(1),
            max_text_bytes: AtomicUsize::new(usize::MAX),
            sandbox: Mutex::default(),
            heartbeat_received: Notify::new(),
        }));
        let (read, write) = process.stream.into_split();
        puna_tasks::spawn(send_all(outgoing, write, Arc::downgrade(&connection.0)));
        let watchdog = StepWatchdog {
            limit: step_timeout,
            rounds: 0,
            busy_time: Duration::ZERO,
            last_heartbeat: None,
        };
        let reader = Reader {
            pid: process.pid,
            connection: connection.clone(),
            failed: None,
            loaded: false,
            watchdog,
        };
        // A separate task, because this future kills the process when that is requested.
        let exit = tokio::spawn(process.exit);
        puna_tasks::spawn(reader.run(read, exit, on_event));
        connection
    }

    /// Requests the memory plan of a model.
    pub(crate) fn plan(&self, spec: LoadSpec) {
        self.send(RunnerRequest::Plan(Box::new(spec)));
    }

    /// Requests that the runner load the planned model.
    pub(crate) fn load(&self) {
        self.send(RunnerRequest::Load);
    }

    /// Kills the runner.
    pub(crate) fn kill(&self) {
        if let Some(kill) = lock(&self.0.kill).take() {
            let _ = kill.send(());
        }
    }

    /// Fails all tasks with this error, then kills the runner.
    pub(crate) fn fail_tasks_and_kill(&self, failure: &ApiError) {
        self.end_tasks(failure);
        self.kill();
    }

    /// Memory use in the latest heartbeat.
    pub(crate) fn memory(&self) -> MemoryParts {
        lock(&self.0.heartbeat).memory
    }

    /// Sandbox of the runner; `None` until the runner has closed it.
    pub(crate) fn sandbox(&self) -> Option<SandboxReport> {
        lock(&self.0.sandbox).clone()
    }

    /// Requests a heartbeat and waits at most [`REFRESH_TIMEOUT`] for it.
    pub(crate) async fn refresh(&self) {
        let heartbeat_received = self.0.heartbeat_received.notified();
        let answered = async {
            self.0.out.send((OutgoingMessage::Small(RunnerRequest::RequestHeartbeat), None)).await;
            heartbeat_received.await;
        };
        let _ = timeout(REFRESH_TIMEOUT, answered).await;
    }

    /// Returns the latest heartbeat. Its counters include all finished generations, although these
    /// arrive earlier.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let heartbeat = *lock(&self.0.heartbeat);
        Heartbeat { counts: heartbeat.counts.max(*lock(&self.0.finished)), ..heartbeat }
    }

    /// Submits a task of a client, and holds its memory reservation until the runner has taken it.
    /// Dropping the returned events cancels the task.
    pub(crate) async fn submit_with_reservation(
        &self,
        client: u64,
        task: Task,
        reservation: Option<Arc<BodyReservation>>,
    ) -> TaskEvents {
        let id = self.0.next_task.fetch_add(1, Ordering::Relaxed);
        let message = self.task_message(id, client, task, reservation.as_deref()).await;
        let permit = self.0.out.reserve().await;
        self.submit_with_permit(permit, id, message, reservation)
    }

    /// Returns the message that submits a task, encoded if it is large.
    ///
    /// # Errors
    /// A text of the task is longer than any context of the model.
    async fn task_message(
        &self,
        id: u64,
        client: u64,
        task: Task,
        reservation: Option<&BodyReservation>,
    ) -> Result<OutgoingMessage, ApiError> {
        check_task_bytes(&task, self.0.max_text_bytes.load(Ordering::Relaxed))?;
        let bytes = task.text_bytes();
        let message = RunnerRequest::Submit { id, client, task };
        let Some(reservation) = reservation.filter(|_| bytes > LARGE_TASK_BYTES) else {
            return Ok(OutgoingMessage::Small(message));
        };
        let encoded = reservation.workers().run(bytes, move || encode_message(&message)).await?;
        Ok(OutgoingMessage::EncodedTask(id, encoded))
    }

    fn submit_with_permit(
        &self,
        permit: SendPermit,
        id: u64,
        message: Result<OutgoingMessage, ApiError>,
        reservation: Option<Arc<BodyReservation>>,
    ) -> TaskEvents {
        // The capacity exceeds the event credit, so that three things always fit. First, the events
        // of the last token: a piece and the text held back before it, each in up to two parts.
        // Second, calls that arrive all at once (start, arguments, end) with text between them.
        // Third, a final error.
        let (sender, receiver) = mpsc::channel(INITIAL_EVENT_CREDIT as usize + 8 + 4 * MAX_CALLS);
        let mut tasks = lock(&self.0.tasks);
        match message.and_then(|message| tasks.ended.clone().map_or(Ok(message), Err)) {
            Err(failure) => drop(sender.try_send(Event::Error(failure))),
            Ok(message) => {
                tasks.open.insert(
                    id,
                    OpenTask { events: sender, calls: 0, reservation: reservation.clone() },
                );
                // A runner that has ended has already failed its tasks.
                self.0.out.send_reserved(permit, (message, reservation));
            }
        }
        drop(tasks);
        TaskEvents { id, receiver, connection: self.clone(), taken: 0, is_ended: false }
    }

    fn send(&self, message: RunnerRequest) {
        self.0.out.send_unbounded((OutgoingMessage::Small(message), None));
    }

    /// Passes an event to its task, and closes the task at its final event.
    fn deliver(&self, id: u64, event: Event) {
        if let Event::Done(done) = &event {
            let mut finished = lock(&self.0.finished);
            *finished = finished.plus(counts(done));
        }
        let mut tasks = lock(&self.0.tasks);
        let end = event.is_end();
        let sent = tasks.open.get_mut(&id).is_none_or(|task| {
            task.reservation = None;
            task.calls += usize::from(matches!(event, Event::CallStart { .. }));
            // More calls than a runner may send would nest too deeply in the answer.
            task.calls <= MAX_CALLS && task.events.try_send(event).is_ok()
        });
        if !sent {
            tracing::error!(task = id, "runner sent more events than allowed");
            self.send(RunnerRequest::Cancel(id));
            tasks.open.remove(&id);
            return;
        }
        if end {
            tasks.open.remove(&id);
        }
    }

    /// Fails all open tasks and every later one.
    fn end_tasks(&self, failure: &ApiError) {
        let mut tasks = lock(&self.0.tasks);
        tasks.ended.get_or_insert_with(|| failure.clone());
        for (_, task) in tasks.open.drain() {
            let _ = task.events.try_send(Event::Error(failure.clone()));
        }
    }
}

/// Returns the counters that a finished generation adds.
fn counts(done: &GenerationSummary) -> Counts {
    // A prompt without a requested answer is counted, but not computed.
    let computed =
        if done.generated_tokens == 0 && done.prefill.is_zero() { 0 } else { done.prompt_tokens };
    Counts {
        prompt_tokens: computed.saturating_sub(done.cached_tokens),
        generated_tokens: done.generated_tokens,
        draft_counts: done.draft_counts,
        ..Counts::default()
    }
}

/// Sends messages until all senders are gone. A task that is too large fails its own request only.
async fn send_all(
    mut outgoing: Receiver<Outgoing>,
    mut write: OwnedWriteHalf,
    connection: Weak<Shared>,
) {
    while let Some((message, _held)) = outgoing.recv().await {
        let (encoded, task) = match message {
            OutgoingMessage::EncodedTask(id, encoded) => (encoded, Some(id)),
            OutgoingMessage::Small(message) => {
                let task = match &message {
                    RunnerRequest::Submit { id, .. } => Some(*id),
                    _ => None,
                };
                (encode_message(&message), task)
            }
        };
        let bytes = match (encoded, task) {
            (Ok(bytes), _) => bytes,
            (Err(error), Some(id)) => {
                if let Some(shared) = connection.upgrade() {
                    let text = format!("the request is too large for the model runner: {error}");
                    RunnerConnection(shared).deliver(id, Event::Error(ApiError::new(413, text)));
                }
                continue;
            }
            (Err(error), None) => {
                tracing::error!(%error, "cannot encode a message to a runner");
                continue;
            }
        };
        if let Err(error) = write.write_all(&bytes).await {
            // The reader sees the end of the connection and reports it.
            tracing::debug!(%error, "cannot send a message to a runner");
            return;
        }
    }
}

/// Logs what restricts a runner, and warns of restrictions that the system does not offer.
fn log_sandbox(pid: u32, report: &SandboxReport) {
    if report.is_off {
        // The server warned at its start.
        tracing::debug!(pid, "runner has no sandbox");
    } else if report.missing.is_empty() {
        tracing::info!(pid, sandbox = %report, "runner entered its sandbox");
    } else {
        let missing = report.missing.join(", ");
        tracing::warn!(pid, sandbox = %report, missing, "runner has an incomplete sandbox");
    }
}

/// Reads the messages of a runner until it exits.
struct Reader {
    pid: u32,
    connection: RunnerConnection,
    /// Reason that the runner itself gave for its end.
    failed: Option<RunnerExit>,
    loaded: bool,
    watchdog: StepWatchdog,
}

/// Detects a step that does not end.
struct StepWatchdog {
    limit: Option<Duration>,
    rounds: u64,
    /// How long the present round has lasted, while there is work.
    busy_time: Duration,
    /// Time of the latest heartbeat.
    last_heartbeat: Option<Instant>,
}

impl StepWatchdog {
    /// Processes a heartbeat. Returns an error with the reason if the runner must be killed.
    fn observe(&mut self, now: Instant, heartbeat: &Heartbeat) -> Result<(), String> {
        let passed = self
            .last_heartbeat
            .replace(now)
            .map_or(Duration::ZERO, |last_heartbeat| now.duration_since(last_heartbeat));
        if !heartbeat.is_busy || heartbeat.rounds != self.rounds {
            (self.rounds, self.busy_time) = (heartbeat.rounds, Duration::ZERO);
            return Ok(());
        }
        // Heartbeats are seconds apart. A longer gap means that one of the processes was suspended
        // and the clock has jumped, although the model did not hang.
        self.busy_time += passed.min(MAX_HEARTBEAT_GAP);
        match self.limit {
            Some(limit) if self.busy_time > limit => Err(format!(
                "a step took more than {} seconds, so the runner was stopped: PUNA_STEP_TIMEOUT sets the limit",
                limit.as_secs_f64().ceil()
            )),
            _ => Ok(()),
        }
    }
}

/// Receives the next message. Until the model is loaded, the runner may stay silent for any time.
/// The timeout is divided into intervals: a server process that was suspended finds one interval
/// expired, whatever the clock shows, and then receives messages again.
async fn receive(
    read: &mut BufReader<OwnedReadHalf>,
    loaded: bool,
) -> Result<io::Result<Option<RunnerResponse>>, Elapsed> {
    let mut message = pin!(read_async::<RunnerResponse>(read));
    if !loaded {
        return Ok(message.await);
    }
    for _ in 1..SILENCE_CHECKS {
        if let Ok(received) = timeout(SILENCE_TIMEOUT / SILENCE_CHECKS, message.as_mut()).await {
            return Ok(received);
        }
    }
    timeout(SILENCE_TIMEOUT / SILENCE_CHECKS, message).await
}

impl Reader {
    /// Reads messages until the runner ends, then fails its tasks and reports its exit.
    async fn run(
        mut self,
        read: OwnedReadHalf,
        mut exit: JoinHandle<RunnerExit>,
        on_event: OnRunnerEvent,
    ) {
        // Messages of tokens are short; the buffer reads length and body in one system call.
        let mut read = BufReader::new(read);
        let failure_reason = loop {
            match receive(&mut read, self.loaded).await {
                Err(_) => {
                    break Some(format!(
                        "it sent no heartbeat for {} seconds",
                        SILENCE_TIMEOUT.as_secs()
                    ));
                }
                Ok(Err(e)) if e.kind() == io::ErrorKind::InvalidData => {
                    break Some(format!("it sent an invalid message: {e}"));
                }
                Ok(Err(_) | Ok(None)) => break None,
                Ok(Ok(Some(message))) => match self.handle_message(message, &on_event) {
                    Ok(()) => {}
                    Err(reason) => break Some(reason),
                },
            }
        };
        if failure_reason.is_some() {
            self.connection.kill();
        }
        let ended = match timeout(EXIT_TIMEOUT, &mut exit).await {
            Ok(ended) => ended,
            Err(_) => {
                self.connection.kill();
                exit.await
            }
        };
        let ended = ended.unwrap_or_else(|e| RunnerExit {
            reason: format!("cannot read its exit status: {e}"),
            ..RunnerExit::default()
        });
        let mut exit = match (self.failed, failure_reason) {
            (Some(failed), _) => failed,
            (None, Some(reason)) => RunnerExit { reason, ..ended },
            (None, None) => ended,
        };
        if let Some((end, _)) = exit.reason.char_indices().nth(MAX_REASON_CHARS) {
            exit.reason.truncate(end);
        }
        let text = "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, \
                    check the log of the Puna server for details";
        self.connection.end_tasks(&ApiError::internal(format!("{text}: {}", exit.reason)));
        on_event(RunnerEvent::Exited(exit));
    }

    /// Handles a message. Returns an error with the reason if the runner must be killed.
    fn handle_message(
        &mut self,
        message: RunnerResponse,
        on_event: &OnRunnerEvent,
    ) -> Result<(), String> {
        match message {
            RunnerResponse::Hello { version: VERSION } => {}
            RunnerResponse::Hello { version } => {
                return Err(format!(
                    "it uses version {version} of the protocol instead of {VERSION}: restart the server"
                ));
            }
            RunnerResponse::Sandboxed(report) => {
                log_sandbox(self.pid, &report);
                *lock(&self.connection.0.sandbox) = Some(report);
            }
            RunnerResponse::Planned(memory) => on_event(RunnerEvent::Planned(memory)),
            RunnerResponse::Loaded(loaded) => {
                self.loaded = true;
                let max_text_bytes = loaded.max_text_bytes();
                self.connection.0.max_text_bytes.store(max_text_bytes, Ordering::Relaxed);
                lock(&self.connection.0.heartbeat).memory = loaded.memory;
                on_event(RunnerEvent::Loaded(loaded));
            }
            RunnerResponse::Failed { message, out_of_memory, is_invalid_model } => {
                self.failed = Some(RunnerExit { reason: message, out_of_memory, is_invalid_model });
            }
            RunnerResponse::Event(id, event) => self.connection.deliver(id, event),
            RunnerResponse::Heartbeat(heartbeat) => {
                *lock(&self.connection.0.heartbeat) = heartbeat;
                self.connection.0.heartbeat_received.notify_waiters();
                self.watchdog.observe(Instant::now(), &heartbeat)?;
            }
        }
        Ok(())
    }
}

/// Events of one task. Dropping them cancels the task.
pub(crate) struct TaskEvents {
    id: u64,
    receiver: mpsc::Receiver<Event>,
    connection: RunnerConnection,
    taken: u32,
    is_ended: bool,
}

impl TaskEvents {
    /// Polls the next event; `None` after the final event.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let Some(event) = ready!(self.receiver.poll_recv(cx)) else {
            self.is_ended = true;
            let lost = "the model runner dropped this request: this is a bug in the server";
            return Poll::Ready(Some(Event::Error(ApiError::internal(lost))));
        };
        self.is_ended = event.is_end();
        self.taken += 1;
        if self.taken >= INITIAL_EVENT_CREDIT / 2 && !self.is_ended {
            self.connection.send(RunnerRequest::Credit(self.id, self.taken));
            self.taken = 0;
        }
        Poll::Ready(Some(event))
    }
}

#[cfg(test)]
impl RunnerConnection {
    pub(crate) fn submit(&self, client: u64, task: Task) -> TaskEvents {
        let permit =
            futures_util::FutureExt::now_or_never(self.0.out.reserve()).expect("a place is free");
        let id = self.0.next_task.fetch_add(1, Ordering::Relaxed);
        let message =
            futures_util::FutureExt::now_or_never(self.task_message(id, client, task, None));
        self.submit_with_permit(permit, id, message.expect("it is not encoded"), None)
    }
}

#[cfg(test)]
impl TaskEvents {
    pub(crate) async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for TaskEvents {
    fn drop(&mut self) {
        if !self.is_ended {
            lock(&self.connection.0.tasks).open.remove(&self.id);
            self.connection.send(RunnerRequest::Cancel(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn time_while_a_process_is_suspended_does_not_count_as_a_hanging_step() {
        let limit = Some(Duration::from_secs(60));
        let mut watchdog =
            StepWatchdog { limit, rounds: 0, busy_time: Duration::ZERO, last_heartbeat: None };
        let heartbeat = Heartbeat { is_busy: true, rounds: 7, ..Heartbeat::default() };
        let mut now = Instant::now();
        let mut after = |seconds| {
            now += Duration::from_secs(seconds);
            watchdog.observe(now, &heartbeat)
        };
        assert_eq!([after(0), after(2), after(3600), after(2)], [Ok(()), Ok(()), Ok(()), Ok(())]);
        let error = (0..30).find_map(|_| after(2).err());
        assert!(error.unwrap().contains("a step took more than"), "it hangs all the same");
    }

    #[tokio::test]
    async fn a_runner_that_does_not_read_gets_a_limited_number_of_tasks_and_loses_none() {
        let (stream, runner_stream) = UnixStream::pair().unwrap();
        let (kill, _killed) = oneshot::channel();
        let exit = Box::pin(std::future::pending());
        let connection = RunnerConnection::new(
            RunnerProcess { pid: 0, stream, kill, exit },
            None,
            Box::new(|_| ()),
        );
        let task = || Task::Detokenize(vec![12345; 2000]);
        let mut waiting = Vec::new();
        while let Ok(events) =
            timeout(Duration::from_millis(50), connection.submit_with_reservation(1, task(), None))
                .await
        {
            waiting.push(events);
            assert!(waiting.len() < 4 * SEND_QUEUE_CAPACITY, "there is no end to it");
        }
        let count = waiting.len() as u64;
        assert!(waiting.len() >= SEND_QUEUE_CAPACITY);
        // Cancelling a task needs no permit.
        drop(waiting);
        let mut read = BufReader::new(runner_stream);
        let (mut submitted, mut cancelled) = (Vec::new(), Vec::new());
        while (cancelled.len() as u64) < count {
            match read_async::<RunnerRequest>(&mut read).await.unwrap().unwrap() {
                RunnerRequest::Submit { id, .. } => submitted.push(id),
                RunnerRequest::Cancel(id) => cancelled.push(id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(submitted, (1..=count).collect::<Vec<_>>());
        cancelled.sort_unstable();
        assert_eq!(cancelled, submitted);
        let _events = connection.submit(1, task());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_suspended_receives_messages_of_its_runners_again() {
        let (server, mut runner) = UnixStream::pair().unwrap();
        let (read, _write) = server.into_split();
        let mut read = BufReader::new(read);
        let receiving = tokio::spawn(async move { (receive(&mut read, true).await, read) });
        tokio::task::yield_now().await;
        tokio::time::advance(10 * SILENCE_TIMEOUT).await;
        runner
            .write_all(&encode_message(&RunnerResponse::Hello { version: VERSION }).unwrap())
            .await
            .unwrap();
        let (received, mut read) = receiving.await.unwrap();
        assert!(matches!(received, Ok(Ok(Some(RunnerResponse::Hello { .. })))), "{received:?}");
        let start = tokio::time::Instant::now();
        assert!(receive(&mut read, true).await.is_err(), "a silent runner is not waited for");
        assert_eq!(start.elapsed().as_secs(), SILENCE_TIMEOUT.as_secs());
    }
}
