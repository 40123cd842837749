//! The server's end of the connection to a runner.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::launch::Launched;
use super::protocol::{
    CALLS_MAX, Counts, FromRunner, LoadSpec, Loaded, MemoryParts, Pulse, ToRunner, VERSION, WINDOW,
    frame, read_async,
};
use crate::bounded_channel::{self, Receiver, SendPermit, Sender};
use crate::canonical::{ApiError, Event, GenerationSummary, Task};
use crate::http::body_budget::BodyReservation;
use crate::lock::lock;
use crate::scheduler::RunnerExit;

/// A loaded runner that says nothing for so long is taken for dead: it sends a sign of life every two seconds. Before,
/// it may have to wait for as long as other models need to leave, and the manager watches how long it loads.
const SILENCE: Duration = Duration::from_secs(60);

/// More time than this does not pass between two signs of life, whatever the clock says.
const BEAT_MAX: Duration = Duration::from_secs(5);

/// Silence is measured in this many pieces.
const PIECES: u32 = 4;

/// How long a runner may take to say what it is doing, where somebody wants to know now.
const REFRESH: Duration = Duration::from_millis(200);

/// Tasks and questions that wait to be sent.
const PLACES: usize = 256;

/// Bytes of a task that is written where it is sent.
const LARGE: usize = 256 << 10;

/// How long a runner whose connection has ended may take to end itself.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a runner reports about itself.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The memory it is going to need.
    Planned(MemoryParts),
    /// It is ready.
    Loaded(Loaded),
    /// It has ended.
    Exited(RunnerExit),
}

/// Receives notices.
pub(crate) type OnNotice = Box<dyn Fn(Notice) + Send + Sync>;

/// A runner. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    /// Tasks and questions wait for a place: a runner that reads nothing gets no more of them, and who gives up meanwhile
    /// leaves nothing behind. What belongs to a task that had one follows it without.
    out: Sender<Outgoing>,
    tasks: Mutex<Tasks>,
    kill: Mutex<Option<oneshot::Sender<()>>>,
    pulse: Mutex<Pulse>,
    /// What the generations it finished come to.
    finished: Mutex<Counts>,
    next_task: AtomicU64,
    /// Told of every sign of life.
    beats: Notify,
}

/// A message on its way, and the memory that it holds.
type Outgoing = (ToRunner, Option<Arc<BodyReservation>>);

/// A task that has not ended.
struct Open {
    events: mpsc::Sender<Event>,
    /// The memory of its request, until the runner's first word about it: before, it may wait there as it is.
    share: Option<Arc<BodyReservation>>,
}

#[derive(Default)]
struct Tasks {
    open: HashMap<u64, Open>,
    /// Why there will be no more.
    ended: Option<ApiError>,
}

impl Link {
    /// Begins to speak with a runner that was just started. One whose model is busy with a single step for longer than
    /// `step_timeout` is ended.
    pub(crate) fn new(
        launched: Launched,
        step_timeout: Option<Duration>,
        on_notice: OnNotice,
    ) -> Self {
        let (out, outgoing) = bounded_channel::channel(PLACES);
        let link = Self(Arc::new(Shared {
            out,
            tasks: Mutex::default(),
            kill: Mutex::new(Some(launched.kill)),
            pulse: Mutex::default(),
            finished: Mutex::default(),
            next_task: AtomicU64::new(1),
            beats: Notify::new(),
        }));
        let (read, write) = launched.stream.into_split();
        puna_tasks::spawn(send_all(outgoing, write, Arc::downgrade(&link.0)));
        let watch = StepWatch { limit: step_timeout, rounds: 0, seen: Duration::ZERO, last: None };
        let reader = Reader { link: link.clone(), failed: None, loaded: false, watch };
        // On its own, since it is what ends the process when that is asked for.
        let exit = tokio::spawn(launched.exit);
        puna_tasks::spawn(reader.run(read, exit, on_notice));
        link
    }

    /// Asks for a plan of a model's memory.
    pub(crate) fn plan(&self, spec: LoadSpec) {
        self.send(ToRunner::Plan(Box::new(spec)));
    }

    /// Has the planned model loaded.
    pub(crate) fn load(&self) {
        self.send(ToRunner::Load);
    }

    /// Ends the runner at once.
    pub(crate) fn kill(&self) {
        if let Some(kill) = lock(&self.0.kill).take() {
            let _ = kill.send(());
        }
    }

    /// Tells all tasks why they end, then ends the runner at once.
    pub(crate) fn dismiss(&self, failure: &ApiError) {
        self.end_tasks(failure);
        self.kill();
    }

    /// Where its memory goes, as it last said.
    pub(crate) fn memory(&self) -> MemoryParts {
        lock(&self.0.pulse).memory
    }

    /// Asks what it is doing, and waits a moment for the answer.
    pub(crate) async fn refresh(&self) {
        let beats = self.0.beats.notified();
        let answered = async {
            self.0.out.send((ToRunner::Beat, None)).await;
            beats.await;
        };
        let _ = timeout(REFRESH, answered).await;
    }

    /// What it said last about itself. What it has done is at least what finished generations tell, which come sooner.
    pub(crate) fn pulse(&self) -> Pulse {
        let pulse = *lock(&self.0.pulse);
        Pulse { counts: pulse.counts.max(*lock(&self.0.finished)), ..pulse }
    }

    /// Has a task of a client done, and holds its memory until the runner has taken it. The runner gives it up when the
    /// events are dropped.
    pub(crate) async fn submit_holding(
        &self,
        client: u64,
        task: Task,
        share: Option<Arc<BodyReservation>>,
    ) -> Events {
        let place = self.0.out.reserve().await;
        self.submit_at(place, client, task, share)
    }

    fn submit_at(
        &self,
        place: SendPermit,
        client: u64,
        task: Task,
        share: Option<Arc<BodyReservation>>,
    ) -> Events {
        let id = self.0.next_task.fetch_add(1, Ordering::Relaxed);
        // More than the window: what comes with the last token (a piece and what was held back, each in up to two
        // parts), calls that come all at once (begun, with arguments, whole) with text between them, and an error that
        // ends everything always find room.
        let (tx, rx) = mpsc::channel(WINDOW as usize + 8 + 4 * CALLS_MAX);
        let mut tasks = lock(&self.0.tasks);
        match &tasks.ended {
            Some(failure) => drop(tx.try_send(Event::Error(failure.clone()))),
            None => {
                tasks.open.insert(id, Open { events: tx, share: share.clone() });
                // A runner that is gone has told its tasks so.
                self.0.out.send_reserved(place, (ToRunner::Submit { id, client, task }, share));
            }
        }
        drop(tasks);
        Events { id, rx, link: self.clone(), taken: 0, ended: false }
    }

    fn send(&self, message: ToRunner) {
        self.0.out.send_unbounded((message, None));
    }

    fn deliver(&self, id: u64, event: Event) {
        if let Event::Done(done) = &event {
            let mut finished = lock(&self.0.finished);
            *finished = finished.plus(counts(done));
        }
        let mut tasks = lock(&self.0.tasks);
        let end = event.is_end();
        let sent = tasks.open.get_mut(&id).is_none_or(|task| {
            task.share = None;
            task.events.try_send(event).is_ok()
        });
        if !sent {
            tracing::error!(task = id, "a runner sent more events than it may");
            self.send(ToRunner::Cancel(id));
            tasks.open.remove(&id);
            return;
        }
        if end {
            tasks.open.remove(&id);
        }
    }

    fn end_tasks(&self, failure: &ApiError) {
        let mut tasks = lock(&self.0.tasks);
        tasks.ended.get_or_insert_with(|| failure.clone());
        for (_, task) in tasks.open.drain() {
            let _ = task.events.try_send(Event::Error(failure.clone()));
        }
    }
}

fn counts(done: &GenerationSummary) -> Counts {
    // A prompt of which no answer was wanted is counted, and not computed.
    let computed =
        if done.generated_tokens == 0 && done.prefill.is_zero() { 0 } else { done.prompt_tokens };
    Counts {
        prompt_tokens: computed.saturating_sub(done.cached_tokens),
        generated_tokens: done.generated_tokens,
        guesses: done.guesses,
        ..Counts::default()
    }
}

/// Sends messages until nobody can give any more. A task that is too large costs its own request an error, and nobody else
/// anything.
async fn send_all(mut outgoing: Receiver<Outgoing>, mut write: OwnedWriteHalf, link: Weak<Shared>) {
    while let Some((message, _held)) = outgoing.recv().await {
        let task = match &message {
            ToRunner::Submit { id, .. } => Some(*id),
            _ => None,
        };
        let bytes = match (framed(message).await, task) {
            (Ok(bytes), _) => bytes,
            (Err(error), Some(id)) => {
                if let Some(shared) = link.upgrade() {
                    let text = format!("the request is too large for the model runner: {error}");
                    Link(shared).deliver(id, Event::Error(ApiError::new(413, text)));
                }
                continue;
            }
            (Err(error), None) => {
                tracing::error!(%error, "a message to a runner could not be written");
                continue;
            }
        };
        if let Err(error) = write.write_all(&bytes).await {
            // The reader sees the end of the connection and says what happened.
            tracing::debug!(%error, "a message to a runner could not be sent");
            return;
        }
    }
}

/// A message as it is sent. One that is large is written where nobody else waits meanwhile.
async fn framed(message: ToRunner) -> io::Result<Vec<u8>> {
    match &message {
        ToRunner::Submit { task, .. } if task.text_bytes() > LARGE => {
            let writing = puna_tasks::run_blocking(move || frame(&message));
            writing.await.map_err(io::Error::other)?
        }
        _ => frame(&message),
    }
}

struct Reader {
    link: Link,
    /// The runner's own account of why it ends.
    failed: Option<RunnerExit>,
    loaded: bool,
    watch: StepWatch,
}

/// Notices that a runner's model does not get on.
struct StepWatch {
    limit: Option<Duration>,
    rounds: u64,
    /// For how long the present round has been seen, if there is work.
    seen: Duration,
    /// The last sign of life.
    last: Option<Instant>,
}

impl StepWatch {
    /// Takes a sign of life; the error is the reason to end the runner.
    fn take(&mut self, now: Instant, pulse: &Pulse) -> Result<(), String> {
        let passed = self.last.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        if !pulse.works || pulse.rounds != self.rounds {
            (self.rounds, self.seen) = (pulse.rounds, Duration::ZERO);
            return Ok(());
        }
        // Signs of life are seconds apart: where more time has passed, one of the processes was stopped, and the clock has
        // jumped for a model that did not hang.
        self.seen += passed.min(BEAT_MAX);
        match self.limit {
            Some(limit) if self.seen > limit => Err(format!(
                "the model was busy with a single step for more than {} seconds and was ended; PUNA_STEP_TIMEOUT sets the limit",
                limit.as_secs_f64().ceil()
            )),
            _ => Ok(()),
        }
    }
}

/// The next message of a runner, which may say nothing for long until it is loaded. Silence is counted in pieces: a process
/// that was itself stopped finds that one has passed, whatever the clock says, and then hears the runner again.
async fn hear(
    read: &mut BufReader<OwnedReadHalf>,
    loaded: bool,
) -> Result<io::Result<Option<FromRunner>>, Elapsed> {
    let mut message = pin!(read_async::<FromRunner>(read));
    if !loaded {
        return Ok(message.await);
    }
    for _ in 1..PIECES {
        if let Ok(heard) = timeout(SILENCE / PIECES, message.as_mut()).await {
            return Ok(heard);
        }
    }
    timeout(SILENCE / PIECES, message).await
}

impl Reader {
    async fn run(
        mut self,
        read: OwnedReadHalf,
        mut exit: JoinHandle<RunnerExit>,
        on_notice: OnNotice,
    ) {
        // Tokens are short: one call to the system brings head and body.
        let mut read = BufReader::new(read);
        let silent = loop {
            match hear(&mut read, self.loaded).await {
                Err(_) => {
                    break Some(format!(
                        "it gave no sign of life for {} seconds",
                        SILENCE.as_secs()
                    ));
                }
                Ok(Err(e)) if e.kind() == io::ErrorKind::InvalidData => {
                    break Some(format!("it sent nonsense: {e}"));
                }
                Ok(Err(_) | Ok(None)) => break None,
                Ok(Ok(Some(message))) => match self.take(message, &on_notice) {
                    Ok(()) => {}
                    Err(reason) => break Some(reason),
                },
            }
        };
        if silent.is_some() {
            self.link.kill();
        }
        let ended = match timeout(FAREWELL, &mut exit).await {
            Ok(ended) => ended,
            Err(_) => {
                self.link.kill();
                exit.await
            }
        };
        let ended = ended.unwrap_or_else(|e| RunnerExit {
            reason: format!("its end was not seen: {e}"),
            out_of_memory: false,
        });
        let exit = match (self.failed, silent) {
            (Some(failed), _) => failed,
            (None, Some(reason)) => RunnerExit { reason, ..ended },
            (None, None) => ended,
        };
        let text = "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, \
                    check the log of the Puna server for details";
        self.link.end_tasks(&ApiError::internal(format!("{text}: {}", exit.reason)));
        on_notice(Notice::Exited(exit));
    }

    fn take(&mut self, message: FromRunner, on_notice: &OnNotice) -> Result<(), String> {
        match message {
            FromRunner::Hello { version: VERSION } => {}
            FromRunner::Hello { version } => {
                return Err(format!(
                    "it speaks version {version} of the protocol instead of {VERSION}: restart the server"
                ));
            }
            FromRunner::Planned(memory) => on_notice(Notice::Planned(memory)),
            FromRunner::Loaded(loaded) => {
                self.loaded = true;
                lock(&self.link.0.pulse).memory = loaded.memory;
                on_notice(Notice::Loaded(loaded));
            }
            FromRunner::Failed { message, out_of_memory } => {
                self.failed = Some(RunnerExit { reason: message, out_of_memory });
            }
            FromRunner::Event(id, event) => self.link.deliver(id, event),
            FromRunner::Heartbeat(pulse) => {
                *lock(&self.link.0.pulse) = pulse;
                self.link.0.beats.notify_waiters();
                self.watch.take(Instant::now(), &pulse)?;
            }
        }
        Ok(())
    }
}

/// The events of one task. Dropping it gives the task up.
pub(crate) struct Events {
    id: u64,
    rx: mpsc::Receiver<Event>,
    link: Link,
    taken: u32,
    ended: bool,
}

impl Events {
    /// The next event; after an end there is none.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Some(event) = ready!(self.rx.poll_recv(cx)) else {
            self.ended = true;
            let lost = "the model runner gave this request up; this is an error in the server";
            return Poll::Ready(Some(Event::Error(ApiError::internal(lost))));
        };
        self.ended = event.is_end();
        self.taken += 1;
        if self.taken >= WINDOW / 2 && !self.ended {
            self.link.send(ToRunner::Credit(self.id, self.taken));
            self.taken = 0;
        }
        Poll::Ready(Some(event))
    }
}

#[cfg(test)]
impl Link {
    pub(crate) fn submit(&self, client: u64, task: Task) -> Events {
        let place =
            futures_util::FutureExt::now_or_never(self.0.out.reserve()).expect("a place is free");
        self.submit_at(place, client, task, None)
    }
}

#[cfg(test)]
impl Events {
    pub(crate) async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if !self.ended {
            lock(&self.link.0.tasks).open.remove(&self.id);
            self.link.send(ToRunner::Cancel(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn time_for_which_a_process_was_stopped_is_no_step_that_hangs() {
        let limit = Some(Duration::from_secs(60));
        let mut watch = StepWatch { limit, rounds: 0, seen: Duration::ZERO, last: None };
        let pulse = Pulse { works: true, rounds: 7, ..Pulse::default() };
        let mut now = Instant::now();
        let mut after = |seconds| {
            now += Duration::from_secs(seconds);
            watch.take(now, &pulse)
        };
        assert_eq!([after(0), after(2), after(3600), after(2)], [Ok(()), Ok(()), Ok(()), Ok(())]);
        let told = (0..30).find_map(|_| after(2).err());
        assert!(told.unwrap().contains("busy with a single step"), "it hangs all the same");
    }

    #[tokio::test]
    async fn a_runner_that_reads_nothing_gets_so_many_tasks_and_loses_none() {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let (kill, _killed) = oneshot::channel();
        let exit = Box::pin(std::future::pending());
        let link = Link::new(Launched { pid: 0, stream, kill, exit }, None, Box::new(|_| ()));
        let task = || Task::Detokenize(vec![12345; 2000]);
        let mut waiting = Vec::new();
        while let Ok(events) =
            timeout(Duration::from_millis(50), link.submit_holding(1, task(), None)).await
        {
            waiting.push(events);
            assert!(waiting.len() < 4 * PLACES, "there is no end to it");
        }
        let count = waiting.len() as u64;
        assert!(waiting.len() >= PLACES);
        // What gives a task up needs no place.
        drop(waiting);
        let mut read = BufReader::new(theirs);
        let (mut submitted, mut cancelled) = (Vec::new(), Vec::new());
        while (cancelled.len() as u64) < count {
            match read_async::<ToRunner>(&mut read).await.unwrap().unwrap() {
                ToRunner::Submit { id, .. } => submitted.push(id),
                ToRunner::Cancel(id) => cancelled.push(id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(submitted, (1..=count).collect::<Vec<_>>());
        cancelled.sort_unstable();
        assert_eq!(cancelled, submitted);
        let _events = link.submit(1, task());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_was_stopped_for_long_hears_its_runners_again() {
        let (server, mut runner) = UnixStream::pair().unwrap();
        let (read, _write) = server.into_split();
        let mut read = BufReader::new(read);
        let hearing = tokio::spawn(async move { (hear(&mut read, true).await, read) });
        tokio::task::yield_now().await;
        tokio::time::advance(10 * SILENCE).await;
        runner.write_all(&frame(&FromRunner::Hello { version: VERSION }).unwrap()).await.unwrap();
        let (heard, mut read) = hearing.await.unwrap();
        assert!(matches!(heard, Ok(Ok(Some(FromRunner::Hello { .. })))), "{heard:?}");
        let began = tokio::time::Instant::now();
        assert!(hear(&mut read, true).await.is_err(), "a silent runner is not waited for");
        assert_eq!(began.elapsed().as_secs(), SILENCE.as_secs());
    }
}
