//! Limits of the expressions of a constraint.
//!
//! `llguidance` checks its work budget between two derivatives of an expression, and between two
//! expressions that it reads. One derivative of a hostile expression takes seconds and gigabytes,
//! and so does one expression with many Unicode classes. This module counts the work of both
//! before the library does it.

use std::collections::{HashMap, HashSet};

use llguidance::derivre::ExprRef;
use llguidance::derivre::raw::ExprSet;
use llguidance::earley::lexerspec::LexerSpec;
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::Value;

use super::lark_parts::LarkParts;

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
/// Maximum number of combinations of alternatives that start with the same byte, in one
/// intersection.
pub const MAX_INTERSECTION: u32 = 2_000;
/// Maximum number of expressions that are examined for intersections.
const MAX_EXAMINED: usize = 50_000;
/// Maximum number of character ranges in the different Unicode classes of a constraint.
pub const MAX_CLASS_RANGES: usize = 100_000;
/// Maximum number of names of Unicode classes (`\p{L}`, `\w`) in one expression, which the parser
/// expands to hundreds of ranges each.
pub const MAX_CLASS_NAMES: usize = 1_000;
/// Maximum number of pieces in the texts of `%regex`, of which every run is an alternative.
pub const MAX_SUBSTRING_PIECES: usize = 30_000;

/// Checks the expressions of a loaded constraint.
///
/// # Errors
/// A sentence about the exceeded limit.
pub fn check_expressions(expressions: &LexerSpec) -> Result<(), String> {
    check_terminals(expressions.lexemes.len())?;
    DerivativeCounter::new(expressions.regex_builder.exprset()).check()
}

/// Counts the alternatives of derivatives without computing them.
struct DerivativeCounter<'a> {
    all: &'a ExprSet,
    tags: Tags,
    /// Number of alternatives of intersected expressions for each first byte.
    first_byte_counts: HashMap<u32, Box<[u32; 256]>>,
}

/// Numbers of the kinds of expressions that the count distinguishes. The library does not name
/// their type.
struct Tags {
    byte: u8,
    byte_set: u8,
    byte_concat: u8,
    concat: u8,
    not: u8,
    and: u8,
}

impl Tags {
    /// Reads the numbers from an example of each kind.
    fn new() -> Self {
        let mut set = ExprSet::new(256);
        let (a, b) = (set.mk_byte(b'a'), set.mk_byte(b'b'));
        let mut letters = [0; 8];
        letters[3] = 6;
        let byte_set = set.mk_byte_set(&letters);
        let byte_concat = set.mk_literal("ab");
        let many = set.mk_repeat(byte_set, 0, u32::MAX);
        let concat = set.mk_concat(many, b);
        let not = set.mk_not(byte_concat);
        let and = set.mk_and(&mut vec![concat, not]);
        let tag = |expression| set.get_tag(expression) as u8;
        Self {
            byte: tag(a),
            byte_set: tag(byte_set),
            byte_concat: tag(byte_concat),
            concat: tag(concat),
            not: tag(not),
            and: tag(and),
        }
    }
}

impl<'a> DerivativeCounter<'a> {
    fn new(all: &'a ExprSet) -> Self {
        Self { all, tags: Tags::new(), first_byte_counts: HashMap::new() }
    }

    fn tag(&self, expression: ExprRef) -> u8 {
        self.all.get_tag(expression) as u8
    }

    /// Arguments of an expression that its derivative depends on.
    fn first_arguments(&self, expression: ExprRef) -> &'a [ExprRef] {
        let arguments = self.all.get_args(expression);
        match self.tag(expression) {
            tag if tag == self.tags.byte_concat => &[],
            tag if tag == self.tags.concat && !self.all.is_nullable(arguments[0]) => {
                &arguments[..1]
            }
            _ => arguments,
        }
    }

    /// Counts the alternatives of all expressions. Arguments of an expression come before it.
    fn check(mut self) -> Result<(), String> {
        let count = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        let mut widths = vec![1u32; self.all.len()];
        let mut sum = 0u64;
        for number in 1..count {
            let expression = ExprRef::new(number);
            let tag = self.tag(expression);
            let arguments = self.first_arguments(expression);
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

    fn check_intersection(&mut self, expression: ExprRef) -> Result<(), String> {
        let max = match self.try_count_first_bytes(expression) {
            true => self.first_byte_counts[&expression.as_u32()].iter().copied().max().unwrap_or(0),
            false => u32::MAX,
        };
        if max <= MAX_INTERSECTION {
            return Ok(());
        }
        Err(format!(
            "an intersection has more than {MAX_INTERSECTION} combinations of alternatives for the next character: require fewer expressions of one text (&, allOf, look-ahead)"
        ))
    }

    /// Counts, for each byte, the alternatives of an expression that start with it. Returns false
    /// if more than [`MAX_EXAMINED`] expressions of the constraint would be examined.
    fn try_count_first_bytes(&mut self, expression: ExprRef) -> bool {
        let mut stack = vec![expression];
        while let Some(&next) = stack.last() {
            if self.first_byte_counts.contains_key(&next.as_u32()) {
                stack.pop();
                continue;
            }
            let missing = self.first_arguments(next).iter().copied();
            let missing: Vec<_> =
                missing.filter(|e| !self.first_byte_counts.contains_key(&e.as_u32())).collect();
            if !missing.is_empty() {
                stack.extend(missing);
                continue;
            }
            if self.first_byte_counts.len() >= MAX_EXAMINED {
                return false;
            }
            let counts = self.count_first_bytes(next);
            self.first_byte_counts.insert(next.as_u32(), counts);
            stack.pop();
        }
        true
    }

    /// The counts of an expression from the counts of its arguments.
    fn count_first_bytes(&self, expression: ExprRef) -> Box<[u32; 256]> {
        let tag = self.tag(expression);
        let mut counts = Box::new([0u32; 256]);
        if [self.tags.byte, self.tags.byte_set, self.tags.byte_concat].contains(&tag) {
            let fits = |byte: &usize| !self.all.get(expression).surely_no_match(*byte as u8);
            (0..256).filter(fits).for_each(|byte| counts[byte] = 1);
            return counts;
        }
        let arguments = self.first_arguments(expression).iter();
        let arguments: Vec<_> = arguments.map(|e| &self.first_byte_counts[&e.as_u32()]).collect();
        for (byte, count) in counts.iter_mut().enumerate() {
            let each = arguments.iter().map(|counts| counts[byte]);
            *count = match tag {
                _ if tag == self.tags.not => 1,
                _ if tag == self.tags.and => each.fold(1, u32::saturating_mul),
                // A multiple of a number may start with any digit.
                _ if arguments.is_empty() => 1,
                _ => each.fold(0, u32::saturating_add),
            };
        }
        counts
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
