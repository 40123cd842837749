//! Messages between the server and a runner: a length in four bytes (little-endian), then JSON.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::canonical::{Event, Task};
use crate::scheduler::LoadOptions;
use crate::speculate::DraftCounts;

/// Both sides are the same program; the number guards against one that was replaced while the server ran.
pub const VERSION: u32 = 13;

/// Bytes of a message at most: the largest request, its images in base64, and some room.
pub(crate) const MAX_FRAME: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// Events that a runner may send for a request before the client has taken some of them.
pub const WINDOW: u32 = 64;

/// Calls of one answer; what a model calls beyond that is passed on as text. All of them can come at once.
pub(crate) const CALLS_MAX: usize = 1024;

/// To a runner.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToRunner {
    /// Plan the memory of a model. The first message.
    Plan(Box<LoadSpec>),
    /// Load what was planned.
    Load,
    /// Do something; [`WINDOW`] events may come back without being asked for again.
    Submit {
        /// The request's number.
        id: u64,
        /// Who asks; the model is shared fairly between clients.
        client: u64,
        /// What to do.
        task: Task,
    },
    /// This many more events of a request may come.
    Credit(u64, u32),
    /// Nobody listens to a request any more.
    Cancel(u64),
    /// A sign of life is wanted now.
    Beat,
}

/// From a runner.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromRunner {
    /// It is there. The first message.
    Hello {
        /// Its [`VERSION`].
        version: u32,
    },
    /// How much memory the model is going to need.
    Planned(MemoryParts),
    /// The model is ready.
    Loaded(Loaded),
    /// The model cannot be planned or loaded; the runner ends.
    Failed {
        /// Why.
        message: String,
        /// Whether for want of memory.
        out_of_memory: bool,
    },
    /// Something happened to a request.
    Event(u64, Event),
    /// It is still there.
    Heartbeat(Pulse),
}

/// What to load, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadSpec {
    /// The GGUF file; `None` is the model inside this program.
    pub weights: Option<PathBuf>,
    /// The GGUF files of its adapters.
    pub adapters: Vec<PathBuf>,
    /// How.
    pub options: LoadOptions,
    /// Format of keys and values: `f16`, `q8_0` …
    pub kv_cache_type: String,
    /// The level of kernels to use instead of the best.
    pub kernels: Option<String>,
    /// Threads instead of one a core.
    pub threads: Option<usize>,
}

/// Where the memory goes, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryParts {
    /// Weights, mapped from the file.
    pub weights: u64,
    /// Keys and values of contexts.
    pub kv: u64,
    /// Intermediate results.
    pub scratch: u64,
    /// All of that for the draft model.
    pub draft: u64,
    /// Everything else.
    pub other: u64,
}

/// What a loaded runner says of itself now and then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    /// Where its memory goes.
    pub memory: MemoryParts,
    /// A count that grows with every step of the model, and does not stand still while there is work.
    pub rounds: u64,
    /// Whether there is work.
    pub works: bool,
    /// Sequences that share its steps.
    pub running: u64,
    /// Sequences and texts that wait in line.
    pub waiting: u64,
    /// Pages of keys and values it has.
    pub pages: u64,
    /// Those that hold something.
    pub pages_in_use: u64,
    /// Those of running sequences.
    pub pages_held: u64,
    /// The same of pages of layers that only see what is near, where the model has such: all, in use, of running sequences.
    pub recent_pages: [u64; 3],
    /// What it has done.
    pub counts: Counts,
}

/// What a runner has done since its model was loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens guessed ahead.
    pub guesses: DraftCounts,
    /// Steps of the model.
    pub steps: u64,
    /// Sequences sent back to wait for want of pages.
    pub preempted: u64,
}

impl Counts {
    /// Both together.
    pub(crate) fn plus(self, more: Self) -> Self {
        self.each(more, u64::saturating_add)
    }

    /// Of each count the larger one.
    pub(crate) fn max(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            prompt_tokens: of(self.prompt_tokens, other.prompt_tokens),
            generated_tokens: of(self.generated_tokens, other.generated_tokens),
            guesses: DraftCounts {
                ngram: of(self.guesses.ngram, other.guesses.ngram),
                ngram_accepted: of(self.guesses.ngram_accepted, other.guesses.ngram_accepted),
                model: of(self.guesses.model, other.guesses.model),
                model_accepted: of(self.guesses.model_accepted, other.guesses.model_accepted),
            },
            steps: of(self.steps, other.steps),
            preempted: of(self.preempted, other.preempted),
        }
    }
}

impl MemoryParts {
    /// All together.
    pub fn total(&self) -> u64 {
        [self.weights, self.kv, self.scratch, self.draft, self.other]
            .iter()
            .fold(0, |sum, part| sum.saturating_add(*part))
    }
}

/// What is known about a loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Tokens of one conversation.
    pub num_ctx: u32,
    /// Memory it uses.
    pub memory: MemoryParts,
}

/// A message as it goes over the socket.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MAX_FRAME {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{length} bytes, and at most {MAX_FRAME} fit into a message"),
        ));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// Writes a message.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

/// Reads a message; `None` at the end.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut body = Vec::new();
    let length = checked(head)?;
    // Grows as bytes arrive, whatever the length claims.
    from.take(length as u64).read_to_end(&mut body)?;
    parse(&body, length).map(Some)
}

/// Reads a message without blocking; `None` at the end.
pub(crate) async fn read_async<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    let mut head = [0; 4];
    match from.read_exact(&mut head).await {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    };
    let mut body = Vec::new();
    let length = checked(head)?;
    from.take(length as u64).read_to_end(&mut body).await?;
    parse(&body, length).map(Some)
}

fn checked(head: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_le_bytes(head) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message claims {length} bytes"),
        ));
    }
    Ok(length)
}

fn parse<T: DeserializeOwned>(body: &[u8], length: usize) -> io::Result<T> {
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(body).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Whether a text says that memory did not suffice: for processes that died and panics, of which only the text is left.
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
