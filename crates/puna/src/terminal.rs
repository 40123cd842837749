//! Restores terminal settings where the line editor does not.

#[cfg(unix)]
pub use unix::{SavedTerminal, discard_input};

#[cfg(unix)]
mod unix {
    use std::io::{self, IsTerminal, Write};
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::termios::{OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr};

    /// Silence that separates pasted input from typed input.
    const PASTE_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    /// Maximum time for which pasted input is discarded.
    const MAX_DISCARD_TIME: Duration = Duration::from_secs(2);
    const BRACKETED_PASTE_OFF: &[u8] = b"\x1b[?2004l\r\n";

    /// Terminal settings of standard input at some time.
    #[derive(Clone, Debug)]
    pub struct SavedTerminal(Option<Termios>);

    impl SavedTerminal {
        /// Reads the current settings; holds none if standard input is not a terminal.
        pub fn capture() -> Self {
            Self(tcgetattr(io::stdin()).ok())
        }

        /// Restores the settings and disables bracketed paste, which a line editor may have
        /// enabled.
        pub fn restore(&self) {
            let Some(settings) = &self.0 else { return };
            // The process ends next, so a missing terminal does not matter.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, settings);
            let mut out = io::stdout();
            if out.is_terminal() {
                let _ = out.write_all(BRACKETED_PASTE_OFF).and_then(|()| out.flush());
            }
        }
    }

    /// Discards the unread rest of a paste.
    pub fn discard_input() {
        let input = io::stdin();
        let Ok(before) = tcgetattr(&input) else { return };
        // In line mode, the terminal would hold back input without a line end.
        let mut raw = before.clone();
        raw.make_raw();
        if tcsetattr(&input, OptionalActions::Now, &raw).is_err() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < MAX_DISCARD_TIME
            && is_readable(&input)
            && tcflush(&input, QueueSelector::IFlush).is_ok()
        {}
        let _ = tcsetattr(&input, OptionalActions::Now, &before);
    }

    fn is_readable(input: &io::Stdin) -> bool {
        poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&PASTE_PAUSE))
            .is_ok_and(|ready| ready > 0)
    }
}

/// On other systems the line editor reads key events and leaves no input behind.
#[cfg(not(unix))]
pub fn discard_input() {}
