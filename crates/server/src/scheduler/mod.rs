//! Which models are in memory, and which request runs on which of them.
//!
//! [`Scheduler`] is a pure state machine: events go in, actions come out, and time is an argument. It knows models
//! only as a key, load options, bytes of memory, the requests that run on them and how long they stay. The task that
//! drives it is in `manager`.
//!
//! - Requests for a model that is ready are granted at once. All others wait in one queue. Clients take turns in it, and
//!   within a client the oldest request is first.
//! - At most one model is loaded at a time. A new runner first reports how much memory it is going to need; only when
//!   that fits does it load. While one waits for room, smaller ones that fit may pass it for a while.
//! - Room is made by unloading idle models, first what is quickly loaded again and was not used for long. Where none is
//!   idle, one takes no new requests and goes when its last one has ended.
//! - A model that was just loaded stays for a few times what that took while it is used, and is not sent away in the moment
//!   between two requests: models with requests for both are not loaded in turn for every single one. Nobody waits
//!   longer for that than some seconds.

mod fit;
mod machine;
mod options;
mod queue;
mod run;
#[cfg(test)]
mod tests;

use std::time::Instant;

use puna_api::KeepAlive;

pub use fit::planned_context;
pub use machine::Scheduler;
pub use options::LoadOptions;

/// A request's number.
pub type RequestId = u64;

/// The number of one runner; never used again for another.
pub type RunId = u64;

/// What models are told apart by: the weights.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub String);

/// Limits of the whole server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Models in memory at once.
    pub max_loaded: usize,
    /// Requests that may wait for a model that is not ready.
    pub max_queue: usize,
    /// How long a model stays unless a request says otherwise.
    pub keep_alive: KeepAlive,
}

/// A request that needs a model.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its number.
    pub id: RequestId,
    /// Who asks. Clients take turns.
    pub client: u64,
    /// The model.
    pub key: Key,
    /// How the model is to be loaded.
    pub options: LoadOptions,
    /// Tokens of its own context at most, if it says so. It does not matter for loading.
    pub num_ctx: Option<u32>,
    /// How long it stays afterwards.
    pub keep_alive: Option<KeepAlive>,
}

/// What happens to the scheduler.
#[derive(Debug, Clone)]
pub enum Event {
    /// Somebody needs a model.
    Request(Request),
    /// A request has ended, or whoever waits for it has gone.
    Finished(RequestId),
    /// A runner knows how much memory it is going to need.
    Planned(RunId, Need),
    /// A runner is ready, with this context length and this many bytes.
    Loaded(RunId, u32, u64),
    /// A runner has ended, wanted or not.
    Exited(RunId, Exit),
    /// A model is to go as soon as it is idle.
    Expire(Key),
    /// How much memory the machine has.
    Memory(Memory),
    /// Time has passed.
    Tick,
}

/// Why a runner ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exit {
    /// In words.
    pub reason: String,
    /// Whether it was for want of memory.
    pub out_of_memory: bool,
}

/// Bytes that a runner is going to need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// All together.
    pub total: u64,
    /// Those for contexts, of which there could be fewer.
    pub cache: u64,
}

/// The machine's memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All that this process and its runners may use.
    pub total: u64,
    /// What could be had now without swapping.
    pub available: u64,
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The request runs on this runner.
    Grant(RequestId, RunId),
    /// The request gets an error.
    Refuse(RequestId, Refusal),
    /// Start a runner and have it plan its memory.
    Start(RunId, Key, LoadOptions),
    /// Have a runner plan anew, with other options.
    Replan(RunId, LoadOptions),
    /// The planned memory fits: load.
    Load(RunId),
    /// End a runner.
    Stop(RunId),
}

/// Why a request gets no model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Too many requests wait.
    Busy,
    /// The model is larger than the memory.
    TooLarge {
        /// Bytes it needs.
        need: u64,
        /// Bytes there are.
        available: u64,
    },
    /// The runner ended before it was ready.
    LoadFailed(Exit),
}

/// Why a runner is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unload {
    /// Its time is over, or somebody asked for it.
    Idle,
    /// Another model needs its room.
    Room,
    /// It is to be loaded anew with other options.
    Reload,
    /// It was not ready yet, and nobody waits for it any more or it is too large.
    Unwanted,
}

impl Unload {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Idle, Self::Room, Self::Reload, Self::Unwanted];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Room => "room",
            Self::Reload => "reload",
            Self::Unwanted => "unwanted",
        }
    }
}

/// A model that is or will be in memory, as others see it.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Which.
    pub key: Key,
    /// Its runner.
    pub run: RunId,
    /// Bytes it uses, or is going to use.
    pub size: u64,
    /// Tokens of one conversation at most, as the last request had it.
    pub context: u32,
    /// Tokens of one conversation at most where a request sets no limit.
    pub window: u32,
    /// When it goes unless it is used; `None` is never.
    pub expires: Option<Instant>,
    /// How far it is.
    pub phase: Phase,
    /// Requests that run on it.
    pub in_flight: usize,
}

/// How far a model is on its way into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its runner finds out how much memory it needs.
    Planning,
    /// There is no room for it yet.
    Waiting,
    /// Its runner loads it.
    Loading,
    /// It takes requests.
    Ready,
}

impl Phase {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Waiting => "waiting for room",
            Self::Loading => "loading",
            Self::Ready => "ready",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its memory plan is awaited.
    Planning,
    /// Its memory plan waits for others to leave.
    Waiting,
    Loading,
    Ready,
    /// Told to end, and still there.
    Stopping,
}
