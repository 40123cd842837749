//! Errors that prevent the server from starting or running.

use crate::auth::KeyError;
use crate::http::tls::TlsError;

/// The server could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The models directory cannot be used.
    #[error(transparent)]
    Store(#[from] puna_store::StoreError),
    /// The operating system reports an error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The API keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The mirror cannot be set up.
    #[error(transparent)]
    Mirror(#[from] puna_mirror::MirrorError),
    /// The script of a scripted model cannot be played.
    #[error(transparent)]
    Script(#[from] crate::script::ScriptError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The model manager has panicked.
    #[error("the model manager failed, so the server stops: {0}; this is a bug in Puna")]
    Broken(String),
}
