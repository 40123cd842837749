//! Heads of block draft models that make a token's logits depend on the token before it: the Markov
//! head of DSpark and the selector of DFlash 2.

use puna_graph::{Graph, Index, Linear, ValueId, WeightId};

use crate::companion::TransitionHead;
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// Tensor that marks a DFlash 2 selector head.
pub const SELECTOR: &str = "selector_hidden.weight";
/// Tensor that marks a DSpark Markov head.
const MARKOV: &str = "markov_w1.weight";

/// Head that adds transition logits, computed from the embedding of the token before.
pub struct BlockDraftHead {
    /// `[rank, vocabulary]`: short embedding of the token before.
    before: WeightId,
    rank: usize,
    to_logits: Linear,
    kind: HeadKind,
    n_embd: usize,
}

enum HeadKind {
    /// DSpark: the transition logits depend on the token before alone. `confidence` reads the state
    /// and the embedding of the token before.
    Markov { confidence: Option<Linear> },
    /// DFlash 2: the state weighs the embedding of the token before, and the token is one of the
    /// `top_k` likeliest.
    Selector { weights: Linear, top_k: usize, scale: f32, cap: Option<f32> },
}

impl BlockDraftHead {
    /// Loads the head that the file has, if any; `entries` is the number of the draft model's own
    /// logits.
    pub fn load(
        keys: &Keys<'_>,
        w: &mut Weights<'_>,
        (n_embd, n_vocab, entries): (usize, usize, usize),
    ) -> Result<Option<Self>, ModelError> {
        if w.has(SELECTOR) {
            let rank = keys.count("selector_rank")?;
            return Ok(Some(Self {
                before: w.tensor("selector_predecessor.weight", &[rank, n_vocab])?,
                rank,
                to_logits: w.linear("selector_successor", rank, n_vocab)?,
                kind: HeadKind::Selector {
                    weights: w.linear("selector_hidden", n_embd, rank)?,
                    top_k: keys.count("selector_top_k")?,
                    scale: keys.factor("logit_scale")?.unwrap_or(1.0),
                    cap: keys.opt_limit("final_logit_softcapping")?,
                },
                n_embd,
            }));
        }
        let Some(rank) = w.columns(MARKOV) else { return Ok(None) };
        Ok(Some(Self {
            before: w.tensor(MARKOV, &[rank, n_vocab])?,
            rank,
            to_logits: w.linear("markov_w2", rank, entries)?,
            kind: HeadKind::Markov { confidence: w.opt_linear("conf_proj", n_embd + rank, 1)? },
            n_embd,
        }))
    }

    /// Whether the head is a Markov head, which does not read the state for its logits.
    pub fn is_markov(&self) -> bool {
        matches!(self.kind, HeadKind::Markov { .. })
    }

    /// Description of the head for the engine.
    pub fn describe(&self) -> TransitionHead {
        match &self.kind {
            HeadKind::Markov { confidence } => TransitionHead {
                state_dim: if confidence.is_some() { self.n_embd } else { 0 },
                has_confidence: confidence.is_some(),
                top_k: None,
                is_full_vocabulary: false,
            },
            HeadKind::Selector { top_k, .. } => TransitionHead {
                state_dim: self.rank,
                has_confidence: false,
                top_k: Some(*top_k),
                is_full_vocabulary: true,
            },
        }
    }

    /// Adds the states of these rows as an extra output. Returns the logits to which the transition
    /// logits are to be added.
    pub fn prepare(&self, g: &mut Graph, hidden: ValueId, logits: ValueId) -> ValueId {
        match &self.kind {
            HeadKind::Markov { confidence: None } => logits,
            HeadKind::Markov { confidence: Some(_) } => {
                g.add_extra_output(hidden);
                logits
            }
            HeadKind::Selector { weights, scale, cap, .. } => {
                let weights = g.linear("selector_gate", weights, hidden);
                g.add_extra_output(weights);
                let logits = g.scale("result_scaled", logits, *scale);
                cap.map_or(logits, |cap| g.softcap("result_capped", logits, cap))
            }
        }
    }

    /// Transition logits of rows for the token before each; a Markov head adds the confidence as an
    /// extra output.
    pub fn forward(&self, g: &mut Graph) -> ValueId {
        let mut before = g.embed("link_before", self.before, self.rank, Index::Token);
        match &self.kind {
            HeadKind::Markov { confidence: None } => {}
            HeadKind::Markov { confidence: Some(confidence) } => {
                let state = g.input_rows("link_state", self.n_embd);
                let both = g.concat("link_both", state, before);
                let confidence = g.linear("link_sure", confidence, both);
                g.add_extra_output(confidence);
            }
            HeadKind::Selector { .. } => {
                let weights = g.input_rows("link_weights", self.rank);
                before = g.mul("link_weighed", before, weights);
            }
        }
        g.linear("link_logits", &self.to_logits, before)
    }
}
