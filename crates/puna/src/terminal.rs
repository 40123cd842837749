//! The terminal's settings, for the cases in which the line editor does not put them back.

#[cfg(unix)]
pub use unix::{Saved, discard_input};

#[cfg(unix)]
mod unix {
    use std::io::{self, IsTerminal, Write};
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::termios::{OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcsetattr};

    /// A pause that tells what was pasted from what is typed after it.
    const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    /// However much is pasted, not longer than this.
    const LONGEST: Duration = Duration::from_secs(2);
    const BRACKETED_PASTE_OFF: &[u8] = b"\x1b[?2004l\r\n";

    /// How the terminal of standard input was at some time.
    #[derive(Clone, Debug)]
    pub struct Saved(Option<Termios>);

    impl Saved {
        /// As it is now; nothing where standard input is no terminal.
        pub fn now() -> Self {
            Self(tcgetattr(io::stdin()).ok())
        }

        /// Puts it back, and ends what a line editor may have switched on.
        pub fn restore(&self) {
            let Some(settings) = &self.0 else { return };
            // Whoever ends a process whose terminal is gone does not care.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, settings);
            let mut out = io::stdout();
            if out.is_terminal() {
                let _ = out.write_all(BRACKETED_PASTE_OFF).and_then(|()| out.flush());
            }
        }
    }

    /// Drops what is still to be read of a paste.
    pub fn discard_input() {
        let input = io::stdin();
        let Ok(before) = tcgetattr(&input) else { return };
        // Otherwise the terminal holds back what has no line end yet.
        let mut raw = before.clone();
        raw.make_raw();
        if tcsetattr(&input, OptionalActions::Now, &raw).is_err() {
            return;
        }
        let start = Instant::now();
        while start.elapsed() < LONGEST
            && is_readable(&input)
            && tcflush(&input, QueueSelector::IFlush).is_ok()
        {}
        let _ = tcsetattr(&input, OptionalActions::Now, &before);
    }

    fn is_readable(input: &io::Stdin) -> bool {
        poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&PAUSE)).is_ok_and(|ready| ready > 0)
    }
}

/// Elsewhere the line editor reads keys and not bytes, and nothing is left behind.
#[cfg(not(unix))]
pub fn discard_input() {}
