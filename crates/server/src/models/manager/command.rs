//! Commands of the manager task, and the leases that it grants.

use std::sync::Arc;

use puna_api::KeepAlive;
use tokio::sync::oneshot;

use super::listing::{ModelListing, ResidentModel, RunnersSnapshot};
use crate::canonical::{ApiError, Task};
use crate::http::body_budget::BodyReservation;
use crate::model_scheduler::{Event, ModelKey, RequestId, RunnerId};
use crate::runner::connection::{RunnerConnection, RunnerEvent, TaskEvents};
use crate::runner::protocol::LoadSpec;
use crate::util::bounded_channel::Sender;

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

/// Lease on a loaded model. The model stays loaded until the lease is dropped.
pub(crate) struct Lease {
    pub(super) connection: RunnerConnection,
    pub(super) _guard: RequestGuard,
}

impl Lease {
    /// Submits a task for a client. The runner's acceptance of the task releases `reservation`.
    pub(crate) async fn submit(
        &self,
        client: u64,
        task: Task,
        reservation: Option<Arc<BodyReservation>>,
    ) -> TaskEvents {
        self.connection.submit_with_reservation(client, task, reservation).await
    }
}

/// Tells the manager on drop that a request has ended or no longer waits.
pub(super) struct RequestGuard {
    pub(super) id: RequestId,
    /// `None` once another guard reports the end.
    pub(super) to: Option<Sender<Command>>,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if let Some(to) = &self.to {
            to.send_unbounded(Command::Event(Event::Finished(self.id)));
        }
    }
}

/// Requests and queries wait for one of `MAX_PENDING_REQUESTS` permits. Notifications do not:
/// runners and granted requests bound their number.
pub(super) enum Command {
    Acquire(RequestId, Box<AcquireRequest>, oneshot::Sender<Result<Lease, ApiError>>),
    Event(Event),
    RunnerEvent(RunnerId, RunnerEvent),
    Stalled(RunnerId, u32),
    List(oneshot::Sender<Vec<ResidentModel>>),
    Connections(oneshot::Sender<Vec<RunnerConnection>>),
    Runners(oneshot::Sender<RunnersSnapshot>),
    Shutdown(oneshot::Sender<()>),
}
