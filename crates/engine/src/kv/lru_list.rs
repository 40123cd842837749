//! Doubly linked list of small integers in the order of their last use, with constant-time
//! operations.

/// Links of an entry.
#[derive(Debug, Clone, Copy)]
struct Links {
    previous: Option<usize>,
    next: Option<usize>,
}

/// Entries from the least to the most recently used. Each number is in the list at most once.
#[derive(Debug, Default)]
pub struct LruList {
    /// Links by entry; `None` if the entry is not in the list.
    links: Vec<Option<Links>>,
    first: Option<usize>,
    last: Option<usize>,
    len: usize,
}

impl LruList {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether an entry is in the list.
    pub fn contains(&self, entry: usize) -> bool {
        self.links.get(entry).is_some_and(Option::is_some)
    }

    /// Makes an entry of the list the most recently used one; adds none.
    pub fn touch(&mut self, entry: usize) {
        if self.contains(entry) {
            self.push(entry);
        }
    }

    /// Adds an entry as the most recently used one, or moves it there.
    pub fn push(&mut self, entry: usize) {
        self.remove(entry);
        if entry >= self.links.len() {
            self.links.resize(entry + 1, None);
        }
        self.links[entry] = Some(Links { previous: self.last, next: None });
        match self.last {
            Some(last) => self.links_mut(last).next = Some(entry),
            None => self.first = Some(entry),
        }
        self.last = Some(entry);
        self.len += 1;
    }

    /// Removes an entry, if it is in the list.
    pub fn remove(&mut self, entry: usize) {
        let Some(links) = self.links.get_mut(entry).and_then(Option::take) else { return };
        match links.previous {
            Some(previous) => self.links_mut(previous).next = links.next,
            None => self.first = links.next,
        }
        match links.next {
            Some(next) => self.links_mut(next).previous = links.previous,
            None => self.last = links.previous,
        }
        self.len -= 1;
    }

    /// Removes and returns the least recently used entry.
    pub fn pop(&mut self) -> Option<usize> {
        let first = self.first?;
        self.remove(first);
        Some(first)
    }

    /// All entries, the least recently used first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let next = |entry: &usize| self.links[*entry].and_then(|links| links.next);
        std::iter::successors(self.first, next)
    }

    fn links_mut(&mut self, entry: usize) -> &mut Links {
        self.links[entry].as_mut().expect("linked entries are in the list")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_has_the_order_of_a_vector(steps in prop::collection::vec((0usize..3, 0usize..8), 0..80)) {
            let (mut list, mut vector) = (LruList::default(), Vec::new());
            for (step, entry) in steps {
                match step {
                    0 => {
                        list.push(entry);
                        vector.retain(|e| *e != entry);
                        vector.push(entry);
                    }
                    1 => {
                        list.remove(entry);
                        vector.retain(|e| *e != entry);
                    }
                    _ => {
                        let first = if vector.is_empty() { None } else { Some(vector.remove(0)) };
                        prop_assert_eq!(list.pop(), first);
                    }
                }
                prop_assert_eq!(list.iter().collect::<Vec<_>>(), vector.clone());
                prop_assert_eq!(list.len(), vector.len());
                prop_assert_eq!(list.contains(entry), vector.contains(&entry));
            }
        }
    }
}
