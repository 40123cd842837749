//! Attention in two instructions over different positions: the first writes its partial result
//! (weighted sum, largest score, sum of weights) to a value of the graph, and the second merges it
//! with its own.

use puna_kernels::RunningSoftmax;

use super::Attend;
use crate::step::Step;

impl Attend {
    /// First columns of a head's weighted sum of values, largest score and sum of weights in a row
    /// of the partial result.
    fn columns(&self, head: usize) -> [usize; 3] {
        let (heads, dim) = (self.spec.heads, self.spec.value_dim);
        [head * dim, heads * dim + head, heads * (dim + 1) + head]
    }

    /// Writes the partial result of query `r`: `head` of token `row`.
    pub(super) fn store_partial(
        &self,
        total: &RunningSoftmax<'_>,
        r: usize,
        step: &Step<'_>,
        (row, head): (usize, usize),
    ) {
        let dim = self.spec.value_dim;
        let parts = [&total.acc[r * dim..][..dim], &total.max[r..=r], &total.sum[r..=r]];
        for (column, part) in self.columns(head).into_iter().zip(parts) {
            let start = self.out.start + row * self.out.stride + column;
            // SAFETY: each head of a token belongs to one block.
            unsafe { step.arena.slice_mut(start, part.len()) }.copy_from_slice(part);
        }
    }

    /// Merges the earlier partial result of query `r`, which is `head` of token `row`, into
    /// `total`.
    pub(super) fn merge_previous(
        &self,
        total: &mut RunningSoftmax<'_>,
        r: usize,
        step: &Step<'_>,
        (row, head): (usize, usize),
    ) {
        let Some(partial_input) = &self.partial_input else { return };
        let dim = self.spec.value_dim;
        // SAFETY: an earlier instruction computed it, behind a barrier.
        let earlier = unsafe { step.arena.row(partial_input, row) };
        let [acc, max, sum] = self.columns(head);
        let largest = earlier[max].max(total.max[r]);
        // One of the two factors is 1.
        let shrink = |from: f32| if from == largest { 1.0 } else { (from - largest).exp() };
        let (old, new) = (shrink(earlier[max]), shrink(total.max[r]));
        total.max[r] = largest;
        total.sum[r] = earlier[sum] * old + total.sum[r] * new;
        let own = &mut total.acc[r * dim..][..dim];
        own.iter_mut()
            .zip(&earlier[acc..])
            .for_each(|(own, earlier)| *own = earlier * old + *own * new);
    }
}
