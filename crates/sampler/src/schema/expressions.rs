//! Analyses translated patterns without running them.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};

/// Maximum nesting depth of an expression.
const MAX_NEST: u32 = 200;

/// Whether some text may match a pattern, considering its anchors: `$^a` matches none. Returns
/// `true` for patterns that cannot be parsed.
pub(super) fn may_fit(pattern: &str) -> bool {
    parse(pattern).is_none_or(|expression| !match_shapes(&expression).is_empty())
}

/// Approximate number of automaton states of a pattern. `None` for patterns with look-around or
/// back references.
pub(super) fn states(pattern: &str) -> Option<usize> {
    parse(pattern).map(|expression| size(&expression))
}

fn parse(pattern: &str) -> Option<Hir> {
    ParserBuilder::new().nest_limit(MAX_NEST).build().parse(pattern).ok()
}

fn size(expression: &Hir) -> usize {
    let sum = |parts: &[Hir]| parts.iter().map(size).fold(1, usize::saturating_add);
    match expression.kind() {
        HirKind::Literal(literal) => literal.0.len(),
        HirKind::Capture(capture) => size(&capture.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => sum(parts),
        HirKind::Repetition(repetition) => {
            let times = repetition.max.unwrap_or(repetition.min).max(1);
            size(&repetition.sub).saturating_mul(times as usize)
        }
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => 1,
    }
}

/// Shape of a match of a part of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MatchShape {
    is_empty: bool,
    /// The match must begin at the start of the text.
    at_start: bool,
    /// The match must end at the end of the text.
    at_end: bool,
}

const EMPTY: MatchShape = MatchShape { is_empty: true, at_start: false, at_end: false };

/// All shapes of matches of an expression. Empty if it never matches.
fn match_shapes(expression: &Hir) -> Vec<MatchShape> {
    match expression.kind() {
        HirKind::Empty => vec![EMPTY],
        HirKind::Literal(_) => vec![MatchShape { is_empty: false, ..EMPTY }],
        HirKind::Class(class) if class.minimum_len().is_none() => Vec::new(),
        HirKind::Class(_) => vec![MatchShape { is_empty: false, ..EMPTY }],
        HirKind::Look(Look::Start) => vec![MatchShape { at_start: true, ..EMPTY }],
        HirKind::Look(Look::End) => vec![MatchShape { at_end: true, ..EMPTY }],
        HirKind::Look(_) => vec![EMPTY],
        HirKind::Capture(capture) => match_shapes(&capture.sub),
        HirKind::Concat(parts) => parts
            .iter()
            .fold(vec![EMPTY], |before, part| concatenated(&before, &match_shapes(part))),
        HirKind::Alternation(parts) => {
            let mut all = Vec::new();
            parts.iter().flat_map(match_shapes).for_each(|one| add(&mut all, one));
            all
        }
        HirKind::Repetition(repetition) => {
            let once = match_shapes(&repetition.sub);
            let mut all = if repetition.min == 0 { vec![EMPTY] } else { once.clone() };
            if repetition.max != Some(0) {
                once.iter().for_each(|one| add(&mut all, *one));
                // Two repetitions show every shape that more repetitions can have.
                if repetition.max != Some(1) {
                    let twice = concatenated(&once, &once);
                    match repetition.min {
                        0 | 1 => twice.into_iter().for_each(|one| add(&mut all, one)),
                        _ => all = twice,
                    }
                }
            }
            all
        }
    }
}

/// Shapes of a match of `first` followed by a match of `second`.
fn concatenated(first: &[MatchShape], second: &[MatchShape]) -> Vec<MatchShape> {
    let mut all = Vec::new();
    for one in first {
        for other in second {
            if other.at_start && !one.is_empty || one.at_end && !other.is_empty {
                continue;
            }
            let both = MatchShape {
                is_empty: one.is_empty && other.is_empty,
                at_start: one.at_start || other.at_start,
                at_end: one.at_end || other.at_end,
            };
            add(&mut all, both);
        }
    }
    all
}

fn add(all: &mut Vec<MatchShape>, one: MatchShape) {
    if !all.contains(&one) {
        all.push(one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradicting_anchors_match_nothing() {
        for pattern in [
            "$^a",
            "a^",
            "a^b",
            "(?:$a|b^)",
            "a$b",
            "(^a){2}",
            "^(?:a$)+b",
            "[^\\x{0}-\\x{10ffff}]",
        ] {
            assert!(!may_fit(pattern), "{pattern}");
        }
        for pattern in [
            "",
            "^$",
            "$^",
            "^a$",
            "(^a)*b",
            "a|b^",
            "(?:^|,)a(?:$|,)",
            "(?:a$)?b",
            "^^a$$",
            "\\ba",
            "(",
        ] {
            assert!(may_fit(pattern), "{pattern}");
        }
    }
}
