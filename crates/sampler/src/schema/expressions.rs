//! What can be told of a translated pattern without running it.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind, Look};

/// How deep an expression may be nested.
const NEST_MAX: u32 = 200;

/// Whether some text may fit a pattern, for all that its anchors say: `$^a` fits none. Patterns that are not read may fit.
pub(super) fn may_fit(pattern: &str) -> bool {
    read(pattern).is_none_or(|expression| !matches(&expression).is_empty())
}

/// States that an automaton of a pattern has, roughly; `None` for patterns with look-around or back references.
pub(super) fn states(pattern: &str) -> Option<usize> {
    read(pattern).map(|expression| size(&expression))
}

fn read(pattern: &str) -> Option<Hir> {
    ParserBuilder::new().nest_limit(NEST_MAX).build().parse(pattern).ok()
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

/// One way in which a part of an expression matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    is_empty: bool,
    /// It matches at the start of the text only.
    at_start: bool,
    /// It matches at the end of the text only.
    at_end: bool,
}

const EMPTY: Match = Match { is_empty: true, at_start: false, at_end: false };

/// All ways in which a part of an expression matches; none where it never does.
fn matches(expression: &Hir) -> Vec<Match> {
    match expression.kind() {
        HirKind::Empty => vec![EMPTY],
        HirKind::Literal(_) => vec![Match { is_empty: false, ..EMPTY }],
        HirKind::Class(class) if class.minimum_len().is_none() => Vec::new(),
        HirKind::Class(_) => vec![Match { is_empty: false, ..EMPTY }],
        HirKind::Look(Look::Start) => vec![Match { at_start: true, ..EMPTY }],
        HirKind::Look(Look::End) => vec![Match { at_end: true, ..EMPTY }],
        HirKind::Look(_) => vec![EMPTY],
        HirKind::Capture(capture) => matches(&capture.sub),
        HirKind::Concat(parts) => {
            parts.iter().fold(vec![EMPTY], |before, part| in_sequence(&before, &matches(part)))
        }
        HirKind::Alternation(parts) => {
            let mut all = Vec::new();
            parts.iter().flat_map(matches).for_each(|one| add(&mut all, one));
            all
        }
        HirKind::Repetition(repetition) => {
            let once = matches(&repetition.sub);
            let mut all = if repetition.min == 0 { vec![EMPTY] } else { once.clone() };
            if repetition.max != Some(0) {
                once.iter().for_each(|one| add(&mut all, *one));
                // Two repetitions show all that more of them can.
                if repetition.max != Some(1) {
                    let twice = in_sequence(&once, &once);
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

/// The ways in which one part matches behind another one.
fn in_sequence(first: &[Match], second: &[Match]) -> Vec<Match> {
    let mut all = Vec::new();
    for one in first {
        for other in second {
            if other.at_start && !one.is_empty || one.at_end && !other.is_empty {
                continue;
            }
            let both = Match {
                is_empty: one.is_empty && other.is_empty,
                at_start: one.at_start || other.at_start,
                at_end: one.at_end || other.at_end,
            };
            add(&mut all, both);
        }
    }
    all
}

fn add(all: &mut Vec<Match>, one: Match) {
    if !all.contains(&one) {
        all.push(one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_whose_anchors_contradict_fit_nothing() {
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
