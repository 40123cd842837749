//! The canonical request and the canonical event stream, which every dialect translates to and
//! from.
//!
//! These types also cross the socket to the runner. They hold everything about the model that a
//! runner needs besides the weights, because models of several names can share one runner.

use std::time::Duration;

use puna_api::ollama::{Image, Logprob, Message, PromptLogprob, Think, Tool, ToolChoice};
use puna_sampler::{Constraint, Params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::options::diffusion::DiffusionOptions;
use crate::options::speculate::{DraftCounts, SpeculationMode};

/// A task for a runner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    /// Generate text.
    Generate(Box<GenerateTask>),
    /// Count the prompt tokens of a generation.
    Count(Box<GenerateTask>),
    /// Compute embedding vectors of texts.
    Embed(EmbedTask),
    /// Score documents by their relevance to a query.
    Rerank(RerankTask),
    /// Tokenize a text.
    Tokenize(TokenizeTask),
    /// Convert tokens to text, special tokens included.
    Detokenize(Vec<u32>),
}

impl Task {
    /// Approximate bytes of text to process before the task can start.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Embed(embed) => embed.inputs.iter().map(EmbedText::bytes).sum(),
            Self::Rerank(rerank) => {
                rerank.documents.iter().map(|text| text.len() + rerank.query.len()).sum()
            }
            Self::Tokenize(tokenize) => tokenize.text.len(),
            // Estimate: four bytes of text per token.
            Self::Detokenize(tokens) => 4 * tokens.len(),
            Self::Generate(generate) | Self::Count(generate) => generate.text_bytes(),
        }
    }

    /// Whether a grammar has to be compiled first. That can take long even for a small grammar.
    pub fn has_constraint(&self) -> bool {
        let Self::Generate(generate) = self else { return false };
        generate.format.is_some()
            || matches!(generate.tool_choice, ToolChoice::Required | ToolChoice::Named(_))
    }
}

/// Bytes of text that can be processed in the time of one grammar byte.
const GRAMMAR_WEIGHT: usize = 64;

/// Approximate bytes of the texts in the values of a JSON object.
pub(crate) fn object_bytes(map: &Map<String, Value>) -> usize {
    map.values().map(json_bytes).sum()
}

/// Approximate bytes of the texts in a JSON value.
pub(crate) fn json_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(json_bytes).sum::<usize>() + 1,
        Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() + 4 + json_bytes(value)).sum()
        }
        _ => 4,
    }
}

/// A generation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GenerateTask {
    /// Prompt settings of the model's manifest.
    pub model: PromptConfig,
    /// The conversation or prompt.
    pub input: Input,
    /// Generation options.
    pub options: RunOptions,
    /// Whether and how much to reason; `None` is the model's default.
    pub think: Option<Think>,
    /// Additional variables for a Jinja chat template.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub variables: Map<String, Value>,
    /// Constraint on the answer.
    pub format: Option<Constraint>,
    /// Name, description and strictness of the schema, which only remote servers receive.
    #[serde(default)]
    pub schema_label: SchemaLabel,
    /// Which tools the model may or must call.
    pub tool_choice: ToolChoice,
    /// Whether the answer may contain several parallel tool calls.
    pub parallel_tool_calls: bool,
    /// How to treat a prompt that is too long.
    pub overflow: Overflow,
    /// Whether a context shift drops older tokens when the context is full.
    pub shift: bool,
    /// Report log-probabilities, with this many alternatives each.
    pub logprobs: Option<usize>,
    /// Report log-probabilities of the prompt, with this many alternatives each.
    pub prompt_logprobs: Option<usize>,
    /// Send call arguments while they are generated ([`Event::CallArguments`]), and also calls that
    /// are cut off. Otherwise only complete calls are sent, and incomplete ones become content.
    pub stream_calls: bool,
    /// Answer with the rendered prompt instead of generating.
    pub render_only: bool,
    /// Separates the cached prefixes of requests of one client; `None` for requests without a salt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// Namespace of the prefixes that the request finds in the cache.
    #[serde(default)]
    pub cache_namespace: u128,
}

/// How to treat a prompt that does not fit into the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overflow {
    /// Reject the request.
    Refuse,
    /// Drop the oldest messages except system messages and the last message, as Ollama does. A
    /// prompt that is still too long is cut in its middle.
    DropMessages,
    /// Drop the oldest turns except the first and the newest, then cut the longest tool result in
    /// its middle. Reject a conversation that is still too long.
    DropTurns,
}

/// Metadata of a JSON Schema in a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SchemaLabel {
    /// Name of the schema.
    pub name: Option<String>,
    /// Description of the schema.
    pub description: Option<String>,
    /// Whether the answer must match it exactly.
    pub strict: Option<bool>,
}

/// Maximum total bytes of the copies of a prompt for several answers.
const MAX_REPLICATED_BYTES: usize = 256 << 20;

impl GenerateTask {
    /// Approximate bytes of text to process before the generation can start.
    pub fn text_bytes(&self) -> usize {
        let message = |m: &Message| {
            let calls = m.tool_calls.iter().map(|call| 64 + object_bytes(&call.function.arguments));
            let images = m.images.iter().map(|image| image.bytes().len());
            m.content.len() + m.thinking.len() + calls.chain(images).sum::<usize>()
        };
        let input = match &self.input {
            Input::Chat { messages, tools } => {
                messages.iter().map(message).sum::<usize>()
                    + tools.iter().map(|tool| json_bytes(&tool.0)).sum::<usize>()
            }
            Input::Prompt(prompt) => {
                let tokens = [&prompt.context, &prompt.tokens]
                    .into_iter()
                    .flatten()
                    .map(Vec::len)
                    .sum::<usize>();
                prompt.text.len() + prompt.suffix.len() + 4 * tokens
            }
        };
        // Compiling a grammar takes far longer than tokenizing a text of the same size.
        let forced = match (&self.input, &self.tool_choice) {
            (Input::Chat { tools, .. }, ToolChoice::Required | ToolChoice::Named(_)) => {
                tools.iter().map(|tool| json_bytes(&tool.0)).sum()
            }
            _ => 0,
        };
        input
            + object_bytes(&self.variables)
            + GRAMMAR_WEIGHT * (forced + self.format.as_ref().map_or(0, Constraint::bytes))
    }

    /// Copies the generation `count` times, each copy with the next seed.
    ///
    /// # Errors
    /// The copies together exceed 256 MiB.
    pub fn replicate(self, count: usize) -> Result<Vec<Self>, ApiError> {
        let bytes = self.text_bytes();
        if count > 1 && bytes.saturating_mul(count) > MAX_REPLICATED_BYTES {
            return Err(ApiError::bad_request(format!(
                "{count} answers to a prompt of {bytes} bytes exceed the limit: request fewer answers"
            )));
        }
        let one = |i: usize| {
            let mut generate = self.clone();
            let seed = &mut generate.options.sampling.seed;
            // A negative seed stays, so that each copy draws its own seed.
            if *seed >= 0 {
                *seed = seed.saturating_add(i as i64);
            }
            generate
        };
        Ok((0..count).map(one).collect())
    }
}

/// Prompt settings of a model's manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PromptConfig {
    /// Name of the model. Clients share the cached public prefix of models with one name only, so
    /// that its use does not tell of a model that they may not see.
    #[serde(default)]
    pub name: String,
    /// Built-in renderer, which takes precedence over all templates.
    pub renderer: Option<String>,
    /// Go template; `None` uses the template of the GGUF file.
    pub template: Option<String>,
    /// Which template to use when the manifest has a Go template and the file has its own; `None`
    /// is automatic.
    pub go_template: Option<bool>,
    /// The system message.
    pub system: Option<String>,
    /// Messages inserted before every conversation.
    pub messages: Vec<Message>,
    /// Built-in output parser.
    pub parser: Option<String>,
    /// Whether the model reasons.
    pub thinking: bool,
    /// Whether the prompt omits the reasoning of earlier turns.
    pub strip_thoughts: bool,
}

/// The conversation or prompt.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Input {
    /// A conversation.
    Chat {
        /// Its messages.
        messages: Vec<Message>,
        /// Tools that the model may call.
        tools: Vec<Tool>,
    },
    /// A single prompt.
    Prompt(Prompt),
}

/// A single prompt.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Prompt {
    /// The text.
    pub text: String,
    /// Text after the gap to fill in.
    pub suffix: String,
    /// Replaces the model's system message.
    pub system: Option<String>,
    /// Replaces the model's template (Go).
    pub template: Option<String>,
    /// Whether the text is the model's input without any template.
    pub raw: bool,
    /// Tokens of an earlier answer to continue.
    pub context: Option<Vec<u32>>,
    /// Images before the text. Only remote models receive them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// The model's input as tokens, instead of all fields above.
    pub tokens: Option<Vec<u32>>,
}

/// Generation options.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunOptions {
    /// Sampling parameters.
    pub sampling: Params,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// Whether the stop strings come from the request and so apply to the answer only. Stop strings
    /// of the model apply to reasoning too.
    #[serde(default, rename = "has_own_stops")]
    pub has_request_stops: bool,
    /// Maximum tokens to generate; negative is ten times the context size.
    pub num_predict: i64,
    /// Prompt tokens that a context shift keeps; negative keeps all of them.
    pub num_keep: i64,
    /// Speculation mode.
    pub speculate: SpeculationMode,
    /// Whether the model or the request sets the mode, and not only the configuration.
    #[serde(default)]
    pub speculate_explicit: bool,
    /// Maximum draft tokens per step; `None` is automatic.
    pub draft_num_predict: Option<u32>,
    /// Maximum reasoning tokens; `None` is no limit, or the limit of the reasoning level.
    pub think_budget: Option<u32>,
    /// Context size in tokens of prompt and answer; `None` is the runner's maximum, which also
    /// bounds this value.
    pub num_ctx: Option<u32>,
    /// Indices and scales of the adapters to apply. Others are off; `None` applies all with their
    /// own scales.
    pub adapters: Option<Vec<(u32, f32)>>,
    /// Denoising options of diffusion models.
    #[serde(default)]
    pub diffusion: DiffusionOptions,
    /// Parameters that the model or the request sets explicitly, by name, for remote models. The
    /// remote server chooses all others.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub explicit_parameters: Map<String, Value>,
}

/// An embedding task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EmbedTask {
    /// The texts.
    pub inputs: Vec<EmbedText>,
    /// Whether texts that are too long are cut at their end.
    pub truncate: bool,
    /// Maximum tokens of a text; `None` is the runner's maximum, which also bounds this value.
    pub num_ctx: Option<u32>,
    /// See [`RunOptions::explicit_parameters`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub explicit_parameters: Map<String, Value>,
}

/// Input of an embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EmbedText {
    /// A text.
    Text(String),
    /// Tokens of the model's input.
    Tokens(Vec<u32>),
}

impl EmbedText {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(tokens) => 4 * tokens.len(),
        }
    }
}

/// Result of an embedding task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbedResult {
    /// One vector per text, in input order, as the model's pooling returns it.
    pub vectors: Vec<Vec<f32>>,
    /// Input tokens of all texts, after truncation.
    pub tokens: u64,
    /// Indices of truncated texts, each with the number of dropped tokens.
    pub cut: Vec<(usize, u64)>,
}

/// A ranking task: documents to score by their relevance to a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RerankTask {
    /// The query.
    pub query: String,
    /// The documents.
    pub documents: Vec<String>,
    /// Whether a document that is too long for the context is cut at its end.
    pub truncate: bool,
    /// Maximum tokens per document; longer ones are cut.
    pub document_tokens: Option<usize>,
    /// Maximum tokens per query–document pair with the tokens around them; longer documents are
    /// cut.
    pub pair_tokens: Option<usize>,
    /// Limit of the pair's context in tokens, below the model's own.
    pub num_ctx: Option<u32>,
}

/// Result of a ranking task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RerankScores {
    /// One score per document, in input order, as the model's head returns it.
    pub scores: Vec<f32>,
    /// Tokens of all pairs.
    pub tokens: u64,
    /// Indices of truncated documents, each with the number of dropped tokens.
    pub cut: Vec<(usize, u64)>,
}

/// A tokenization task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TokenizeTask {
    /// The text.
    pub text: String,
    /// Whether to add the model's begin and end tokens.
    pub add_special: bool,
    /// Whether to parse special tokens in the text.
    pub parse_special: bool,
}

/// Event of a task: any number of intermediate events, then one final event ([`Event::is_end`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The conversation was adapted to the model's template in these ways
    /// ([`puna_prompt::Adaptation::as_str`]). Precedes all other events; optional.
    Adapted(Vec<String>),
    /// Schema keywords that the grammar does not enforce and that are checked on the finished
    /// answer. Precedes [`Event::Started`]; optional.
    SchemaUnenforced(Vec<String>),
    /// The prompt is accepted and waits to be computed. Precedes all generated output; optional.
    Started {
        /// Prompt tokens.
        prompt_tokens: u64,
    },
    /// Progress of the prefill.
    Progress {
        /// Prompt tokens computed so far.
        done: u64,
        /// Total prompt tokens.
        total: u64,
    },
    /// Log-probabilities of the next prompt tokens, if requested.
    Prompt(Vec<PromptLogprob>),
    /// A piece of the reasoning.
    Thinking(Piece),
    /// A piece of the answer.
    Content(Piece),
    /// Start of a tool call. Several may be open at once; `index` distinguishes them.
    CallStart {
        /// Index of the call in the answer.
        index: usize,
        /// Identifier of the call.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// Next part of a call's arguments. The concatenated parts are a prefix of a JSON object's
    /// text.
    CallArguments {
        /// Index of the call in the answer.
        index: usize,
        /// The text.
        text: String,
    },
    /// End of a tool call.
    CallEnd {
        /// Index of the call in the answer.
        index: usize,
        /// How it ended.
        outcome: CallOutcome,
    },
    /// Final event: the rendered prompt, if only that was requested.
    Rendered(String),
    /// Final event of a generation.
    Done(Box<GenerationSummary>),
    /// Final event: vectors of texts.
    Embedded(EmbedResult),
    /// Final event: scores of documents.
    Reranked(RerankScores),
    /// Final event: number of prompt tokens.
    Counted(u64),
    /// Final event: tokens of a text.
    Tokens(Vec<u32>),
    /// Final event: text of tokens.
    Text(String),
    /// Final event: an error.
    Error(ApiError),
}

impl Event {
    /// Whether this is the final event of its task.
    pub fn is_end(&self) -> bool {
        !matches!(
            self,
            Self::Adapted(_)
                | Self::SchemaUnenforced(_)
                | Self::Started { .. }
                | Self::Progress { .. }
                | Self::Prompt(_)
                | Self::Thinking(_)
                | Self::Content(_)
                | Self::CallStart { .. }
                | Self::CallArguments { .. }
                | Self::CallEnd { .. }
        )
    }
}

/// How a tool call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CallOutcome {
    /// The call is complete, with these arguments. Without earlier [`Event::CallArguments`] this is
    /// the only report of them.
    Complete(Map<String, Value>),
    /// The arguments are not a JSON object. Holds their text, if it is known.
    Invalid(Option<String>),
    /// The answer reached its token limit before the call was complete.
    CutOff,
}

/// A piece of text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The text. Empty if the token's text is held back or removed.
    pub text: String,
    /// Log-probabilities of the tokens of this piece.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprob>,
}

/// Why a generation ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The token limit or the end of the context.
    Length,
    /// A content filter of a remote server.
    ContentFilter,
}

impl FinishReason {
    /// The name in API responses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ContentFilter => "content_filter",
        }
    }
}

/// Statistics of a finished generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerationSummary {
    /// Why it ended.
    pub reason: FinishReason,
    /// The stop string that ended the generation, if one did.
    pub stop: Option<String>,
    /// Whether token counts are known. A remote server may not report them.
    pub has_usage: bool,
    /// Prompt tokens, including cached ones.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached_tokens: u64,
    /// Time spent computing the uncached prompt tokens.
    pub prefill: Duration,
    /// Generated tokens, including the end token.
    pub generated_tokens: u64,
    /// Generated tokens that belong to the reasoning, including its tags.
    pub thought_tokens: u64,
    /// Time spent generating them.
    pub decode: Duration,
    /// Draft token counts.
    pub draft_counts: DraftCounts,
    /// Number of messages left out of the prompt.
    pub dropped_messages: u64,
    /// Number of tokens cut from the prompt or shifted out of the context.
    pub dropped_tokens: u64,
    /// Tokens of prompt and answer, without the begin token.
    pub context: Vec<u32>,
    /// Schema keywords that the answer violates, if the runner checked any at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// Error of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// Message for the client.
    pub message: String,
    /// Lengths of the prompt and of the context in tokens, if the prompt was too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<(u64, u64)>,
    /// Whether a remote server rejected the request as too long without reporting both lengths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_too_long: bool,
    /// Error code for clients of Anthropic's dialect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Seconds after which a retry may succeed, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
}

impl ApiError {
    /// Status recorded when a client disconnects before the response starts; it is never sent.
    /// Nginx uses the same code.
    pub const CLIENT_CLOSED_REQUEST: u16 = 499;

    /// Creates an error with an HTTP status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), ..Self::default() }
    }

    /// Whether the request is too long for the context. The lengths may be unknown.
    pub fn exceeds_context(&self) -> bool {
        self.lengths.is_some() || self.is_too_long
    }

    /// Status 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// Status 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, message)
    }

    /// Status 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, message)
    }
}
