//! Units of quotas.

use std::fmt;

/// Unit of a quota in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaUnit {
    /// Bytes.
    Bytes,
    /// Objects.
    Objects,
}

impl fmt::Display for QuotaUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Objects => "objects",
        })
    }
}
