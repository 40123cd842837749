//! Compact table of the best splits of a text, for unigram models.

use std::collections::HashMap;

/// For each position of a text, the length of one token of the best split. Two bytes per position:
/// the best split of some texts is only known at their end.
#[derive(Default)]
pub(crate) struct TokenLengths {
    /// 0 for no token, or for a longer one.
    short: Vec<u16>,
    /// Lengths that do not fit 16 bits.
    long: HashMap<usize, usize>,
}

impl TokenLengths {
    /// A table of positions without tokens.
    pub(crate) fn new(positions: usize) -> Self {
        TokenLengths { short: vec![0; positions], long: HashMap::new() }
    }

    pub(crate) fn set(&mut self, position: usize, length: usize) {
        match u16::try_from(length) {
            Ok(short) => self.short[position] = short,
            Err(_) => {
                self.short[position] = 0;
                self.long.insert(position, length);
            }
        }
    }

    /// Length of the token at a position; 0 if there is none.
    pub(crate) fn get(&self, position: usize) -> usize {
        match self.short[position] {
            0 => self.long.get(&position).copied().unwrap_or(0),
            short => usize::from(short),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_all_sizes_replace_each_other() {
        let mut lengths = TokenLengths::new(3);
        lengths.set(1, 70_000);
        lengths.set(2, 70_000);
        lengths.set(2, 65_535);
        assert_eq!([0, 1, 2].map(|at| lengths.get(at)), [0, 70_000, 65_535]);
    }
}
