//! Long work on standard error: a line for each status, a bar where there is a size. Without a terminal, plain lines.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use puna_api::native::Progress;
use puna_api::{ClientError, Stream};
use puna_registry::WAITING_PREFIX;

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
                // Who is waited for has not done what was under way.
                finish(&bar, !label.starts_with(WAITING_PREFIX));
            }
            let bar = if progress.total > 0 {
                ProgressBar::with_draw_target(Some(progress.total), ProgressDrawTarget::hidden())
            } else {
                ProgressBar::new_spinner()
            };
            bar.set_style(style(progress.total > 0));
            bar.set_message(label.clone());
            // What an earlier run has brought says nothing about the speed of this one, and is not shown as such.
            bar.set_position(progress.completed);
            bar.tick();
            bar.reset_eta();
            let bar = bars.add(bar);
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
            finish(&bar, false);
        }
    }
}

/// Leaves a line as it is, or as one of something that is done.
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

/// Downloads are told apart by the blob.
fn label(progress: &Progress) -> String {
    match progress.status.strip_prefix("pulling ") {
        Some(digest) if progress.total > 0 => format!("pulling {digest}:"),
        _ => progress.status.clone(),
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
            let _ = out.write_str(&share(state.pos(), state.len().unwrap_or(0)));
        })
        .with_key("moved", |state: &ProgressState, out: &mut dyn Write| {
            let _ = out.write_str(&moved(state.pos()));
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

/// Hundredths, with as many digits behind the point as are worth something. What is not done is not called so.
fn share(done: u64, of: u64) -> String {
    let hundredths = u128::from(done.min(of)) * 10_000 / u128::from(of.max(1));
    match hundredths {
        0..100 => format!("0.{hundredths:02}%"),
        100..1000 => format!("{}.{}%", hundredths / 100, hundredths / 10 % 10),
        _ => format!("{}%", hundredths / 100),
    }
}

/// Bytes in a unit in which they are seen to grow, also on a slow line.
fn moved(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.3} GB", bytes as f64 / 1e9),
    }
}

fn rate(bytes_a_second: f64) -> String {
    let bytes = bytes_a_second.clamp(0.0, 1e18) as u64;
    match bytes {
        0..1_000 => format!("{bytes} B/s"),
        1_000..1_000_000 => format!("{:.1} kB/s", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB/s", bytes as f64 / 1e6),
        _ => format!("{:.2} GB/s", bytes as f64 / 1e9),
    }
}

/// How long bytes take at a speed: `12s`, `5m 3s`, `61h 7m`; nothing where none move.
fn time_left(bytes: u64, a_second: f64) -> String {
    if bytes == 0 || a_second.is_nan() || a_second < 1.0 {
        return String::new();
    }
    let seconds = (bytes as f64 / a_second).ceil() as u64;
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
    fn a_slow_line_is_seen_to_bring_something() {
        const SIZE: u64 = 4_000_000_000;
        assert_eq!(
            ["0.00%", "0.01%"].map(str::to_owned),
            [share(300_000, SIZE), share(700_000, SIZE)]
        );
        assert_eq!((moved(19_300), moved(2_345_678)), ("19.3 kB".into(), "2.3 MB".into()));
        assert_eq!(
            (rate(15_321.7), rate(900.0), rate(0.0)),
            ("15.3 kB/s".into(), "900 B/s".into(), "0 B/s".into())
        );
        assert_eq!(time_left(SIZE, 15_000.0), "74h 4m");
        assert_eq!(
            (time_left(SIZE, 0.0), time_left(SIZE, f64::NAN), time_left(0, 5.0)),
            Default::default()
        );
    }

    #[test]
    fn what_is_not_done_is_not_called_so() {
        assert_eq!(share(999_999, 1_000_000), "99%");
        assert_eq!([share(0, 0), share(1, 1), share(u64::MAX, 3)], ["0.00%", "100%", "100%"]);
        assert_eq!([share(15, 1000), share(150, 1000)], ["1.5%", "15%"]);
        assert_eq!((moved(999), moved(12_345_678_901)), ("999 B".into(), "12.346 GB".into()));
        assert_eq!((time_left(10, 3.0), time_left(900, 3.0)), ("4s".into(), "5m 0s".into()));
        assert_eq!((rate(2.5e6), rate(1e30)), ("2.5 MB/s".into(), "1000000000.00 GB/s".into()));
    }
}
