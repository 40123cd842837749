//! The trait that every architecture implements, with the options and the result of loading it.

use puna_graph::{CacheLayer, Graph, ValueId};

use crate::hparams::Hparams;

/// Parameters of a diffusion model, which replaces mask tokens by tokens in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmasking {
    /// Mask token.
    pub mask: u32,
    /// Whether the prediction of a masked position is in the row before it.
    pub is_shifted: bool,
    /// Positions of a block, which is unmasked completely before the next one, as published; `None`
    /// for the whole answer.
    pub block: Option<usize>,
    /// Order of unmasking, as published.
    pub order: UnmaskOrder,
}

/// Order in which masked positions become tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnmaskOrder {
    /// Highest probability of the likeliest token first.
    Confidence,
    /// Lowest entropy first.
    Entropy,
    /// Largest difference of the two highest probabilities first.
    Margin,
    /// Random positions, of the number that is due.
    Random,
    /// Each position with the same probability, so that the number that is due is the expected
    /// value.
    Origin,
}

/// An architecture with loaded weights, which records its graph.
pub(crate) trait Architecture: Send + Sync {
    /// Records a step from token ids to the final hidden states after the last norm. If
    /// `outputs_only`, rows without output may be dropped.
    fn hidden(&self, g: &mut Graph, outputs_only: bool) -> ValueId;

    /// Records the step in which an encoder reads prompts and stores keys and values for the
    /// decoder; `None` for models without a separate encoder.
    fn encode(&self, _g: &mut Graph) -> Option<ValueId> {
        None
    }

    /// Records the logits of final hidden states.
    fn logits(&self, g: &mut Graph, hidden: ValueId) -> ValueId;

    /// Records the classifier head; `None` if the file has none.
    fn score(&self, _g: &mut Graph, _hidden: ValueId) -> Option<ValueId> {
        None
    }
}

/// A loaded architecture with its cache layers and sizes.
pub(crate) struct LoadedArchitecture {
    pub arch: Box<dyn Architecture>,
    /// KV cache layers; empty for encoders.
    pub cache: Vec<CacheLayer>,
    pub shape: ModelShape,
}

/// Sizes and properties of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    /// Context length of the training, in tokens.
    pub n_ctx: usize,
    /// Dimensions of a hidden state.
    pub n_embd: usize,
    /// Number of layers.
    pub n_layer: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Whether attention is causal; encoders are not.
    pub causal: bool,
    /// Whether the model has an output matrix over the vocabulary.
    pub has_logits: bool,
    /// First token of an answer, if an encoder reads the prompt ([`crate::StepKind::Encode`]).
    pub start_token: Option<u32>,
    /// Labels of the classifier head; zero without one.
    pub score_labels: usize,
    /// Whether scores are the softmax of the classifier's outputs.
    pub score_is_softmax: bool,
    /// Parameters of a diffusion model; `None` for token-by-token generation.
    pub unmasking: Option<Unmasking>,
}

impl ModelShape {
    /// Causal decoder with an output matrix.
    pub(crate) fn decoder(hp: &Hparams) -> Self {
        let Hparams { n_ctx, n_embd, n_layer, n_vocab, .. } = *hp;
        Self {
            n_ctx,
            n_embd,
            n_layer,
            n_vocab,
            causal: true,
            has_logits: true,
            start_token: None,
            score_labels: 0,
            score_is_softmax: false,
            unmasking: None,
        }
    }
}

/// Options that the caller sets before loading.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions {
    /// Context length of a sequence in tokens, which selects the factors of LongRoPE models; `None`
    /// for the training context.
    pub n_ctx: Option<usize>,
}
