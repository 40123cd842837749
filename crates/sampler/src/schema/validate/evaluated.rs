//! Which properties and items of a value some keyword has looked at, for `unevaluatedProperties` and `unevaluatedItems`.

use std::collections::BTreeSet;

/// Properties and items of one value that were looked at by schemas that it fits.
#[derive(Debug, Default)]
pub(super) struct Evaluated {
    /// Names of properties.
    pub(super) properties: BTreeSet<String>,
    /// All properties.
    pub(super) all_properties: bool,
    /// How many items at the head of the list.
    pub(super) items: usize,
    /// Further items, by number.
    pub(super) others: BTreeSet<usize>,
}

impl Evaluated {
    /// Adds what another schema of the same value has looked at.
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
