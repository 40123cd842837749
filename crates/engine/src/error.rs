//! Why the engine cannot load a model or take a job.

use puna_graph::{BackendError, KvType};
use puna_models::ModelError;
use puna_tokenizer::TokenizerError;

/// What went wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The file is no model that this program can run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its vocabulary cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The backend cannot run it.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A job without a token.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A prompt that does not fit.
    #[error("the prompt has {tokens} tokens, but the context holds {n_ctx}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        n_ctx: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is not in the vocabulary of {n_vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A diffusion model was asked for what only models give that write token by token.
    #[error(
        "a model of architecture {architecture} fills masked places in any order, so that {what} cannot be had from it: ask \
         without it, or take a model that writes token by token"
    )]
    Unmasks {
        /// The model's architecture.
        architecture: &'static str,
        /// What was asked for.
        what: &'static str,
    },
    /// A model that writes token by token was told how to fill masks.
    #[error(
        "a model of architecture {architecture} writes token by token: diffusion_steps, diffusion_block_length and \
         diffusion_algorithm are for diffusion models alone"
    )]
    WritesInOrder {
        /// The model's architecture.
        architecture: &'static str,
    },
    /// Steps that no answer takes.
    #[error("diffusion_steps is {steps}: it must be between 1 and {most}")]
    DiffusionSteps {
        /// The number that was asked for.
        steps: usize,
        /// What it may be.
        most: usize,
    },
    /// A block whose logits do not fit.
    #[error(
        "diffusion_block_length is {length}, but this model fills at most {most} places at once: take a smaller one, or 0 \
         for the whole answer"
    )]
    DiffusionBlock {
        /// The length that was asked for.
        length: usize,
        /// What it may be.
        most: usize,
    },
    /// A draft model that does not write token by token.
    #[error(
        "a draft model of architecture {architecture} fills masked places and guesses nothing ahead; take one that writes token \
         by token"
    )]
    DiffusionDraft {
        /// The draft model's architecture.
        architecture: &'static str,
    },
    /// An encoder was asked to generate.
    #[error("this model makes embeddings and cannot generate text")]
    CannotGenerate,
    /// A model without that output was asked for embeddings.
    #[error("this model cannot make embeddings")]
    CannotEmbed,
    /// A model without a classifier was asked for scores.
    #[error("this model does not rank texts")]
    CannotRank,
    /// A draft model whose tokens are not those of the model that it is to guess for.
    #[error(
        "`{draft}` cannot be the draft model of `{model}`: {difference}; take a small model of the same family, with the same \
         tokenizer"
    )]
    DraftVocabulary {
        /// The draft model.
        draft: String,
        /// The model.
        model: String,
        /// The first difference.
        difference: String,
    },
    /// A draft model whose guesses cannot be taken back.
    #[error(
        "a draft model of architecture {architecture} is recurrent and cannot take back what did not come true; take one that \
         only attends"
    )]
    RecurrentDraft {
        /// The draft model's architecture.
        architecture: &'static str,
    },
    /// A draft model that reads prompts in another way than it writes.
    #[error(
        "a draft model of architecture {architecture} reads prompts with an encoder and cannot go on with what another model \
         writes; take one without"
    )]
    EncoderDraft {
        /// The draft model's architecture.
        architecture: &'static str,
    },
    /// A draft model whose keys and values the cache of its model cannot hold.
    #[error(
        "the draft model has heads of {dim} features, and a {ty} cache needs multiples of {multiple}: use f16, or run the model \
         without it"
    )]
    DraftCacheType {
        /// The type.
        ty: KvType,
        /// What head sizes must be a multiple of.
        multiple: usize,
        /// The head size.
        dim: usize,
    },
    /// Log-probabilities of a prompt that an encoder reads.
    #[error(
        "an encoder reads the prompt of this model as a whole, which gives no log-probabilities of its tokens"
    )]
    CannotScorePrompt,
    /// The loop has ended.
    #[error("the engine has stopped")]
    Stopped,
}
