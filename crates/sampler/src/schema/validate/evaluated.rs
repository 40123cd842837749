//! Evaluated properties and items of a value, for `unevaluatedProperties` and `unevaluatedItems`.

use std::collections::BTreeSet;

/// Properties and items of a value that a matching schema has evaluated.
#[derive(Debug, Default)]
pub(super) struct EvaluatedParts {
    /// Names of evaluated properties.
    pub(super) properties: BTreeSet<String>,
    /// Whether all properties are evaluated.
    pub(super) all_properties: bool,
    /// Number of leading items that are evaluated.
    pub(super) items: usize,
    /// Indices of further evaluated items.
    pub(super) others: BTreeSet<usize>,
}

impl EvaluatedParts {
    /// Adds the evaluated parts of another schema for the same value.
    pub(super) fn add(&mut self, other: Self) {
        self.properties.extend(other.properties);
        self.all_properties |= other.all_properties;
        self.items = self.items.max(other.items);
        self.others.extend(other.others);
    }

    pub(super) fn has_property(&self, name: &str) -> bool {
        self.all_properties || self.properties.contains(name)
    }

    pub(super) fn has_item(&self, number: usize) -> bool {
        number < self.items || self.others.contains(&number)
    }
}
