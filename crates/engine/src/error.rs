//! Errors of loading models and of requests.

use puna_graph::{BackendError, KvType};
use puna_models::ModelError;
use puna_tokenizer::TokenizerError;

/// Error for logits of which none is a number.
pub const NOT_A_NUMBER: &str =
    "all logits are NaN: the model file may be damaged, check it with `puna verify`";

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
    #[error("the prompt has {tokens} tokens, but the context has {n_ctx}")]
    PromptTooLong {
        /// Number of prompt tokens.
        tokens: usize,
        /// Context size in tokens.
        n_ctx: usize,
    },
    /// The vocabulary lacks a token.
    #[error("token {token} is not in the vocabulary of {n_vocab} tokens")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// Diffusion models do not support an option of the request.
    #[error(
        "diffusion models (architecture {architecture}) do not support {what}: leave it out, or use an autoregressive model"
    )]
    UnsupportedByDiffusion {
        /// Architecture of the model.
        architecture: &'static str,
        /// Name of the option.
        what: &'static str,
    },
    /// The request sets diffusion options, but the model is autoregressive.
    #[error(
        "architecture {architecture} is not a diffusion model: leave out diffusion_steps, diffusion_block_length and diffusion_algorithm"
    )]
    NotADiffusionModel {
        /// Architecture of the model.
        architecture: &'static str,
    },
    /// The number of denoising steps is out of range.
    #[error("diffusion_steps is {steps}: it must be between 1 and {max}")]
    DiffusionSteps {
        /// Requested number.
        steps: usize,
        /// Largest allowed number of steps.
        max: usize,
    },
    /// The block length is out of range.
    #[error(
        "diffusion_block_length is {length}, but this model allows at most {max}: use a smaller one, or 0 for the whole answer"
    )]
    DiffusionBlock {
        /// Requested length.
        length: usize,
        /// Largest allowed length in tokens.
        max: usize,
    },
    /// The draft model is a diffusion model.
    #[error(
        "cannot draft with a diffusion model (architecture {architecture}): use an autoregressive draft model"
    )]
    DiffusionDraft {
        /// Architecture of the draft model.
        architecture: &'static str,
    },
    /// The model is an encoder and cannot generate.
    #[error("this is an embedding model, it does not generate text")]
    CannotGenerate,
    /// A picture does not fit the vision tower.
    #[error(transparent)]
    TowerInput(#[from] puna_models::TowerInputError),
    /// The media of a request do not match its prompt.
    #[error("the media of the request are not at the places that its prompt has for them")]
    MediaPlaces,
    /// An option cannot be used with media.
    #[error(
        "log-probabilities of the prompt (prompt_logprobs) are not available for prompts with pictures: leave the option out"
    )]
    CannotScoreMedia,
    /// The model takes no rows of media in this kind of step.
    #[error("this model takes no pictures")]
    NoMedia,
    /// The rows of a medium do not fit the model.
    #[error(
        "the projector makes rows of {media} values, but the model takes rows of {width}: use the projector of this model"
    )]
    MediaWidth {
        /// Columns of the rows.
        media: usize,
        /// Columns that the model takes.
        width: usize,
    },
    /// The model has no embeddings.
    #[error("this model does not support embeddings")]
    CannotEmbed,
    /// The model has no classifier for reranking.
    #[error("this model does not support reranking")]
    CannotRank,
    /// The vocabularies of draft model and target differ.
    #[error(
        "`{draft}` cannot be the draft model of `{model}`: {difference}; use a small model of the same family, with the same tokenizer"
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
        "cannot draft with a recurrent model (architecture {architecture}), which cannot roll back rejected tokens: use a draft model with attention only"
    )]
    RecurrentDraft {
        /// Architecture of the draft model.
        architecture: &'static str,
    },
    /// The draft model is an encoder–decoder model.
    #[error(
        "cannot draft with an encoder–decoder model (architecture {architecture}): use a decoder-only draft model"
    )]
    EncoderDraft {
        /// Architecture of the draft model.
        architecture: &'static str,
    },
    /// The cache type does not fit the head size of the companion draft model.
    #[error(
        "a {ty} cache needs head sizes that are a multiple of {multiple}, but the draft model has {dim}: use f16, or run the model without the draft model"
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
    #[error("this encoder–decoder model does not support log-probabilities of the prompt")]
    CannotScorePrompt,
    /// The engine loop has stopped.
    #[error("the engine has stopped")]
    Stopped,
}
