//! The model manager drives the scheduler: it starts and stops runners and grants them to requests.
//!
//! - [`ModelManager`] is the handle; `task` is the task behind it, and `command` its commands.
//! - `listing` describes loaded models and their runners.

mod command;
mod listing;
mod task;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::{oneshot, watch};

pub(crate) use command::{AcquireRequest, Lease};
pub(crate) use listing::{ModelListing, ResidentModel, RunnerTotals, RunnersSnapshot};
pub(crate) use task::{MemorySource, RunnerTimeouts};

use command::{Command, RequestGuard};
use task::ManagerTask;

use crate::canonical::ApiError;
use crate::http::Client;
use crate::metrics::ServerMetrics;
use crate::model_scheduler::{Event, Limits, ModelKey, Scheduler};
use crate::runner::connection::RunnerConnection;
use crate::runner::launch::Launcher;
use crate::util::bounded_channel::{self, Sender};
use crate::util::panic_message::panic_message;
use crate::util::shutdown::shutting_down;

/// Maximum requests and queries queued for the manager, which bounds memory while the manager is
/// delayed.
const MAX_PENDING_REQUESTS: usize = 256;

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
        let manager = ManagerTask::new(
            Scheduler::new(limits),
            launcher,
            memory,
            timeouts,
            metrics,
            to.clone(),
        );
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

    /// Unloads a model as soon as it is idle, unless other clients keep it in memory. A client that
    /// may administer the server unloads it for all.
    pub(crate) async fn unload(&self, key: ModelKey, client: Client) {
        let client = (!client.may_administer).then_some(client.number);
        self.to.send(Command::Event(Event::Expire(key, client))).await;
    }

    /// Lists the models in memory.
    pub(crate) async fn list(&self) -> Vec<ResidentModel> {
        self.query(Command::List).await.unwrap_or_default()
    }

    /// Collects totals and present state of all runners.
    pub(crate) async fn runners(&self) -> RunnersSnapshot {
        let connections = self.query(Command::Connections).await.unwrap_or_default();
        join_all(connections.iter().map(RunnerConnection::refresh)).await;
        self.query(Command::Runners).await.unwrap_or_default()
    }

    /// Stops all runners and the manager task.
    pub(crate) async fn shutdown(&self) {
        let (reply, answer) = oneshot::channel();
        self.to.send_unbounded(Command::Shutdown(reply));
        let _ = answer.await;
    }
}
