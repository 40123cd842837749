//! The runner's side of the socket: receives tasks and sends their events.

use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use puna_mirror::{SharedTable, TableLimit};

use super::preparer::Preparer;
use super::protocol::{
    LoadReport, LoadSpec, RunnerRequest, RunnerResponse, VERSION, encode_message, is_out_of_memory,
    read, write,
};
use super::runner_model::{LoadError, Loader, RunnerModel};
use super::sandbox::Sandbox;
use super::task_handle::{TaskHandle, TaskState, Tasks};
use crate::canonical::{ApiError, Event, Task};
use crate::util::fair_work_queue::{FairWorkQueue, WorkSender};
use crate::util::lock::lock;
use crate::util::panic_message::panic_message;
use crate::util::thread_priority::lower_priority;

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 2000 });

/// Minimum time between two writes that hold only pieces of answers: a twentieth of the shortest
/// delay that a reader notices.
const WRITE_INTERVAL: Duration = Duration::from_millis(1);

/// Minimum and maximum number of threads that render and tokenize prompts of ordinary size; between
/// them, one for each core.
const PREPARER_THREADS: (usize, usize) = (2, 8);

/// Threads for prompts of more bytes than [`LARGE_TASK_BYTES`], so that others do not wait for
/// them.
const LARGE_PREPARER_THREADS: usize = 2;

/// Threads for tasks with a constraint. Compiling even a small constraint may take long, and tasks
/// without one never wait for it.
const CONSTRAINT_PREPARER_THREADS: usize = 2;
/// Nice value of threads that tokenize large texts or compile constraints, which take seconds.
const LONG_PREPARATION_NICE: i32 = 10;

/// Maximum number of constraints of one client that are compiled at a time in a queue, so that one
/// thread remains for others.
const CLIENT_CONSTRAINTS: usize = CONSTRAINT_PREPARER_THREADS - 1;

/// Size in bytes that takes a tokenizer some tens of milliseconds.
const LARGE_TASK_BYTES: usize = 256 << 10;

/// Description of the tasks of a runner.
pub(crate) static RUNNER_TASKS: SharedTable = SharedTable {
    name: "requests that a loaded model works on",
    holders: &[
        "puna_server::runner::task_handle::Tasks",
        "puna_server::runner::connection::Shared",
    ],
    limits: &[TableLimit::Rule("connections")],
    shares: &[TableLimit::Rule("the client with the fewest prepared requests is next")],
    when_full: "waits",
    test: "a_client_with_its_share_of_threads_leaves_one_to_another",
};

/// A task that waits until a thread prepares it.
type PreparerTask = (TaskHandle, Task);

/// Serves the server at the other end of a socket until the server closes it. Calls
/// `enter_sandbox` once, with the first model, before it starts a thread or reads a file.
///
/// # Errors
/// The socket breaks, or a message does not follow the protocol.
pub fn run(
    mut socket: UnixStream,
    loader: &dyn Loader,
    enter_sandbox: impl FnOnce(&LoadSpec) -> Sandbox,
) -> io::Result<()> {
    write(&mut socket, &RunnerResponse::Hello { version: VERSION })?;
    let mut incoming = BufReader::new(socket.try_clone()?);
    let Some(first_spec) = read_first_spec(&mut incoming)? else { return Ok(()) };
    let sandbox = enter_sandbox(&first_spec);
    write(&mut socket, &RunnerResponse::Sandboxed(sandbox.report.clone()))?;
    if let Some(message) = sandbox.refusal {
        return write(
            &mut socket,
            &RunnerResponse::Failed { message, out_of_memory: false, is_invalid_model: false },
        );
    }
    let (out, outgoing) = mpsc::channel();
    let writer = socket;
    let sender =
        thread::Builder::new().name("send".into()).spawn(move || send_all(writer, &outgoing))?;
    let send = |message| out.send(message).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
    let mut spec: Option<LoadSpec> = None;
    let mut next = Some(RunnerRequest::Plan(first_spec));
    while let Some(message) = next {
        match (message, &spec) {
            (RunnerRequest::Plan(planned), _) => {
                let plan = catch_load_panic(|| loader.plan(&planned));
                spec = Some(*planned);
                match plan {
                    Ok(memory) => send(RunnerResponse::Planned(memory))?,
                    Err(error) => return fail(error, out, sender),
                }
            }
            (RunnerRequest::Load, Some(spec)) => match catch_load_panic(|| loader.load(spec)) {
                Ok(model) => return serve(model.into(), &mut incoming, out),
                Err(error) => return fail(error, out, sender),
            },
            // These messages refer to a model that is not loaded yet, such as a task cancelled
            // before.
            (
                RunnerRequest::Load
                | RunnerRequest::Submit { .. }
                | RunnerRequest::Credit(..)
                | RunnerRequest::Cancel(_)
                | RunnerRequest::RequestHeartbeat,
                _,
            ) => {}
        }
        next = read(&mut incoming)?;
    }
    Ok(())
}

/// Reads messages up to the first model to plan; `None` if the server closes the socket before.
fn read_first_spec(incoming: &mut BufReader<UnixStream>) -> io::Result<Option<Box<LoadSpec>>> {
    while let Some(message) = read::<RunnerRequest>(incoming)? {
        if let RunnerRequest::Plan(spec) = message {
            return Ok(Some(spec));
        }
    }
    Ok(None)
}

/// Runs the loader and turns its panic into an error, because a request waits for the result.
pub(super) fn catch_load_panic<T>(
    load: impl FnOnce() -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| {
        let message = format!("internal error while loading: {}", panic_message(&*panic));
        Err(LoadError {
            out_of_memory: is_out_of_memory(&message),
            is_invalid_model: false,
            message,
        })
    })
}

/// Reports a loading error, waits until it is written, and ends the runner.
fn fail(
    error: LoadError,
    out: Sender<RunnerResponse>,
    sender: thread::JoinHandle<()>,
) -> io::Result<()> {
    let LoadError { message, out_of_memory, is_invalid_model } = error;
    let _ = out.send(RunnerResponse::Failed { message, out_of_memory, is_invalid_model });
    drop(out);
    let _ = sender.join();
    Ok(())
}

/// Writes messages in order; messages that wait are written together. A piece within
/// [`WRITE_INTERVAL`] of the last write waits for the end of the interval, because waking the
/// server costs more than processing a piece.
fn send_all(socket: UnixStream, outgoing: &Receiver<RunnerResponse>) {
    let mut socket = BufWriter::new(socket);
    let mut next = Instant::now();
    while let Ok(mut message) = outgoing.recv() {
        loop {
            if write_message(&mut socket, &message).is_err() {
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
        next = Instant::now() + WRITE_INTERVAL;
    }
}

/// Whether further events of the request follow, so that this message may wait.
fn is_piece(message: &RunnerResponse) -> bool {
    matches!(message, RunnerResponse::Event(_, event) if !event.is_end())
}

/// Writes a message. An event that is too large fails its own request only.
fn write_message(socket: &mut BufWriter<UnixStream>, message: &RunnerResponse) -> io::Result<()> {
    match (encode_message(message), message) {
        (Ok(bytes), _) => socket.write_all(&bytes),
        (Err(e), RunnerResponse::Event(id, _)) => {
            let failure = ApiError::internal(format!("the answer is too large: {e}; request less"));
            write(socket, &RunnerResponse::Event(*id, Event::Error(failure)))
        }
        (Err(e), _) => Err(e),
    }
}

/// Runs the tasks of a loaded model until the server closes the socket.
fn serve(
    model: Arc<dyn RunnerModel>,
    incoming: &mut BufReader<UnixStream>,
    out: Sender<RunnerResponse>,
) -> io::Result<()> {
    let loaded = LoadReport {
        num_ctx: model.model_info().num_ctx,
        max_token_bytes: model.model_info().max_token_bytes,
        memory: model.heartbeat().memory,
    };
    out.send(RunnerResponse::Loaded(loaded))
        .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    let (stop, stopped) = mpsc::channel::<()>();
    let (model_for_heartbeats, to) = (model.clone(), out.clone());
    thread::Builder::new()
        .name("heartbeat".into())
        .spawn(move || send_heartbeats(model_for_heartbeats.as_ref(), &to, &stopped))?;
    let preparer = Arc::new(Preparer::new(model.clone()));
    let start = |name, threads, share, nice| spawn_preparers(name, threads, share, nice, &preparer);
    let [few, large, small_grammars, large_grammars] = preparer_threads();
    let ordinary = start("prepare", few, few, 0)?;
    let large = start("prepare large", large, large, LONG_PREPARATION_NICE)?;
    let grammar = |name, threads| start(name, threads, CLIENT_CONSTRAINTS, LONG_PREPARATION_NICE);
    let constrained = grammar("prepare grammar", small_grammars)?;
    let large_constrained = grammar("large grammar", large_grammars)?;
    let tasks = Arc::new(Tasks::default());
    while let Some(message) = read::<RunnerRequest>(incoming)? {
        match message {
            RunnerRequest::Submit { id, client, task } => {
                let state = Arc::new(TaskState::new());
                lock(&tasks).insert(id, state.clone());
                let handle =
                    TaskHandle { id, client, state, out: out.clone(), tasks: tasks.clone() };
                let queue = match (task.has_constraint(), task.text_bytes() > LARGE_TASK_BYTES) {
                    (false, false) => &ordinary,
                    (false, true) => &large,
                    (true, false) => &constrained,
                    (true, true) => &large_constrained,
                };
                queue.push(client, 1, (handle, task));
            }
            RunnerRequest::Credit(id, more) => {
                if let Some(task) = lock(&tasks).get(&id) {
                    task.credit.fetch_add(more.into(), Ordering::AcqRel);
                    model.wake();
                }
            }
            RunnerRequest::Cancel(id) => {
                if let Some(task) = lock(&tasks).remove(&id) {
                    task.cancelled.store(true, Ordering::Release);
                    if let Some(request) = *lock(&task.engine_request) {
                        model.cancel(request);
                    }
                    [&ordinary, &large, &constrained, &large_constrained]
                        .into_iter()
                        .for_each(|queue| queue.remove_first(|(handle, _)| handle.id == id));
                }
            }
            RunnerRequest::RequestHeartbeat => {
                let _ = out.send(RunnerResponse::Heartbeat(model.heartbeat()));
            }
            RunnerRequest::Plan(_) | RunnerRequest::Load => {}
        }
    }
    drop(stop);
    Ok(())
}

/// Numbers of threads that prepare tasks: ordinary and large ones without a constraint, then small
/// and large ones with one.
fn preparer_threads() -> [usize; 4] {
    let cores = thread::available_parallelism().map_or(PREPARER_THREADS.0, usize::from);
    let cores = cores.clamp(PREPARER_THREADS.0, PREPARER_THREADS.1);
    let constrained = CONSTRAINT_PREPARER_THREADS;
    [cores, LARGE_PREPARER_THREADS, constrained, constrained]
}

/// Largest working memory of a runner for texts that it encodes, in bytes: one piece for each
/// thread.
pub(super) fn encoding_bytes() -> u64 {
    let threads: usize = preparer_threads().iter().sum();
    threads as u64 * puna_tokenizer::ENCODING_BYTES as u64
}

/// Sends a heartbeat every [`HEARTBEAT_INTERVAL`] until `stopped` is dropped.
fn send_heartbeats(model: &dyn RunnerModel, out: &Sender<RunnerResponse>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(HEARTBEAT_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if out.send(RunnerResponse::Heartbeat(model.heartbeat())).is_err() {
            return;
        }
    }
}

/// Starts threads that share a queue of tasks. At most `max_per_client` of them work for one
/// client. They exit when the queue closes.
fn spawn_preparers(
    name: &str,
    count: usize,
    max_per_client: usize,
    nice: i32,
    preparer: &Arc<Preparer>,
) -> io::Result<WorkSender<PreparerTask>> {
    let queue = Arc::new(FairWorkQueue::new(max_per_client));
    for i in 0..count {
        let (preparer, queue) = (preparer.clone(), queue.clone());
        thread::Builder::new().name(format!("{name} {i}")).spawn(move || {
            lower_priority(nice);
            prepare_all(&preparer, &queue);
        })?;
    }
    Ok(WorkSender::new(&queue))
}

/// Prepares tasks until the queue closes. A panic fails its own task only.
fn prepare_all(preparer: &Preparer, queue: &FairWorkQueue<PreparerTask>) {
    while let Some((_running, (handle, task))) = queue.next() {
        if handle.state.is_cancelled() {
            continue;
        }
        let end = handle.clone();
        let prepared = catch_unwind(AssertUnwindSafe(|| preparer.start(handle, task)));
        match prepared {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => drop(end.send(Event::Error(failure))),
            Err(_) => {
                let text = "internal error while preparing the prompt: see the server log";
                end.send(Event::Error(ApiError::internal(text)));
            }
        }
    }
}
