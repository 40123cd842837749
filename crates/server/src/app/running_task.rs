//! Tasks that run on a model, and their events.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::canonical::{ApiError, Event};
use crate::metrics::TaskMetrics;
use crate::models::manager::Lease;
use crate::runner::connection::TaskEvents;

/// Source of a task's events.
pub(super) enum EventSource {
    /// The lease keeps the runner loaded until all events have arrived.
    Runner {
        events: TaskEvents,
        _lease: Arc<Lease>,
    },
    Remote(mpsc::Receiver<Event>),
}

/// A task that a runner or an upstream executes. Dropping it cancels the task.
pub(crate) struct RunningTask {
    pub(super) events: EventSource,
    pub(super) arrived: Instant,
    pub(super) load_time: Duration,
    pub(super) metrics: TaskMetrics,
}

impl RunningTask {
    /// Returns the next event; `None` after the final one.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next event.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = match &mut self.events {
            EventSource::Runner { events, .. } => ready!(events.poll_next(cx)),
            EventSource::Remote(events) => ready!(events.poll_recv(cx)),
        };
        if let Some(event) = &event {
            self.metrics.record(event);
        }
        Poll::Ready(event)
    }

    /// Waits for the final event. An error event becomes `Err`.
    pub(crate) async fn result(&mut self) -> Result<Event, ApiError> {
        while let Some(event) = self.next().await {
            match event {
                Event::Error(failure) => return Err(failure),
                event if event.is_end() => return Ok(event),
                _ => {}
            }
        }
        Err(ApiError::internal("the model runner ended the request without a result"))
    }

    /// Time since the request arrived.
    pub(crate) fn total(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Time until the model was ready.
    pub(crate) fn load_time(&self) -> Duration {
        self.load_time
    }
}
