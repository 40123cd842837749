//! Turns errors of `llguidance` into sentences for the author of a constraint.

use std::fmt;

use super::MAX_SYMBOLS;

/// Maximum number of characters of a reason.
const MAX_REASON_CHARS: usize = 400;
/// Reason for a constraint that no text fits.
pub const NO_TEXT_ALLOWED: &str =
    "it matches no finite text; check for rules that refer only to themselves";

/// Reason for a string with an expression that is empty, or too complex to decide.
const NO_STRING_ALLOWED: &str =
    "no string matches pattern, format, minLength and maxLength together";

/// The reason of an error chain. `own`: the client wrote the parsed text, so positions in it are
/// meaningful.
pub fn reason(error: &dyn fmt::Display, own: bool) -> String {
    let whole = format!("{error:#}");
    if whole.contains("NoExtensionBias") {
        return NO_TEXT_ALLOWED.into();
    }
    if whole.contains("(number of symbols) too big") {
        return format!(
            "it has more than {MAX_SYMBOLS} rules, texts, expressions and properties together: use fewer, or split it"
        );
    }
    let too_large = ["initial lexer configuration", "lexer precomputation", "fuel exhausted when"];
    if too_large.iter().any(|limit| whole.contains(limit)) {
        return "its expressions take too much work: use fewer or shorter ones, smaller repetitions, and no .* before alternatives".into();
    }
    if let Some((before, _)) = ["Regex is empty: ", "Unable to determine if regex is empty: "]
        .iter()
        .find_map(|inside| whole.split_once(inside))
    {
        let before: String = before.chars().take(MAX_REASON_CHARS).collect();
        return before + NO_STRING_ALLOWED;
    }
    let line = whole.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown");
    let (place, line) = split_position(line);
    let text = regex_error(&whole).unwrap_or_else(|| line.to_owned());
    let text = if own { format!("{place}{text}") } else { text };
    text.chars().take(MAX_REASON_CHARS).collect()
}

/// The exceeded limit, if an error is about one. The library's own wording is not meant for
/// clients.
pub fn too_complex(reason: &str) -> Option<&'static str> {
    let of = |mark: &str| reason.split_once(mark).map(|(_, what)| what);
    match of("lexer error: ").or_else(|| of("parser error: ")) {
        Some(what) => Some(limit_message(what)),
        None => {
            of("Parser Error: ").filter(|what| what.contains(" items; max is ")).map(limit_message)
        }
    }
}

/// Describes a limit of the library for clients.
pub fn limit_message(limit: &str) -> &'static str {
    let has = |word: &str| limit.contains(word);
    match () {
        () if has("items") => "too many alternatives at one position",
        () if has("states") => "too many states",
        () if has("expressions") => "too large expressions",
        () => "too much work for one token",
    }
}

/// Splits off the position `at 1(8): `, if present.
fn split_position(line: &str) -> (&str, &str) {
    let end = line.find("): ").filter(|end| {
        let digits = |c: char| c.is_ascii_digit() || c == '(';
        line.strip_prefix("at ").is_some_and(|rest| rest[..end - 3].chars().all(digits))
    });
    line.split_at(end.map_or(0, |end| end + 3))
}

/// The cause of an invalid regular expression. The library prints it after the indented expression
/// and a marker line.
fn regex_error(whole: &str) -> Option<String> {
    let (_, report) = whole.split_once("regex parse error:")?;
    let cause = report.lines().find_map(|line| line.trim().strip_prefix("error: "))?;
    let pattern =
        report.lines().find(|line| !line.trim().is_empty() && !line.trim().starts_with('~'))?;
    Some(format!("invalid pattern {:?}: {cause}", pattern.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_no_backtrace_and_no_dump_of_the_library() {
        let trace =
            "<backtrace>\n   0: std::backtrace\n             at /rustc/lib.rs:1\n</backtrace>";
        for (error, expected) in [
            (format!("panic: index out of bounds\n{trace}"), "panic: index out of bounds"),
            (format!("no token fits\n<state>\nTokens: 7\n</state>{trace}"), "no token fits"),
            (format!("\n\nunknown name: \"x\"\n{trace}"), "unknown name: \"x\""),
        ] {
            assert_eq!(reason(&error, true), expected);
            assert_eq!(reason(&error, false), expected);
        }
    }
}
