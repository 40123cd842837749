//! Bounds of numbers in JSON Schemas, within what `llguidance` can count: 64-bit integers, of which it reads doubles.
//!
//! What a type of other languages can hold is written into many schemas (`minimum: -9223372036854775808`, `maximum:
//! 1.7976931348623157e308`). A bound that lies farther out than the library's numbers is moved to their end, so that all
//! that is written is still what the schema describes, and one that no double exceeds is left out. So is a bound that lies
//! next to 0 (the least double above it) moved to where it can be written.

use serde_json::{Map, Value};

/// The ends of what can be counted: the last doubles within 64-bit integers.
const END: i64 = 9_223_372_036_854_774_784;
/// A number from which on the library cannot count up without an end.
const FAR: f64 = 1e18;
/// A fraction below which the library's expressions of a bound become too deep.
const NEAR: f64 = 1e-30;
/// Whole numbers that doubles tell apart.
const EXACT: u64 = 1 << 53;

const LEAST: [&str; 2] = ["minimum", "exclusiveMinimum"];
const MOST: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// Moves the bounds of one schema to where they can be kept; `place` is where it stands.
///
/// # Errors
/// A sentence about one that leaves only numbers which cannot be counted.
pub fn tame(schema: &mut Map<String, Value>, place: &str) -> Result<(), String> {
    let integer = is_integer(schema.get("type"));
    for (keyword, side) in LEAST.map(|k| (k, -1.0)).into_iter().chain(MOST.map(|k| (k, 1.0))) {
        let Some(bound) = schema.get(keyword).and_then(Value::as_f64) else { continue };
        let out = bound * side;
        if 0.0 < bound.abs() && bound.abs() < NEAR {
            if out > 0.0 {
                let given = &schema[keyword];
                return Err(format!(
                    "{keyword} {given} at {place} is too close to 0 to be kept: let it be 0, or at least {NEAR:e} away from it"
                ));
            }
            schema.insert(keyword.into(), Value::from(-side * NEAR));
        }
        if out < -(END as f64) {
            let given = &schema[keyword];
            return Err(format!(
                "{keyword} {given} at {place} leaves only numbers that are too large: the form of numbers from -{END} to {END} \
                 can be kept"
            ));
        }
        if out >= f64::MAX {
            schema.remove(keyword);
        } else if out > END as f64 && !(integer && side > 0.0) {
            schema.insert(keyword.into(), Value::from(side as i64 * END));
        }
    }
    for (own, [plain, exclusive], side) in [(LEAST, MOST, 1.0), (MOST, LEAST, -1.0)] {
        let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
        let is_far = own.iter().filter_map(|k| bound(k)).any(|bound| bound * side >= FAR);
        if is_far && bound(plain).is_none() && bound(exclusive).is_none() {
            schema.insert(plain.into(), Value::from(side as i64 * END));
        }
    }
    Ok(())
}

/// Refuses whole numbers in `const` and `enum` of which others would be written.
///
/// # Errors
/// A sentence that names the number.
pub fn check_values(schema: &Map<String, Value>, place: &str) -> Result<(), String> {
    for keyword in ["const", "enum"] {
        if let Some(number) = schema.get(keyword).and_then(inexact) {
            return Err(format!(
                "{keyword} at {place} has {number}, which is too large to be written exactly: whole numbers up to {EXACT} \
                 are; let it be a string, or give a minimum and a maximum"
            ));
        }
    }
    Ok(())
}

fn inexact(value: &Value) -> Option<&Value> {
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            let size = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            (size? > EXACT).then_some(value)
        }
        Value::Array(list) => list.iter().find_map(inexact),
        Value::Object(map) => map.values().find_map(inexact),
        _ => None,
    }
}

/// Whether a `type` lets numbers be integers only.
fn is_integer(types: Option<&Value>) -> bool {
    let has = |name: &str| match types {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(list)) => list.iter().any(|one| one == name),
        _ => false,
    };
    has("integer") && !has("number")
}
