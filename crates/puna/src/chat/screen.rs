//! Outputs of a session, and the spinner that shows pending work.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The two outputs of a session.
pub struct Screen {
    /// Output for answers and confirmations.
    pub out: Box<dyn Write>,
    /// Output for usage texts, warnings and statistics.
    pub err: Box<dyn Write>,
    columns: fn() -> Option<usize>,
    spins: bool,
}

impl Screen {
    /// Writes to standard output and standard error.
    pub fn terminal() -> Self {
        Self {
            out: Box::new(io::stdout()),
            err: Box::new(crate::out::stderr()),
            columns: || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)),
            spins: io::stderr().is_terminal(),
        }
    }

    /// Writes to any two writers; without a terminal there is no width and no spinner.
    #[cfg(test)]
    pub fn new(out: Box<dyn Write>, err: Box<dyn Write>) -> Self {
        Self { out, err, columns: || None, spins: false }
    }

    /// Current width of the terminal in columns; `None` without a terminal.
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

/// A spinner that runs until it is stopped or dropped, and then clears its line.
#[derive(Debug)]
pub struct Spinner {
    bar: Option<ProgressBar>,
}

impl Spinner {
    /// Starts a spinner; it is invisible when standard error is not a terminal.
    pub fn start() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} ")
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        bar.set_style(style.tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar: Some(bar) }
    }

    /// Stops and clears the spinner. A second call has no effect.
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
