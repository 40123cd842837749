//! Logit bias and repetition penalties.

use std::collections::{HashMap, VecDeque};

use crate::candidates::Candidates;

/// Adds constants to the logits of tokens.
#[derive(Clone)]
pub(crate) struct LogitBias {
    pub(crate) bias: Vec<(u32, f32)>,
    /// Entries with a token that is not at the position of its id. Kept between steps to avoid
    /// allocations.
    not_at_id: Vec<(u32, f32)>,
}

impl LogitBias {
    pub(crate) fn new(bias: Vec<(u32, f32)>) -> Self {
        Self { bias, not_at_id: Vec::new() }
    }

    pub(crate) fn apply_to_logits(&self, logits: &mut [f32]) {
        for &(id, bias) in &self.bias {
            if let Some(l) = logits.get_mut(id as usize) {
                *l += bias;
            }
        }
    }

    /// Adds the bias to candidates. Of a token listed twice, both values apply if it is at the
    /// position of its id; otherwise only the first.
    pub(crate) fn apply(&mut self, cands: &mut Candidates) {
        let list = cands.list_mut_keeping_order();
        self.not_at_id.clear();
        for &(id, bias) in &self.bias {
            match list.get_mut(id as usize) {
                Some(c) if c.id == id => c.logit += bias,
                _ => self.not_at_id.push((id, bias)),
            }
        }
        if self.not_at_id.is_empty() {
            return;
        }
        for c in list {
            if let Some((_, bias)) = self.not_at_id.iter().find(|(id, _)| *id == c.id) {
                c.logit += bias;
            }
        }
    }
}

/// Lowers the logits of tokens that occurred in the last `last_n` tokens.
#[derive(Clone)]
pub(crate) struct Penalties {
    last_n: usize,
    repeat: f32,
    frequency: f32,
    presence: f32,
    window: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Penalties {
    /// Returns `None` if nothing would change: no window, or factors without effect.
    pub(crate) fn new(last_n: i32, repeat: f32, frequency: f32, presence: f32) -> Option<Self> {
        let last_n = usize::try_from(last_n).ok().filter(|&n| n > 0)?;
        let has_no_effect = repeat == 1.0 && frequency == 0.0 && presence == 0.0;
        let (window, counts) = Default::default();
        (!has_no_effect).then_some(Self { last_n, repeat, frequency, presence, window, counts })
    }

    pub(crate) fn accept(&mut self, token: u32) {
        if self.window.len() == self.last_n
            && let Some(oldest) = self.window.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.window.push_back(token);
        *self.counts.entry(token).or_default() += 1;
    }

    pub(crate) fn apply_to_logits(&self, logits: &mut [f32]) {
        for (&id, &count) in &self.counts {
            if let Some(l) = logits.get_mut(id as usize) {
                *l = self.penalize(*l, count);
            }
        }
    }

    pub(crate) fn apply(&self, cands: &mut Candidates) {
        for c in cands.list_mut() {
            if let Some(&count) = self.counts.get(&c.id) {
                c.logit = self.penalize(c.logit, count);
            }
        }
    }

    fn penalize(&self, logit: f32, count: u32) -> f32 {
        // A negative logit is multiplied, since a division would make the token more likely.
        let logit = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        logit - (count as f32 * self.frequency + self.presence)
    }
}
