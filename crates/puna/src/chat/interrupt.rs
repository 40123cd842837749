//! Ctrl-C while the model answers: it stops the answer, not the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Notify;

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
    /// Raises it at every Ctrl-C from now on, which no longer ends the process.
    pub fn at_ctrl_c(runtime: &Handle) -> Self {
        let interrupt = Self::default();
        let clone = interrupt.clone();
        runtime.spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
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
    fn waiting_ends_when_raised_before_or_during_it() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
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
