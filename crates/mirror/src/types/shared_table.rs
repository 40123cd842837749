//! Descriptions of tables that requests of several clients fill. The section "Shared tables" of
//! `docs/guide/security.md` comes from them.

use std::fmt;

/// A table that requests of several clients fill.
#[derive(Debug, Clone, Copy)]
pub struct SharedTable {
    /// What it holds.
    pub name: &'static str,
    /// Types that hold it, each as `crate::module::Type`.
    pub holders: &'static [&'static str],
    /// Limits of the whole table.
    pub limits: &'static [TableLimit],
    /// Limits for one client.
    pub shares: &'static [TableLimit],
    /// What happens when the table or the share is full.
    pub when_full: &'static str,
    /// Test that fills the table as one client and acts as another.
    pub test: &'static str,
}

/// Limit of a table or of a client's share.
#[derive(Debug, Clone, Copy)]
pub enum TableLimit {
    /// A number of entries.
    Entries(usize),
    /// A number of bytes.
    Bytes(usize),
    /// A number of bytes of something.
    BytesOf(&'static str, usize),
    /// A limit in words, such as the name of a setting.
    Rule(&'static str),
}

/// A type with a lock and a collection that is no shared table.
#[derive(Debug, Clone, Copy)]
pub struct TableExemption {
    /// The type, as `crate::module::Type`.
    pub holder: &'static str,
    /// Why no client can fill it for others.
    pub reason: &'static str,
}

impl fmt::Display for TableLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Entries(count) => f.write_str(&with_separators(count)),
            Self::Bytes(bytes) if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
                write!(f, "{} MiB", with_separators(bytes >> 20))
            }
            Self::Bytes(bytes) => write!(f, "{} bytes", with_separators(bytes)),
            Self::BytesOf(what, bytes) => write!(f, "{what}: {}", Self::Bytes(bytes)),
            Self::Rule(text) => f.write_str(text),
        }
    }
}

/// Formats a number with a comma before every third digit from the end.
fn with_separators(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_units_and_separators() {
        let shown = [
            TableLimit::Entries(64),
            TableLimit::Entries(1_000_000),
            TableLimit::Bytes(640 << 20),
            TableLimit::Bytes(5000),
            TableLimit::BytesOf("one request", 3 << 20),
            TableLimit::Rule("half"),
        ];
        let shown = shown.map(|limit| limit.to_string());
        assert_eq!(
            shown,
            ["64", "1,000,000", "640 MiB", "5,000 bytes", "one request: 3 MiB", "half"]
        );
    }
}
