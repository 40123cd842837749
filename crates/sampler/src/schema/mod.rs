//! JSON Schemas: what of them a grammar enforces, and the check of the rest on the finished answer.

mod expressions;
mod patterns;
mod references;
mod relax;
#[cfg(test)]
mod tests;
mod validate;

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::grammar::check_one_of;
use references::References;
use relax::{RelaxedSchema, relax};
pub use validate::TooMuchWork;
use validate::Validator;

/// A keyword of a schema that is not enforced while the answer is written, but checked on the finished answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnenforcedKeyword {
    /// The keyword.
    pub keyword: String,
    /// Where the schema that has it stands, as a `$ref` would name it.
    pub place: String,
}

impl fmt::Display for UnenforcedKeyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.keyword, self.place)
    }
}

/// A JSON Schema as a request has it. What a grammar enforces of it is worked out once, when it is first asked for.
#[derive(Clone)]
pub struct JsonSchema(Arc<Parts>);

struct Parts {
    given: Value,
    relaxed: OnceLock<Result<RelaxedSchema, String>>,
}

impl JsonSchema {
    /// The schema as it is given.
    pub fn given(&self) -> &Value {
        &self.0.given
    }

    /// The parts of the schema that a grammar enforces, as a schema of keywords that grammars know.
    ///
    /// # Errors
    /// A sentence about a schema that no value fits, or that is too large.
    pub fn enforceable(&self) -> Result<&Value, String> {
        Ok(&self.relaxed()?.schema)
    }

    /// The check of answers to the schema; `None` where everything that it asks for is enforced while the answer is written.
    ///
    /// # Errors
    /// A sentence about a schema that cannot be read.
    pub fn check(&self) -> Result<Option<SchemaCheck>, String> {
        let is_checked = !self.relaxed()?.unenforced.is_empty();
        Ok(is_checked.then(|| SchemaCheck(self.clone())))
    }

    /// Refuses a schema of which not everything is enforced while the answer is written: the rule of `strict: true`.
    ///
    /// # Errors
    /// A sentence that names the keyword and its place, and what to do.
    pub fn check_strict(&self) -> Result<(), String> {
        check_one_of(self.given())?;
        match self.relaxed()?.unenforced.first() {
            None => Ok(()),
            Some(first) => Err(format!(
                "{first} cannot be enforced while the answer is written, which strict asks for: leave the keyword out, or leave \
                 out strict to have it checked on the finished answer"
            )),
        }
    }

    fn relaxed(&self) -> Result<&RelaxedSchema, String> {
        self.0.relaxed.get_or_init(|| relax(self.given())).as_ref().map_err(Clone::clone)
    }
}

impl From<Value> for JsonSchema {
    fn from(given: Value) -> Self {
        Self(Arc::new(Parts { given, relaxed: OnceLock::new() }))
    }
}

impl PartialEq for JsonSchema {
    fn eq(&self, other: &Self) -> bool {
        self.given() == other.given()
    }
}

impl Serialize for JsonSchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.given().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for JsonSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl fmt::Debug for JsonSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given().fmt(f)
    }
}

/// The keywords of one schema that are checked on the finished answer.
#[derive(Debug, Clone)]
pub struct SchemaCheck(JsonSchema);

impl SchemaCheck {
    /// The keywords that are checked.
    pub fn keywords(&self) -> &[UnenforcedKeyword] {
        self.0.relaxed().map_or(&[], |relaxed| &relaxed.unenforced)
    }

    /// Those keywords that an answer does not keep to.
    ///
    /// # Errors
    /// The check would take too much work.
    pub fn violations(&self, answer: &Value) -> Result<Vec<UnenforcedKeyword>, TooMuchWork> {
        let schema = self.0.given();
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
