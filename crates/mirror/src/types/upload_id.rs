//! Random ids of uploads.

use std::fmt;

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::error::InternalError;
use crate::types::name_error::NameError;

/// Id of an upload: 32 random hexadecimal digits, so that other clients cannot guess it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct UploadId(String);

/// Number of hexadecimal digits of an upload id.
const ID_HEX_DIGITS: usize = 32;

impl UploadId {
    /// Generates a random id.
    pub(crate) fn random() -> Result<Self, InternalError> {
        let mut bytes = [0; ID_HEX_DIGITS / 2];
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.map_err(|_| InternalError::NoRandomNumbers)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Parses an id of a path.
    ///
    /// # Errors
    /// The text is no upload id.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let digits = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        match text.len() == ID_HEX_DIGITS && text.bytes().all(digits) {
            true => Ok(Self(text.to_owned())),
            false => Err(NameError::UploadId(text.chars().take(ID_HEX_DIGITS).collect())),
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for UploadId {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::parse(&text)
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
