//! Interface of a runner to an engine. `local` implements it with this program's engine; tests use
//! a fake.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use puna_engine::{EngineError, Request, Sink};
use puna_sampler::{Constraint, Grammar};
pub use puna_tokenizer::EncodeCancelled;

use super::protocol::{Heartbeat, LoadSpec, MemoryParts};
use crate::canonical::TokenizeTask;

/// Plans and loads models.
pub trait Loader: Sync {
    /// Returns the memory that a model needs, computed from the header of its file.
    ///
    /// # Errors
    /// The file is not a model, or its architecture is unknown.
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError>;

    /// Loads a model.
    ///
    /// # Errors
    /// As [`Loader::plan`], and a lack of memory.
    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn RunnerModel>, LoadError>;
}

/// Error of planning or loading a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadError {
    /// Reason.
    pub message: String,
    /// Whether the reason is a lack of memory.
    pub out_of_memory: bool,
    /// Whether the files of the model are at fault.
    pub is_invalid_model: bool,
}

/// Properties of a loaded model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunnerModelInfo {
    /// Tokens of one context.
    pub num_ctx: u32,
    /// Jinja template in the file.
    pub chat_template: Option<String>,
    /// Text of the token that begins every text.
    pub bos: String,
    /// Text of the token that ends a text.
    pub eos: String,
    /// Texts of all tokens that end an answer.
    pub end_texts: Vec<String>,
    /// Whether the model computes embeddings.
    pub embeds: bool,
    /// Layout of query–document pairs, if the model scores them.
    pub pair_format: Option<PairFormat>,
    /// Maximum number of bytes of a text that one token stands for, if there is one.
    pub max_token_bytes: Option<usize>,
    /// Number of loaded adapters.
    pub adapters: usize,
    /// Whether the model is a diffusion model, which fixes the length of an answer at its start.
    pub is_diffusion: bool,
}

/// Layout of a query–document pair in the input of a reranker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairFormat {
    /// Template of the file, with the placeholders `{query}` and `{document}`. Without one, the
    /// token lists below surround the texts.
    pub template: Option<String>,
    /// Tokens before the query.
    pub before: Vec<u32>,
    /// Tokens between query and document.
    pub between: Vec<u32>,
    /// Tokens after the document.
    pub after: Vec<u32>,
}

/// Callback that receives the scores of a request.
pub type RerankCallback = Box<dyn FnOnce(Result<Vec<f32>, EngineError>) + Send>;

/// Callback that receives the vectors of a request.
pub type EmbedCallback = Box<dyn FnOnce(Result<Vec<Vec<f32>>, EngineError>) + Send>;

/// Tokens of a text, unless the encoding was cancelled.
pub type EncodeResult = Result<Vec<u32>, EncodeCancelled>;

/// Flag of encodings that nothing cancels.
pub static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

/// Loaded model. Its tokenizer reads the flag `cancelled` at least once a millisecond, and then
/// returns an error.
pub trait RunnerModel: Send + Sync {
    /// Returns the properties of the model.
    fn model_info(&self) -> &RunnerModelInfo;

    /// Tokenizes a prompt. Parses control tokens in the text, and adds the tokens that the model
    /// wants before and after every text, unless the text has them.
    ///
    /// # Errors
    /// `cancelled` was set.
    fn encode(&self, text: &str, cancelled: &AtomicBool) -> EncodeResult;

    /// Tokenizes any text with the options of the request.
    ///
    /// # Errors
    /// `cancelled` was set.
    fn tokenize(&self, text: &TokenizeTask, cancelled: &AtomicBool) -> EncodeResult;

    /// Tokenizes a text in parts and adds no tokens. The flag of a part says whether control tokens
    /// in it are parsed.
    ///
    /// # Errors
    /// `cancelled` was set.
    fn encode_parts(&self, parts: &[(&str, bool)], cancelled: &AtomicBool) -> EncodeResult;

    /// As [`RunnerModel::encode_parts`], and adds the tokens that the model wants before and after
    /// every text, unless the text has them. If the tokenizer adds a first token, it skips
    /// `leading_bos`: the text that the template writes for that token and that the tokenizer could
    /// read as another one.
    ///
    /// # Errors
    /// `cancelled` was set.
    fn encode_prompt(
        &self,
        parts: &[(&str, bool)],
        leading_bos: &str,
        cancelled: &AtomicBool,
    ) -> EncodeResult;

    /// Returns the byte ranges of control tokens in a text.
    ///
    /// # Errors
    /// `cancelled` was set.
    fn controls_in(
        &self,
        text: &str,
        cancelled: &AtomicBool,
    ) -> Result<Vec<Range<usize>>, EncodeCancelled>;

    /// Returns the text of tokens, including control tokens.
    fn decode(&self, tokens: &[u32]) -> String;

    /// Returns the bytes of one token.
    fn token_bytes(&self, token: u32) -> Vec<u8>;

    /// Returns the control token with this text.
    fn control_token(&self, text: &str) -> Option<u32>;

    /// Whether the tokenizer adds this token before every text.
    fn is_bos(&self, token: u32) -> bool;

    /// Number of tokens in the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Compiles the grammar of a constraint. `whole` is set for an answer that must end before a
    /// limit could cut it.
    ///
    /// # Errors
    /// The reason why the constraint is invalid, or `cancelled` was set.
    fn grammar(
        &self,
        constraint: &Constraint,
        whole: bool,
        cancelled: &AtomicBool,
    ) -> Result<Grammar, String>;

    /// Checks that the engine can run a generation.
    ///
    /// # Errors
    /// The prompt is empty or longer than the context, or the model lacks what the request asks
    /// for.
    fn check_request(&self, request: &Request) -> Result<(), EngineError>;

    /// Starts a generation and returns its number.
    ///
    /// # Errors
    /// As [`RunnerModel::check_request`], or the engine has stopped.
    fn submit(&self, request: Request, sink: Box<dyn Sink>) -> Result<u64, EngineError>;

    /// Ends a generation, embedding or scoring at the next step; it reports nothing more.
    fn cancel(&self, request: u64);

    /// Tells the engine that a sink that was not ready may be ready now.
    fn wake(&self) {}

    /// Starts the embedding of token lists of a client, with the pooling of the model.
    ///
    /// # Errors
    /// An input is empty or longer than the context, or the engine has stopped.
    fn embed(
        &self,
        client: u64,
        inputs: Vec<Vec<u32>>,
        done: EmbedCallback,
    ) -> Result<u64, EngineError>;

    /// Starts the scoring of query–document pairs, each in one list of tokens.
    /// [`RunnerModel::cancel`] ends it.
    ///
    /// # Errors
    /// A pair is empty or longer than the context, or the engine has stopped.
    fn rerank(
        &self,
        client: u64,
        pairs: Vec<Vec<u32>>,
        done: RerankCallback,
    ) -> Result<u64, EngineError>;

    /// Returns the present memory use, load and counters.
    fn heartbeat(&self) -> Heartbeat;
}
