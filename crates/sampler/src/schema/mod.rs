//! JSON Schemas: the part that a grammar enforces, and validation of the rest on the finished
//! answer.

mod expressions;
mod formats;
pub(crate) mod keywords;
mod one_of;
mod patterns;
mod references;
mod relax;
#[cfg(test)]
mod tests;
mod unenforced_keyword;
mod validate;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub(crate) use formats::format_pattern;
pub use one_of::check_one_of;
use references::References;
use relax::{RelaxedSchema, relax};
pub use unenforced_keyword::UnenforcedKeyword;
use validate::Validator;
pub use validate::WorkLimitExceeded;

/// JSON Schema of a request. Its enforceable part is computed once, on first use.
#[derive(Clone)]
pub struct JsonSchema(Arc<SharedSchema>);

struct SharedSchema {
    value: Value,
    relaxed: OnceLock<Result<RelaxedSchema, String>>,
}

impl JsonSchema {
    /// The schema as in the request.
    pub fn value(&self) -> &Value {
        &self.0.value
    }

    /// The part of the schema that a grammar enforces, with keywords that grammars support.
    ///
    /// # Errors
    /// A sentence about a schema that no value fits, or that is too large.
    pub fn enforceable(&self) -> Result<&Value, String> {
        Ok(&self.relaxed()?.schema)
    }

    /// Returns a check for finished answers. `None` if generation enforces all keywords.
    ///
    /// # Errors
    /// A sentence about an invalid schema.
    pub fn check(&self) -> Result<Option<SchemaCheck>, String> {
        let is_checked = !self.relaxed()?.unenforced.is_empty();
        Ok(is_checked.then(|| SchemaCheck(self.clone())))
    }

    /// Rejects a schema that generation cannot enforce completely: the rule of `strict: true`.
    ///
    /// # Errors
    /// A sentence that names the keyword, its location, and what to do.
    pub fn check_strict(&self) -> Result<(), String> {
        check_one_of(self.value())?;
        match self.relaxed()?.unenforced.first() {
            None => Ok(()),
            Some(first) => Err(format!(
                "{first} cannot be enforced during generation, as strict requires: leave out the keyword, or leave out strict to check the finished answer"
            )),
        }
    }

    fn relaxed(&self) -> Result<&RelaxedSchema, String> {
        self.0.relaxed.get_or_init(|| relax(self.value())).as_ref().map_err(Clone::clone)
    }
}

impl From<Value> for JsonSchema {
    fn from(value: Value) -> Self {
        Self(Arc::new(SharedSchema { value, relaxed: OnceLock::new() }))
    }
}

impl PartialEq for JsonSchema {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Serialize for JsonSchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl fmt::Debug for JsonSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

/// Check of finished answers against the unenforced keywords of a schema.
#[derive(Debug, Clone)]
pub struct SchemaCheck(JsonSchema);

impl SchemaCheck {
    /// The keywords that are checked.
    pub fn keywords(&self) -> &[UnenforcedKeyword] {
        self.0.relaxed().map_or(&[], |relaxed| &relaxed.unenforced)
    }

    /// The checked keywords that an answer violates.
    ///
    /// # Errors
    /// The check takes too much work.
    pub fn violations(&self, answer: &Value) -> Result<Vec<UnenforcedKeyword>, WorkLimitExceeded> {
        let schema = self.0.value();
        let references = References::new(schema);
        let failures = Validator::new(&references).failures(schema, "", answer)?;
        let failed = failures.into_iter().map(|failure| {
            let place = format!("#{}", failure.pointer);
            UnenforcedKeyword { keyword: failure.keyword, place }
        });
        let mut violated = HashSet::new();
        Ok(failed
            .filter(|failed| self.keywords().contains(failed) && violated.insert(failed.clone()))
            .collect())
    }
}
