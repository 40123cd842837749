//! Errors of loading models and of requests.

use puna_graph::{BackendError, KvType};
use puna_models::ModelError;
use puna_tokenizer::TokenizerError;

/// Error for logits of which none is a number.
pub const NOT_A_NUMBER: &str =
    "the model's output is not a number anywhere: the file may be damaged";

/// Error of an engine.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The vocabulary is invalid.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The backend cannot run the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt exceeds the context.
    #[error("the prompt has {tokens} tokens, but the context holds {n_ctx}")]
    PromptTooLong {
        /// Number of prompt tokens.
        tokens: usize,
        /// Context size in tokens.
        n_ctx: usize,
    },
    /// The vocabulary lacks a token.
    #[error("token {token} is not in the vocabulary of {n_vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// Diffusion models do not support an option of the request.
    #[error(
        "a model of architecture {architecture} fills masked places in any order, so that {what} cannot be had from it: ask \
         without it, or take a model that writes token by token"
    )]
    Unmasks {
        /// Architecture of the model.
        architecture: &'static str,
        /// Name of the option.
        what: &'static str,
    },
    /// The request sets diffusion options, but the model is autoregressive.
    #[error(
        "a model of architecture {architecture} writes token by token: diffusion_steps, diffusion_block_length and \
         diffusion_algorithm are for diffusion models alone"
    )]
    WritesInOrder {
        /// Architecture of the model.
        architecture: &'static str,
    },
    /// The number of denoising steps is out of range.
    #[error("diffusion_steps is {steps}: it must be between 1 and {most}")]
    DiffusionSteps {
        /// Requested number.
        steps: usize,
        /// Allowed range.
        most: usize,
    },
    /// The block length is out of range.
    #[error(
        "diffusion_block_length is {length}, but this model fills at most {most} places at once: take a smaller one, or 0 \
         for the whole answer"
    )]
    DiffusionBlock {
        /// Requested length.
        length: usize,
        /// Allowed range.
        most: usize,
    },
    /// The draft model is a diffusion model.
    #[error(
        "a draft model of architecture {architecture} fills masked places and guesses nothing ahead; take one that writes token \
         by token"
    )]
    DiffusionDraft {
        /// Architecture of the draft model.
        architecture: &'static str,
    },
    /// The model is an encoder and cannot generate.
    #[error("this model makes embeddings and cannot generate text")]
    CannotGenerate,
    /// The model has no embeddings.
    #[error("this model cannot make embeddings")]
    CannotEmbed,
    /// The model has no classifier for reranking.
    #[error("this model does not rank texts")]
    CannotRank,
    /// The vocabularies of draft model and target differ.
    #[error(
        "`{draft}` cannot be the draft model of `{model}`: {difference}; take a small model of the same family, with the same \
         tokenizer"
    )]
    DraftVocabulary {
        /// Name of the draft model.
        draft: String,
        /// Name of the target model.
        model: String,
        /// First difference.
        difference: String,
    },
    /// The draft model is recurrent, so that rejected tokens cannot be rolled back.
    #[error(
        "a draft model of architecture {architecture} is recurrent and cannot take back what did not come true; take one that \
         only attends"
    )]
    RecurrentDraft {
        /// Architecture of the draft model.
        architecture: &'static str,
    },
    /// The draft model is an encoder–decoder model.
    #[error(
        "a draft model of architecture {architecture} reads prompts with an encoder and cannot go on with what another model \
         writes; take one without"
    )]
    EncoderDraft {
        /// Architecture of the draft model.
        architecture: &'static str,
    },
    /// The cache type does not fit the head size of the companion draft model.
    #[error(
        "the draft model has heads of {dim} features, and a {ty} cache needs multiples of {multiple}: use f16, or run the model \
         without it"
    )]
    DraftCacheType {
        /// Cache type.
        ty: KvType,
        /// Required multiple of head sizes.
        multiple: usize,
        /// Head size.
        dim: usize,
    },
    /// Encoder–decoder models have no log-probabilities of the prompt.
    #[error(
        "an encoder reads the prompt of this model as a whole, which gives no log-probabilities of its tokens"
    )]
    CannotScorePrompt,
    /// The engine loop has stopped.
    #[error("the engine has stopped")]
    Stopped,
}
