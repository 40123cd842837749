//! Durations in Go's format, and the keep-alive time of models.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// Text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DurationError {
    /// The text does not have the form `[-]number unit [number unit …]`.
    Invalid(String),
    /// A number has no unit.
    MissingUnit(String),
    /// The unit does not exist.
    UnknownUnit(String, String),
}

impl std::error::Error for DurationError {}

impl std::fmt::Display for DurationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Invalid(text) => write!(f, "time: invalid duration {text:?}"),
            Self::MissingUnit(text) => write!(f, "time: missing unit in duration {text:?}"),
            Self::UnknownUnit(unit, text) => {
                write!(f, "time: unknown unit {unit:?} in duration {text:?}")
            }
        }
    }
}

/// Parses a duration such as `1h30m`, `250ms`, `-1s` or `0`. Returns nanoseconds.
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let negative = text.starts_with('-');
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.is_empty() || number == "." || number.matches('.').count() > 1 {
            return Err(invalid());
        }
        let letters = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let scale = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            "" => return Err(DurationError::MissingUnit(text.to_owned())),
            _ => return Err(DurationError::UnknownUnit(unit.to_owned(), text.to_owned())),
        };
        total += number.parse::<f64>().map_err(|_| invalid())? * scale;
        rest = tail;
    }
    if total >= i64::MAX as f64 {
        return Err(invalid());
    }
    Ok(if negative { -(total as i64) } else { total as i64 })
}

/// Formats a duration like Go: `1h30m0s`, `1.5s`, `20ms`, `0s`.
pub fn format_duration(d: Duration) -> String {
    let ns = d.as_nanos();
    match ns {
        0 => return "0s".into(),
        1..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => return format!("{}µs", decimals(ns, 1_000)),
        1_000_000..1_000_000_000 => return format!("{}ms", decimals(ns, 1_000_000)),
        _ => {}
    }
    let (hours, minutes) = (ns / 3_600_000_000_000, ns / 60_000_000_000 % 60);
    let seconds = decimals(ns % 60_000_000_000, 1_000_000_000);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

fn decimals(value: u128, unit: u128) -> String {
    let width = unit.ilog10() as usize;
    let text = format!("{}.{:0width$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// How long a model stays loaded after its last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// For this time. Zero unloads the model as soon as it is idle.
    For(Duration),
    /// Until the server stops or another model needs the memory.
    Forever,
}

impl KeepAlive {
    /// Longest finite time: 2⁶³−1 nanoseconds, as in Go.
    const LONGEST: Duration = Duration::from_nanos(i64::MAX as u64);

    /// From nanoseconds. A negative number means forever.
    pub fn from_nanos(ns: i64) -> Self {
        u64::try_from(ns).map_or(Self::Forever, |ns| Self::For(Duration::from_nanos(ns)))
    }

    /// From seconds. A negative number, or one too large for a duration, means forever.
    pub fn from_seconds(seconds: f64) -> Self {
        if seconds < 0.0 {
            return Self::Forever;
        }
        Duration::try_from_secs_f64(seconds)
            .map_or(Self::Forever, |time| Self::For(time.min(Self::LONGEST)))
    }

    /// Whether the model is unloaded as soon as it is idle.
    pub fn is_zero(self) -> bool {
        self == Self::For(Duration::ZERO)
    }

    /// Parses `OLLAMA_KEEP_ALIVE`: a duration, or whole seconds.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        match text.parse::<i64>() {
            Ok(seconds) => Ok(Self::from_seconds(seconds as f64)),
            Err(_) => parse_duration(text).map(Self::from_nanos),
        }
    }
}

impl Serialize for KeepAlive {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::For(d) => s.serialize_str(&format_duration(*d)),
            Self::Forever => s.serialize_i64(-1),
        }
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let kind = match Value::deserialize(d)? {
            Value::Number(n) => return Ok(Self::from_seconds(n.as_f64().unwrap_or(0.0))),
            Value::String(s) => {
                return parse_duration(&s).map(Self::from_nanos).map_err(de::Error::custom);
            }
            Value::Bool(_) => "bool",
            Value::Array(_) => "[]interface {}",
            Value::Object(_) => "map[string]interface {}",
            Value::Null => "nil",
        };
        Err(de::Error::custom(format_args!("Unsupported type: '{kind}'")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_are_parsed_like_go() {
        assert_eq!(parse_duration("90s"), Ok(90_000_000_000));
        assert_eq!(parse_duration("1h30m"), Ok(5_400_000_000_000));
        assert_eq!(parse_duration("1.5h"), Ok(5_400_000_000_000));
        assert_eq!(parse_duration("-1m"), Ok(-60_000_000_000));
        assert_eq!(parse_duration("0"), Ok(0));
        let error = |text| parse_duration(text).unwrap_err().to_string();
        assert_eq!(error("10"), "time: missing unit in duration \"10\"");
        assert_eq!(error("5x"), "time: unknown unit \"x\" in duration \"5x\"");
        assert_eq!(error("abc"), "time: invalid duration \"abc\"");
        assert_eq!(error(""), "time: invalid duration \"\"");
        assert_eq!(error("99999999999h"), "time: invalid duration \"99999999999h\"");
    }

    #[test]
    fn durations_are_formatted_like_go() {
        let text = |ns| format_duration(Duration::from_nanos(ns));
        assert_eq!(text(0), "0s");
        assert_eq!(text(1_500_000_000), "1.5s");
        assert_eq!(text(300_000_000_000), "5m0s");
        assert_eq!(text(5_400_000_000_000), "1h30m0s");
        assert_eq!(text(20_250_000), "20.25ms");
        assert_eq!(text(1_100), "1.1µs");
    }

    #[test]
    fn keep_alive_takes_seconds_durations_and_negative_values() {
        let read = |v| serde_json::from_value::<KeepAlive>(v);
        assert_eq!(read(json!(300)).unwrap(), KeepAlive::For(Duration::from_secs(300)));
        assert_eq!(read(json!(0.5)).unwrap(), KeepAlive::For(Duration::from_millis(500)));
        assert_eq!(read(json!("1h30m")).unwrap(), KeepAlive::For(Duration::from_secs(5400)));
        assert_eq!(read(json!(-1)).unwrap(), KeepAlive::Forever);
        assert_eq!(read(json!("-1m")).unwrap(), KeepAlive::Forever);
        assert_eq!(read(json!(1e300)).unwrap(), KeepAlive::Forever);
        // The sum with any point in time must not overflow.
        let longest = KeepAlive::For(Duration::from_nanos(i64::MAX as u64));
        for seconds in [json!(1e10), json!(9_223_372_036_000_000_000_i64), json!(1.8e19)] {
            assert_eq!(read(seconds).unwrap(), longest);
        }
        assert_eq!(KeepAlive::parse("9223372036000000000"), Ok(longest));
        assert!(read(json!("0")).unwrap().is_zero());
        assert_eq!(read(json!(true)).unwrap_err().to_string(), "Unsupported type: 'bool'");
        assert_eq!(KeepAlive::parse("600"), Ok(KeepAlive::For(Duration::from_secs(600))));
        assert_eq!(KeepAlive::parse("-1"), Ok(KeepAlive::Forever));
    }
}
