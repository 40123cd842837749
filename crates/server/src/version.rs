//! The versions that the server tells.

/// Version of Ollama's interface that is spoken; clients switch features on by it.
pub const OLLAMA_VERSION: &str = "0.34.2";

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
