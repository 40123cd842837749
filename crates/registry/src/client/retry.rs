//! Retry with exponential back-off.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::RegistryError;
use crate::lock::lock;

/// Attempts of one request.
const MAX_ATTEMPTS: u32 = 6;
/// Longest delay between two attempts, unless the registry asks for more.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Longest `Retry-After` that is honoured, in seconds.
const MAX_RETRY_AFTER_SECONDS: u64 = 120;

/// Why the current request is being retried, if it is.
pub(crate) type LastFailure = Arc<Mutex<Option<String>>>;

/// Counts failures of a request and decides about further attempts.
pub(crate) struct Retry {
    /// Delay before the second attempt.
    first_delay: Duration,
    attempts: u32,
    failures: u32,
    last_failure: LastFailure,
}

impl Retry {
    pub(crate) fn new(first_delay: Duration) -> Self {
        Self {
            first_delay,
            attempts: MAX_ATTEMPTS,
            failures: 0,
            last_failure: LastFailure::default(),
        }
    }

    /// Writes the reason of each retry to `last_failure`.
    pub(crate) fn reporting_to(self, last_failure: &LastFailure) -> Self {
        Self { last_failure: last_failure.clone(), ..self }
    }

    /// Sets the number of attempts.
    pub(crate) fn with_attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Resets the failure count after progress.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts a retryable failure. Returns the delay before the next attempt.
    ///
    /// # Errors
    /// It was the last attempt.
    pub(crate) fn record_failure(
        &mut self,
        error: RegistryError,
    ) -> Result<Duration, RegistryError> {
        self.failures += 1;
        if self.failures >= self.attempts {
            return Err(RegistryError::RetriesExceeded(Box::new(error)));
        }
        let message = format!("{error} (attempt {} of {})", self.failures + 1, self.attempts);
        *lock(&self.last_failure) = Some(message);
        Ok(retry_delay(self.first_delay, self.failures, &error))
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error is not retryable, or it was the last attempt.
    pub(crate) async fn wait_after(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        if !error.is_retryable() {
            return Err(error);
        }
        tokio::time::sleep(self.record_failure(error)?).await;
        Ok(())
    }
}

/// Delay after `failures` failures (at least 1): doubles each time, and is at least what the
/// registry asks for.
fn retry_delay(first_delay: Duration, failures: u32, error: &RegistryError) -> Duration {
    let backoff = first_delay.saturating_mul(2u32.saturating_pow(failures - 1)).min(MAX_DELAY);
    let retry_after =
        Duration::from_secs(error.retry_after().unwrap_or(0).min(MAX_RETRY_AFTER_SECONDS));
    backoff.max(retry_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(retry_after: Option<u64>) -> RegistryError {
        RegistryError::Status { status: "503".into(), code: 503, body: String::new(), retry_after }
    }

    #[test]
    fn delays_double_up_to_a_limit_unless_the_registry_asks_for_more() {
        let seconds = |failures, retry_after| {
            retry_delay(Duration::from_secs(1), failures, &status(retry_after)).as_secs()
        };
        assert_eq!(
            [1, 2, 3, 5, 6, 60].map(|failures| seconds(failures, None)),
            [1, 2, 4, 16, 30, 30]
        );
        assert_eq!(
            [Some(0), Some(7), Some(86_400)].map(|retry_after| seconds(2, retry_after)),
            [2, 7, 120]
        );
    }

    #[test]
    fn the_last_failure_is_the_error_and_progress_resets_the_count() {
        let mut retry = Retry::new(Duration::ZERO).with_attempts(2);
        assert!(retry.record_failure(status(None)).is_ok());
        retry.reset();
        assert!(retry.record_failure(status(None)).is_ok());
        assert_eq!(
            retry.record_failure(status(None)),
            Err(RegistryError::RetriesExceeded(Box::new(status(None))))
        );
    }
}
