//! What a guessed token depends on beside its own row: the guess before it.

use puna_graph::{Graph, Index, Linear, ValueId, WeightId};

use crate::companion;
use crate::error::ModelError;
use crate::hparams::Keys;
use crate::weights::Weights;

/// The tensor that says that states weigh the guess before.
pub const SELECTOR: &str = "selector_hidden.weight";
/// The tensor that says that it counts alone.
const MARKOV: &str = "markov_w1.weight";

/// How a token's logits depend on the token before.
pub struct Link {
    /// A short vector for each token.
    before: WeightId,
    rank: usize,
    to_logits: Linear,
    kind: Kind,
    n_embd: usize,
}

enum Kind {
    /// DSpark: by the token before alone. How sure it is, it says of both the token before and the state.
    Markov { sure: Option<Linear> },
    /// DFlash 2: the state weighs the token before, and one of the likeliest is chosen.
    Selector { weigh: Linear, choices: usize, scale: f32, cap: Option<f32> },
}

impl Link {
    /// The one that a file has, if it has one; `entries` are those of its own logits.
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
                kind: Kind::Selector {
                    weigh: w.linear("selector_hidden", n_embd, rank)?,
                    choices: keys.count("selector_top_k")?,
                    scale: keys.factor("logit_scale")?.unwrap_or(1.0),
                    cap: keys.bound("final_logit_softcapping")?,
                },
                n_embd,
            }));
        }
        let Some(rank) = w.columns(MARKOV) else { return Ok(None) };
        Ok(Some(Self {
            before: w.tensor(MARKOV, &[rank, n_vocab])?,
            rank,
            to_logits: w.linear("markov_w2", rank, entries)?,
            kind: Kind::Markov { sure: w.opt_linear("conf_proj", n_embd + rank, 1)? },
            n_embd,
        }))
    }

    /// Whether the token before counts alone.
    pub fn is_markov(&self) -> bool {
        matches!(self.kind, Kind::Markov { .. })
    }

    /// Its form.
    pub fn form(&self) -> companion::Link {
        match &self.kind {
            Kind::Markov { sure } => companion::Link {
                state: if sure.is_some() { self.n_embd } else { 0 },
                says_how_sure: sure.is_some(),
                choices: None,
                by_token: false,
            },
            Kind::Selector { choices, .. } => companion::Link {
                state: self.rank,
                says_how_sure: false,
                choices: Some(*choices),
                by_token: true,
            },
        }
    }

    /// Hands out the states that belong to these rows; the result are logits as they are to be added to.
    pub fn prepare(&self, g: &mut Graph, hidden: ValueId, logits: ValueId) -> ValueId {
        match &self.kind {
            Kind::Markov { sure: None } => logits,
            Kind::Markov { sure: Some(_) } => {
                g.add_extra_output(hidden);
                logits
            }
            Kind::Selector { weigh, scale, cap, .. } => {
                let weights = g.linear("selector_gate", weigh, hidden);
                g.add_extra_output(weights);
                let logits = g.scale("result_scaled", logits, *scale);
                cap.map_or(logits, |cap| g.softcap("result_capped", logits, cap))
            }
        }
    }

    /// What is added to the logits of rows for the tokens before them, and how sure it is.
    pub fn forward(&self, g: &mut Graph) -> ValueId {
        let mut before = g.embed("link_before", self.before, self.rank, Index::Token);
        match &self.kind {
            Kind::Markov { sure: None } => {}
            Kind::Markov { sure: Some(sure) } => {
                let state = g.given("link_state", self.n_embd);
                let both = g.concat("link_both", state, before);
                let sure = g.linear("link_sure", sure, both);
                g.add_extra_output(sure);
            }
            Kind::Selector { .. } => {
                let weights = g.given("link_weights", self.rank);
                before = g.mul("link_weighed", before, weights);
            }
        }
        g.linear("link_logits", &self.to_logits, before)
    }
}
