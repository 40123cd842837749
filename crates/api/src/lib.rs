//! The wire types of the HTTP dialects, and an asynchronous client for them.
//!
//! - [`native`]: the dialect that Ollama's clients speak.
//! - [`openai`]: chat completions, completions, embeddings and models as OpenAI's clients expect them.
//! - [`anthropic`]: messages and models as Anthropic's clients expect them.
//! - [`responses`]: the requests of the newer dialect of OpenAI's.
//! - [`decode`]: request bodies to types, with the leniency and the error texts that clients are used to.
//! - [`Address`]: where a server listens and is found, in every form that people write.
//! - `schema`: the types as JSON Schemas (feature `schema`).
//! - [`Client`]: a client of a Puna or an Ollama server (feature `client`, on by default).
//!
//! ```no_run
//! # async fn example() -> Result<(), puna_api::ClientError> {
//! use puna_api::Client;
//! use puna_api::native::{ChatRequest, Message};
//!
//! let messages = vec![Message::text("user", "Hello!")];
//! let request = ChatRequest { model: "cria".into(), messages, ..ChatRequest::default() };
//! let mut pieces = Client::from_env().chat(&request).await?;
//! while let Some(piece) = pieces.next().await {
//!     print!("{}", piece?.message.content);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The folder `examples` has conversations, tools, answers of a Rust type, vectors, and making and fetching models.
//!
//! Types serialize with their fields in the order that the original server writes them.

#![forbid(unsafe_code)]

mod address;
pub mod anthropic;
mod base64;
#[cfg(feature = "client")]
mod client;
pub mod decode;
mod duration;
pub mod json;
pub mod native;
pub mod openai;
mod rate;
pub mod responses;
#[cfg(feature = "schema")]
pub mod schema;
mod shape;
#[cfg(feature = "client")]
mod trust;

pub use address::{Address, DEFAULT_PORT, split_port};
pub use base64::{decode as base64_decode, encode as base64_encode};
#[cfg(feature = "client")]
pub use client::{Client, ClientError, Stream};
pub use duration::{DurationError, KeepAlive, format_duration, parse_duration};
pub use rate::{parse_bytes, parse_rate};
