//! Limits of the expressions of a constraint.
//!
//! `llguidance` checks its work budget between two derivatives of an expression, and between two
//! expressions that it reads. One derivative of a hostile expression takes seconds and gigabytes,
//! and so does one expression with many Unicode classes. This module counts the work of both
//! before the library does it.

use std::collections::HashSet;

use llguidance::derivre::ExprRef;
use llguidance::derivre::raw::ExprSet;
use llguidance::earley::lexerspec::LexerSpec;
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::Value;

use super::lark_parts::LarkParts;
use super::overlap::{MAX_COMBINATIONS, OverlapMeter, Tags};

/// Maximum number of different terminals: texts and expressions. The library compares each new one
/// with all others.
pub const MAX_TERMINALS: usize = 12_000;
/// Maximum number of references in the rules of a Lark grammar: names, string literals and
/// expressions. At each position of a text, the parser has an item for each reference, and compares
/// the items with each other.
pub const MAX_REFERENCES: usize = 30_000;
/// Maximum number of alternatives in the derivatives of all expressions. An expression of `n`
/// optional parts in a row has about `n`² alternatives.
pub const MAX_ALTERNATIVES: u64 = 2_000_000;
/// Maximum number of character ranges in the different Unicode classes of a constraint.
pub const MAX_CLASS_RANGES: usize = 100_000;
/// Maximum number of names of Unicode classes (`\p{L}`, `\w`) in one expression, which the parser
/// expands to hundreds of ranges each.
pub const MAX_CLASS_NAMES: usize = 1_000;
/// Maximum number of pieces in the texts of `%regex`, of which every run is an alternative.
pub const MAX_SUBSTRING_PIECES: usize = 30_000;

/// Checks the expressions of a loaded constraint. `has_intersection` says whether its author wrote
/// intersections (`&`).
///
/// # Errors
/// A sentence about the exceeded limit.
pub fn check_expressions(expressions: &LexerSpec, has_intersection: bool) -> Result<(), String> {
    check_terminals(expressions.lexemes.len())?;
    DerivativeCounter::new(expressions.regex_builder.exprset(), has_intersection).check()
}

/// Counts the alternatives of derivatives without computing them.
struct DerivativeCounter<'a> {
    all: &'a ExprSet,
    tags: Tags,
    overlaps: OverlapMeter,
    /// Whether the constraint's author wrote intersections.
    has_intersection: bool,
}

impl<'a> DerivativeCounter<'a> {
    fn new(all: &'a ExprSet, has_intersection: bool) -> Self {
        let overlaps = OverlapMeter::new(all.clone());
        Self { all, tags: Tags::new(), overlaps, has_intersection }
    }

    /// Counts the alternatives of all expressions. Arguments of an expression come before it.
    fn check(mut self) -> Result<(), String> {
        let count = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let mut widths = vec![1u32; self.all.len()];
        let mut sum = 0u64;
        for number in 1..count {
            let expression = ExprRef::new(number);
            let tag = self.tags.of(self.all, expression);
            let arguments = self.tags.first_arguments(self.all, expression);
            let width = |argument: &ExprRef| u64::from(widths[argument.as_usize()]);
            let total = arguments.iter().map(width).sum::<u64>();
            // The parts of a negation are made disjoint: at most one for each byte.
            let width = if tag == self.tags.not { total.min(256) } else { total.max(1) };
            widths[number as usize] = u32::try_from(width).unwrap_or(u32::MAX);
            sum = sum.saturating_add(if arguments.len() > 1 { width } else { 1 });
            if sum > MAX_ALTERNATIVES {
                return Err(format!(
                    "its expressions have more than {MAX_ALTERNATIVES} alternatives for the next character: use fewer optional parts in a row"
                ));
            }
            if tag == self.tags.and {
                self.check_intersection(expression)?;
            }
        }
        Ok(())
    }

    /// The schema check limits what the patterns of one text cost after the first byte.
    fn check_intersection(&mut self, expression: ExprRef) -> Result<(), String> {
        let combinations = match self.has_intersection {
            true => self.overlaps.overlap(expression),
            false => self.overlaps.first_alternatives(expression),
        };
        if combinations.is_some_and(|count| count <= MAX_COMBINATIONS) {
            return Ok(());
        }
        Err(format!(
            "an intersection has more than {MAX_COMBINATIONS} combinations of alternatives for the next character: require fewer or simpler expressions of one text (&, allOf)"
        ))
    }
}

/// Counts the character ranges of a constraint's Unicode classes, before the library expands
/// them. The library expands equal classes once.
#[derive(Default)]
pub struct ClassCounter {
    known: HashSet<Vec<(u32, u32)>>,
    ranges: usize,
}

impl ClassCounter {
    /// Counts the classes of an expression with names. Others have few ranges for their length, and
    /// the library reports invalid ones.
    ///
    /// # Errors
    /// A sentence about the exceeded limit.
    pub fn add(&mut self, pattern: &str) -> Result<(), String> {
        let is_named = |at: &(usize, &str)| {
            let next = pattern[at.0 + 1..].chars().next();
            next.is_some_and(|next| "pPwWdDsS".contains(next))
        };
        let names = pattern.match_indices('\\').filter(is_named).count();
        if names > MAX_CLASS_NAMES {
            return Err(format!(
                "an expression has {names} names of character classes, at most {MAX_CLASS_NAMES} are allowed: use fewer of \\p, \\w, \\d and \\s"
            ));
        }
        if names == 0 {
            return Ok(());
        }
        let Ok(parsed) = regex_syntax::Parser::new().parse(pattern) else { return Ok(()) };
        self.add_classes(&parsed)
    }

    fn add_classes(&mut self, parsed: &Hir) -> Result<(), String> {
        let mut stack = vec![parsed];
        while let Some(next) = stack.pop() {
            stack.extend(next.kind().subs());
            let HirKind::Class(Class::Unicode(class)) = next.kind() else { continue };
            let ranges = class.ranges().iter();
            let ranges: Vec<_> =
                ranges.map(|range| (range.start().into(), range.end().into())).collect();
            let count = ranges.len();
            if self.known.insert(ranges) {
                self.ranges += count;
            }
            if self.ranges > MAX_CLASS_RANGES {
                return Err(format!(
                    "its different character classes have more than {MAX_CLASS_RANGES} ranges: use fewer different classes with \\p, \\w or negation"
                ));
            }
        }
        Ok(())
    }

    /// Number of ranges counted.
    #[cfg(test)]
    pub fn ranges(&self) -> usize {
        self.ranges
    }

    /// Counts the classes of all patterns in a schema.
    ///
    /// # Errors
    /// As for [`ClassCounter::add`].
    pub fn add_schema(&mut self, schema: &Value) -> Result<(), String> {
        let mut stack = vec![schema];
        while let Some(next) = stack.pop() {
            match next {
                Value::Array(list) => stack.extend(list),
                Value::Object(map) => {
                    if let Some(Value::String(pattern)) = map.get("pattern") {
                        self.add(pattern)?;
                    }
                    if let Some(Value::Object(named)) = map.get("patternProperties") {
                        named.keys().try_for_each(|pattern| self.add(pattern))?;
                    }
                    stack.extend(map.values());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Checks the text of a Lark grammar.
///
/// # Errors
/// A sentence about the exceeded limit.
pub fn check_lark(lark: &str) -> Result<(), String> {
    let parts = LarkParts::new(lark);
    check_terminals(parts.string_literals.len() + parts.regexes.len())?;
    if parts.references > MAX_REFERENCES {
        return Err(format!(
            "its rules mention {} names, texts and expressions, at most {MAX_REFERENCES} are allowed: use fewer alternatives, or join them to one expression",
            parts.references
        ));
    }
    let mut classes = ClassCounter::default();
    parts.regexes.iter().try_for_each(|pattern| classes.add(pattern))?;
    parts.schemas.iter().try_for_each(|schema| classes.add_schema(schema))?;
    let pieces: usize = parts.regex_values.iter().map(substring_pieces).sum();
    if pieces > MAX_SUBSTRING_PIECES {
        return Err(format!(
            "its %regex have {pieces} characters, words or chunks, at most {MAX_SUBSTRING_PIECES} are allowed: use a shorter text, or substring_words"
        ));
    }
    Ok(())
}

/// Number of pieces of the text in a `%regex`.
fn substring_pieces(value: &Value) -> usize {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("");
    let chunks = value.get("substring_chunks").and_then(Value::as_array).map_or(0, Vec::len);
    let words = text("substring_words").split_whitespace().count();
    text("substring_chars").chars().count() + words + chunks
}

fn check_terminals(count: usize) -> Result<(), String> {
    if count <= MAX_TERMINALS {
        return Ok(());
    }
    Err(format!(
        "it has {count} different texts and expressions, at most {MAX_TERMINALS} are allowed: use fewer, or join alternatives to one expression"
    ))
}
