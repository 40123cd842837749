//! Checks `multipleOf` in JSON Schemas against the limits of `llguidance`.
//!
//! The library builds an automaton with about as many states as the number without its factors of 2
//! and 5, and searches it for an end. It computes with 32 bits and does not detect overflow.
//! Numbers that overflow would be enforced wrongly, so this module repeats the computation with
//! checks.

use serde_json::{Map, Value};

/// Maximum number of states of a number's automaton. Searching this many takes some ten
/// milliseconds.
pub const MAX_STATES: u64 = 2_000;
/// Maximum number of digits after the decimal point: powers of ten within 32 bits.
const MAX_DIGITS: u32 = 9;
/// Maximum number of multiples that may apply to one value.
const MAX_COMBINED: usize = 64;

/// Keywords that do not restrict a value, beside `$ref` or a choice.
const ANNOTATIONS: [&str; 10] = [
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "x-guidance",
];

/// A number `coefficient / 10^digits`, as the library represents it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Multiple {
    coefficient: u64,
    digits: u32,
}

/// Rejects multiples that the library cannot compute, or that take too long to search.
///
/// # Errors
/// A sentence that names the keyword, the numbers and the limits.
pub fn check(schema: &Value) -> Result<(), String> {
    let whole = multiples_in(schema)?;
    if !whole.is_empty() {
        check_combined(schema, &whole)?;
    }
    Ok(())
}

/// Replaces a fraction by a neighbouring double that the library reads correctly. For example, 0.07
/// times ten is not exactly 0.7 in doubles, but its neighbour is.
pub fn adjust_fraction(schema: &mut Map<String, Value>) {
    let Some(Value::Number(number)) = schema.get("multipleOf") else { return };
    let (Some(value), Some(written)) = (number.as_f64(), decimal(&number.to_string())) else {
        return;
    };
    if value <= 0.0 || read_like_library(value) == Some(written) {
        return;
    }
    let near = (1..=4)
        .flat_map(|step| [value.to_bits() - step, value.to_bits() + step])
        .map(f64::from_bits);
    if let Some(read) = near.into_iter().find(|value| read_like_library(*value) == Some(written)) {
        schema.insert("multipleOf".into(), Value::from(read));
    }
}

/// Parses a decimal number without an exponent.
fn decimal(text: &str) -> Option<Multiple> {
    let (whole, fraction) = text.split_once('.')?;
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| *digits <= MAX_DIGITS)?;
    Some(Multiple::new(format!("{whole}{fraction}").parse().ok()?, digits))
}

/// Distinct multiples in a schema.
fn multiples_in(schema: &Value) -> Result<Vec<Multiple>, String> {
    let mut multiples = Vec::new();
    collect(schema, &mut multiples)?;
    multiples.sort_unstable();
    multiples.dedup();
    Ok(multiples)
}

/// Also visits values that are not schemas, such as `default`. A `multipleOf` there is unlikely to
/// be anything else.
fn collect(value: &Value, multiples: &mut Vec<Multiple>) -> Result<(), String> {
    match value {
        Value::Array(list) => list.iter().try_for_each(|value| collect(value, multiples)),
        Value::Object(map) => {
            if let Some(Value::Number(number)) = map.get("multipleOf") {
                multiples.push(parse_number(
                    number,
                    map.get("type").is_some_and(|kind| kind == "number"),
                )?);
            }
            map.values().try_for_each(|value| collect(value, multiples))
        }
        _ => Ok(()),
    }
}

/// Reads a positive double as the library does: multiplies it by ten until it is an integer.
fn read_like_library(mut value: f64) -> Option<Multiple> {
    let mut digits = 0;
    while value.fract() != 0.0 && digits <= MAX_DIGITS {
        value *= 10.0;
        digits += 1;
    }
    let is_read = digits <= MAX_DIGITS && (1.0..=f64::from(u32::MAX)).contains(&value);
    is_read.then(|| Multiple::new(value as u64, digits))
}

/// Parses and checks a number. `fractions`: its multiples may be fractions.
fn parse_number(number: &serde_json::Number, fractions: bool) -> Result<Multiple, String> {
    let refuse = |why: &str| {
        Err(format!(
            "multipleOf {number} {why}: it must be above 0, with at most 9 digits and {MAX_STATES} states (the number without its factors of 2 and 5)"
        ))
    };
    let value = number.as_f64().unwrap_or(f64::NAN);
    if value.is_nan() || value <= 0.0 {
        return refuse("is not positive");
    }
    let Some(read) = read_like_library(value) else {
        return refuse("has too many digits");
    };
    match read.fits_u32() {
        false => refuse("has too many digits"),
        true if read.states(fractions) > MAX_STATES => refuse("is too complex"),
        true => Ok(read),
    }
}

impl Multiple {
    fn new(mut coefficient: u64, mut digits: u32) -> Self {
        while digits > 0 && coefficient.is_multiple_of(10) {
            coefficient /= 10;
            digits -= 1;
        }
        Self { coefficient, digits }
    }

    /// Coefficient with this many digits after the decimal point.
    fn scaled(self, digits: u32) -> Option<u64> {
        self.coefficient.checked_mul(10_u64.checked_pow(digits.saturating_sub(self.digits))?)
    }

    /// Whether one step of the automaton fits into 32 bits.
    fn fits_u32(self) -> bool {
        let ten = 10_u64.checked_pow(self.digits).filter(|ten| *ten <= u64::from(u32::MAX));
        let step = || self.coefficient.checked_mul(10)?.checked_add(9 * ten?);
        step().is_some_and(|max| max <= u64::from(u32::MAX))
    }

    /// Approximate number of remainders to search for one that digits after the decimal point turn
    /// into a multiple.
    fn states(self, fractions: bool) -> u64 {
        let mut states = self.coefficient;
        for factor in [2, 5] {
            while states > 0 && states.is_multiple_of(factor) {
                states /= factor;
            }
        }
        if fractions { states / 10_u64.pow(self.digits) } else { states }
    }

    /// Least common multiple, if the library can compute it.
    fn common_multiple(self, other: Self) -> Option<Self> {
        let digits = self.digits.max(other.digits);
        let (a, b) = (self.scaled(digits)?, other.scaled(digits)?);
        let product = a.checked_mul(b).filter(|product| *product <= u64::from(u32::MAX))?;
        Some(Self::new(product / gcd(a, b), digits)).filter(|both| both.fits_u32())
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Checks every schema together with its subschemas for the same value, so that their multiples may
/// combine.
fn check_combined(schema: &Value, whole: &[Multiple]) -> Result<(), String> {
    match schema {
        Value::Array(list) => list.iter().try_for_each(|schema| check_combined(schema, whole)),
        Value::Object(map) => {
            if is_composed(map) {
                let part = (!refers(schema)).then(|| multiples_in(schema)).transpose()?;
                check_common_multiple(part.as_deref().unwrap_or(whole))?;
            }
            map.values().try_for_each(|schema| check_combined(schema, whole))
        }
        _ => Ok(()),
    }
}

/// Whether a schema has several subschemas for one value, or for one property.
fn is_composed(map: &Map<String, Value>) -> bool {
    let several = |keyword: &str| match map.get(keyword) {
        Some(Value::Array(list)) => list.len() > 1,
        Some(_) => true,
        None => false,
    };
    let others = map.keys().filter(|keyword| !ANNOTATIONS.contains(&keyword.as_str())).count();
    let refers =
        ["$ref", "anyOf", "oneOf", "allOf"].into_iter().any(|keyword| map.contains_key(keyword));
    several("allOf")
        || refers && others > 1
        || map.contains_key("patternProperties")
            && (map.contains_key("properties") || several_in(map, "patternProperties"))
}

fn several_in(map: &Map<String, Value>, keyword: &str) -> bool {
    map.get(keyword).and_then(Value::as_object).is_some_and(|map| map.len() > 1)
}

/// Whether a schema contains a reference.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Array(list) => list.iter().any(refers),
        Value::Object(map) => map.contains_key("$ref") || map.values().any(refers),
        _ => false,
    }
}

/// Rejects numbers that have a too large common multiple in any order of combination.
fn check_common_multiple(numbers: &[Multiple]) -> Result<(), String> {
    let refuse = || {
        let listed: Vec<String> = numbers.iter().take(8).map(ToString::to_string).collect();
        Err(format!(
            "multipleOf of {} apply to one number, and their common multiple is too large (at most {MAX_STATES} states and 32 bits): use one multipleOf per number, without allOf",
            listed.join(", ")
        ))
    };
    if numbers.len() > MAX_COMBINED {
        return refuse();
    }
    let mut all: Option<Multiple> = None;
    for number in numbers {
        // A number may combine with itself. The library multiplies before it divides.
        let next = number.common_multiple(*number).and_then(|one| match all {
            Some(all) => all.common_multiple(one),
            None => Some(one),
        });
        match next {
            Some(next) if next.states(false) <= MAX_STATES => all = Some(next),
            _ => return refuse(),
        }
    }
    // The product so far may combine with each number again.
    match all.is_none_or(|all| numbers.iter().all(|number| all.common_multiple(*number).is_some()))
    {
        true => Ok(()),
        false => refuse(),
    }
}

impl std::fmt::Display for Multiple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.coefficient as f64 / 10_f64.powi(self.digits as i32))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unsupported_multiples_are_refused_by_name() {
        let one =
            |n: Value| check(&json!({"type": "object", "properties": {"a": {"multipleOf": n}}}));
        for n in [
            json!(9_999_991),
            json!(62_615_533),
            json!(100_003),
            json!(1e-9),
            json!(1e-300),
            json!(0),
        ] {
            let text = one(n.clone()).unwrap_err();
            assert!(text.contains("multipleOf") && text.contains("2000 states"), "{n}: {text}");
        }
        for n in [json!(-2), json!(1e300), json!(4_294_967_296u64)] {
            assert!(one(n.clone()).is_err(), "{n}");
        }
        for n in [
            json!(1),
            json!(0.01),
            json!(0.25),
            json!(65536),
            json!(1_000_000),
            json!(1999),
            json!(86400),
        ] {
            assert_eq!(one(n.clone()), Ok(()), "{n}");
        }
        let fraction = |kind: &str| check(&json!({"type": kind, "multipleOf": 1234.567}));
        assert!(fraction("number").is_ok() && fraction("integer").is_err());
    }

    #[test]
    fn adjusted_fractions_are_read_as_written() {
        let read = |n: f64| {
            let mut schema = Map::from_iter([("multipleOf".to_owned(), json!(n))]);
            adjust_fraction(&mut schema);
            read_like_library(schema["multipleOf"].as_f64().unwrap())
        };
        for n in [0.01, 0.05, 0.07, 0.14, 0.29, 0.125, 2.675] {
            assert!(read(n).is_some(), "{n}");
        }
        // A few numbers have no neighbour of this kind. None is read as another number.
        for n in (1..1000).map(|n| f64::from(n) / 100.0) {
            assert!(read(n).is_none_or(|read| Some(read) == decimal(&format!("{n:?}"))), "{n}");
        }
        let refused = (1..1000).filter(|n| read(f64::from(*n) / 100.0).is_none()).count();
        assert!(refused < 100, "{refused}");
    }

    #[test]
    fn combined_multiples_are_checked_by_their_product() {
        let all = |numbers: &[u32]| -> Vec<Value> {
            numbers.iter().map(|n| json!({"multipleOf": n})).collect()
        };
        let large = [997, 991, 983, 977];
        let text = check(&json!({"type": "number", "allOf": all(&large)})).unwrap_err();
        assert!(text.contains("multipleOf of 977, 983, 991, 997"), "{text}");
        // The product counts before its division.
        assert!(check(&json!({"allOf": all(&[65536, 65536])})).is_err());
        assert_eq!(check(&json!({"allOf": all(&[2, 3, 60])})), Ok(()));
        assert_eq!(check(&json!({"anyOf": all(&large)})), Ok(()));
        // References may lead anywhere.
        let referred = json!({
            "$defs": {"a": {"multipleOf": 1999}, "b": {"multipleOf": 1997}},
            "properties": {"x": {"$ref": "#/$defs/a", "multipleOf": 1993}},
        });
        assert!(check(&referred).is_err());
        let named = json!({
            "properties": {"ab": {"multipleOf": 1999}},
            "patternProperties": {"^a": {"multipleOf": 1997}},
        });
        assert!(check(&named).is_err());
    }
}
