//! Terminal mode while the session does not read input: typed text waits, without echo and
//! unchanged, for the next prompt.
//!
//! In its default mode, a terminal echoes this text in the middle of the answer. It also turns
//! Enter into the character of Ctrl-J, which is a line break within a message. Ctrl-C works as
//! usual.

/// Keeps the terminal in this mode. Dropping it restores the earlier settings.
pub(super) struct TypeaheadMode {
    #[cfg(unix)]
    before: Option<rustix::termios::Termios>,
}

#[cfg(unix)]
impl TypeaheadMode {
    /// Sets the mode on the terminal of standard input; has no effect without a terminal.
    pub(super) fn new() -> Self {
        let mode = Self { before: rustix::termios::tcgetattr(std::io::stdin()).ok() };
        mode.enter();
        mode
    }

    /// Sets the mode again.
    pub(super) fn enter(&self) {
        use rustix::termios::{InputModes, LocalModes, SpecialCodeIndex};
        let Some(mut mode) = self.before.clone() else { return };
        mode.input_modes -= InputModes::ICRNL;
        mode.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        mode.special_codes[SpecialCodeIndex::VMIN] = 1;
        mode.special_codes[SpecialCodeIndex::VTIME] = 0;
        apply(&mode);
    }

    /// Restores the earlier settings for another program.
    pub(super) fn leave(&self) {
        self.before.iter().for_each(apply);
    }
}

/// Applies settings; the error of a terminal that is gone is ignored.
#[cfg(unix)]
fn apply(mode: &rustix::termios::Termios) {
    let _ =
        rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, mode);
}

#[cfg(not(unix))]
impl TypeaheadMode {
    pub(super) fn new() -> Self {
        Self {}
    }

    pub(super) fn enter(&self) {}

    pub(super) fn leave(&self) {}
}

impl Drop for TypeaheadMode {
    fn drop(&mut self) {
        self.leave();
    }
}
