//! Engine: sequences with continuous batching, a paged KV cache with a prefix tree, speculative
//! decoding.
//!
//! [`Engine::open`] loads a model and starts its loop on a thread. [`Engine::submit`] generates,
//! [`Engine::embed`] computes embeddings. All requests of a model share its steps, except that a
//! step of a diffusion model computes one request ([`Diffusion`]). [`Evaluator`] runs single
//! sequences for measurements.

#![forbid(unsafe_code)]

mod cache_plan;
mod config;
mod constraint;
mod diffusion;
mod embed_queue;
mod engine;
mod engine_loop;
mod error;
mod evaluator;
mod executor;
mod fair_shares;
mod generation;
mod kv;
mod media;
mod media_cache;
mod media_prompt;
mod memory_plan;
mod output;
mod projector;
mod repetition;
mod request;
mod scheduler;
mod speculate;
mod stats;
mod vocab;

pub use config::{EngineOptions, MemoryReport, ModelInfo};
pub use diffusion::CONTEXT as DIFFUSION_CONTEXT;
pub use embed_queue::{EmbedCallback, RerankCallback};
pub use engine::{Companions, Engine, THREAD};
pub use error::EngineError;
pub use evaluator::{Evaluator, Outputs, SequenceInput};
pub use kv::PAGE_TOKENS;
pub use media::{MediumLayout, NO_TOKEN, PlacedMedium};
pub use media_prompt::MediaPrompt;
pub use memory_plan::{check_draft, check_model, plan_memory, plan_memory_with_draft};
pub use projector::{Projector, picture_layout};
pub use puna_graph::{AdapterScales, KvType};
pub use puna_models::{
    Adapter, ModelError, Pooling, TowerPicture, UnmaskOrder, Unmasking, VisionTower, is_diffusion,
    is_supported_architecture, known_architectures,
};
pub use request::{
    AnswerStage, CacheNamespace, Diffusion, Event, FinishReason, GenerationStats, Piece,
    PromptMedium, PromptToken, PublicPrefix, Request, RequestId, Sink,
};
pub use speculate::model::DraftModel;
pub use speculate::{DraftCounts, DraftStats, Speculation};
pub use stats::Stats;
