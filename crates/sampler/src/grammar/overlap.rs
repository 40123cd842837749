//! Measures the overlap of expressions, which decides what their intersection costs.
//!
//! The *overlap* of an expression is the maximum number of alternatives that start with the same
//! byte, in the expression and in all its derivatives. `.*ab` has two for `a`: the text before `ab`
//! continues, or `ab` begins. The derivative of an intersection combines the alternatives of all
//! its expressions, so their overlaps multiply.

use std::collections::{HashMap, HashSet};

use llguidance::derivre::ExprRef;
use llguidance::derivre::raw::{DerivCache, ExprSet};

/// Maximum product of the overlaps of all expressions in one intersection.
pub const MAX_COMBINATIONS: u32 = 2_000;
/// Maximum number of expressions that are examined to find the overlap of one.
const MAX_EXAMINED: usize = 40_000;
/// Maximum number of expressions that are examined for one constraint.
const MAX_EXAMINED_IN_ALL: usize = 200_000;
/// Maximum cost of derivatives for one constraint, in the unit of `derivre`.
const MAX_COST: u64 = 2_000_000;

/// Measures overlaps of expressions in one set.
pub struct OverlapMeter {
    expressions: ExprSet,
    derivatives: DerivCache,
    tags: Tags,
    first_bytes: HashMap<ExprRef, Box<FirstBytes>>,
    examined: usize,
    max_cost: u64,
}

/// The first bytes of an expression's texts.
struct FirstBytes {
    /// Number of alternatives for each byte.
    counts: [u32; 256],
    /// Equal for bytes with the same derivative.
    classes: [u32; 256],
}

impl OverlapMeter {
    /// A meter for expressions of a set.
    pub fn new(expressions: ExprSet) -> Self {
        let max_cost = expressions.cost().saturating_add(MAX_COST);
        let (derivatives, tags) = (DerivCache::new(), Tags::new());
        Self { expressions, derivatives, tags, first_bytes: HashMap::new(), examined: 0, max_cost }
    }

    /// The overlap of a JSON Schema's pattern: 1 for an invalid one, which the library reports, and
    /// `None` if it is not found within the limits.
    pub fn pattern_overlap(&mut self, pattern: &str) -> Option<u32> {
        match self.expressions.parse_expr(regex_syntax::Parser::new(), pattern, true) {
            Ok(expression) => self.overlap(expression),
            Err(_) => Some(1),
        }
    }

    /// The overlap of an expression, or `None` if it is not found within the limits.
    pub fn overlap(&mut self, expression: ExprRef) -> Option<u32> {
        let tag = self.tags.of(&self.expressions, expression);
        // The parts of a negation are made disjoint.
        if tag == self.tags.not {
            return Some(1);
        }
        if tag == self.tags.and {
            let arguments = self.expressions.get_args(expression).to_vec();
            return arguments
                .into_iter()
                .try_fold(1u32, |all, argument| Some(all.saturating_mul(self.overlap(argument)?)));
        }
        self.first_bytes.clear();
        let (mut known, mut stack) = (HashSet::from([expression]), vec![expression]);
        let mut largest = 1;
        while let Some(next) = stack.pop() {
            self.examine(next)?;
            let first = &self.first_bytes[&next];
            largest = first.counts.iter().copied().fold(largest, u32::max);
            let mut classes = HashSet::new();
            let bytes: Vec<u8> = (0..=u8::MAX)
                .filter(|byte| first.counts[usize::from(*byte)] > 0)
                .filter(|byte| classes.insert(first.classes[usize::from(*byte)]))
                .collect();
            for byte in bytes {
                let derivative = self.derivatives.derivative(&mut self.expressions, next, byte);
                if known.insert(derivative) {
                    stack.push(derivative);
                }
                if self.expressions.cost() > self.max_cost {
                    return None;
                }
            }
        }
        Some(largest)
    }

    /// Maximum number of an expression's alternatives that start with the same byte. `None` if too
    /// many expressions are examined.
    pub fn first_alternatives(&mut self, expression: ExprRef) -> Option<u32> {
        self.examine(expression)?;
        self.first_bytes[&expression].counts.iter().copied().max()
    }

    /// Finds the first bytes of an expression. `None` if too many expressions are examined.
    fn examine(&mut self, expression: ExprRef) -> Option<()> {
        let mut stack = vec![expression];
        while let Some(&next) = stack.last() {
            if self.first_bytes.contains_key(&next) {
                stack.pop();
                continue;
            }
            let arguments = self.tags.first_arguments(&self.expressions, next).iter().copied();
            let missing = arguments.filter(|argument| !self.first_bytes.contains_key(argument));
            let before = stack.len();
            stack.extend(missing);
            if stack.len() > before {
                continue;
            }
            self.examined += 1;
            if self.first_bytes.len() >= MAX_EXAMINED || self.examined > MAX_EXAMINED_IN_ALL {
                return None;
            }
            let first = self.first_bytes_of(next);
            self.first_bytes.insert(next, first);
            stack.pop();
        }
        Some(())
    }

    /// The first bytes of an expression from those of its arguments.
    fn first_bytes_of(&self, expression: ExprRef) -> Box<FirstBytes> {
        let tags = &self.tags;
        let tag = tags.of(&self.expressions, expression);
        let arguments = tags.first_arguments(&self.expressions, expression).iter();
        let arguments: Vec<_> = arguments.map(|argument| &self.first_bytes[argument]).collect();
        let is_leaf = arguments.is_empty();
        let leaf_class = expression.as_u32().wrapping_mul(0x9e37_79b1);
        let mut first = Box::new(FirstBytes { counts: [0; 256], classes: [0; 256] });
        for byte in 0..=u8::MAX {
            let at = usize::from(byte);
            let each = arguments.iter().map(|first| first.counts[at]);
            let class = arguments.iter().map(|first| first.classes[at]);
            first.classes[at] = class.fold(0, u32::wrapping_add);
            first.counts[at] = match tag {
                _ if is_leaf => {
                    let is_first = !self.expressions.get(expression).surely_no_match(byte);
                    // A multiple of a number has a derivative for each digit.
                    let own = if tags.has_equal_derivatives(tag) { 0 } else { u32::from(byte) };
                    first.classes[at] = if is_first { leaf_class.wrapping_add(own) } else { 0 };
                    u32::from(is_first)
                }
                _ if tag == tags.not => 1,
                _ if tag == tags.and => each.fold(1, u32::saturating_mul),
                _ => each.fold(0, u32::saturating_add),
            };
        }
        first
    }
}

impl Default for OverlapMeter {
    fn default() -> Self {
        Self::new(ExprSet::new(256))
    }
}

/// Numbers of the kinds of expressions that the limits distinguish. The library does not name
/// their type.
#[derive(Debug)]
pub struct Tags {
    byte: u8,
    byte_set: u8,
    byte_concat: u8,
    concat: u8,
    /// Negation.
    pub not: u8,
    /// Intersection.
    pub and: u8,
}

impl Tags {
    /// Reads the numbers from an example of each kind.
    pub fn new() -> Self {
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

    /// The number of an expression's kind.
    pub fn of(&self, all: &ExprSet, expression: ExprRef) -> u8 {
        all.get_tag(expression) as u8
    }

    /// Arguments of an expression that its derivative depends on.
    pub fn first_arguments<'a>(&self, all: &'a ExprSet, expression: ExprRef) -> &'a [ExprRef] {
        let arguments = all.get_args(expression);
        match self.of(all, expression) {
            tag if tag == self.byte_concat => &[],
            tag if tag == self.concat && !all.is_nullable(arguments[0]) => &arguments[..1],
            _ => arguments,
        }
    }

    /// Whether all first bytes of an expression without arguments have the same derivative.
    fn has_equal_derivatives(&self, tag: u8) -> bool {
        [self.byte, self.byte_set, self.byte_concat].contains(&tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overlap_is_that_of_the_widest_derivative() {
        let cases = [
            ("^abc$", 1),
            ("^[a-z]{3,64}$", 1),
            ("^([a-z]+-)*[0-9]{4}$", 1),
            // The text before the match continues, or the match begins.
            ("[ab]1x", 2),
            ("a{3}b", 4),
            ("^x(a|ab|abc)c*$", 2),
            ("^(ab?|abc|[a-c]{3})$", 3),
            ("^(a|aa){9}$", 9),
            (r"^\w+$", 1),
            ("(", 1),
        ];
        for (pattern, overlap) in cases {
            let found = OverlapMeter::default().pattern_overlap(pattern);
            assert_eq!(found, Some(overlap), "{pattern}");
        }
    }

    #[test]
    fn the_search_for_the_overlap_is_limited() {
        let mut meter = OverlapMeter::default();
        assert_eq!(meter.pattern_overlap("a.{18}b"), None);
        assert_eq!(meter.pattern_overlap("^ab$"), None, "the limit is that of a constraint");
    }
}
