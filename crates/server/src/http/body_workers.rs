//! Threads for work on large request bodies: copying, decompressing, decoding and encoding.
//!
//! The threads have a low priority, so that on a busy machine the work of other requests comes
//! first. A client uses one thread at a time, and the client with the fewest bytes so far is next.
//! While a body waits for a thread, the server does not read its connection, so the client waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread;

use puna_mirror::{SharedTable, TableLimit};
use tokio::sync::oneshot;

use crate::canonical::ApiError;
use crate::util::fair_work_queue::{FairWorkQueue, WorkSender};
use crate::util::panic_message::panic_message;
use crate::util::thread_priority::lower_priority;

/// Maximum size of a body that the threads of connections process themselves. A larger body would
/// delay other requests.
pub(crate) const INLINE_BODY_BYTES: usize = 64 << 10;

/// Bytes of a large body that a connection receives before it waits for a worker thread. On a busy
/// machine, the wait takes tens of milliseconds.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// Number of threads.
const WORKER_THREADS: usize = 4;

/// Maximum threads that work for one client at a time.
const CLIENT_THREADS: usize = 1;

/// Nice value of the threads.
const WORKER_NICE: i32 = 10;

/// Description of the work on large bodies.
pub(crate) static BODY_WORK: SharedTable = SharedTable {
    name: "work on request bodies over 64 KiB",
    holders: &["puna_server::util::fair_work_queue::FairWorkQueue"],
    limits: &[TableLimit::Entries(WORKER_THREADS)],
    shares: &[
        TableLimit::Entries(CLIENT_THREADS),
        TableLimit::Rule("the client with the fewest bytes is next"),
    ],
    when_full: "waits; small bodies never do",
    test: "large_bodies_of_a_client_are_decoded_one_at_a_time_and_delay_no_other_client",
};

/// Work on a body.
type Job = Box<dyn FnOnce() + Send>;

/// Threads that work on large bodies. They start with the first job. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct BodyWorkers(Arc<OnceLock<Option<WorkSender<Job>>>>);

impl BodyWorkers {
    /// These threads for the work of one client. `client` is the [client number](super::Client).
    pub(crate) fn for_client(&self, client: u64) -> ClientWorkers {
        ClientWorkers { workers: self.clone(), client }
    }

    /// Does work for a client on one of the threads. `bytes` is the size of the work.
    ///
    /// If the returned future is dropped, the work is left out unless a thread has begun it.
    ///
    /// # Errors
    /// Status 500 if the work panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        client: u64,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, result) = oneshot::channel();
        let job = Box::new(move || {
            if !sender.is_closed() {
                // The client may disconnect during the work.
                let _ = sender.send(work());
            }
        });
        match self.0.get_or_init(start_threads) {
            Some(queue) => queue.push(client, bytes as u64, job),
            None => drop(puna_tasks::run_blocking(job)),
        }
        result.await.map_err(|_| {
            ApiError::internal("internal error while reading the request body: see the server log")
        })
    }
}

impl std::fmt::Debug for BodyWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BodyWorkers").finish_non_exhaustive()
    }
}

/// [`BodyWorkers`] for the work of one client.
pub(crate) struct ClientWorkers {
    workers: BodyWorkers,
    client: u64,
}

impl ClientWorkers {
    /// Does work of this size on one of the threads; see [`BodyWorkers::run`].
    ///
    /// # Errors
    /// Status 500 if the work panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.workers.run(self.client, bytes, work).await
    }
}

/// Starts the threads; `None` if the system permits none.
fn start_threads() -> Option<WorkSender<Job>> {
    let queue = Arc::new(FairWorkQueue::new(CLIENT_THREADS));
    let mut threads = 0;
    for i in 0..WORKER_THREADS {
        let queue = queue.clone();
        let thread = thread::Builder::new().name(format!("body {i}")).spawn(move || work(&queue));
        match thread {
            Ok(_) => threads += 1,
            Err(error) => tracing::warn!(%error, "cannot start a thread for request bodies"),
        }
    }
    (threads > 0).then(|| WorkSender::new(&queue))
}

/// Does jobs until the queue closes. A panic fails its own job only.
fn work(queue: &FairWorkQueue<Job>) {
    lower_priority(WORKER_NICE);
    while let Some((_running, job)) = queue.next() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
            tracing::error!("work on a request body panicked: {}", panic_message(&*panic));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Starts a job of a client that reports its start and waits for its end.
    fn start_job(
        workers: &BodyWorkers,
        client: u64,
        started: &mpsc::Sender<u64>,
    ) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<u64, ApiError>>) {
        let (end, ended) = mpsc::channel();
        let (workers, started) = (workers.clone(), started.clone());
        let job = tokio::spawn(async move {
            let work = move || {
                started.send(client).unwrap();
                let _ = ended.recv();
                client
            };
            workers.run(client, 1 << 20, work).await
        });
        (end, job)
    }

    #[tokio::test]
    async fn jobs_of_a_client_run_one_at_a_time_beside_jobs_of_others() {
        let workers = BodyWorkers::default();
        let (started, starts) = mpsc::channel();
        let mut jobs = Vec::new();
        for _ in 0..3 {
            jobs.push(start_job(&workers, 7, &started));
            // The tasks run in this thread, so each has queued its job afterwards.
            tokio::task::yield_now().await;
        }
        jobs.push(start_job(&workers, 8, &started));
        tokio::task::yield_now().await;
        let mut order = [starts.recv().unwrap(), starts.recv().unwrap()];
        order.sort_unstable();
        assert_eq!(order, [7, 8]);
        // Client 7 has its share, although two threads are free.
        assert!(starts.try_recv().is_err());
        for (end, job) in jobs {
            drop(end);
            job.await.unwrap().unwrap();
        }
        assert_eq!(starts.iter().take(2).collect::<Vec<_>>(), [7, 7]);
    }

    #[tokio::test]
    async fn a_panic_fails_its_own_job() {
        let workers = BodyWorkers::default();
        for _ in 0..2 * WORKER_THREADS {
            let failed = workers.run(1, 1, || -> u8 { panic!("broken") }).await;
            assert_eq!(failed.unwrap_err().status, 500);
        }
        assert_eq!(workers.run(1, 1, || 5).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn a_job_of_a_client_that_has_left_is_not_done() {
        let workers = BodyWorkers::default();
        let (started, starts) = mpsc::channel();
        let (end, first) = start_job(&workers, 7, &started);
        tokio::task::yield_now().await;
        assert_eq!(starts.recv(), Ok(7));
        let (_end, waiting) = start_job(&workers, 7, &started);
        tokio::task::yield_now().await;
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        drop(end);
        first.await.unwrap().unwrap();
        assert_eq!(workers.run(7, 1, || 5).await.unwrap(), 5);
        assert!(starts.try_recv().is_err());
    }
}
