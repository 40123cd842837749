//! Parses sizes and rates as users write them.

/// Parses bytes per second: `500KB`, `20MB`, `1.5GB` (powers of 1000), `16MiB` (powers of 1024), or
/// a number of bytes, optionally followed by `/s`.
///
/// # Errors
/// The text is not a rate. The message describes the format.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let plain = text.trim().trim_end_matches("/s").trim_end_matches("ps");
    parse_bytes(plain)
        .ok_or_else(|| "it must be bytes per second, such as 500KB, 20MB or 1.5GB".into())
}

/// Parses a number of bytes such as `500KB`, `1.5 GB` or `2TiB`. `None`: the text is invalid, the
/// size is zero, or it is too large.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let plain = text.trim().to_ascii_lowercase();
    let split = plain.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(plain.len());
    let (number, unit) = plain.split_at(split);
    let unit = match unit.trim() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        "tib" => 1_099_511_627_776.0,
        _ => f64::NAN,
    };
    let bytes = number.parse::<f64>().unwrap_or(f64::NAN) * unit;
    (1.0..1e15).contains(&bytes).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_with_units() {
        let good =
            [("1000", 1000), ("500KB", 500_000), ("20mb/s", 20_000_000), ("1.5G", 1_500_000_000)];
        for (text, rate) in good.into_iter().chain([(" 16 MiB ", 16 << 20), ("2 MBps", 2_000_000)])
        {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for bad in ["", "0", "MB", "-5MB", "5 apples", "1e3", "1.2.3", "nan", "9999999999GB", "0.5"]
        {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }
}
