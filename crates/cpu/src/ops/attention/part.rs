//! Attention in two parts, of which the second goes on where the first left off: what the softmax of a query has summed up so far lies in a
//! value between them.

use puna_kernels::RunningSoftmax;

use super::Attend;
use crate::step::Step;

impl Attend {
    /// Where a head's weighed sum of values, its largest score and its sum of weights begin in a row of a part.
    fn columns(&self, head: usize) -> [usize; 3] {
        let (heads, dim) = (self.spec.heads, self.spec.value_dim);
        [head * dim, heads * dim + head, heads * (dim + 1) + head]
    }

    /// Writes what was summed up for query `r`, which is this row's head.
    pub(super) fn put_aside(
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
            // SAFETY: a token's head belongs to one block.
            unsafe { step.arena.slice_mut(start, part.len()) }.copy_from_slice(part);
        }
    }

    /// Puts what was summed up before in front of what is summed up for query `r`, which is this row's head.
    pub(super) fn go_on(
        &self,
        total: &mut RunningSoftmax<'_>,
        r: usize,
        step: &Step<'_>,
        (row, head): (usize, usize),
    ) {
        let Some(before) = &self.before else { return };
        let dim = self.spec.value_dim;
        // SAFETY: computed before a barrier.
        let before = unsafe { step.arena.row(before, row) };
        let [acc, max, sum] = self.columns(head);
        let most = before[max].max(total.max[r]);
        // One of both is 1; nothing may have been seen here.
        let shrink = |from: f32| if from == most { 1.0 } else { (from - most).exp() };
        let (old, new) = (shrink(before[max]), shrink(total.max[r]));
        total.max[r] = most;
        total.sum[r] = before[sum] * old + total.sum[r] * new;
        let own = &mut total.acc[r * dim..][..dim];
        own.iter_mut().zip(&before[acc..]).for_each(|(own, before)| *own = before * old + *own * new);
    }
}
