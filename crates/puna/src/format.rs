//! Formatting of numbers, times and tables.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use puna_registry::is_terminal_control;

/// Bytes in decimal units: `999 B`, `1.5 KB`, `270 MB`.
pub fn bytes(count: u64) -> String {
    let (value, unit) = match count {
        1_000_000_000_000.. => (count as f64 / 1e12, "TB"),
        1_000_000_000.. => (count as f64 / 1e9, "GB"),
        1_000_000.. => (count as f64 / 1e6, "MB"),
        1_000.. => (count as f64 / 1e3, "KB"),
        _ => return format!("{count} B"),
    };
    match value {
        v if v >= 10.0 => format!("{} {unit}", v as u64),
        v if v.fract() == 0.0 => format!("{v} {unit}"),
        v => format!("{v:.1} {unit}"),
    }
}

/// A time relative to `now`: `2 days ago`, `4 minutes from now`; `never` if `at` is `None`.
pub fn time(at: Option<SystemTime>, now: SystemTime, never: &str) -> String {
    let Some(at) = at else { return never.to_owned() };
    match at.duration_since(now) {
        Ok(ahead) if ahead.as_secs() > 20 * 365 * 24 * 3600 => "Forever".into(),
        Ok(ahead) => format!("{} from now", duration(ahead)),
        Err(past) => format!("{} ago", duration(past.duration())),
    }
}

/// Parses an RFC 3339 time of the API. Go's zero time gives `None`.
pub fn parse_time(text: &str) -> Option<SystemTime> {
    let at: jiff::Timestamp = text.parse().ok()?;
    (at.as_second() > -2_208_988_800).then(|| at.into())
}

fn duration(d: Duration) -> String {
    let seconds = d.as_secs();
    let minutes = seconds / 60;
    let hours = (seconds as f64 / 3600.0).round() as u64;
    match () {
        () if seconds < 1 => "Less than a second".into(),
        () if seconds == 1 => "1 second".into(),
        () if seconds < 60 => format!("{seconds} seconds"),
        () if minutes == 1 => "About a minute".into(),
        () if minutes < 60 => format!("{minutes} minutes"),
        () if hours == 1 => "About an hour".into(),
        () if hours < 48 => format!("{hours} hours"),
        () if hours < 24 * 14 => format!("{} days", hours / 24),
        () if hours < 24 * 60 => format!("{} weeks", hours / 24 / 7),
        () if hours < 24 * 365 * 2 => format!("{} months", hours / 24 / 30),
        () => format!("{} years", hours / 24 / 365),
    }
}

/// Whether a character of a file or server must not reach a terminal. Line feeds and tabs may.
pub fn is_unsafe(c: char) -> bool {
    is_terminal_control(c) && c != '\n' && c != '\t'
}

/// Makes a text from a file or server safe for a terminal: characters that could move the cursor,
/// set the window's title or reorder text are escaped, such as `\u{1b}`.
pub fn escape_control(text: &str) -> Cow<'_, str> {
    escape_unsafe(text, |c| c.escape_unicode().to_string())
}

/// Like [`escape_control`], for the text of a JSON document, which remains valid JSON.
pub fn escape_control_in_json(json: &str) -> Cow<'_, str> {
    escape_unsafe(json, |c| format!("\\u{:04x}", u32::from(c)))
}

fn escape_unsafe(text: &str, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) { out.push_str(&escape(c)) } else { out.push(c) }
    }
    out.into()
}

/// Formats rows in columns, with four blanks after each cell. Headings are padded to the width of
/// their column.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let escaped = |cell: &String| escape_control(cell).into_owned();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(escaped).collect()).collect();
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column: usize| {
        let longest = cells(column).map(|cell| display_width(cell)).max().unwrap_or(0);
        longest.max(headings.get(column).map_or(0, |h| h.len()))
    };
    let count = rows.iter().map(Vec::len).max().unwrap_or(0).max(headings.len());
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut out = String::new();
    for (i, (heading, width)) in headings.iter().zip(widths.iter().copied()).enumerate() {
        let _ = write!(out, "{heading:<width$}");
        let gap = if i + 1 == headings.len() { 1 } else { 4 };
        out.extend(std::iter::repeat_n(' ', gap));
    }
    if !headings.is_empty() {
        out.push('\n');
    }
    for row in &rows {
        for (column, width) in widths.iter().enumerate() {
            let cell = row.get(column).map_or("", String::as_str);
            out.push_str(cell);
            out.extend(std::iter::repeat_n(' ', width - display_width(cell) + 4));
        }
        out.push('\n');
    }
    out
}

/// Terminal cells that a text occupies, approximately: enough for names and numbers.
fn display_width(text: &str) -> usize {
    text.chars().count()
}

/// A section of `show`: a title, then rows indented by an empty column.
pub fn section(title: &str, rows: &[Vec<String>]) -> String {
    let indented: Vec<Vec<String>> = rows
        .iter()
        .map(|row| std::iter::once(String::new()).chain(row.iter().cloned()).collect())
        .collect();
    format!("  {title}\n{}\n", table(&[], &indented))
}

/// A number as Go's `%g` prints it: all digits, and an exponent from one million on.
pub fn format_g(x: f64) -> String {
    if x != 0.0 && !(1e-4..1e6).contains(&x.abs()) {
        let text = format!("{x:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) =
            exponent.strip_prefix('-').map_or(("+", exponent), |digits| ("-", digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_use_decimal_units_and_are_truncated() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 KB"),
            (1500, "1.5 KB"),
            (999_999, "999 KB"),
            (270_000_000, "270 MB"),
            (1_999_999_999_999, "2.0 TB"),
            (3_338_801_804, "3.3 GB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let row = vec!["a\u{1b}[2Jb".to_owned(), "é\u{9b}".to_owned()];
        assert_eq!(table(&[], &[row]), "a\\u{1b}[2Jb    é\\u{9b}    \n");
        let text = "a\tb\r\x7f\x08\u{202a}\u{202e}\u{2066}\u{2069}é\n";
        let escaped = "a\tb\\u{d}\\u{7f}\\u{8}\\u{202a}\\u{202e}\\u{2066}\\u{2069}é\n";
        assert_eq!(escape_control(text), escaped);
    }

    #[test]
    fn escaped_json_is_equal_json() {
        let value = serde_json::json!({"a\u{202e}": "\x1b\x7f\u{9b}\n\u{2066}é"});
        let text = value.to_string();
        let escaped = escape_control_in_json(&text);
        assert!(!escaped.contains(is_unsafe) && escaped.contains("\\u202e"), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }

    #[test]
    fn times_are_rounded_to_one_unit() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000_000_000);
        let ago = |seconds: u64| time(Some(now - Duration::from_secs(seconds)), now, "Never");
        for (seconds, text) in [
            (1, "1 second ago"),
            (59, "59 seconds ago"),
            (60, "About a minute ago"),
            (3599, "59 minutes ago"),
            (3600, "About an hour ago"),
            (47 * 3600, "47 hours ago"),
            (48 * 3600, "2 days ago"),
            (11 * 86400, "11 days ago"),
            (14 * 86400, "2 weeks ago"),
            (70 * 86400, "2 months ago"),
            (800 * 86400, "2 years ago"),
        ] {
            assert_eq!(ago(seconds), text);
        }
        assert_eq!(time(Some(now + Duration::from_secs(299)), now, ""), "4 minutes from now");
        assert_eq!(time(Some(now + Duration::from_secs(1_000_000_000)), now, ""), "Forever");
        assert_eq!(time(None, now, "Never"), "Never");
        assert_eq!(parse_time("0001-01-01T00:00:00Z"), None);
        assert!(parse_time("2026-03-02T08:15:04.123456789Z").is_some());
        assert!(parse_time("2026-03-02T08:15:04.5+02:00").is_some());
    }

    #[test]
    fn tables_match_ollama() {
        let rows = [
            ["gemma3:latest", "a2af6cc3eb7f", "3.3 GB", "11 days ago"],
            ["smollm2:135m", "9077fe9d2ae1", "270 MB", "About a minute ago"],
        ]
        .map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            table(&["NAME", "ID", "SIZE", "MODIFIED"], &rows),
            "NAME             ID              SIZE      MODIFIED           \n\
             gemma3:latest    a2af6cc3eb7f    3.3 GB    11 days ago           \n\
             smollm2:135m     9077fe9d2ae1    270 MB    About a minute ago    \n"
        );
        assert_eq!(
            table(&["NAME", "ID", "SIZE", "MODIFIED"], &[]),
            "NAME    ID    SIZE    MODIFIED \n"
        );
        let rows = [["stop", "\"<end_of_turn>\""], ["temperature", "1"]]
            .map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            section("Parameters", &rows),
            "  Parameters\n    stop           \"<end_of_turn>\"    \n    temperature    1                  \n\n"
        );
    }

    #[test]
    fn numbers_match_go_percent_g() {
        for (x, text) in [
            (8e9, "8e+09"),
            (1_048_576.0, "1.048576e+06"),
            (1e-5, "1e-05"),
            (0.5, "0.5"),
            (0.0, "0"),
            (32768.0, "32768"),
        ] {
            assert_eq!(format_g(x), text);
        }
    }
}
