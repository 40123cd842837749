//! Long work on standard error: a line for each status, a bar where there is a size. Without a terminal, plain lines.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use puna_api::native::Progress;
use puna_api::{ClientError, Stream};

/// Shows statuses as they come; each finished one stays as a line.
pub struct Display {
    bars: Option<MultiProgress>,
    current: Option<(String, ProgressBar)>,
    last: String,
}

impl Display {
    /// For standard error.
    pub fn new() -> Self {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        Self { bars, current: None, last: String::new() }
    }

    /// Shows a status without figures.
    pub fn status(&mut self, status: &str) {
        self.show(&Progress { status: status.to_owned(), ..Progress::default() });
    }

    /// Shows a line of progress. The same status again moves its bar.
    pub fn show(&mut self, progress: &Progress) {
        let label = label(progress);
        let Some(bars) = &self.bars else {
            if self.last != label {
                crate::out::note(&label);
                self.last = label;
            }
            return;
        };
        if self.current.as_ref().is_none_or(|(shown, _)| *shown != label) {
            if let Some((_, bar)) = self.current.take() {
                finish(&bar);
            }
            let bar = bars.add(if progress.total > 0 {
                ProgressBar::new(progress.total)
            } else {
                ProgressBar::new_spinner()
            });
            bar.set_style(style(progress.total > 0));
            bar.set_message(label.clone());
            bar.enable_steady_tick(Duration::from_millis(100));
            self.current = Some((label, bar));
        }
        if let Some((_, bar)) = &self.current {
            // The size of some work is known after it has begun.
            if progress.total > 0 && bar.length() != Some(progress.total) {
                bar.set_length(progress.total);
                bar.set_style(style(true));
            }
            bar.set_position(progress.completed);
        }
    }

    /// Shows lines of progress until there are no more.
    ///
    /// # Errors
    /// The work failed, or the connection.
    pub async fn follow(&mut self, mut lines: Stream<Progress>) -> Result<(), ClientError> {
        while let Some(line) = lines.next().await {
            self.show(&line?);
        }
        Ok(())
    }

    /// Ends the last line.
    pub fn done(mut self) {
        if let Some((_, bar)) = self.current.take() {
            finish(&bar);
        }
    }
}

fn finish(bar: &ProgressBar) {
    if bar.length().is_some_and(|length| length > 0) {
        bar.finish();
    } else {
        bar.set_style(
            ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.finish();
    }
}

/// Downloads are told apart by the blob.
fn label(progress: &Progress) -> String {
    match progress.status.strip_prefix("pulling ") {
        Some(digest) if progress.total > 0 => format!("pulling {digest}:"),
        _ => progress.status.clone(),
    }
}

fn style(has_size: bool) -> ProgressStyle {
    let template = if has_size {
        "{msg} {percent:>3}% ▕{wide_bar}▏ {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}  {eta}"
    } else {
        "{msg} {spinner}"
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("██ ")
        .tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ")
}
