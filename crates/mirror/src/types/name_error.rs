//! Errors of names in requests.

/// Why a name, reference or id is invalid. Each variant holds the beginning of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum NameError {
    #[error(
        "{0:?} is no repository: words of letters, digits, and . _ - between them, with / between the words"
    )]
    Repository(String),
    #[error(
        "{0:?} is no namespace: it is words of letters, digits, and . _ - with / between them, such as team-a, and a * at its end stands for all that begin so"
    )]
    Namespace(String),
    #[error("{0:?} is no tag: 1 to 128 letters, digits, and . _ - after the first")]
    Tag(String),
    #[error("{0:?} is no digest: sha256: and 64 hexadecimal digits")]
    Digest(String),
    /// No upload has such an id.
    #[error(
        "upload {0} is not open: it was finished, cancelled, or left alone for too long; begin a new one"
    )]
    UploadId(String),
}
