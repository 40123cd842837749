//! Sequences, paged KV cache with a prefix tree, the step loop, and speculation.
//!
//! [`Engine::open`] loads a model and starts its loop on a thread; [`Engine::submit`] generates, [`Engine::embed`] makes
//! vectors. All jobs of a model share its steps; those of a diffusion model take turns ([`Diffusion`]). [`Evaluator`] feeds sequences by hand, for measuring and looking inside.

#![forbid(unsafe_code)]

mod constraint;
mod diffusion;
mod embed;
mod engine;
mod engine_loop;
mod error;
mod evaluator;
mod executor;
mod job;
mod options;
mod output;
mod pages;
mod repetition;
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
pub use job::{Event, Finish, Job, Piece, PromptToken, Sink, Stage, Summary};
pub use options::{
    EngineOptions, MemoryReport, ModelInfo, check_draft, check_model, plan_memory,
    plan_memory_with_draft,
};
pub use pages::PAGE_TOKENS;
pub use puna_graph::AdapterScales;
pub use puna_models::{Adapter, ModelError, Order, Pooling, Unmasking, fills_masks};
pub use sequence::JobId;
pub use speculate::model::DraftModel;
pub use speculate::{Drafted, Speculated, Speculation};
pub use stats::Stats;
