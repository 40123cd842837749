//! Ctrl-C during an answer: it stops the answer and not the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Presses closer together than this count as one.
const DEBOUNCE: Duration = Duration::from_millis(300);

/// Exit status of a process that Ctrl-C ended.
const EXIT_STATUS: i32 = 130;

/// Request to stop the current work. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    wake: Notify,
}

impl Interrupt {
    /// Returns an interrupt that every later Ctrl-C raises, instead of ending the process. A second
    /// Ctrl-C ends the process if the first one has not yet stopped the work.
    pub fn at_ctrl_c(runtime: &Handle) -> Self {
        let interrupt = Self::default();
        let clone = interrupt.clone();
        #[cfg(unix)]
        let terminal = crate::terminal::SavedTerminal::capture();
        runtime.spawn(async move {
            let mut last: Option<Instant> = None;
            while tokio::signal::ctrl_c().await.is_ok() {
                if clone.is_pending(last) {
                    #[cfg(unix)]
                    terminal.restore();
                    crate::out::note("interrupted again: exiting now");
                    std::process::exit(EXIT_STATUS);
                }
                last = Some(Instant::now());
                clone.raise();
            }
        });
        interrupt
    }

    /// Requests a stop.
    pub fn raise(&self) {
        self.shared.raised.store(true, Ordering::SeqCst);
        self.shared.wake.notify_waiters();
    }

    /// Whether the stop requested at `last` has not taken effect yet.
    fn is_pending(&self, last: Option<Instant>) -> bool {
        self.is_raised() && last.is_some_and(|last| last.elapsed() > DEBOUNCE)
    }

    /// Clears an earlier request before new work begins.
    pub fn clear(&self) {
        self.shared.raised.store(false, Ordering::SeqCst);
    }

    /// Whether a stop was requested since the last [`Self::clear`].
    pub fn is_raised(&self) -> bool {
        self.shared.raised.load(Ordering::SeqCst)
    }

    /// Completes when a stop is requested, or at once if one was requested already. For `select!`
    /// with a request.
    pub async fn raised(&self) {
        loop {
            let woken = self.shared.wake.notified();
            tokio::pin!(woken);
            // The waiter registers before it reads the flag, so that it misses no wake-up.
            woken.as_mut().enable();
            if self.is_raised() {
                return;
            }
            woken.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_interrupt_ends_the_program_only_if_the_first_is_pending() {
        let interrupt = Interrupt::default();
        let long_ago = Instant::now().checked_sub(2 * DEBOUNCE);
        assert!(
            long_ago.is_some() && !interrupt.is_pending(long_ago) && !interrupt.is_pending(None)
        );
        interrupt.raise();
        assert!(interrupt.is_pending(long_ago) && !interrupt.is_pending(Some(Instant::now())));
        interrupt.clear();
        assert!(!interrupt.is_pending(long_ago));
    }

    #[test]
    fn waiting_ends_when_raised_before_or_during_it() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("a runtime");
        let interrupt = Interrupt::default();
        interrupt.raise();
        runtime.block_on(interrupt.raised());
        interrupt.clear();
        assert!(!interrupt.is_raised());
        let clone = interrupt.clone();
        runtime.spawn(async move { clone.raise() });
        runtime.block_on(interrupt.raised());
        assert!(interrupt.is_raised());
    }
}
