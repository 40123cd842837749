//! Errors of names in requests.

/// Why a name, reference or id is invalid. Each variant holds the beginning of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the message of a variant is its documentation
pub enum NameError {
    #[error(
        "invalid repository name {0:?}: expected words of letters, digits and . _ - with / between them"
    )]
    Repository(String),
    #[error(
        "invalid namespace {0:?}: expected words of letters, digits and . _ - with / between them, such as team-a; a * at the end matches any suffix"
    )]
    Namespace(String),
    #[error(
        "invalid tag {0:?}: expected 1 to 128 letters, digits and . _ - where the first is not . or -"
    )]
    Tag(String),
    #[error("invalid digest {0:?}: expected sha256: and 64 hexadecimal digits")]
    Digest(String),
    /// No upload has such an id.
    #[error("upload {0} not found: it was finished, cancelled or expired; start a new upload")]
    UploadId(String),
}
