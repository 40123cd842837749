//! Where a session writes, and the spinner that shows that something is under way.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The two outputs of a session.
pub struct Screen {
    /// Answers and confirmations.
    pub out: Box<dyn Write>,
    /// Usage, warnings and statistics.
    pub err: Box<dyn Write>,
    columns: fn() -> Option<usize>,
    spins: bool,
}

impl Screen {
    /// Standard output and standard error.
    pub fn terminal() -> Self {
        Self {
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
            columns: || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)),
            spins: io::stderr().is_terminal(),
        }
    }

    /// Any two writers; no terminal, so no width and no spinner.
    #[cfg(test)]
    pub fn new(out: Box<dyn Write>, err: Box<dyn Write>) -> Self {
        Self { out, err, columns: || None, spins: false }
    }

    /// Columns of the terminal at this moment; `None` when there is no terminal.
    pub fn columns(&self) -> Option<usize> {
        (self.columns)()
    }

    /// Starts a spinner on standard error.
    pub fn spinner(&self) -> Spinner {
        match self.spins {
            true => Spinner::start(),
            false => Spinner { bar: None },
        }
    }
}

/// A spinner that turns until it is stopped or dropped, and leaves nothing behind.
#[derive(Debug)]
pub struct Spinner {
    bar: Option<ProgressBar>,
}

impl Spinner {
    /// Starts one; it stays invisible when standard error is no terminal.
    pub fn start() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} ")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        bar.set_style(style.tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar: Some(bar) }
    }

    /// Stops and clears it; a second time does nothing.
    pub fn stop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop();
    }
}
