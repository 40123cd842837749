//! The links of a chain, and how a chain runs over a step's logits.

use crate::candidates::{self, Candidates};
use crate::draw::{self, AdaptiveP, Mirostat};
use crate::dry::Dry;
use crate::infill::Infill;
use crate::penalties::{LogitBias, Penalties};
use crate::rng::Mt19937;
use crate::temperature::Temperature;
use crate::truncate::{self, Xtc};

/// One sampler with its state.
#[derive(Clone)]
pub(crate) enum Link {
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
    /// The links from here on draw one candidate and end the chain.
    Dist(Mt19937),
    Mirostat(Mirostat),
    AdaptiveP(AdaptiveP),
    Greedy,
}

impl Link {
    /// Works on the plain logits of the whole vocabulary, where that is possible: no list of candidates is made
    /// before a link needs one. False: not possible, nothing was changed.
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

    fn takes_logits(&self) -> bool {
        matches!(self, Self::LogitBias(_) | Self::Penalties(_) | Self::Dry(_) | Self::TopNSigma(_))
    }

    /// Makes the list of candidates out of the logits and, where that is cheaper than both in turn, applies the link
    /// at once. Returns whether it was applied.
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

    /// Changes the candidates. A link that draws returns the position of its choice.
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
            Self::Dist(rng) => return draw::dist(cands, rng),
            Self::Mirostat(s) => return s.apply(cands),
            Self::AdaptiveP(s) => return s.apply(cands),
            Self::Greedy => return cands.argmax(),
        }
        None
    }

    /// Takes note of a token of the prompt or of the answer.
    pub(crate) fn accept(&mut self, token: u32) {
        match self {
            Self::Penalties(s) => s.accept(token),
            Self::Dry(s) => s.accept(token),
            Self::AdaptiveP(s) => s.accept(token),
            _ => {}
        }
    }
}

/// Samplers in order, with the buffers that they share.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) links: Vec<Link>,
    pub(crate) cands: Candidates,
}

impl Chain {
    /// A chain that ends in the choice of the largest logit whatever the candidates are is shortened to that.
    pub(crate) fn new(mut links: Vec<Link>) -> Self {
        let head = links.iter().take_while(|l| l.takes_logits()).count();
        if picks_the_largest(&links[head..]) {
            links.truncate(head);
            links.push(Link::Greedy);
        }
        Self { links, cands: Candidates::default() }
    }

    /// Runs all links. Returns the position that the last one drew; `None` when it does not draw, or when no token is
    /// possible.
    pub(crate) fn run(&mut self, logits: &mut [f32]) -> Option<usize> {
        let mut next = 0;
        while self.links.get_mut(next).is_some_and(|link| link.apply_to_logits(logits)) {
            next += 1;
        }
        match self.links.get(next) {
            Some(link) => next += usize::from(link.fill(logits, &mut self.cands)),
            None => self.cands.fill(logits),
        }
        if self.cands.max() == f32::NEG_INFINITY {
            return None;
        }
        let cands = &mut self.cands;
        self.links[next..].iter_mut().fold(None, |_, link| link.apply(cands))
    }

    pub(crate) fn accept(&mut self, token: u32) {
        self.links.iter_mut().for_each(|link| link.accept(token));
    }
}

/// Whether links can only choose the largest logit (of equal ones the first), random numbers or not.
fn picks_the_largest(links: &[Link]) -> bool {
    let mut decided = false;
    for link in links {
        match link {
            Link::TopK(k) => decided |= *k == 1,
            Link::Temperature(t) if t.is_dynamic() => return false,
            Link::Temperature(t) => decided |= t.is_greedy(),
            Link::TopP { .. } | Link::MinP { .. } => {}
            Link::Dist(_) | Link::Mirostat(_) => return decided,
            _ => return false,
        }
    }
    false
}
