//! Why a host gets no stored credentials.

/// Why stored credentials are not sent: passwords, tokens and signatures of the client's key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
// The message of a variant documents it and its fields.
#[allow(missing_docs)]
pub enum WithheldCredentials {
    #[error(
        "credentials are sent over HTTPS only: use HTTPS, or set http = true in [registry.hosts.{host:?}] to send them in plain text"
    )]
    Unencrypted { host: String },
    #[error(
        "credentials are not sent to a mirror that the request names: add it to registry.mirrors"
    )]
    RequestedMirror,
}
