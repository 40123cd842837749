//! JSON Schemas: what of them a grammar enforces, and the check of the rest on the finished answer.

mod patterns;
mod references;
mod relax;
#[cfg(test)]
mod tests;
mod validate;

use std::fmt;

use serde_json::Value;

use crate::grammar::check_one_of;
use references::References;
pub(crate) use relax::relax;
pub use validate::TooMuchWork;
use validate::Validator;

/// A keyword of a schema that is not enforced while the answer is written, but checked on the finished answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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

/// The keywords of one schema that are checked on the finished answer.
#[derive(Debug, Clone)]
pub struct SchemaCheck {
    schema: Value,
    unenforced: Vec<UnenforcedKeyword>,
}

impl SchemaCheck {
    /// The check of answers to a schema; `None` where everything that it asks for is enforced while the answer is written.
    ///
    /// # Errors
    /// A sentence about a schema that cannot be read.
    pub fn new(schema: &Value) -> Result<Option<Self>, String> {
        let unenforced = relax(schema)?.unenforced;
        Ok((!unenforced.is_empty()).then(|| Self { schema: schema.clone(), unenforced }))
    }

    /// The keywords that are checked.
    pub fn keywords(&self) -> &[UnenforcedKeyword] {
        &self.unenforced
    }

    /// Those keywords that an answer does not keep to.
    ///
    /// # Errors
    /// The check would take too much work.
    pub fn violations(&self, answer: &Value) -> Result<Vec<UnenforcedKeyword>, TooMuchWork> {
        let references = References::new(&self.schema);
        let failures = Validator::new(&references).failures(&self.schema, "", answer)?;
        let mut violated: Vec<UnenforcedKeyword> = Vec::new();
        for failure in failures {
            let place = format!("#{}", failure.pointer);
            let failed = UnenforcedKeyword { keyword: failure.keyword, place };
            if self.unenforced.contains(&failed) && !violated.contains(&failed) {
                violated.push(failed);
            }
        }
        Ok(violated)
    }
}

/// The parts of a schema that a grammar enforces, as a schema of keywords that grammars know.
///
/// # Errors
/// A sentence about a schema that no value fits, or that is too large.
pub fn enforceable_schema(schema: &Value) -> Result<Value, String> {
    Ok(relax(schema)?.schema)
}

/// Refuses a schema of which not everything is enforced while the answer is written: the rule of `strict: true`.
///
/// # Errors
/// A sentence that names the keyword and its place, and what to do.
pub fn check_strict(schema: &Value) -> Result<(), String> {
    check_one_of(schema)?;
    match relax(schema)?.unenforced.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "{first} cannot be enforced while the answer is written, which strict asks for: leave the keyword out, or leave out \
             strict to have it checked on the finished answer"
        )),
    }
}
