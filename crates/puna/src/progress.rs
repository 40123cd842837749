//! Progress display on standard error: a line for each status, and a bar if the size is known.
//! Without a terminal, it prints plain lines.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use puna_api::ollama::Progress;
use puna_api::{ClientError, Stream};
use puna_registry::WAITING_PREFIX;

use crate::format::escape_control;

/// Displays statuses in order; each finished one remains as a line.
pub struct ProgressDisplay {
    bars: Option<MultiProgress>,
    current: Option<(String, ProgressBar)>,
    last: String,
}

impl ProgressDisplay {
    /// Creates a display on standard error.
    pub fn new() -> Self {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        Self { bars, current: None, last: String::new() }
    }

    /// Shows a status without numbers.
    pub fn status(&mut self, status: &str) {
        self.show(&Progress { status: status.to_owned(), ..Progress::default() });
    }

    /// Shows a progress event. A repeated status moves its bar.
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
                // A wait for another process does not complete the previous status.
                finish(&bar, !label.starts_with(WAITING_PREFIX));
            }
            let bar = if progress.total > 0 {
                ProgressBar::with_draw_target(Some(progress.total), ProgressDrawTarget::hidden())
            } else {
                ProgressBar::new_spinner()
            };
            bar.set_style(style(progress.total > 0));
            bar.set_message(label.clone());
            // Bytes of an earlier run are not counted in the speed of this run.
            bar.set_position(progress.completed);
            bar.tick();
            bar.reset_eta();
            let bar = bars.add(bar);
            bar.enable_steady_tick(Duration::from_millis(100));
            self.current = Some((label, bar));
        }
        if let Some((_, bar)) = &self.current {
            // Some tasks report their size only after they started.
            if progress.total > 0 && bar.length() != Some(progress.total) {
                bar.set_length(progress.total);
                bar.set_style(style(true));
            }
            bar.set_position(progress.completed);
        }
    }

    /// Shows progress events until the stream ends.
    ///
    /// # Errors
    /// The work or the connection failed.
    pub async fn follow(&mut self, mut lines: Stream<Progress>) -> Result<(), ClientError> {
        while let Some(line) = lines.next().await {
            self.show(&line?);
        }
        Ok(())
    }

    /// Finishes the last line.
    pub fn done(mut self) {
        if let Some((_, bar)) = self.current.take() {
            finish(&bar, false);
        }
    }
}

/// Leaves a line as it is, or marks it as done.
fn finish(bar: &ProgressBar, is_done: bool) {
    if bar.length().is_some_and(|length| length > 0) {
        if is_done { bar.finish() } else { bar.abandon() }
    } else {
        bar.set_style(
            ProgressStyle::with_template("{msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.finish();
    }
}

/// The status without control characters. Downloads are distinguished by their blob.
fn label(progress: &Progress) -> String {
    let status = escape_control(&progress.status);
    match status.strip_prefix("pulling ") {
        Some(digest) if progress.total > 0 => format!("pulling {digest}:"),
        _ => status.into_owned(),
    }
}

fn style(has_size: bool) -> ProgressStyle {
    let template = if has_size {
        "{msg} {share:>5} ▕{wide_bar}▏ {moved}/{decimal_total_bytes}  {rate}  {left}"
    } else {
        "{msg} {spinner}"
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("share", |state: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&percentage(state.pos(), state.len().unwrap_or(0)));
        })
        .with_key("moved", |state: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&byte_count(state.pos()));
        })
        .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&rate(state.per_sec()));
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn Write| {
            let missing = state.len().unwrap_or(0).saturating_sub(state.pos());
            let _ = out.write_str(&time_left(missing, state.per_sec()));
        })
        .progress_chars("██ ")
        .tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ")
}

/// Percentage with up to two decimals for small values. It rounds down, so that unfinished work
/// never shows 100%.
fn percentage(done: u64, of: u64) -> String {
    let hundredths = u128::from(done.min(of)) * 10_000 / u128::from(of.max(1));
    match hundredths {
        0..100 => format!("0.{hundredths:02}%"),
        100..1000 => format!("{}.{}%", hundredths / 100, hundredths / 10 % 10),
        _ => format!("{}%", hundredths / 100),
    }
}

/// Bytes in a unit small enough to show progress on a slow connection.
fn byte_count(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.3} GB", bytes as f64 / 1e9),
    }
}

fn rate(bytes_per_second: f64) -> String {
    let bytes = bytes_per_second.clamp(0.0, 1e18) as u64;
    match bytes {
        0..1_000 => format!("{bytes} B/s"),
        1_000..1_000_000 => format!("{:.1} kB/s", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB/s", bytes as f64 / 1e6),
        _ => format!("{:.2} GB/s", bytes as f64 / 1e9),
    }
}

/// Remaining time for `bytes` at a speed in bytes per second: `12s`, `5m 3s`, `61h 7m`; empty below
/// 1 byte per second.
fn time_left(bytes: u64, bytes_per_second: f64) -> String {
    if bytes == 0 || bytes_per_second.is_nan() || bytes_per_second < 1.0 {
        return String::new();
    }
    let seconds = (bytes as f64 / bytes_per_second).ceil() as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        _ => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_no_control_characters() {
        let status = "pulling \x1b[2J\u{202e}x".to_owned();
        let progress = Progress { status, total: 10, ..Progress::default() };
        assert_eq!(label(&progress), "pulling \\u{1b}[2J\\u{202e}x:");
    }

    #[test]
    fn progress_is_visible_on_a_slow_connection() {
        const TOTAL_BYTES: u64 = 4_000_000_000;
        assert_eq!(
            ["0.00%", "0.01%"].map(str::to_owned),
            [percentage(300_000, TOTAL_BYTES), percentage(700_000, TOTAL_BYTES)]
        );
        assert_eq!(
            (byte_count(19_300), byte_count(2_345_678)),
            ("19.3 kB".into(), "2.3 MB".into())
        );
        assert_eq!(
            (rate(15_321.7), rate(900.0), rate(0.0)),
            ("15.3 kB/s".into(), "900 B/s".into(), "0 B/s".into())
        );
        assert_eq!(time_left(TOTAL_BYTES, 15_000.0), "74h 4m");
        assert_eq!(
            (time_left(TOTAL_BYTES, 0.0), time_left(TOTAL_BYTES, f64::NAN), time_left(0, 5.0)),
            Default::default()
        );
    }

    #[test]
    fn unfinished_work_never_shows_100_percent() {
        assert_eq!(percentage(999_999, 1_000_000), "99%");
        assert_eq!(
            [percentage(0, 0), percentage(1, 1), percentage(u64::MAX, 3)],
            ["0.00%", "100%", "100%"]
        );
        assert_eq!([percentage(15, 1000), percentage(150, 1000)], ["1.5%", "15%"]);
        assert_eq!(
            (byte_count(999), byte_count(12_345_678_901)),
            ("999 B".into(), "12.346 GB".into())
        );
        assert_eq!((time_left(10, 3.0), time_left(900, 3.0)), ("4s".into(), "5m 0s".into()));
        assert_eq!((rate(2.5e6), rate(1e30)), ("2.5 MB/s".into(), "1000000000.00 GB/s".into()));
    }
}
