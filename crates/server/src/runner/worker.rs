//! The runner's side of the socket: takes tasks, sends what becomes of them.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::generator::{Generator, LoadError, Loader};
use super::line::{Entrance, Line};
use super::prepare::Preparer;
use super::protocol::{
    FromRunner, LoadSpec, Loaded, ToRunner, VERSION, WINDOW, frame, is_out_of_memory, read, write,
};
use crate::canonical::{ApiError, Event};
use crate::lock::lock;
use crate::panic_message::panic_message;

/// How often a sign of life is sent.
const HEARTBEAT: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 2000 });

/// Between two writes of nothing but pieces of answers: a twentieth of what a reader can notice.
const GATHERED: Duration = Duration::from_millis(1);

/// Threads that render and tokenize prompts of ordinary size: one a core, within these bounds.
const PREPARERS: (usize, usize) = (2, 8);

/// Threads for prompts of more bytes than [`LARGE`], so that the others do not wait for them.
const LARGE_PREPARERS: usize = 2;

/// Threads for tasks whose answers have a form: to read it may take long however small it is, and who asks for none never
/// waits for it.
const FORM_PREPARERS: usize = 2;

/// Bytes that take a tokenizer some tens of milliseconds.
const LARGE: usize = 256 << 10;

/// Serves the server at the other end of a socket until it closes it.
///
/// # Errors
/// The socket breaks, or what comes is not the protocol.
pub fn run(socket: UnixStream, loader: &dyn Loader) -> io::Result<()> {
    let (out, outgoing) = mpsc::channel();
    let writer = socket.try_clone()?;
    let sender =
        thread::Builder::new().name("send".into()).spawn(move || send_all(writer, &outgoing))?;
    let send = |message| out.send(message).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
    send(FromRunner::Hello { version: VERSION })?;
    let mut incoming = BufReader::new(socket);
    let mut spec: Option<LoadSpec> = None;
    while let Some(message) = read::<ToRunner>(&mut incoming)? {
        match (message, &spec) {
            (ToRunner::Plan(planned), _) => {
                let plan = guarded(|| loader.plan(&planned));
                spec = Some(*planned);
                match plan {
                    Ok(memory) => send(FromRunner::Planned(memory))?,
                    Err(error) => return fail(error, out, sender),
                }
            }
            (ToRunner::Load, Some(spec)) => match guarded(|| loader.load(spec)) {
                Ok(generator) => return serve(generator.into(), &mut incoming, out),
                Err(error) => return fail(error, out, sender),
            },
            // Meant for a model that is not loaded yet: a task that was given up in time.
            (
                ToRunner::Load
                | ToRunner::Submit { .. }
                | ToRunner::Credit(..)
                | ToRunner::Cancel(_)
                | ToRunner::Beat,
                _,
            ) => {}
        }
    }
    Ok(())
}

/// A panic of the loader is an error like any other: it has a message and a request that waits for it.
pub(super) fn guarded<T>(load: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
        let message = format!("internal error while loading: {}", panic_message(&*panic));
        Err(LoadError { out_of_memory: is_out_of_memory(&message), message })
    })
}

fn fail(
    error: LoadError,
    out: Sender<FromRunner>,
    sender: thread::JoinHandle<()>,
) -> io::Result<()> {
    let LoadError { message, out_of_memory } = error;
    let _ = out.send(FromRunner::Failed { message, out_of_memory });
    drop(out);
    let _ = sender.join();
    Ok(())
}

/// Writes messages as they come; several that wait go out in one piece. Pieces that follow others within [`GATHERED`] wait for
/// the end of it: to wake a server costs more than what it is woken for.
fn send_all(socket: UnixStream, outgoing: &Receiver<FromRunner>) {
    let mut socket = BufWriter::new(socket);
    let mut next = Instant::now();
    while let Ok(mut message) = outgoing.recv() {
        loop {
            if put(&mut socket, &message).is_err() {
                return;
            }
            let wait = if is_piece(&message) {
                next.saturating_duration_since(Instant::now())
            } else {
                Duration::ZERO
            };
            match outgoing.recv_timeout(wait) {
                Ok(another) => message = another,
                Err(_) => break,
            }
        }
        if socket.flush().is_err() {
            return;
        }
        next = Instant::now() + GATHERED;
    }
}

/// Whether more is to follow, so that nobody waits for this alone.
fn is_piece(message: &FromRunner) -> bool {
    matches!(message, FromRunner::Event(_, event) if !event.is_end())
}

/// Writes a message. An event that is too large costs its own request an error, and nobody else anything.
fn put(socket: &mut BufWriter<UnixStream>, message: &FromRunner) -> io::Result<()> {
    match (frame(message), message) {
        (Ok(bytes), _) => socket.write_all(&bytes),
        (Err(e), FromRunner::Event(id, _)) => {
            let failure =
                ApiError::internal(format!("the answer is too large: {e}; ask for less at once"));
            write(socket, &FromRunner::Event(*id, Event::Error(failure)))
        }
        (Err(e), _) => Err(e),
    }
}

/// What a task's threads share.
pub(crate) struct TaskState {
    /// Events that may still be sent.
    credit: AtomicI64,
    cancelled: AtomicBool,
    /// The engine's number of the job, once it has one.
    job: Mutex<Option<u64>>,
}

impl TaskState {
    pub(crate) fn new() -> Self {
        Self {
            credit: AtomicI64::new(WINDOW.into()),
            cancelled: AtomicBool::new(false),
            job: Mutex::new(None),
        }
    }

    /// Whether so many more events that are not the end may be sent.
    pub(crate) fn may_send(&self, events: i64) -> bool {
        // What is held back until the end must find room then, too.
        self.credit.load(Ordering::Acquire) >= events + 2
    }

    /// Events that may be sent now, as [`Self::may_send`] counts them.
    pub(crate) fn room(&self) -> usize {
        usize::try_from(self.credit.load(Ordering::Acquire) - 2).unwrap_or(0)
    }

    pub(crate) fn sent(&self) {
        self.credit.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

/// A task as its threads know it.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) id: u64,
    pub(crate) client: u64,
    pub(crate) state: Arc<TaskState>,
    out: Sender<FromRunner>,
    tasks: Arc<Tasks>,
}

type Tasks = Mutex<HashMap<u64, Arc<TaskState>>>;

impl Handle {
    /// Sends an event; `false` if nobody listens.
    pub(crate) fn send(&self, event: Event) -> bool {
        if self.state.is_cancelled() {
            return false;
        }
        if event.is_end() {
            lock(&self.tasks).remove(&self.id);
        } else {
            self.state.sent();
        }
        self.out.send(FromRunner::Event(self.id, event)).is_ok()
    }

    /// Remembers the engine's number of the job; `false` if the task was cancelled meanwhile.
    pub(crate) fn started(&self, job: u64) -> bool {
        *lock(&self.state.job) = Some(job);
        !self.state.is_cancelled()
    }
}

fn serve(
    generator: Arc<dyn Generator>,
    incoming: &mut BufReader<UnixStream>,
    out: Sender<FromRunner>,
) -> io::Result<()> {
    let loaded = Loaded { num_ctx: generator.facts().num_ctx, memory: generator.pulse().memory };
    out.send(FromRunner::Loaded(loaded)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    let (stop, stopped) = mpsc::channel::<()>();
    let (beating, to) = (generator.clone(), out.clone());
    thread::Builder::new()
        .name("heartbeat".into())
        .spawn(move || heartbeat(beating.as_ref(), &to, &stopped))?;
    let preparer = Arc::new(Preparer::new(generator.clone()));
    let cores = thread::available_parallelism().map_or(PREPARERS.0, usize::from);
    let ordinary = preparers("prepare", cores.clamp(PREPARERS.0, PREPARERS.1), &preparer)?;
    let large = preparers("prepare large", LARGE_PREPARERS, &preparer)?;
    let forms = preparers("prepare form", FORM_PREPARERS, &preparer)?;
    let large_forms = preparers("large form", FORM_PREPARERS, &preparer)?;
    let tasks = Arc::new(Tasks::default());
    while let Some(message) = read::<ToRunner>(incoming)? {
        match message {
            ToRunner::Submit { id, client, task } => {
                let state = Arc::new(TaskState::new());
                lock(&tasks).insert(id, state.clone());
                let handle = Handle { id, client, state, out: out.clone(), tasks: tasks.clone() };
                let queue = match (task.has_constraint(), task.text_bytes() > LARGE) {
                    (false, false) => &ordinary,
                    (false, true) => &large,
                    (true, false) => &forms,
                    (true, true) => &large_forms,
                };
                queue.push(handle, task);
            }
            ToRunner::Credit(id, more) => {
                if let Some(task) = lock(&tasks).get(&id) {
                    task.credit.fetch_add(more.into(), Ordering::AcqRel);
                    generator.wake();
                }
            }
            ToRunner::Cancel(id) => {
                if let Some(task) = lock(&tasks).remove(&id) {
                    task.cancelled.store(true, Ordering::Release);
                    if let Some(job) = *lock(&task.job) {
                        generator.cancel(job);
                    }
                    [&ordinary, &large, &forms, &large_forms]
                        .into_iter()
                        .for_each(|line| line.remove(id));
                }
            }
            ToRunner::Beat => {
                let _ = out.send(FromRunner::Heartbeat(generator.pulse()));
            }
            ToRunner::Plan(_) | ToRunner::Load => {}
        }
    }
    drop(stop);
    Ok(())
}

fn heartbeat(generator: &dyn Generator, out: &Sender<FromRunner>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
        if out.send(FromRunner::Heartbeat(generator.pulse())).is_err() {
            return;
        }
    }
}

/// Starts threads that share a line of tasks; they end with it.
fn preparers(name: &str, count: usize, preparer: &Arc<Preparer>) -> io::Result<Entrance> {
    let line = Arc::<Line>::default();
    for i in 0..count {
        let (preparer, line) = (preparer.clone(), line.clone());
        thread::Builder::new()
            .name(format!("{name} {i}"))
            .spawn(move || prepare_all(&preparer, &line))?;
    }
    Ok(Entrance::of(&line))
}

fn prepare_all(preparer: &Preparer, line: &Line) {
    while let Some((handle, task)) = line.next() {
        if handle.state.is_cancelled() {
            continue;
        }
        let end = handle.clone();
        let prepared = catch_unwind(AssertUnwindSafe(|| preparer.start(handle, task)));
        match prepared {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => drop(end.send(Event::Error(failure))),
            Err(_) => {
                let text = "an internal error happened while the prompt was made; the log of the server says more";
                end.send(Event::Error(ApiError::internal(text)));
            }
        }
    }
}
