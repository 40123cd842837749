//! What the library says about a constraint, as a sentence for whoever wrote it.

use std::fmt;

/// Characters of a reason at most.
const LENGTH: usize = 400;
/// Said of a constraint that no text can have.
pub const NOTHING: &str = "there is no text that it allows; what refers only to itself, for instance, never comes to an end";

/// Said of a string of which the expression is empty, or too hard to tell.
const NO_STRING: &str =
    "no string was found that its pattern, format, minLength and maxLength allow all at once";

/// The reason that a chain of errors comes to. `own`: the text that was read is the client's own, so that places in it
/// say something.
pub fn reason(error: &dyn fmt::Display, own: bool) -> String {
    let whole = format!("{error:#}");
    if whole.contains("NoExtensionBias") {
        return NOTHING.into();
    }
    if let Some((before, _)) = ["Regex is empty: ", "Unable to determine if regex is empty: "]
        .iter()
        .find_map(|inside| whole.split_once(inside))
    {
        let before: String = before.chars().take(LENGTH).collect();
        return before + NO_STRING;
    }
    let line = whole.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown");
    let (place, line) = split_place(line);
    let text = expression(&whole).unwrap_or_else(|| line.to_owned());
    let text = if own { format!("{place}{text}") } else { text };
    text.chars().take(LENGTH).collect()
}

/// What the library has had too much of, where that is what it failed of: its own words for it are not for clients.
pub fn too_hard(reason: &str) -> Option<&'static str> {
    let of = |mark: &str| reason.split_once(mark).map(|(_, what)| what);
    match of("lexer error: ").or_else(|| of("parser error: ")) {
        Some(what) => Some(excess(what)),
        None => of("Parser Error: ").filter(|what| what.contains(" items; max is ")).map(excess),
    }
}

/// A limit of the library in words of clients.
pub fn excess(limit: &str) -> &'static str {
    let has = |word: &str| limit.contains(word);
    match () {
        () if has("items") => "too many parts of it are possible at one place",
        () if has("states") => "its strings have too many states",
        () if has("expressions") => "its expressions grow too large",
        () => "a token of it takes too much work",
    }
}

/// Splits `at 1(8): ` off, if it is there.
fn split_place(line: &str) -> (&str, &str) {
    let end = line.find("): ").filter(|end| {
        let digits = |c: char| c.is_ascii_digit() || c == '(';
        line.strip_prefix("at ").is_some_and(|rest| rest[..end - 3].chars().all(digits))
    });
    line.split_at(end.map_or(0, |end| end + 3))
}

/// What is wrong with a regular expression, which is told last: behind the expression itself, indented, with a mark under the
/// place.
fn expression(whole: &str) -> Option<String> {
    let (_, report) = whole.split_once("regex parse error:")?;
    let cause = report.lines().find_map(|line| line.trim().strip_prefix("error: "))?;
    let pattern =
        report.lines().find(|line| !line.trim().is_empty() && !line.trim().starts_with('~'))?;
    Some(format!("the pattern {:?} cannot be used: {cause}", pattern.trim()))
}
