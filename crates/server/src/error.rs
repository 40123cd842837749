//! Why a server does not start, or does not go on.

use crate::http::tls::TlsError;
use crate::keys::KeyError;

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The folder of models cannot be used.
    #[error(transparent)]
    Store(#[from] puna_store::StoreError),
    /// The system refuses something.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The API keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The registry cannot be set up.
    #[error(transparent)]
    Mirror(#[from] puna_mirror::MirrorError),
    /// The script of a scripted model cannot be played.
    #[error(transparent)]
    Script(#[from] crate::script::ScriptError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The keeper of the models has panicked.
    #[error(
        "the server ends, since what keeps its models in memory has failed: {0}; this is an error in Puna"
    )]
    Broken(String),
}
