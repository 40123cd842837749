//! Adjusts numeric bounds of JSON Schemas to what `llguidance` can count: 64-bit integers, read
//! from doubles.
//!
//! Many schemas contain the bounds of a type of another language (`minimum: -9223372036854775808`,
//! `maximum: 1.7976931348623157e308`). A bound beyond the library's numbers moves to their limit,
//! so that every answer still fits the schema. A bound that no double exceeds is removed. A bound
//! next to 0, such as the least positive double, moves to the least fraction that can be written.

use serde_json::{Map, Value};

/// Largest double within 64-bit integers. The bounds of countable numbers are ± this value.
const MAX_COUNTABLE: i64 = 9_223_372_036_854_774_784;
/// Magnitude from which the library needs an opposite bound: it cannot count up without an end.
const UNBOUNDED_FROM: f64 = 1e18;
/// Least fraction. The library's expressions for a smaller bound become too deep.
const FRACTION_MIN: f64 = 1e-30;
/// Largest integer up to which doubles represent every integer.
const MAX_EXACT_INTEGER: u64 = 1 << 53;

const LOWER_BOUNDS: [&str; 2] = ["minimum", "exclusiveMinimum"];
const UPPER_BOUNDS: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// Adjusts the bounds of one schema. `place` is its location.
///
/// # Errors
/// A sentence about a bound that leaves only numbers which the library cannot count.
pub fn limit_bounds(schema: &mut Map<String, Value>, place: &str) -> Result<(), String> {
    let integer = is_integer(schema.get("type"));
    for (keyword, side) in
        LOWER_BOUNDS.map(|k| (k, -1.0)).into_iter().chain(UPPER_BOUNDS.map(|k| (k, 1.0)))
    {
        let Some(bound) = schema.get(keyword).and_then(Value::as_f64) else { continue };
        let out = bound * side;
        if 0.0 < bound.abs() && bound.abs() < FRACTION_MIN {
            if out > 0.0 {
                let given = &schema[keyword];
                return Err(format!(
                    "{keyword} {given} at {place} is too close to 0: use 0, or at least {FRACTION_MIN:e} in size"
                ));
            }
            schema.insert(keyword.into(), Value::from(-side * FRACTION_MIN));
        }
        if out < -(MAX_COUNTABLE as f64) {
            let given = &schema[keyword];
            return Err(format!(
                "{keyword} {given} at {place} is out of range: bounds between -{MAX_COUNTABLE} and {MAX_COUNTABLE} can be enforced"
            ));
        }
        if out >= f64::MAX {
            schema.remove(keyword);
        } else if out > MAX_COUNTABLE as f64 && !(integer && side > 0.0) {
            schema.insert(keyword.into(), Value::from(side as i64 * MAX_COUNTABLE));
        }
    }
    for (own, [plain, exclusive], side) in
        [(LOWER_BOUNDS, UPPER_BOUNDS, 1.0), (UPPER_BOUNDS, LOWER_BOUNDS, -1.0)]
    {
        let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
        let is_far =
            own.iter().filter_map(|k| bound(k)).any(|bound| bound * side >= UNBOUNDED_FROM);
        if is_far && bound(plain).is_none() && bound(exclusive).is_none() {
            schema.insert(plain.into(), Value::from(side as i64 * MAX_COUNTABLE));
        }
    }
    Ok(())
}

/// Rejects integers in `const` and `enum` that a double cannot represent, since the library would
/// write other numbers.
///
/// # Errors
/// A sentence that names the number.
pub fn check_values(schema: &Map<String, Value>, place: &str) -> Result<(), String> {
    for keyword in ["const", "enum"] {
        if let Some(number) = schema.get(keyword).and_then(inexact_integer) {
            return Err(format!(
                "{keyword} at {place} has {number}, which exceeds {MAX_EXACT_INTEGER}: use a string, or minimum and maximum"
            ));
        }
    }
    Ok(())
}

fn inexact_integer(value: &Value) -> Option<&Value> {
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => {
            let size = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            (size? > MAX_EXACT_INTEGER).then_some(value)
        }
        Value::Array(list) => list.iter().find_map(inexact_integer),
        Value::Object(map) => map.values().find_map(inexact_integer),
        _ => None,
    }
}

/// Whether a `type` allows integers as the only numbers.
fn is_integer(types: Option<&Value>) -> bool {
    let has = |name: &str| match types {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(list)) => list.iter().any(|one| one == name),
        _ => false,
    };
    has("integer") && !has("number")
}
