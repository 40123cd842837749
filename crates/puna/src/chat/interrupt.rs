//! Ctrl-C while the model answers: it stops the answer, not the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Presses nearer to each other than this are one that was meant.
const BOUNCE: Duration = Duration::from_millis(300);

/// The status of a process that Ctrl-C ended.
const STATUS: i32 = 130;

/// A request to stop what is being done. Clones share it.
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
    /// Raises it at every Ctrl-C from now on, which no longer ends the process; but one that comes while an earlier one
    /// still has stopped nothing does.
    pub fn at_ctrl_c(runtime: &Handle) -> Self {
        let interrupt = Self::default();
        let clone = interrupt.clone();
        #[cfg(unix)]
        let terminal = crate::terminal::Saved::now();
        runtime.spawn(async move {
            let mut last: Option<Instant> = None;
            while tokio::signal::ctrl_c().await.is_ok() {
                if clone.is_unheard(last) {
                    #[cfg(unix)]
                    terminal.restore();
                    crate::out::note("interrupted again: ending at once");
                    std::process::exit(STATUS);
                }
                last = Some(Instant::now());
                clone.raise();
            }
        });
        interrupt
    }

    /// Asks for a stop.
    pub fn raise(&self) {
        self.shared.raised.store(true, Ordering::SeqCst);
        self.shared.wake.notify_waiters();
    }

    /// Whether the stop asked for at `last` is still to come.
    fn is_unheard(&self, last: Option<Instant>) -> bool {
        self.is_raised() && last.is_some_and(|last| last.elapsed() > BOUNCE)
    }

    /// Forgets an earlier request: something new begins.
    pub fn clear(&self) {
        self.shared.raised.store(false, Ordering::SeqCst);
    }

    /// Whether a stop was asked for since the last [`Self::clear`].
    pub fn is_raised(&self) -> bool {
        self.shared.raised.load(Ordering::SeqCst)
    }

    /// Returns when a stop is asked for, at once if it was: for `select!` beside a request.
    pub async fn raised(&self) {
        loop {
            let woken = self.shared.wake.notified();
            tokio::pin!(woken);
            // Registered before the flag is read, so that no wake-up is lost in between.
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
    fn a_second_request_ends_the_program_only_where_the_first_stopped_nothing() {
        let interrupt = Interrupt::default();
        let long_ago = Instant::now().checked_sub(2 * BOUNCE);
        assert!(
            long_ago.is_some() && !interrupt.is_unheard(long_ago) && !interrupt.is_unheard(None)
        );
        interrupt.raise();
        assert!(interrupt.is_unheard(long_ago) && !interrupt.is_unheard(Some(Instant::now())));
        interrupt.clear();
        assert!(!interrupt.is_unheard(long_ago));
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
