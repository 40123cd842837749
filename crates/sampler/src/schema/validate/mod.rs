//! Checks a JSON value against a JSON Schema, with bounded work.
//!
//! All keywords of 2020-12, draft 7 and OpenAPI 3.0 that describe values are read, since a `not` or an `if` may hold any of
//! them. What a schema asks of an answer is enforced while the answer is written, but for a few keywords; the caller picks
//! the failures of those.

mod applied;
mod evaluated;
mod plain;

use serde_json::{Map, Value};

use super::patterns::Patterns;
use super::references::{References, child};
use evaluated::Evaluated;

/// Steps of one check at most: a schema or a keyword that is looked at, a value that is compared, or a part of a text.
const STEPS_MAX: usize = 300_000;
/// Bytes of a text that are compared or counted in one step.
const TEXT_BYTES_A_STEP: usize = 16;
/// Bytes of a pointer that are copied in one step.
const POINTER_BYTES_A_STEP: usize = 256;
/// Schemas that are followed from one to the next at most. Values are nested less deep, references may go in a circle.
const DEPTH_MAX: usize = 400;
/// Failures that are kept.
const FAILURES_MAX: usize = 1000;

/// The check would take too much work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the check takes too much work")]
pub struct TooMuchWork;

/// A keyword that a value does not keep to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeywordFailure {
    /// The keyword.
    pub(crate) keyword: String,
    /// The JSON pointer of the schema that has it.
    pub(crate) pointer: String,
}

/// Checks values against the schemas of one document.
pub(crate) struct Validator<'a> {
    references: &'a References<'a>,
    patterns: Patterns,
    steps: usize,
    depth: usize,
    /// How many of the schemas that are being looked at may fail without that being a failure of the value.
    trials: usize,
    failures: Vec<KeywordFailure>,
}

impl<'a> Validator<'a> {
    pub(crate) fn new(references: &'a References<'a>) -> Self {
        let (patterns, failures) = (Patterns::default(), Vec::new());
        Self { references, patterns, steps: 0, depth: 0, trials: 0, failures }
    }

    /// The keywords that a value does not keep to, the innermost of each place. Where no branch of a choice fits, those of
    /// all branches are among them.
    pub(crate) fn failures(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
    ) -> Result<Vec<KeywordFailure>, TooMuchWork> {
        self.failures.clear();
        self.check(schema, pointer, value)?;
        Ok(std::mem::take(&mut self.failures))
    }

    /// Whether a value fits a schema.
    pub(crate) fn fits(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
    ) -> Result<bool, TooMuchWork> {
        self.tries(schema, pointer, value).map(|evaluated| evaluated.is_some())
    }

    fn step(&mut self, count: usize) -> Result<(), TooMuchWork> {
        self.steps = self.steps.saturating_add(count);
        if self.steps > STEPS_MAX { Err(TooMuchWork) } else { Ok(()) }
    }

    fn fail(&mut self, keyword: &str, pointer: &str) {
        if self.trials == 0 && self.failures.len() < FAILURES_MAX {
            self.failures
                .push(KeywordFailure { keyword: keyword.to_owned(), pointer: pointer.to_owned() });
        }
    }

    /// What a value's parts were looked at by if it fits, and failures that count if not.
    fn check(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
    ) -> Result<Option<Evaluated>, TooMuchWork> {
        self.step(1 + pointer.len() / POINTER_BYTES_A_STEP)?;
        let map = match schema {
            Value::Bool(false) => {
                self.fail("false", pointer);
                return Ok(None);
            }
            Value::Object(map) => map,
            _ => return Ok(Some(Evaluated::default())),
        };
        if self.depth == DEPTH_MAX {
            return Err(TooMuchWork);
        }
        if value.is_null() && map.get("nullable") == Some(&Value::Bool(true)) {
            return Ok(Some(Evaluated::default()));
        }
        self.depth += 1;
        let checked = self.keywords(map, pointer, value);
        self.depth -= 1;
        checked
    }

    /// The same for a schema that a value need not fit.
    fn tries(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
    ) -> Result<Option<Evaluated>, TooMuchWork> {
        self.trials += 1;
        let checked = self.check(schema, pointer, value);
        self.trials -= 1;
        checked
    }

    fn keywords(
        &mut self,
        map: &'a Map<String, Value>,
        pointer: &str,
        value: &Value,
    ) -> Result<Option<Evaluated>, TooMuchWork> {
        let mut is_kept = true;
        self.step(map.len())?;
        for (keyword, given) in map {
            if !self.keeps_plain(keyword, given, map, value)? {
                self.fail(keyword, pointer);
                is_kept = false;
            }
        }
        let mut evaluated = Evaluated::default();
        is_kept &= self.in_place(map, pointer, value, &mut evaluated)?;
        match value {
            Value::Object(object) => {
                is_kept &= self.object(map, pointer, object, &mut evaluated)?
            }
            Value::Array(list) => is_kept &= self.list(map, pointer, list, &mut evaluated)?,
            _ => {}
        }
        Ok(is_kept.then_some(evaluated))
    }

    /// Whether a text fits a pattern. A pattern that is no expression fits every text.
    fn fits_pattern(&mut self, pattern: &str, text: &str) -> Result<bool, TooMuchWork> {
        let steps = self.patterns.steps(pattern, text.len());
        self.step(steps)?;
        self.patterns.fits(pattern, text).ok_or(TooMuchWork)
    }
}

/// The pointer of a schema that is one of several by name or number.
fn within(pointer: &str, keyword: &str, name: &str) -> String {
    child(&child(pointer, keyword), name)
}
