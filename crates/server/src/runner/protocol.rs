//! Messages between the server and a runner. Each is a length in four bytes (little-endian),
//! followed by JSON.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::canonical::{Event, Task};
use crate::model_scheduler::LoadOptions;
use crate::options::speculate::DraftCounts;
use crate::runner::sandbox::SandboxReport;

/// Version of the protocol. Both sides are the same program; the version detects a program file
/// that was replaced while the server ran.
pub const VERSION: u32 = 18;

/// Maximum size of a message in bytes: the largest request with its images in base64, and a margin.
pub(crate) const MAX_MESSAGE_BYTES: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Number of events that a runner may send for a request before the client takes some of them.
pub const INITIAL_EVENT_CREDIT: u32 = 64;

/// Maximum number of tool calls in one answer; further calls are passed on as text. A model may
/// emit all of them at once.
pub(crate) const MAX_CALLS: usize = 1024;

/// Message from the server to a runner.
#[derive(Debug, Serialize, Deserialize)]
pub enum RunnerRequest {
    /// Plan the memory of a model. This is the first message.
    Plan(Box<LoadSpec>),
    /// Load the planned model.
    Load,
    /// Run a task. The runner may send [`INITIAL_EVENT_CREDIT`] events before it needs more credit.
    Submit {
        /// Number of the request.
        id: u64,
        /// Client of the request; the runner shares the model fairly between clients.
        client: u64,
        /// Task to run.
        task: Task,
    },
    /// Allow this many more events of a request.
    Credit(u64, u32),
    /// Cancel a request after its client has disconnected.
    Cancel(u64),
    /// Send a heartbeat now.
    RequestHeartbeat,
}

/// Message from a runner to the server.
#[derive(Debug, Serialize, Deserialize)]
pub enum RunnerResponse {
    /// The runner has started. This is the first message.
    Hello {
        /// [`VERSION`] of the runner.
        version: u32,
    },
    /// The runner has entered its sandbox; it has read no file of a model yet.
    Sandboxed(SandboxReport),
    /// Memory that the model needs.
    Planned(MemoryParts),
    /// The model is ready.
    Loaded(LoadReport),
    /// The model cannot be planned or loaded; the runner exits.
    Failed {
        /// Reason.
        message: String,
        /// Whether the reason is a lack of memory.
        out_of_memory: bool,
        /// Whether the files of the model are at fault.
        is_invalid_model: bool,
    },
    /// Event of a request.
    Event(u64, Event),
    /// Periodic report that shows that the runner is alive.
    Heartbeat(Heartbeat),
}

/// Which model to load, and its settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// Path of the GGUF file; `None` selects the model embedded in this program.
    pub weights: Option<PathBuf>,
    /// Paths of the adapters' GGUF files.
    pub adapters: Vec<PathBuf>,
    /// Load options of the scheduler.
    pub options: LoadOptions,
    /// Storage type of the KV cache, such as `f16` or `q8_0`.
    pub kv_cache_type: String,
    /// Kernel level to use instead of the best one.
    pub kernels: Option<String>,
    /// Number of threads; `None` uses one for each core.
    pub threads: Option<usize>,
}

impl LoadSpec {
    /// All files of the model: weights, adapters and draft model.
    pub fn paths(&self) -> Vec<PathBuf> {
        let draft = self.options.draft.as_ref().and_then(|draft| draft.weights.as_ref());
        self.weights.iter().chain(&self.adapters).chain(draft).cloned().collect()
    }
}

/// Memory of a model by purpose, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryParts {
    /// Weights, mapped from the file.
    pub weights: u64,
    /// KV cache and recurrent states.
    pub kv: u64,
    /// Intermediate results.
    pub scratch: u64,
    /// All memory of the draft model.
    pub draft: u64,
    /// Everything else.
    pub other: u64,
}

/// State of a loaded runner, which it reports periodically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Memory by purpose.
    pub memory: MemoryParts,
    /// Counter that grows with every round of the engine loop; it does not stand still while there
    /// is work.
    pub rounds: u64,
    /// Whether sequences run or wait.
    pub is_busy: bool,
    /// Number of running sequences.
    pub running: u64,
    /// Number of waiting sequences and texts.
    pub waiting: u64,
    /// Number of KV pages.
    pub pages: u64,
    /// Number of KV pages that hold data.
    pub pages_in_use: u64,
    /// Number of KV pages pinned by running sequences.
    pub pages_pinned: u64,
    /// Window pages, zero if no layer has a window: all, in use, pinned by running sequences.
    pub window_pages: [u64; 3],
    /// Counters since the model was loaded.
    pub counts: Counts,
}

/// Counters of a runner since its model was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Draft tokens proposed and accepted.
    pub draft_counts: DraftCounts,
    /// Steps of the model.
    pub steps: u64,
    /// Sequences preempted because KV pages ran out.
    pub preempted: u64,
}

impl Counts {
    /// Returns the sum of each counter.
    pub(crate) fn plus(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// Returns the larger value of each counter.
    pub(crate) fn max(self, other: Self) -> Self {
        self.combine(other, u64::max)
    }

    fn combine(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            prompt_tokens: combine(self.prompt_tokens, other.prompt_tokens),
            generated_tokens: combine(self.generated_tokens, other.generated_tokens),
            draft_counts: DraftCounts {
                ngram: combine(self.draft_counts.ngram, other.draft_counts.ngram),
                ngram_accepted: combine(
                    self.draft_counts.ngram_accepted,
                    other.draft_counts.ngram_accepted,
                ),
                model: combine(self.draft_counts.model, other.draft_counts.model),
                model_accepted: combine(
                    self.draft_counts.model_accepted,
                    other.draft_counts.model_accepted,
                ),
            },
            steps: combine(self.steps, other.steps),
            preempted: combine(self.preempted, other.preempted),
        }
    }
}

impl MemoryParts {
    /// Returns the sum of all purposes in bytes.
    pub fn total(&self) -> u64 {
        [self.weights, self.kv, self.scratch, self.draft, self.other]
            .iter()
            .fold(0, |sum, part| sum.saturating_add(*part))
    }
}

/// Properties of a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Tokens of one context.
    pub num_ctx: u32,
    /// Bytes of the longest token, if the tokenizer knows them.
    pub max_token_bytes: Option<usize>,
    /// Memory in use.
    pub memory: MemoryParts,
}

/// Encodes a message with its length, as it travels over the socket.
pub(crate) fn encode_message(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{length} bytes, at most {MAX_MESSAGE_BYTES} are allowed"),
        ));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// Encodes and writes a message.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode_message(message)?)
}

/// Reads a message; `None` at the end of the stream.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    match from.read_exact(&mut header) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut body = Vec::new();
    let length = message_length(header)?;
    // The buffer grows as bytes arrive, so that a false length cannot allocate memory.
    from.take(length as u64).read_to_end(&mut body)?;
    decode_message(&body, length).map(Some)
}

/// Reads a message asynchronously; `None` at the end of the stream.
pub(crate) async fn read_async<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    match from.read_exact(&mut header).await {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    };
    let mut body = Vec::new();
    let length = message_length(header)?;
    from.take(length as u64).read_to_end(&mut body).await?;
    decode_message(&body, length).map(Some)
}

/// Decodes and checks the length of a message in bytes.
fn message_length(header: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes is too large"),
        ));
    }
    Ok(length)
}

fn decode_message<T: DeserializeOwned>(body: &[u8], length: usize) -> io::Result<T> {
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Whether a text reports a lack of memory. A crashed or panicked process gives its reason only as
/// text.
pub(crate) fn is_out_of_memory(text: &str) -> bool {
    let text = text.to_lowercase();
    let phrases = [
        "out of memory",
        "memory allocation of",
        "cannot allocate",
        "no memory for",
        "failed to allocate",
        "not enough memory",
    ];
    phrases.iter().any(|phrase| text.contains(phrase))
}
