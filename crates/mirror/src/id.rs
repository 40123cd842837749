//! Names that nobody can guess.

use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::error::MirrorError;

/// The name of an upload, which nobody can guess.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct UploadId(String);

/// Digits of an upload's name.
const ID_DIGITS: usize = 32;

impl UploadId {
    /// A new one.
    pub(crate) fn random() -> Result<Self, MirrorError> {
        let mut bytes = [0; ID_DIGITS / 2];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| MirrorError::Internal("the system gives no random numbers".into()))?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Reads one of a path.
    ///
    /// # Errors
    /// It is none that was given out.
    pub fn parse(text: &str) -> Result<Self, MirrorError> {
        let digits = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        match text.len() == ID_DIGITS && text.bytes().all(digits) {
            true => Ok(Self(text.to_owned())),
            false => Err(MirrorError::UploadUnknown(text.chars().take(ID_DIGITS).collect())),
        }
    }

    /// As it stands in paths.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for UploadId {
    type Error = MirrorError;

    fn try_from(text: String) -> Result<Self, MirrorError> {
        Self::parse(&text)
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
