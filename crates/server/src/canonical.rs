//! The one request and the one stream of events that all dialects are translated to and from.
//!
//! These types cross the socket to the runner, too; they hold everything that a runner needs to know about the model
//! beside its weights, since models of several names can share one runner.

use std::time::Duration;

use puna_api::native::{Image, Logprob, Message, PromptLogprob, Think, Tool, ToolChoice};
use puna_sampler::{Constraint, Params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::diffusion::Filling;
use crate::speculate::{Guesses, Mode};

/// What a runner is asked to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    /// Generate text.
    Generate(Box<Generate>),
    /// Count the tokens that the prompt of a generation has.
    Count(Box<Generate>),
    /// Turn texts into vectors.
    Embed(Embed),
    /// Score documents by a query.
    Rank(Rank),
    /// Turn a text into tokens.
    Tokenize(Tokenize),
    /// Turn tokens into the text they stand for, special ones included.
    Detokenize(Vec<u32>),
}

impl Task {
    /// Bytes of text that have to be read to begin with it, roughly.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Embed(embed) => embed.inputs.iter().map(EmbedText::bytes).sum(),
            Self::Rank(rank) => {
                rank.documents.iter().map(|text| text.len() + rank.query.len()).sum()
            }
            Self::Tokenize(tokenize) => tokenize.text.len(),
            // A token is a word or so.
            Self::Detokenize(tokens) => 4 * tokens.len(),
            Self::Generate(generate) | Self::Count(generate) => generate.text_bytes(),
        }
    }

    /// Whether a grammar has to be read to begin with it, which may take long however small it is.
    pub fn has_form(&self) -> bool {
        let Self::Generate(generate) = self else { return false };
        generate.format.is_some()
            || matches!(generate.tool_choice, ToolChoice::Required | ToolChoice::Named(_))
    }
}

/// How many bytes of text can be read in the time that one byte of a grammar takes.
const GRAMMAR_WEIGHT: usize = 64;

/// Bytes of a JSON value's texts, roughly.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(json_bytes).sum::<usize>() + 1,
        Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() + 4 + json_bytes(value)).sum()
        }
        _ => 4,
    }
}

/// A text to generate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Generate {
    /// What the model's manifest says about prompts.
    pub model: ModelText,
    /// What to answer or to continue.
    pub input: Input,
    /// How to generate.
    pub options: RunOptions,
    /// Whether and how hard to think; `None` is the model's own habit.
    pub think: Option<Think>,
    /// More variables for the template of a conversation, where it is one of Hugging Face's.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub variables: Map<String, Value>,
    /// Form of the answer.
    pub format: Option<Constraint>,
    /// What the client says about its schema besides the schema; only other servers are told.
    #[serde(default)]
    pub schema_label: SchemaLabel,
    /// Which functions of a conversation may or must be called.
    pub tool_choice: ToolChoice,
    /// Whether several functions may be called at once.
    pub parallel_tool_calls: bool,
    /// What happens to a prompt that is too long.
    pub overflow: Overflow,
    /// Whether older tokens make room when the context is full.
    pub shift: bool,
    /// Report log-probabilities, with this many alternatives each.
    pub logprobs: Option<usize>,
    /// Report log-probabilities of the prompt, with this many alternatives each.
    pub prompt_logprobs: Option<usize>,
    /// Send the arguments of calls while they are generated ([`Event::CallArguments`]), and calls that are cut off. Otherwise
    /// only complete calls are sent, and all others are content.
    pub stream_calls: bool,
    /// Answer with the rendered prompt instead of generating.
    pub render_only: bool,
}

/// What happens to a prompt that does not fit into the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overflow {
    /// The request is refused.
    Refuse,
    /// The oldest messages are dropped, all but system messages and the last one, as Ollama does; what is still too long is
    /// cut in its middle.
    DropMessages,
    /// The oldest turns are dropped, all but the first and the newest, and then the longest tool result is cut in its middle.
    /// What is still too long is refused.
    DropTurns,
}

/// What a client says about a JSON Schema besides the schema.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SchemaLabel {
    /// Its name.
    pub name: Option<String>,
    /// What it describes.
    pub description: Option<String>,
    /// Whether the answer must match it exactly.
    pub strict: Option<bool>,
}

/// Bytes that several answers to one prompt may hold together on their way.
const SEVERAL_BYTES_MAX: usize = 256 << 20;

impl Generate {
    /// Bytes of text that have to be read to begin with it, roughly.
    pub fn text_bytes(&self) -> usize {
        let object = |map: &Map<String, Value>| map.values().map(json_bytes).sum::<usize>();
        let message = |m: &Message| {
            let calls = m.tool_calls.iter().map(|call| 64 + object(&call.function.arguments));
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
        // Reading a grammar takes far longer than reading a text of its size.
        let forced = match (&self.input, &self.tool_choice) {
            (Input::Chat { tools, .. }, ToolChoice::Required | ToolChoice::Named(_)) => {
                tools.iter().map(|tool| json_bytes(&tool.0)).sum()
            }
            _ => 0,
        };
        input
            + object(&self.variables)
            + GRAMMAR_WEIGHT * (forced + self.format.as_ref().map_or(0, Constraint::bytes))
    }

    /// So many answers to the same prompt, each with the seed after the last one's.
    ///
    /// # Errors
    /// Together they would be too large.
    pub fn several(self, count: usize) -> Result<Vec<Self>, Failure> {
        let bytes = self.text_bytes();
        if count > 1 && bytes.saturating_mul(count) > SEVERAL_BYTES_MAX {
            return Err(Failure::bad_request(format!(
                "{count} answers to a prompt of {bytes} bytes are too much at once: ask for fewer"
            )));
        }
        let one = |i: usize| {
            let mut generate = self.clone();
            let seed = &mut generate.options.sampling.seed;
            // A negative one is drawn anew for each.
            if *seed >= 0 {
                *seed = seed.saturating_add(i as i64);
            }
            generate
        };
        Ok((0..count).map(one).collect())
    }
}

/// What a model's manifest says about prompts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ModelText {
    /// The built-in renderer, which comes before all templates.
    pub renderer: Option<String>,
    /// The Go template; without one the file's own template counts.
    pub template: Option<String>,
    /// With a Go template and one in the file: which to use, if that was said.
    pub go_template: Option<bool>,
    /// The system message.
    pub system: Option<String>,
    /// Messages before every conversation.
    pub messages: Vec<Message>,
    /// The built-in parser of its output.
    pub parser: Option<String>,
    /// Whether it thinks.
    pub thinking: bool,
    /// Whether it must not see the thoughts of earlier turns.
    pub strip_thoughts: bool,
}

/// What to answer or to continue.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Input {
    /// A conversation.
    Chat {
        /// Its messages.
        messages: Vec<Message>,
        /// Functions that the model may call.
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
    /// What comes after the text to fill in.
    pub suffix: String,
    /// Replaces the model's system message.
    pub system: Option<String>,
    /// Replaces the model's template (Go).
    pub template: Option<String>,
    /// The text is the model's input as it stands.
    pub raw: bool,
    /// Tokens of an earlier answer, to go on from.
    pub context: Option<Vec<u32>>,
    /// Images before the text; only models of other servers see any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<Image>,
    /// The model's input as tokens, instead of everything above.
    pub tokens: Option<Vec<u32>>,
}

/// How to generate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunOptions {
    /// How to draw tokens.
    pub sampling: Params,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// The request names these strings: they count in the answer, and not in a thought. Those of a model count in both.
    #[serde(default)]
    pub has_own_stops: bool,
    /// Tokens to generate at most; negative is as many as the context's size allows ten times over.
    pub num_predict: i64,
    /// Prompt tokens that survive a context shift; negative is all of them.
    pub num_keep: i64,
    /// Whether and how to guess ahead.
    pub speculate: Mode,
    /// Whether the model or the request says so, and not the configuration alone.
    #[serde(default)]
    pub speculate_said: bool,
    /// Guesses a step at most; `None` is automatic.
    pub draft_num_predict: Option<u32>,
    /// Tokens that a thought may have before it is ended; `None` is no limit, or the limit of a level of thinking.
    pub think_budget: Option<u32>,
    /// Tokens of prompt and answer that the context holds; `None` is as many as the runner can give, and never more.
    pub num_ctx: Option<u32>,
    /// Numbers of the model's adapters and how much there is to be of each, and nothing of the others; `None` is all of them
    /// as they are.
    pub adapters: Option<Vec<(u32, f32)>>,
    /// How the answer of a diffusion model is filled.
    #[serde(default)]
    pub diffusion: Filling,
    /// What the model's parameters and the request say by name, for models of other servers: all else is theirs to choose.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub given: Map<String, Value>,
}

/// Texts to turn into vectors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Embed {
    /// The texts.
    pub inputs: Vec<EmbedText>,
    /// Whether what is too long is cut at its end.
    pub truncate: bool,
    /// Tokens of a text at most; `None` is as many as the runner takes, and never more.
    pub num_ctx: Option<u32>,
    /// As [`RunOptions::given`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub given: Map<String, Value>,
}

/// A text to turn into a vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EmbedText {
    /// As it is written.
    Text(String),
    /// As the model's input.
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

/// Vectors of texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Embedded {
    /// One vector a text, in their order, as the model's pooling gives them.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts, as far as they were taken.
    pub tokens: u64,
    /// Texts that were cut, and how many tokens each lost.
    pub cut: Vec<(usize, u64)>,
}

/// Documents to score by how well they answer a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rank {
    /// The query.
    pub query: String,
    /// The documents.
    pub documents: Vec<String>,
    /// Whether a document that is too long for the context is cut at its end.
    pub truncate: bool,
    /// Documents are cut to this many tokens.
    pub document_tokens: Option<usize>,
    /// Documents are cut so that each has this many tokens together with the query and the marks around them.
    pub pair_tokens: Option<usize>,
    /// Tokens of a pair at most, where the model's context holds more.
    pub num_ctx: Option<u32>,
}

/// The scores of documents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ranked {
    /// One score a document, in their order, as the model's head gives it.
    pub scores: Vec<f32>,
    /// Tokens of all pairs.
    pub tokens: u64,
    /// Documents that were cut, and how many tokens each lost.
    pub cut: Vec<(usize, u64)>,
}

/// A text to turn into tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tokenize {
    /// The text.
    pub text: String,
    /// Whether what the model wants around every text is added.
    pub add_special: bool,
    /// Whether special tokens in the text are read as such.
    pub parse_special: bool,
}

/// What a request reports: any number of pieces, then one end ([`Event::is_end`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Event {
    /// The conversation was changed so that the model's template accepts it, in these ways
    /// ([`puna_prompt::Adaptation::as_str`]). This comes before everything else, or not at all.
    Adapted(Vec<String>),
    /// These keywords of the answer's schema are not enforced while it is written, but checked at its end. This comes before
    /// [`Event::Started`], or not at all.
    SchemaUnenforced(Vec<String>),
    /// The prompt is accepted and waits for its turn; this comes before everything that is generated, or not at all.
    Started {
        /// Its tokens.
        prompt_tokens: u64,
    },
    /// The prompt is being read.
    Progress {
        /// Prompt tokens that are done.
        done: u64,
        /// Prompt tokens in all.
        total: u64,
    },
    /// Log-probabilities of the prompt's next tokens, where they were asked for.
    Prompt(Vec<PromptLogprob>),
    /// A piece of what the model thinks.
    Thinking(Piece),
    /// A piece of the answer.
    Content(Piece),
    /// A tool call begins. Several may be open at once; `index` tells them apart.
    CallStart {
        /// The call's number in the answer.
        index: usize,
        /// The call's id.
        id: String,
        /// The name of the tool.
        name: String,
    },
    /// The next part of the JSON text of a call's arguments. All parts together are the start of a JSON object.
    CallArguments {
        /// The call's number in the answer.
        index: usize,
        /// The text.
        text: String,
    },
    /// A tool call has ended.
    CallEnd {
        /// The call's number in the answer.
        index: usize,
        /// How it ended.
        outcome: CallOutcome,
    },
    /// The end: the rendered prompt, where only that was asked for.
    Rendered(String),
    /// The end of a generation.
    Done(Box<Done>),
    /// The end: vectors of texts.
    Embedded(Embedded),
    /// The end: scores of documents.
    Ranked(Ranked),
    /// The end: how many tokens the prompt has.
    Counted(u64),
    /// The end: the tokens of a text.
    Tokens(Vec<u32>),
    /// The end: the text of tokens.
    Text(String),
    /// The end, by an error.
    Error(Failure),
}

impl Event {
    /// Whether nothing comes after it.
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
    /// The call has these arguments. Where no [`Event::CallArguments`] came before, this is all that is known of them.
    Complete(Map<String, Value>),
    /// The arguments are not a JSON object. The text is all of them, as far as it is known.
    Invalid(Option<String>),
    /// The answer reached its limit of tokens before the call was complete.
    CutOff,
}

/// A piece of text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The text; empty where the token's text is held back or swallowed.
    pub text: String,
    /// Log-probabilities of the tokens behind it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprobs: Vec<Logprob>,
}

/// Why a generation ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// An end token or a stop string.
    Stop,
    /// The limit of tokens, or of the context.
    Length,
    /// The filter of a remote server.
    ContentFilter,
}

impl Reason {
    /// As it is called on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ContentFilter => "content_filter",
        }
    }
}

/// Figures of a finished generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Why it ended.
    pub reason: Reason,
    /// The stop string that ended it, if one did.
    pub stop: Option<String>,
    /// Whether the numbers of tokens are known. A remote server may not report them.
    pub has_usage: bool,
    /// Prompt tokens, cached ones included.
    pub prompt_tokens: u64,
    /// Prompt tokens that were found in the cache.
    pub cached_tokens: u64,
    /// Time spent on the rest of the prompt.
    pub prefill: Duration,
    /// Generated tokens, the end token included.
    pub generated_tokens: u64,
    /// Those of them that were thoughts, with the tags around them.
    pub thought_tokens: u64,
    /// Time spent generating them.
    pub decode: Duration,
    /// Tokens that were guessed ahead.
    pub guesses: Guesses,
    /// Messages that were left out of the prompt.
    pub dropped_messages: u64,
    /// Tokens that were cut from the prompt or shifted out of the context.
    pub dropped_tokens: u64,
    /// Tokens of prompt and answer, without the one that begins every text.
    pub context: Vec<u32>,
    /// Where keywords of the answer's schema were checked at its end: those that it does not keep to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema_violations: Option<Vec<String>>,
}

/// Why a request failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// HTTP status.
    pub status: u16,
    /// In words.
    pub message: String,
    /// Length of the prompt and of the context in tokens, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lengths: Option<(u64, u64)>,
    /// The request is too long for the context of a remote server, which does not say both lengths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_too_long: bool,
    /// The error code that clients of Anthropic's dialect act on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Seconds after which it may be tried again, where somebody said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
}

impl Failure {
    /// Status of a request whose client has left before the answer began; nobody hears it.
    pub const LEFT: u16 = 499;

    /// A failure with a status.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), ..Self::default() }
    }

    /// Whether the request is too long for the context. The lengths may be unknown.
    pub fn exceeds_context(&self) -> bool {
        self.lengths.is_some() || self.is_too_long
    }

    /// The request is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, message)
    }

    /// Something is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, message)
    }

    /// The server cannot.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, message)
    }
}
