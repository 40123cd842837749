//! Global memory budget for request bodies.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::canonical::ApiError;
use crate::util::lock::lock;

/// Maximum total bytes of all bodies while they are received, decompressed and decoded, and until a
/// runner accepts their task. The largest permitted body fits.
pub(crate) const BODY_BUDGET_BYTES: usize = 640 << 20;

/// Bytes per request outside the budget, so that small requests succeed while large ones fill it.
const FREE_BYTES_PER_REQUEST: usize = 64 << 10;

/// The remaining budget. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct BodyBudget(Arc<AtomicUsize>);

impl Default for BodyBudget {
    fn default() -> Self {
        Self::new(BODY_BUDGET_BYTES)
    }
}

impl BodyBudget {
    /// Creates a budget of this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Creates the reservation of a new request, initially empty.
    pub(crate) fn reservation(&self) -> BodyReservation {
        BodyReservation { budget: self.clone(), free: FREE_BYTES_PER_REQUEST, reserved: 0 }
    }
}

tokio::task_local! {
    static HELD: HeldReservation;
}

/// Reservation of the current request, once its body is decoded.
#[derive(Debug, Default)]
pub(crate) struct HeldReservation(Mutex<Option<BodyReservation>>);

impl HeldReservation {
    /// Awaits a response, then releases the reservation unless it was taken.
    pub(crate) async fn scope<T>(answer: impl Future<Output = T>) -> T {
        HELD.scope(Self::default(), answer).await
    }

    /// The same for a future that continues after its request is no longer awaited. It takes over
    /// the request's reservation.
    pub(crate) fn carry_over<T>(answer: impl Future<Output = T>) -> impl Future<Output = T> {
        HELD.scope(Self(Mutex::new(take_reservation())), answer)
    }
}

/// Sets the reservation of the current request to that of its decoded body.
pub(crate) fn hold_reservation(reservation: BodyReservation) {
    let _ = HELD.try_with(|held| *lock(&held.0) = Some(reservation));
}

/// Takes the reservation of the current request, to hold it until a runner accepts the task.
pub(crate) fn take_reservation() -> Option<BodyReservation> {
    HELD.try_with(|held| lock(&held.0).take()).ok().flatten()
}

/// Memory reserved by a request until the reservation is dropped.
#[derive(Debug)]
pub(crate) struct BodyReservation {
    budget: BodyBudget,
    free: usize,
    reserved: usize,
}

impl BodyReservation {
    /// Reserves more bytes, or fails at once. Waiting could deadlock requests that each hold a
    /// part.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), ApiError> {
        let free = bytes.min(self.free);
        self.free -= free;
        let bytes = bytes - free;
        let left = self
            .budget
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        left.map_err(|_| budget_exhausted())?;
        self.reserved += bytes;
        Ok(())
    }

    /// Releases part of the reservation.
    pub(crate) fn release(&mut self, bytes: usize) {
        let bytes = bytes.min(self.reserved);
        self.reserved -= bytes;
        self.budget.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Checks whether this many more bytes are available now.
    pub(crate) fn check_available(&self, bytes: u64) -> Result<(), ApiError> {
        let left = self.budget.0.load(Ordering::Relaxed) + self.free;
        if bytes > left as u64 { Err(budget_exhausted()) } else { Ok(()) }
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.reserved, Ordering::Relaxed);
    }
}

fn budget_exhausted() -> ApiError {
    ApiError::new(503, "the server is busy with large requests: retry later")
}
