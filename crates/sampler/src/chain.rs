//! Stages of a sampler chain, and how a chain runs over the logits of a step. The order of the
//! stages is `DEFAULT_ORDER` in `params`.

use crate::candidates::{self, Candidates};
use crate::draw::{self, AdaptiveP, Mirostat};
use crate::dry::Dry;
use crate::infill::Infill;
use crate::penalties::{LogitBias, Penalties};
use crate::rng::Mt19937;
use crate::temperature::Temperature;
use crate::truncate::{self, Xtc};

/// One sampler of a chain with its state.
#[derive(Clone)]
pub(crate) enum ChainStage {
    LogitBias(LogitBias),
    Penalties(Penalties),
    Dry(Dry),
    TopNSigma(f32),
    TopK(usize),
    Typical {
        p: f32,
        min_keep: usize,
    },
    TopP {
        p: f32,
        min_keep: usize,
    },
    MinP {
        p: f32,
        min_keep: usize,
    },
    Xtc(Xtc),
    Temperature(Temperature),
    Infill(Infill),
    /// This stage and those below draw one candidate and end the chain.
    Dist(Mt19937),
    Mirostat(Mirostat),
    AdaptiveP(AdaptiveP),
    Greedy,
}

impl ChainStage {
    /// Applies the stage to the logits of the whole vocabulary, if it can. Avoids making a
    /// candidate list before a stage needs one. Returns `false`, and changes nothing, if the stage
    /// needs a list.
    fn apply_to_logits(&mut self, logits: &mut [f32]) -> bool {
        match self {
            Self::LogitBias(s) => s.apply_to_logits(logits),
            Self::Penalties(s) => s.apply_to_logits(logits),
            Self::Dry(s) => s.apply_to_logits(logits),
            Self::TopNSigma(n) => {
                let floor = truncate::sigma_floor(*n, logits.iter().copied());
                logits.iter_mut().filter(|l| **l < floor).for_each(|l| *l = f32::NEG_INFINITY);
            }
            _ => return false,
        }
        true
    }

    fn works_on_logits(&self) -> bool {
        matches!(self, Self::LogitBias(_) | Self::Penalties(_) | Self::Dry(_) | Self::TopNSigma(_))
    }

    /// Fills the candidate list from the logits. Applies the stage at once where that is cheaper
    /// than both in turn. Returns whether it applied the stage.
    fn fill(&self, logits: &[f32], cands: &mut Candidates) -> bool {
        match *self {
            Self::TopK(k) => {
                cands.fill_top(logits, k);
                return true;
            }
            Self::MinP { p, min_keep } => {
                let max = candidates::argmax(logits).map_or(f32::NEG_INFINITY, |(_, max)| max);
                cands.fill_above(logits, max + p.ln());
                if cands.len() > 0 && cands.len() >= min_keep {
                    return true;
                }
            }
            Self::Greedy => {
                if let Some((id, logit)) = candidates::argmax(logits) {
                    cands.fill_one(id as u32, logit);
                    return false;
                }
            }
            _ => {}
        }
        cands.fill(logits);
        false
    }

    /// Changes the candidates. A stage that draws returns the position of its choice.
    pub(crate) fn apply(&mut self, cands: &mut Candidates) -> Option<usize> {
        match self {
            Self::LogitBias(s) => s.apply(cands),
            Self::Penalties(s) => s.apply(cands),
            Self::Dry(s) => s.apply(cands),
            Self::TopNSigma(n) => truncate::top_n_sigma(cands, *n),
            Self::TopK(k) => truncate::top_k(cands, *k),
            Self::Typical { p, min_keep } => truncate::typical(cands, *p, *min_keep),
            Self::TopP { p, min_keep } => truncate::top_p(cands, *p, *min_keep),
            Self::MinP { p, min_keep } => truncate::min_p(cands, *p, *min_keep),
            Self::Xtc(s) => s.apply(cands),
            Self::Temperature(s) => s.apply(cands),
            Self::Infill(s) => s.apply(cands),
            Self::Dist(rng) => return draw::sample_by_logits(cands, rng),
            Self::Mirostat(s) => return s.apply(cands),
            Self::AdaptiveP(s) => return s.apply(cands),
            Self::Greedy => return cands.argmax(),
        }
        None
    }

    /// Records a token of the prompt or of the answer.
    pub(crate) fn accept(&mut self, token: u32) {
        match self {
            Self::Penalties(s) => s.accept(token),
            Self::Dry(s) => s.accept(token),
            Self::AdaptiveP(s) => s.accept(token),
            _ => {}
        }
    }
}

/// Samplers in order, with their shared buffers.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) stages: Vec<ChainStage>,
    pub(crate) cands: Candidates,
}

impl Chain {
    /// Shortens a chain that always chooses the largest logit to [`ChainStage::Greedy`].
    pub(crate) fn new(mut stages: Vec<ChainStage>) -> Self {
        let head = stages.iter().take_while(|l| l.works_on_logits()).count();
        if is_always_greedy(&stages[head..]) {
            stages.truncate(head);
            stages.push(ChainStage::Greedy);
        }
        Self { stages, cands: Candidates::default() }
    }

    /// Runs all stages. Returns the position that the last stage drew. `None` if it does not draw,
    /// or if no token is possible.
    pub(crate) fn run(&mut self, logits: &mut [f32]) -> Option<usize> {
        let mut next = 0;
        while self.stages.get_mut(next).is_some_and(|stage| stage.apply_to_logits(logits)) {
            next += 1;
        }
        match self.stages.get(next) {
            Some(stage) => next += usize::from(stage.fill(logits, &mut self.cands)),
            None => self.cands.fill(logits),
        }
        if self.cands.max() == f32::NEG_INFINITY {
            return None;
        }
        let cands = &mut self.cands;
        self.stages[next..].iter_mut().fold(None, |_, stage| stage.apply(cands))
    }

    pub(crate) fn accept(&mut self, token: u32) {
        self.stages.iter_mut().for_each(|stage| stage.accept(token));
    }
}

/// Whether the stages always choose the largest logit, the first of equal ones, for any random
/// numbers.
fn is_always_greedy(stages: &[ChainStage]) -> bool {
    let mut decided = false;
    for stage in stages {
        match stage {
            ChainStage::TopK(k) => decided |= *k == 1,
            ChainStage::Temperature(t) if t.is_dynamic() => return false,
            ChainStage::Temperature(t) => decided |= t.is_greedy(),
            ChainStage::TopP { .. } | ChainStage::MinP { .. } => {}
            ChainStage::Dist(_) | ChainStage::Mirostat(_) => return decided,
            _ => return false,
        }
    }
    false
}
