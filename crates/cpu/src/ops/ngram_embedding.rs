//! N-gram embeddings: computes the table rows of the n-grams that end with each token.

use std::sync::Arc;

use puna_graph::{ArenaRange, NgramEmbeddingSpec, Segment, SelectedPositions};

use crate::ops::recurrent::begun;
use crate::step::{Instruction, Step, ThreadScratch};

/// Computes the table rows. The state holds the previous token ids, latest first, each stored as
/// the bits of id + 1; 0 is none.
pub struct NgramRows {
    pub out: ArenaRange,
    pub spec: Arc<NgramEmbeddingSpec>,
}

impl NgramRows {
    /// Sets `ids` to the token ids of the n-grams that end with `id`, latest first, and updates the
    /// state.
    fn advance(&self, id: u32, state: &mut [f32], ids: &mut [u32]) {
        ids[0] = id;
        let mut ended = false;
        for (to, from) in ids[1..].iter_mut().zip(&*state) {
            let before = from.to_bits().checked_sub(1);
            ended |= before.is_none_or(|before| before == self.spec.end);
            *to = before.filter(|_| !ended).unwrap_or(self.spec.end);
        }
        state.rotate_right(1);
        state[0] = f32::from_bits(id + 1);
    }

    fn tokens<'a>(&self, step: &'a Step<'_>, s: &Segment) -> &'a [u32] {
        &step.input.tokens[s.first_row..][..s.rows]
    }
}

// SAFETY: a task writes the rows of a sequence and its state, which are its own.
unsafe impl Instruction for NgramRows {
    fn name(&self) -> &'static str {
        "ngram_rows"
    }

    fn tasks(&self, step: &Step<'_>) -> usize {
        step.input.segments.len()
    }

    unsafe fn run(&self, task: usize, step: &Step<'_>, scratch: &mut ThreadScratch) {
        let s = &step.input.segments[task];
        // SAFETY: the sequence belongs to this task.
        let state = unsafe { begun(step, s, self.spec.state, 0, self.spec.values()) };
        let ids = &mut scratch.numbers;
        ids.resize(self.spec.multipliers.len(), 0);
        for (row, &id) in (s.first_row..).zip(self.tokens(step, s)) {
            self.advance(id, state, ids);
            // SAFETY: as above.
            let out = unsafe { step.arena.row_mut(&self.out, row) };
            out.iter_mut()
                .zip(self.spec.rows(ids))
                .for_each(|(out, row)| *out = SelectedPositions::entry(row));
        }
    }
}

#[cfg(test)]
mod tests {
    use puna_graph::{NgramHead, Rows};

    use super::*;

    /// Token id that ends a text.
    const END: u32 = 7;

    fn grams() -> NgramRows {
        let heads =
            [(0, 11), (11, 13), (24, 17), (41, 19)].map(|(first, rows)| NgramHead { first, rows });
        let spec = NgramEmbeddingSpec {
            state: 0,
            multipliers: vec![3, 5 << 61, 9],
            heads: heads.to_vec(),
            end: END,
        };
        let out = ArenaRange { rows: Rows::Tokens, cols: 4, start: 0, stride: 4 };
        NgramRows { out, spec: Arc::new(spec) }
    }

    /// The ids of the n-grams of each token.
    fn ids(tokens: &[u32]) -> Vec<Vec<u32>> {
        let (grams, mut state, mut ids) = (grams(), [0.0; 2], [0; 3]);
        let mut of = |&id: &u32| {
            grams.advance(id, &mut state, &mut ids);
            ids.to_vec()
        };
        tokens.iter().map(&mut of).collect()
    }

    #[test]
    fn n_grams_do_not_cross_the_start_or_the_end_of_a_text() {
        assert_eq!(ids(&[0, 4, 5]), [[0, END, END], [4, 0, END], [5, 4, 0]]);
        // The n-grams of the end token contain the text before it; later n-grams do not.
        assert_eq!(
            ids(&[4, 5, END, 6, 8, 9]),
            [[4, END, END], [5, 4, END], [END, 5, 4], [6, END, END], [8, 6, END], [9, 8, 6]]
        );
        assert_eq!(
            ids(&[4, END, END, 6]),
            [[4, END, END], [END, 4, END], [END, END, END], [6, END, END]]
        );
    }

    #[test]
    fn table_rows_are_remainders_of_wrapping_64_bit_products() {
        let spec = &grams().spec;
        let two = (6 * 3) ^ 4u64.wrapping_mul(5 << 61);
        let three = two ^ (2 * 9);
        assert_ne!(4u128 * (5 << 61), u128::from(4u64.wrapping_mul(5 << 61)));
        let want = [two % 11, 11 + two % 13, 24 + three % 17, 41 + three % 19];
        assert_eq!(spec.rows(&[6, 4, 2]).map(u64::from).collect::<Vec<_>>(), want);
    }
}
