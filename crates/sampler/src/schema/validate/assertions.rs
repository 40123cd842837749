//! Keywords without subschemas.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::super::patterns::PatternCache;
use super::{TEXT_BYTES_A_STEP, Validator, WorkLimitExceeded};

impl<'a> Validator<'a> {
    /// Whether a value satisfies an assertion keyword. Returns `true` for other keywords.
    pub(super) fn check_assertion(
        &mut self,
        keyword: &str,
        given: &'a Value,
        map: &'a Map<String, Value>,
        value: &Value,
    ) -> Result<bool, WorkLimitExceeded> {
        Ok(match keyword {
            "type" => has_type(value, given),
            "const" => self.are_equal(value, given)?,
            "enum" => {
                for one in given.as_array().into_iter().flatten() {
                    if self.are_equal(value, one)? {
                        return Ok(true);
                    }
                }
                !given.is_array()
            }
            "required" => {
                self.step(given.as_array().map_or(0, Vec::len))?;
                let names = || given.as_array().into_iter().flatten().filter_map(Value::as_str);
                value.as_object().is_none_or(|object| names().all(|name| object.contains_key(name)))
            }
            "uniqueItems" if given == true => match value {
                Value::Array(list) => self.are_unique(list)?,
                _ => true,
            },
            "dependentRequired" | "dependencies" => {
                let lists = given.as_object().into_iter().flatten();
                self.step(lists.map(|(_, names)| 1 + names.as_array().map_or(0, Vec::len)).sum())?;
                check_dependencies(given, value)
            }
            _ => match value {
                Value::Number(number) => check_number(keyword, given, map, number.as_f64()),
                Value::String(text) => return self.check_string(keyword, given, text),
                Value::Array(list) => {
                    check_count(keyword, given, list.len(), ["minItems", "maxItems"])
                }
                Value::Object(object) => {
                    check_count(keyword, given, object.len(), ["minProperties", "maxProperties"])
                }
                Value::Null | Value::Bool(_) => true,
            },
        })
    }

    fn check_string(
        &mut self,
        keyword: &str,
        given: &Value,
        text: &str,
    ) -> Result<bool, WorkLimitExceeded> {
        match (keyword, given) {
            ("pattern", Value::String(pattern)) => self.fits_pattern(pattern, text),
            ("format", Value::String(format)) => match PatternCache::for_format(format) {
                Some(pattern) => self.fits_pattern(&pattern, text),
                None => Ok(true),
            },
            ("minLength" | "maxLength", _) => {
                self.step(text.len() / TEXT_BYTES_A_STEP)?;
                Ok(check_count(keyword, given, text.chars().count(), ["minLength", "maxLength"]))
            }
            _ => Ok(true),
        }
    }

    fn are_equal(&mut self, one: &Value, other: &Value) -> Result<bool, WorkLimitExceeded> {
        self.step(1)?;
        Ok(match (one, other) {
            (Value::Array(one), Value::Array(other)) => {
                if one.len() != other.len() {
                    return Ok(false);
                }
                for (one, other) in one.iter().zip(other) {
                    if !self.are_equal(one, other)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Object(one), Value::Object(other)) => {
                if one.len() != other.len() {
                    return Ok(false);
                }
                for (name, one) in one {
                    let Some(other) = other.get(name) else { return Ok(false) };
                    if !self.are_equal(one, other)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Number(one), Value::Number(other)) => {
                one == other || one.as_f64() == other.as_f64()
            }
            (Value::String(one), Value::String(other)) => {
                self.step(one.len().min(other.len()) / TEXT_BYTES_A_STEP)?;
                one == other
            }
            _ => one == other,
        })
    }

    fn are_unique(&mut self, list: &[Value]) -> Result<bool, WorkLimitExceeded> {
        let mut known = HashSet::with_capacity(list.len());
        for value in list {
            let mut text = String::new();
            self.write_canonical(value, &mut text)?;
            if !known.insert(text) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes a text that is equal for equal values only.
    fn write_canonical(
        &mut self,
        value: &Value,
        out: &mut String,
    ) -> Result<(), WorkLimitExceeded> {
        self.step(1)?;
        match value {
            Value::Array(list) => {
                out.push('[');
                for value in list {
                    self.write_canonical(value, out)?;
                    out.push(',');
                }
                out.push(']');
            }
            Value::Object(map) => {
                let mut names: Vec<&String> = map.keys().collect();
                names.sort_unstable();
                out.push('{');
                for name in names {
                    out.push_str(&Value::from(name.as_str()).to_string());
                    self.write_canonical(&map[name], out)?;
                    out.push(',');
                }
                out.push('}');
            }
            // Integers that doubles do not represent exactly keep their digits.
            Value::Number(number) => match number.as_f64() {
                Some(double) if double.abs() < (1_u64 << 53) as f64 => {
                    out.push_str(&(double + 0.0).to_string());
                }
                _ => out.push_str(&number.to_string()),
            },
            Value::String(text) => {
                self.step(text.len() / TEXT_BYTES_A_STEP)?;
                out.push_str(&value.to_string());
            }
            other => out.push_str(&other.to_string()),
        }
        Ok(())
    }
}

fn has_type(value: &Value, types: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    match types {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}

/// Checks `dependentRequired`, and lists of names in `dependencies`.
fn check_dependencies(given: &Value, value: &Value) -> bool {
    let (Value::Object(given), Value::Object(object)) = (given, value) else { return true };
    given.iter().filter(|(name, _)| object.contains_key(*name)).all(|(_, names)| {
        let mut names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
        names.all(|name| object.contains_key(name))
    })
}

fn check_count(keyword: &str, given: &Value, count: usize, [min, max]: [&str; 2]) -> bool {
    let Some(bound) = given.as_f64() else { return true };
    match keyword {
        keyword if keyword == min => count as f64 >= bound,
        keyword if keyword == max => count as f64 <= bound,
        _ => true,
    }
}

fn check_number(
    keyword: &str,
    given: &Value,
    map: &Map<String, Value>,
    number: Option<f64>,
) -> bool {
    let Some(number) = number else { return true };
    let bound = |keyword: &str| map.get(keyword).and_then(Value::as_f64);
    match (keyword, given) {
        ("minimum", _) => given.as_f64().is_none_or(|min| number >= min),
        ("maximum", _) => given.as_f64().is_none_or(|max| number <= max),
        ("exclusiveMinimum", Value::Bool(is)) => {
            !is || bound("minimum").is_none_or(|min| number > min)
        }
        ("exclusiveMaximum", Value::Bool(is)) => {
            !is || bound("maximum").is_none_or(|max| number < max)
        }
        ("exclusiveMinimum", _) => given.as_f64().is_none_or(|min| number > min),
        ("exclusiveMaximum", _) => given.as_f64().is_none_or(|max| number < max),
        ("multipleOf", _) => given.as_f64().is_none_or(|of| of <= 0.0 || is_multiple(number, of)),
        _ => true,
    }
}

/// Fractions are not exact doubles, so the remainder may be as large as their error.
fn is_multiple(number: f64, of: f64) -> bool {
    let times = number / of;
    (times - times.round()).abs() <= 1e-9 * times.abs().max(1.0)
}
