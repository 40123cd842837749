//! Engine: sequences with continuous batching, a paged KV cache with a prefix tree, speculative decoding.
//!
//! [`Engine::open`] loads a model and starts its loop on a thread. [`Engine::submit`] generates,
//! [`Engine::embed`] computes embeddings. All requests of a model share its steps, except that a step of a
//! diffusion model computes one request ([`Diffusion`]). [`Evaluator`] runs single sequences for measurements.

#![forbid(unsafe_code)]

mod constraint;
mod diffusion;
mod embed;
mod engine;
mod engine_loop;
mod error;
mod evaluator;
mod executor;
mod options;
mod output;
mod pages;
mod repetition;
mod request;
mod sequence;
mod sequence_pages;
mod speculate;
mod stats;
mod vocab;

pub use diffusion::{CONTEXT as DIFFUSION_CONTEXT, Diffusion};
pub use embed::{Done as EmbedDone, Scored};
pub use engine::{Engine, THREAD};
pub use error::EngineError;
pub use evaluator::{Evaluator, Feed, Outputs};
pub use options::{
    EngineOptions, MemoryReport, ModelInfo, check_draft, check_model, plan_memory,
    plan_memory_with_draft,
};
pub use pages::PAGE_TOKENS;
pub use puna_graph::AdapterScales;
pub use puna_models::{Adapter, ModelError, Pooling, UnmaskOrder, Unmasking, is_diffusion};
pub use request::{Event, Finish, Piece, PromptToken, Request, Sink, Stage, Summary};
pub use sequence::RequestId;
pub use speculate::model::DraftModel;
pub use speculate::{DraftCounts, Speculated, Speculation};
pub use stats::Stats;
