//! SHA-256 digests, the names of blobs and manifests.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A SHA-256 digest, displayed as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// The text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid digest format")]
pub struct DigestError;

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest of everything that a reader yields, and the number of bytes.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn of_reader(reader: &mut dyn Read) -> io::Result<(Self, u64)> {
        Self::of_reader_with(reader, &mut |_| {})
    }

    /// Like [`Digest::of_reader`]; `progress` receives the number of bytes read so far.
    pub fn of_reader_with(
        reader: &mut dyn Read,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<(Self, u64)> {
        let (mut hasher, mut total) = (Hasher::default(), 0u64);
        let mut buffer = vec![0; 1 << 18];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok((hasher.finish(), total)),
                Ok(n) => {
                    hasher.update(&buffer[..n]);
                    total += n as u64;
                    progress(total);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        let digit = |four: u8| char::from(b"0123456789abcdef"[usize::from(four)]);
        self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }

    /// The 32 bytes of the digest.
    pub(crate) fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// A digest of 32 stored bytes.
    pub(crate) fn from_bytes(sum: [u8; 32]) -> Self {
        Self(sum)
    }

    /// The first 12 digits, as lists show them.
    pub fn short(&self) -> String {
        self.hex()[..12].to_owned()
    }

    /// The name of the blob's file: `sha256-` and 64 digits.
    pub fn file_name(&self) -> String {
        format!("sha256-{}", self.hex())
    }
}

/// Accepts `sha256:` or `sha256-` before 64 digits of either case.
impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let hex = text
            .strip_prefix("sha256")
            .and_then(|t| t.strip_prefix([':', '-']))
            .ok_or(DigestError)?;
        if hex.len() != 64 || !hex.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(DigestError);
        }
        let mut sum = [0; 32];
        for (byte, pair) in sum.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| DigestError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| DigestError)?;
        }
        Ok(Self(sum))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Computes a digest incrementally.
#[derive(Clone)]
pub struct Hasher(ring::digest::Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes added.
    pub fn finish(self) -> Digest {
        let mut sum = [0; 32];
        sum.copy_from_slice(self.0.finish().as_ref());
        Digest(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn the_digest_of_abc_is_the_published_one() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string(), format!("sha256:{ABC}"));
        assert_eq!(digest.file_name(), format!("sha256-{ABC}"));
        assert_eq!(digest.short(), "ba7816bf8f01");
        assert_eq!(Digest::of_reader(&mut &b"abc"[..]).unwrap(), (digest, 3));
    }

    #[test]
    fn digests_are_parsed_with_both_separators_and_in_both_cases() {
        let digest = Digest::of(b"abc");
        for text in [
            format!("sha256:{ABC}"),
            format!("sha256-{ABC}"),
            format!("sha256:{}", ABC.to_uppercase()),
        ] {
            assert_eq!(text.parse(), Ok(digest));
        }
    }

    #[test]
    fn malformed_digests_are_refused() {
        for bad in [
            "",
            "sha256:",
            ABC,
            "sha256:zz",
            &format!("sha256:{ABC}0"),
            &format!("sha512:{ABC}"),
            "sha256:../../x",
        ] {
            assert_eq!(bad.parse::<Digest>(), Err(DigestError), "{bad}");
        }
        assert!(format!("sha256:{}é", &ABC[..62]).parse::<Digest>().is_err());
    }
}
