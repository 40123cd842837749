//! Keywords that a grammar does not enforce.

use std::fmt;

/// A keyword that is not enforced during generation, but checked on the finished answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnenforcedKeyword {
    /// The keyword.
    pub keyword: String,
    /// Location of its schema, in the syntax of `$ref`.
    pub place: String,
}

impl fmt::Display for UnenforcedKeyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.keyword, self.place)
    }
}
