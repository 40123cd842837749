//! Attention masks.

/// Attention mask: which positions a token sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All positions up to its own.
    Causal,
    /// Sliding window: the last `n` positions, including its own.
    Window(u32),
    /// The positions of its own chunk of `n` positions, up to its own.
    Chunk(u32),
    /// Pooled rows, each for `n` positions, all of which are at or before its own. A row is stored
    /// at the last of its positions.
    Pooled(u32),
    /// All tokens of its sequence (encoders); not cached.
    Full,
    /// Tokens at most `n` positions before or behind it (encoders); not cached.
    SymmetricWindow(u32),
    /// The rows that the row's window of its segment sees (encoders); not cached. See
    /// [`crate::Segment::row_windows`].
    RowWindow,
    /// Cross-attention to the encoder's input: the first `encoder_tokens` positions of its segment.
    CrossAttention,
    /// All positions up to its own, except the encoder's input.
    DecoderCausal,
}

impl Mask {
    /// Whether keys and values are cached for later steps.
    pub fn is_cached(self) -> bool {
        !matches!(self, Mask::Full | Mask::SymmetricWindow(_) | Mask::RowWindow)
    }

    /// Largest number of positions that a token sees, if it is bounded; earlier positions need not
    /// stay in the cache.
    pub fn reach(self) -> Option<usize> {
        match self {
            Mask::Window(n) | Mask::Chunk(n) => Some(n.max(1) as usize),
            Mask::Causal
            | Mask::Pooled(_)
            | Mask::Full
            | Mask::SymmetricWindow(_)
            | Mask::RowWindow
            | Mask::CrossAttention
            | Mask::DecoderCausal => None,
        }
    }

    /// First position that the token at `position`, or any later token, sees in the cache.
    pub fn first_seen(self, position: usize) -> usize {
        match self {
            Mask::Window(n) => (position + 1).saturating_sub(n.max(1) as usize),
            Mask::Chunk(n) => position - position % n.max(1) as usize,
            Mask::Causal
            | Mask::Pooled(_)
            | Mask::Full
            | Mask::SymmetricWindow(_)
            | Mask::RowWindow
            | Mask::CrossAttention
            | Mask::DecoderCausal => 0,
        }
    }

    /// Positions per cache row.
    pub fn pooled(self) -> usize {
        match self {
            Mask::Pooled(n) => n.max(1) as usize,
            _ => 1,
        }
    }

    /// Whether every token sees only positions that it also sees with `other`.
    pub fn is_within(self, other: Self) -> bool {
        match (self, other) {
            (Mask::Window(own), Mask::Window(n)) => own <= n,
            (Mask::Pooled(_), _) | (_, Mask::Pooled(_)) => self == other,
            (_, Mask::Causal) => self.is_cached(),
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_visible_position_never_decreases() {
        let all = [
            Mask::Causal,
            Mask::DecoderCausal,
            Mask::Window(1),
            Mask::Window(5),
            Mask::Chunk(4),
            Mask::Window(0),
        ];
        for mask in all {
            let seen: Vec<usize> = (0..40).map(|position| mask.first_seen(position)).collect();
            assert!(seen.is_sorted(), "{mask:?}: {seen:?}");
            let max = (0..40).map(|position| position + 1 - seen[position]).max();
            assert_eq!(max, Some(mask.reach().unwrap_or(40)), "{mask:?}");
        }
        let seen = |mask: Mask| [0, 3, 4, 9].map(|position| mask.first_seen(position));
        assert_eq!(seen(Mask::Window(4)), [0, 0, 1, 6]);
        assert_eq!(seen(Mask::Chunk(4)), [0, 0, 4, 8]);
    }

    #[test]
    fn narrower_windows_are_within_wider_ones_and_within_causal_masks() {
        assert!(
            Mask::Window(3).is_within(Mask::Window(4))
                && !Mask::Window(5).is_within(Mask::Window(4))
        );
        assert!(Mask::Chunk(3).is_within(Mask::Causal) && !Mask::Causal.is_within(Mask::Window(9)));
        assert!(!Mask::Chunk(3).is_within(Mask::Window(3)) && !Mask::Full.is_within(Mask::Causal));
    }
}
