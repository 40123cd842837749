//! Versions that the server reports.

/// Version of Ollama's API that this server implements. Clients enable features by it.
pub const OLLAMA_VERSION: &str = "0.34.2";

/// Version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
