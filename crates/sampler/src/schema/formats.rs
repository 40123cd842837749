//! Formats of strings that grammars enforce.

/// Enforced formats. Any other `format` is an annotation.
pub(crate) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Pattern of an enforced format. `None` for other names.
pub(crate) fn format_pattern(name: &str) -> Option<String> {
    const DATE: &str = "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
    const TIME: &str = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    Some(match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => {
            let time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
            let date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
            format!("P(?:[0-9]+W|{date}(?:{time})?|{time})")
        }
        "email" => format!("[a-zA-Z0-9_+-]+(?:\\.[a-zA-Z0-9_+-]+)*@{LABEL}(?:\\.{LABEL})+"),
        "hostname" => format!("{LABEL}(?:\\.{LABEL})*"),
        "ipv4" => format!("(?:{BYTE}\\.){{3}}{BYTE}"),
        "ipv6" => {
            // `n` groups before the gap, and at most 7 − n after it.
            let part = "[0-9a-fA-F]{1,4}";
            let gaps = (1..=6).map(|n| {
                format!("{part}(?::{part}){{0,{}}}::(?:{part}(?::{part}){{0,{}}})?", n - 1, 6 - n)
            });
            let all: Vec<String> = gaps.collect();
            format!("(?:{part}(?::{part}){{7}}|::(?:{part}(?::{part}){{0,6}})?|{})", all.join("|"))
        }
        "uuid" => "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}".to_owned(),
        "uri" => {
            let c = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})";
            let more = format!("(?:{c}|\\/|\\?)*");
            format!(
                "[a-zA-Z][a-zA-Z0-9+.-]*:(?:\\/\\/{c}+(?:\\/{c}*)*|{c}+(?:\\/{c}*)*)(?:\\?{more})?(?:#{more})?"
            )
        }
        _ => return None,
    })
}
