//! Sampler for fill-in-the-middle: prefers to end, and prefers one certain continuation to many.

use std::sync::Arc;

use crate::candidates::{Candidate, Candidates};
use crate::vocab::Vocab;

/// Number of candidates with merged prefixes, at quadratic cost. Less likely candidates have p <
/// 1/1024, far below the threshold at which they are dropped.
const MAX_MERGED: usize = 1024;
/// Least probability of a candidate that does not end the text.
const MIN_P: f32 = 0.2;

/// Infill sampler, as in llama.cpp.
#[derive(Clone)]
pub(crate) struct Infill {
    pub(crate) vocab: Arc<dyn Vocab>,
}

impl Infill {
    pub(crate) fn apply(&self, cands: &mut Candidates) {
        if cands.len() == 0 {
            return;
        }
        cands.softmax();
        cands.sort();
        let is_end = |c: &Candidate| self.vocab.is_end(c.id);
        let sum = |ends: bool| {
            cands.list().iter().filter(|c| is_end(c) == ends).map(|c| c.p).sum::<f32>()
        };
        let (p_end, p_text) = (sum(true), sum(false));
        if 3.0 * p_end * cands.len() as f32 > p_text {
            cands.retain(is_end);
            renormalize(cands);
            return;
        }

        self.merge_prefixes(cands);
        cands.retain(|c| is_end(c) || c.p >= MIN_P);
        let n_text = cands.list().iter().filter(|c| !is_end(c)).count();
        if n_text == 0 {
            if let Some(end) = self.vocab.end_of_turn() {
                cands.fill_one(end, 1.0);
            }
            return;
        }
        renormalize(cands);
        let fair_share = 1.0 / (n_text as f32 + 1.0);
        cands.retain(|c| is_end(c) || c.p >= fair_share);
        renormalize(cands);
    }

    /// Merges candidates where the text of one is a prefix of the other: the likelier one gets the
    /// probability of both.
    fn merge_prefixes(&self, cands: &mut Candidates) {
        let list = cands.list_mut_keeping_order();
        let n = list.len().min(MAX_MERGED);
        let texts: Vec<_> = list[..n].iter().map(|c| self.vocab.piece(c.id, false)).collect();
        for i in 0..n {
            for j in 0..n {
                if list[i].logit == f32::NEG_INFINITY {
                    break;
                }
                let other = i != j && list[j].logit != f32::NEG_INFINITY;
                if other && !texts[i].is_empty() && texts[j].starts_with(&texts[i]) {
                    let (winner, loser) = if list[j].p > list[i].p { (j, i) } else { (i, j) };
                    list[winner].p += list[loser].p;
                    list[loser].p = 0.0;
                    list[loser].logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

fn renormalize(cands: &mut Candidates) {
    let sum: f32 = cands.list().iter().map(|c| c.p).sum();
    for c in cands.list_mut_keeping_order() {
        c.p /= sum;
    }
}
