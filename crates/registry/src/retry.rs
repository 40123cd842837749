//! Trying again: how often, and after which pause.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::RegistryError;
use crate::lock::lock;

/// Attempts at one thing.
const ATTEMPTS: u32 = 6;
/// The longest pause between two attempts that nobody asked for.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause that a registry may ask for, in seconds.
const MAX_ASKED: u64 = 120;

/// Why something is tried again, as long as it is.
pub(crate) type Trouble = Arc<Mutex<Option<String>>>;

/// How often something failed, and may yet.
pub(crate) struct Retry {
    /// The pause before the second attempt.
    first: Duration,
    attempts: u32,
    failures: u32,
    trouble: Trouble,
}

impl Retry {
    pub(crate) fn new(first: Duration) -> Self {
        Self { first, attempts: ATTEMPTS, failures: 0, trouble: Trouble::default() }
    }

    /// Saying there why something is tried again.
    pub(crate) fn telling(self, trouble: &Trouble) -> Self {
        Self { trouble: trouble.clone(), ..self }
    }

    /// With fewer attempts, or more.
    pub(crate) fn at_most(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// Forgets the failures, since there was progress.
    pub(crate) fn forget(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure that may pass: how long to wait before the next attempt.
    ///
    /// # Errors
    /// That was the last one.
    pub(crate) fn failed(&mut self, error: RegistryError) -> Result<Duration, RegistryError> {
        self.failures += 1;
        if self.failures >= self.attempts {
            return Err(RegistryError::Retries(Box::new(error)));
        }
        let next = format!("{error} (attempt {} of {})", self.failures + 1, self.attempts);
        *lock(&self.trouble) = Some(next);
        Ok(pause(self.first, self.failures, &error))
    }

    /// Waits, if trying again may help.
    ///
    /// # Errors
    /// It cannot, or that was the last attempt.
    pub(crate) async fn after(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        if !error.is_passing() {
            return Err(error);
        }
        tokio::time::sleep(self.failed(error)?).await;
        Ok(())
    }
}

/// The pause after so many failures, at least one: twice as long each time, and at least as long as the registry asks for.
fn pause(first: Duration, failures: u32, error: &RegistryError) -> Duration {
    let doubled = first.saturating_mul(2u32.saturating_pow(failures - 1)).min(MAX_PAUSE);
    let asked = Duration::from_secs(error.retry_after().unwrap_or(0).min(MAX_ASKED));
    doubled.max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(retry_after: Option<u64>) -> RegistryError {
        RegistryError::Status { status: "503".into(), code: 503, body: String::new(), retry_after }
    }

    #[test]
    fn pauses_double_up_to_a_bound_unless_the_registry_asks_for_more() {
        let seconds =
            |failures, asked| pause(Duration::from_secs(1), failures, &status(asked)).as_secs();
        assert_eq!(
            [1, 2, 3, 5, 6, 60].map(|failures| seconds(failures, None)),
            [1, 2, 4, 16, 30, 30]
        );
        assert_eq!([Some(0), Some(7), Some(86_400)].map(|asked| seconds(2, asked)), [2, 7, 120]);
    }

    #[test]
    fn the_last_failure_is_the_error_and_progress_begins_the_count_anew() {
        let mut retry = Retry::new(Duration::ZERO).at_most(2);
        assert!(retry.failed(status(None)).is_ok());
        retry.forget();
        assert!(retry.failed(status(None)).is_ok());
        assert_eq!(retry.failed(status(None)), Err(RegistryError::Retries(Box::new(status(None)))));
    }
}
