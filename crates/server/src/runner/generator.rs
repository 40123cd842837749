//! What a runner needs of an engine. The engine of this program is behind it, and in tests a fake.

use std::ops::Range;

use puna_engine::{EngineError, Request, Sink};
use puna_sampler::{Constraint, Grammar};

use super::protocol::{LoadSpec, MemoryParts, Pulse};
use crate::canonical::Tokenize;

/// Loads models.
pub trait Loader: Sync {
    /// The bytes that a model is going to need, known from its file's header alone.
    ///
    /// # Errors
    /// The file is none, or of a kind that is not known.
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError>;

    /// Loads a model.
    ///
    /// # Errors
    /// As [`Loader::plan`], and want of memory.
    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn Generator>, LoadError>;
}

/// A model cannot be loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadError {
    /// Why.
    pub message: String,
    /// Whether for want of memory.
    pub out_of_memory: bool,
}

/// What is known about a loaded model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// Tokens of one conversation.
    pub num_ctx: u32,
    /// The Jinja template in the file.
    pub chat_template: Option<String>,
    /// Text of the token that begins every text.
    pub bos: String,
    /// Text of the token that ends a text.
    pub eos: String,
    /// Texts of all tokens that end an answer.
    pub ends: Vec<String>,
    /// Whether the model makes vectors of texts.
    pub embeds: bool,
    /// How it wants a query and a document put together, if it scores such pairs.
    pub ranks: Option<PairForm>,
    /// How many adapters it was loaded with.
    pub adapters: usize,
    /// Whether it is a diffusion model, whose answers are as long as they begin.
    pub unmasks: bool,
}

/// How a query and a document become a reranker's input.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairForm {
    /// The file's own template, in which `{query}` and `{document}` stand for the texts. Without one the texts come
    /// between tokens.
    pub template: Option<String>,
    /// Tokens before the query.
    pub before: Vec<u32>,
    /// Tokens between the two.
    pub between: Vec<u32>,
    /// Tokens behind the document.
    pub after: Vec<u32>,
}

/// Receives the scores of a request.
pub type RankDone = Box<dyn FnOnce(Result<Vec<f32>, EngineError>) + Send>;

/// Receives the vectors of a request.
pub type EmbedDone = Box<dyn FnOnce(Result<Vec<Vec<f32>>, EngineError>) + Send>;

/// A loaded model.
pub trait Generator: Send + Sync {
    /// What is known about it.
    fn facts(&self) -> &Facts;

    /// Tokens of a prompt: special tokens in the text are read as such; what the model wants before and after every
    /// text is added unless it is there.
    fn encode(&self, text: &str) -> Vec<u32>;

    /// Tokens of any text, as asked for.
    fn tokenize(&self, text: &Tokenize) -> Vec<u32>;

    /// Tokens of a text in parts, for each of which is said whether special tokens in it are read as such; nothing is added.
    fn encode_parts(&self, parts: &[(&str, bool)]) -> Vec<u32>;

    /// The same with what the model wants before and after every text, unless it is there. Where a first token comes by itself,
    /// `leading_bos` is not read, the template's text for it, which the tokenizer could read as another token.
    fn encode_prompt(&self, parts: &[(&str, bool)], leading_bos: &str) -> Vec<u32>;

    /// Where special tokens are written in a text.
    fn controls_in(&self, text: &str) -> Vec<Range<usize>>;

    /// The text of tokens, special ones included.
    fn decode(&self, tokens: &[u32]) -> String;

    /// The bytes of one token's text.
    fn token_bytes(&self, token: u32) -> Vec<u8>;

    /// The control token of a text, if there is one.
    fn control_token(&self, text: &str) -> Option<u32>;

    /// Whether a token is only there because every text begins with it.
    fn is_bos(&self, token: u32) -> bool;

    /// Number of tokens there are.
    fn vocab_size(&self) -> usize;

    /// The grammar of an answer's form; `whole` for an answer that is ended before a limit could cut it.
    ///
    /// # Errors
    /// What is wrong with the form.
    fn grammar(&self, form: &Constraint, whole: bool) -> Result<Grammar, String>;

    /// Checks that a generation can be done.
    ///
    /// # Errors
    /// The prompt is empty or longer than the context, or the model cannot give what is asked for.
    fn check_request(&self, job: &Request) -> Result<(), EngineError>;

    /// Starts a generation.
    ///
    /// # Errors
    /// As [`Generator::check_request`], or the engine has stopped.
    fn submit(&self, job: Request, sink: Box<dyn Sink>) -> Result<u64, EngineError>;

    /// Ends a generation or an embedding at the next step; it reports nothing more.
    fn cancel(&self, job: u64);

    /// A sink that was not ready may be ready now.
    fn wake(&self) {}

    /// Starts to turn token lists into vectors, as the model's pooling gives them.
    ///
    /// # Errors
    /// An input is empty or longer than the context, or the engine has stopped.
    fn embed(&self, inputs: Vec<Vec<u32>>, done: EmbedDone) -> Result<u64, EngineError>;

    /// Starts to score pairs of texts, each as one list of tokens. It is ended by [`Generator::cancel`], too.
    ///
    /// # Errors
    /// A pair is empty or longer than the context, or the engine has stopped.
    fn rank(&self, pairs: Vec<Vec<u32>>, done: RankDone) -> Result<u64, EngineError>;

    /// Where the memory goes now, and whether there is progress.
    fn pulse(&self) -> Pulse;
}
