//! The terminal while nobody reads from it: what is typed into an answer waits, unseen and unchanged, for the next prompt.
//!
//! As programs find it, a terminal shows such text in the middle of the answer, and turns the Enter key into the
//! character of Ctrl-J, which is a line within a message. Ctrl-C keeps its meaning.

/// Holds the terminal in this state; dropping it puts back what was there before.
pub(super) struct Waiting {
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

#[cfg(unix)]
impl Waiting {
    /// Of the terminal on standard input; nothing where there is none.
    pub(super) fn new() -> Self {
        let waiting = Self { before: rustix::termios::tcgetattr(std::io::stdin()).ok() };
        waiting.enter();
        waiting
    }

    /// Takes the state up again.
    pub(super) fn enter(&self) {
        use rustix::termios::{InputModes, LocalModes, SpecialCodeIndex};
        let Some(mut mode) = self.before.clone() else { return };
        mode.input_modes -= InputModes::ICRNL;
        mode.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        mode.special_codes[SpecialCodeIndex::VMIN] = 1;
        mode.special_codes[SpecialCodeIndex::VTIME] = 0;
        set(&mode);
    }

    /// Puts back what was there before, for another program.
    pub(super) fn leave(&self) {
        self.before.iter().for_each(set);
    }
}

/// A terminal that went away is no trouble of ours.
#[cfg(unix)]
fn set(mode: &rustix::termios::Termios) {
    let _ =
        rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, mode);
}

#[cfg(not(unix))]
impl Waiting {
    pub(super) fn new() -> Self {
        Self {}
    }

    pub(super) fn enter(&self) {}

    pub(super) fn leave(&self) {}
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave();
    }
}
