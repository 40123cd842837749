//! Validates a JSON value against a JSON Schema, with limited work.
//!
//! Supports all assertion keywords of 2020-12, draft 7 and OpenAPI 3.0, since `not` and `if` may
//! contain any of them. Generation enforces most keywords of an answer. The caller selects failures
//! of the others.

mod applicators;
mod assertions;
mod evaluated;

use serde_json::{Map, Value};

use super::patterns::PatternCache;
use super::references::{References, child};
use evaluated::EvaluatedParts;

/// Maximum number of steps of one check. A step is a visited schema or keyword, a compared value,
/// or a piece of text.
const MAX_STEPS: usize = 300_000;
/// Bytes of text compared or counted per step.
const TEXT_BYTES_A_STEP: usize = 16;
/// Bytes of a pointer copied per step.
const POINTER_BYTES_A_STEP: usize = 256;
/// Maximum depth of visited schemas. Values are less deep, but references may be circular.
const MAX_DEPTH: usize = 400;
/// Maximum number of recorded failures.
const MAX_FAILURES: usize = 1000;

/// The check takes too much work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the check takes too much work")]
pub struct WorkLimitExceeded;

/// A keyword that a value violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeywordFailure {
    /// The keyword.
    pub(crate) keyword: String,
    /// JSON pointer of its schema.
    pub(crate) pointer: String,
}

/// Validates values against the schemas of one document.
pub(crate) struct Validator<'a> {
    references: &'a References<'a>,
    patterns: PatternCache,
    steps: usize,
    depth: usize,
    /// Number of enclosing schemas that may fail without a failure of the value.
    suppressed: usize,
    failures: Vec<KeywordFailure>,
}

impl<'a> Validator<'a> {
    pub(crate) fn new(references: &'a References<'a>) -> Self {
        let (patterns, failures) = (PatternCache::default(), Vec::new());
        Self { references, patterns, steps: 0, depth: 0, suppressed: 0, failures }
    }

    /// Keywords that a value violates, the innermost of each location. If no branch of a choice
    /// fits, includes the failures of all branches.
    pub(crate) fn failures(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
    ) -> Result<Vec<KeywordFailure>, WorkLimitExceeded> {
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
    ) -> Result<bool, WorkLimitExceeded> {
        self.try_schema(schema, pointer, value).map(|evaluated| evaluated.is_some())
    }

    fn step(&mut self, count: usize) -> Result<(), WorkLimitExceeded> {
        self.steps = self.steps.saturating_add(count);
        if self.steps > MAX_STEPS { Err(WorkLimitExceeded) } else { Ok(()) }
    }

    fn fail(&mut self, keyword: &str, pointer: &str) {
        if self.suppressed == 0 && self.failures.len() < MAX_FAILURES {
            self.failures
                .push(KeywordFailure { keyword: keyword.to_owned(), pointer: pointer.to_owned() });
        }
    }

    /// Checks a schema and records failures. Returns the evaluated parts of the value if it fits.
    fn check(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
    ) -> Result<Option<EvaluatedParts>, WorkLimitExceeded> {
        self.step(1 + pointer.len() / POINTER_BYTES_A_STEP)?;
        let map = match schema {
            Value::Bool(false) => {
                self.fail("false", pointer);
                return Ok(None);
            }
            Value::Object(map) => map,
            _ => return Ok(Some(EvaluatedParts::default())),
        };
        if self.depth == MAX_DEPTH {
            return Err(WorkLimitExceeded);
        }
        if value.is_null() && map.get("nullable") == Some(&Value::Bool(true)) {
            return Ok(Some(EvaluatedParts::default()));
        }
        self.depth += 1;
        let checked = self.keywords(map, pointer, value);
        self.depth -= 1;
        checked
    }

    /// Like [`Self::check`], but records no failures.
    fn try_schema(
        &mut self,
        schema: &'a Value,
        pointer: &str,
        value: &Value,
    ) -> Result<Option<EvaluatedParts>, WorkLimitExceeded> {
        self.suppressed += 1;
        let checked = self.check(schema, pointer, value);
        self.suppressed -= 1;
        checked
    }

    fn keywords(
        &mut self,
        map: &'a Map<String, Value>,
        pointer: &str,
        value: &Value,
    ) -> Result<Option<EvaluatedParts>, WorkLimitExceeded> {
        let mut is_valid = true;
        self.step(map.len())?;
        for (keyword, given) in map {
            if !self.check_assertion(keyword, given, map, value)? {
                self.fail(keyword, pointer);
                is_valid = false;
            }
        }
        let mut evaluated = EvaluatedParts::default();
        is_valid &= self.check_in_place(map, pointer, value, &mut evaluated)?;
        match value {
            Value::Object(object) => {
                is_valid &= self.check_object(map, pointer, object, &mut evaluated)?
            }
            Value::Array(list) => {
                is_valid &= self.check_array(map, pointer, list, &mut evaluated)?
            }
            _ => {}
        }
        Ok(is_valid.then_some(evaluated))
    }

    /// Whether a text matches a pattern. Invalid patterns match every text.
    fn fits_pattern(&mut self, pattern: &str, text: &str) -> Result<bool, WorkLimitExceeded> {
        let steps = self.patterns.steps(pattern, text.len());
        self.step(steps)?;
        self.patterns.fits(pattern, text).ok_or(WorkLimitExceeded)
    }
}

/// Pointer of a schema in a named or numbered collection.
fn within(pointer: &str, keyword: &str, name: &str) -> String {
    child(&child(pointer, keyword), name)
}
