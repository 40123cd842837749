//! Scheduler of loaded models: which models are in memory, and which request runs on which of them.
//!
//! [`Scheduler`] is a pure state machine: it maps events to actions, and time is an argument. It
//! knows of each model only a key, load options, bytes of memory, its running requests and its
//! keep-alive time. The task that drives it is in `models::manager`.
//!
//! - A request for a ready model is granted at once. All others wait in one queue, which is fair
//!   between clients and first-in first-out within a client.
//! - Models load one after another; any number can be in memory. A new runner first plans how much
//!   memory it needs, and loads only if that fits. While one model waits for memory, smaller ones
//!   that fit may overtake it for a limited time.
//! - The scheduler evicts idle models to free memory: first those that load quickly and were not
//!   used for long. If no model is idle, one accepts no new requests and is unloaded after its last
//!   one.
//! - A model that was just loaded stays for a few times its load time while it is used, and is not
//!   evicted right between two requests. Two busy models therefore do not evict each other for
//!   every request. This delays other requests by some seconds at most.

mod keep_alive;
mod memory_fit;
mod options;
pub(crate) mod queue;
mod runner_state;
mod state_machine;
#[cfg(test)]
mod tests;

use std::time::Instant;

use puna_api::KeepAlive;

pub use memory_fit::planned_context;
pub use options::LoadOptions;
pub use state_machine::Scheduler;

/// Number of a request.
pub type RequestId = u64;

/// Number of a runner, never reused.
pub type RunnerId = u64;

/// Identifies a model in memory: its weights and adapters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelKey(pub String);

/// Limits of the server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum models in memory.
    pub max_loaded: usize,
    /// Maximum requests that wait for a model.
    pub max_queue: usize,
    /// Default time that an idle model stays loaded.
    pub keep_alive: KeepAlive,
}

/// A request that needs a model.
#[derive(Debug, Clone)]
pub struct Request {
    /// Number of the request.
    pub id: RequestId,
    /// Client of the request, for fair queueing.
    pub client: u64,
    /// The model.
    pub key: ModelKey,
    /// Options to load the model with.
    pub options: LoadOptions,
    /// Context limit of the request in tokens, if it sets one. Loading does not depend on it.
    pub num_ctx: Option<u32>,
    /// How long the model stays loaded afterwards.
    pub keep_alive: Option<KeepAlive>,
}

/// Input of the scheduler.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request needs a model.
    Request(Request),
    /// A request has ended, or its client has disconnected.
    Finished(RequestId),
    /// A runner has planned its memory.
    Planned(RunnerId, MemoryNeed),
    /// A runner is ready, with this context length in tokens and this many bytes.
    Loaded(RunnerId, u32, u64),
    /// A runner has exited, expectedly or not.
    Exited(RunnerId, RunnerExit),
    /// End the keep-alive time of a client, or of all clients. The model is unloaded as soon as it
    /// is idle and no client has time left.
    Expire(ModelKey, Option<u64>),
    /// A reading of the machine's memory.
    Memory(Memory),
    /// Time has passed.
    Tick,
}

/// Reason of a runner's exit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunnerExit {
    /// Message of the reason.
    pub reason: String,
    /// Whether memory was insufficient.
    pub out_of_memory: bool,
    /// Whether the files of the model are at fault: no other attempt to load them succeeds.
    pub is_invalid_model: bool,
}

/// Planned memory of a runner in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Total bytes.
    pub total: u64,
    /// Bytes of the KV cache, which can be reduced.
    pub cache: u64,
}

/// The machine's memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Total memory that this process and its runners may use.
    pub total: u64,
    /// Memory available now without swapping.
    pub available: u64,
}

/// Output of the scheduler, which the driver executes.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Run the request on this runner.
    Grant(RequestId, RunnerId),
    /// Reject the request.
    Refuse(RequestId, Refusal),
    /// Start a runner and have it plan its memory.
    Start(RunnerId, ModelKey, LoadOptions),
    /// Let a runner plan again with other options.
    Replan(RunnerId, LoadOptions),
    /// Let a runner load, since its plan fits.
    Load(RunnerId),
    /// Stop a runner.
    Stop(RunnerId),
}

/// Reason of a rejected request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Busy,
    /// The model is larger than the memory.
    TooLarge {
        /// Bytes that the model needs.
        need: u64,
        /// Bytes available.
        available: u64,
    },
    /// The runner exited before it was ready.
    LoadFailed(RunnerExit),
}

/// Reason of an unload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadReason {
    /// Its keep-alive time is over, or an unload was requested.
    Idle,
    /// Another model needs its memory.
    MemoryNeeded,
    /// It is loaded again with other options.
    Reload,
    /// It was not ready yet, and no request waits for it or it is too large.
    LoadCancelled,
}

impl UnloadReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Idle, Self::MemoryNeeded, Self::Reload, Self::LoadCancelled];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::MemoryNeeded => "room",
            Self::Reload => "reload",
            Self::LoadCancelled => "unwanted",
        }
    }
}

/// A model in memory or on its way there, for listings.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelView {
    /// Identifies the model.
    pub key: ModelKey,
    /// Number of its runner.
    pub runner_id: RunnerId,
    /// Bytes that it uses or will use.
    pub size: u64,
    /// Tokens of one conversation, limited by the most recent request.
    pub context: u32,
    /// Tokens of one conversation where a request sets no limit.
    pub window: u32,
    /// When it is unloaded unless a request uses it; `None` is never.
    pub expires: Option<Instant>,
    /// Loading phase.
    pub phase: Phase,
    /// Number of running requests.
    pub in_flight: usize,
}

/// Loading phase of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its runner plans its memory.
    Planning,
    /// It waits for memory.
    Waiting,
    /// Its runner loads it.
    Loading,
    /// It accepts requests.
    Ready,
}

impl Phase {
    /// Name in listings.
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
enum RunnerState {
    /// The runner plans its memory.
    Planning,
    /// The plan is complete and waits for memory.
    Waiting,
    Loading,
    Ready,
    /// The runner has the command to exit, and still runs.
    Stopping,
}
