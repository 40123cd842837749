//! The client's key: an Ed25519 key in OpenSSH's format, shared with Ollama. The client signs token
//! requests with it.
//!
//! ```text
//! "openssh-key-v1\0" cipher="none" kdf="none" kdf options="" 1 key
//! public:  "ssh-ed25519" 32 bytes
//! private: check check "ssh-ed25519" public(32) seed+public(64) comment, padded by 1, 2, 3 …
//! ```
//!
//! Numbers are 32-bit big-endian. Strings follow their length.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};

const MAGIC: &[u8] = b"openssh-key-v1\0";
/// The key type in OpenSSH's files and in public keys.
const KEY_TYPE: &str = "ssh-ed25519";
/// Signed in place of a body's hash if there is no body: base64 of the hexadecimal SHA-256 of no
/// bytes.
pub const EMPTY_BODY_HASH: &str =
    "ZTNiMGM0NDI5OGZjMWMxNDlhZmJmNGM4OTk2ZmI5MjQyN2FlNDFlNDY0OWI5MzRjYTQ5NTk5MWI3ODUyYjg1NQ==";
const ARMOR_LABEL: &str = "OPENSSH PRIVATE KEY";
/// Largest size of a key file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// The cipher `none` pads to a multiple of this.
const CIPHER_BLOCK_BYTES: usize = 8;

/// Error of a key file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("key {}: {reason}", path.display())]
pub struct KeyError {
    /// The key file.
    pub path: PathBuf,
    /// Why the key cannot be used.
    pub reason: String,
}

/// Private key.
pub struct Identity {
    pair: Ed25519KeyPair,
}

impl Identity {
    /// Reads the key in a file. Creates it if it is missing, readable by its owner only, with the
    /// public key in `.pub`.
    ///
    /// # Errors
    /// The file cannot be read, written or parsed.
    pub fn read_or_create(path: &Path) -> Result<Self, KeyError> {
        let error = |reason: String| KeyError { path: path.to_owned(), reason };
        match read_key_file(path) {
            Ok(text) => Self::parse(&text).map_err(error),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                create_key_files(path).map_err(|e| error(format!("cannot create it: {e}")))?;
                // Another process may have created the file first; its key counts.
                let text =
                    read_key_file(path).map_err(|e| error(format!("cannot read it: {e}")))?;
                Self::parse(&text).map_err(error)
            }
            Err(e) => Err(error(format!("cannot read it: {e}"))),
        }
    }

    /// The key of a 32-byte seed.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self { pair: Ed25519KeyPair::from_seed_unchecked(seed).expect("every 32 bytes are a key") }
    }

    /// The public key as registries expect it: base64 of its SSH encoding.
    pub fn public(&self) -> String {
        STANDARD.encode(public_blob(self.pair.public_key().as_ref()))
    }

    /// Signs a text. The signature is base64.
    pub fn sign(&self, text: &str) -> String {
        STANDARD.encode(self.pair.sign(text.as_bytes()))
    }

    /// Parses the text of an OpenSSH private key file.
    fn parse(text: &str) -> Result<Self, String> {
        let body = text.trim().strip_prefix(&format!("-----BEGIN {ARMOR_LABEL}-----"));
        let body = body.and_then(|t| t.strip_suffix(&format!("-----END {ARMOR_LABEL}-----")));
        let body = body.ok_or("it is not an OpenSSH private key")?;
        let compact: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let bytes = STANDARD.decode(compact).map_err(|e| format!("it is damaged: {e}"))?;
        let mut reader =
            KeyReader(bytes.strip_prefix(MAGIC).ok_or("it is not an OpenSSH private key")?);
        let (cipher, kdf, _) =
            (reader.read_string()?, reader.read_string()?, reader.read_string()?);
        if cipher != b"none" || kdf != b"none" {
            return Err("it is encrypted with a passphrase: use a key without one".into());
        }
        if reader.read_u32()? != 1 {
            return Err("it has several keys".into());
        }
        let _public = reader.read_string()?;
        let mut private = KeyReader(reader.read_string()?);
        if private.read_u32()? != private.read_u32()? {
            return Err("it is damaged".into());
        }
        if private.read_string()? != KEY_TYPE.as_bytes() {
            return Err("it is not an Ed25519 key".into());
        }
        let (public, secret) = (private.read_string()?, private.read_string()?);
        let seed = secret.get(..32).ok_or("it is damaged")?;
        let pair = Ed25519KeyPair::from_seed_and_public_key(seed, public);
        pair.map(|pair| Self { pair }).map_err(|_| "it is damaged: its halves do not match".into())
    }
}

/// Generates a key. Returns the texts of the private and of the public file.
fn generate_key_texts() -> Result<(String, String), String> {
    let random = SystemRandom::new();
    let (mut seed, mut check) = ([0; 32], [0; 4]);
    random
        .fill(&mut seed)
        .and_then(|()| random.fill(&mut check))
        .map_err(|_| "cannot get random numbers from the system")?;
    let identity = Identity::from_seed(&seed);
    let public = identity.pair.public_key().as_ref();
    let mut private = [check, check].concat();
    write_string(&mut private, KEY_TYPE.as_bytes());
    write_string(&mut private, public);
    write_string(&mut private, &[&seed[..], public].concat());
    write_string(&mut private, b"");
    (1u8..)
        .take((CIPHER_BLOCK_BYTES - private.len() % CIPHER_BLOCK_BYTES) % CIPHER_BLOCK_BYTES)
        .for_each(|n| private.push(n));
    let mut out = MAGIC.to_vec();
    for text in [&b"none"[..], b"none", b""] {
        write_string(&mut out, text);
    }
    out.extend(1u32.to_be_bytes());
    write_string(&mut out, &public_blob(public));
    write_string(&mut out, &private);
    let mut text = format!("-----BEGIN {ARMOR_LABEL}-----\n");
    for line in STANDARD.encode(out).as_bytes().chunks(70) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str(&format!("-----END {ARMOR_LABEL}-----\n"));
    Ok((text, format!("{KEY_TYPE} {}\n", identity.public())))
}

/// Writes a new key, unless the file exists by then.
fn create_key_files(path: &Path) -> Result<(), String> {
    let (private, public) = generate_key_texts()?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let text_of = |e: io::Error| e.to_string();
    fs::create_dir_all(dir).map_err(text_of)?;
    // A hard link creates the file completely or not at all, and fails if the name exists.
    let temp = dir.join(format!(
        ".id_ed25519-{}-{}",
        std::process::id(),
        &public[40..48].replace('/', "_")
    ));
    let written = create_private(&temp).and_then(|mut file| {
        file.write_all(private.as_bytes())?;
        file.sync_all()?;
        match fs::hard_link(&temp, path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            // The file system has no hard links.
            Err(_) if !path.exists() => fs::rename(&temp, path).map(|()| true),
            linked => linked.map(|()| true),
        }
    });
    let _ = fs::remove_file(&temp);
    if written.map_err(text_of)? {
        fs::write(path.with_extension("pub"), &public).map_err(text_of)?;
        tracing::info!(key = %path.display(), public = public.trim_end(), "created a registry key");
    }
    Ok(())
}

fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn read_key_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(File::open(path)?, MAX_FILE_BYTES), &mut text)?;
    Ok(text)
}

/// Parses a public key in the form of [`Identity::public`] into its 32 bytes.
pub fn parse_public_key(text: &str) -> Option<[u8; 32]> {
    let bytes = STANDARD.decode(text).ok()?;
    let mut reader = KeyReader(&bytes);
    (reader.read_string().ok()? == KEY_TYPE.as_bytes()).then_some(())?;
    let key = reader.read_string().ok()?.try_into().ok()?;
    reader.0.is_empty().then_some(key)
}

fn public_blob(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_string(&mut out, KEY_TYPE.as_bytes());
    write_string(&mut out, key);
    out
}

fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u32).to_be_bytes());
    out.extend(text);
}

/// Reads numbers and strings from the beginning of a byte slice.
struct KeyReader<'a>(&'a [u8]);

impl<'a> KeyReader<'a> {
    fn read_u32(&mut self) -> Result<u32, String> {
        let (read_u32, rest) = self.0.split_first_chunk().ok_or("it is truncated")?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*read_u32))
    }

    fn read_string(&mut self) -> Result<&'a [u8], String> {
        let len = self.read_u32()? as usize;
        let (text, rest) = self.0.split_at_checked(len).ok_or("it is truncated")?;
        self.0 = rest;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `ssh-keygen -t ed25519 -N "" -C comment`, without the armour.
    const OPENSSH: &str = include_str!("../tests/openssh-key.txt");
    const OPENSSH_PUBLIC: &str = include_str!("../tests/openssh-key-public.txt");

    fn armoured(body: &str) -> String {
        format!("-----BEGIN {ARMOR_LABEL}-----\n{body}\n-----END {ARMOR_LABEL}-----\n")
    }

    #[test]
    fn an_openssh_key_is_read() {
        let identity = Identity::parse(&armoured(OPENSSH)).unwrap();
        assert_eq!(identity.public(), OPENSSH_PUBLIC.trim());
    }

    #[test]
    fn a_missing_key_is_created_readable_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep").join("id_ed25519");
        let first = Identity::read_or_create(&path).unwrap().public();
        assert_eq!(Identity::read_or_create(&path).unwrap().public(), first);
        let public = fs::read_to_string(path.with_extension("pub")).unwrap();
        assert_eq!(public, format!("ssh-ed25519 {first}\n"));
        assert!(first.len() == 68 && first.starts_with("AAAAC3NzaC1lZDI1NTE5AAAAI"));
        assert!(
            parse_public_key(&first).is_some_and(|key| STANDARD.encode(public_blob(&key)) == first)
        );
        assert_eq!([&first[..64], "AAAA", "ssh-ed25519", ""].map(parse_public_key), [None; 4]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn invalid_keys_are_refused_with_a_reason() {
        let reason = |text: &str| Identity::parse(text).err().unwrap();
        assert_eq!(reason("ssh-ed25519 AAAA"), "it is not an OpenSSH private key");
        assert_eq!(reason(""), "it is not an OpenSSH private key");
        for len in 0..OPENSSH.len() {
            assert!(
                Identity::parse(&armoured(&OPENSSH[..len])).is_err()
                    || OPENSSH[len..].trim().is_empty(),
                "{len}"
            );
        }
        let flipped = OPENSSH.replacen("AAAA", "AAAB", 1);
        assert!(Identity::parse(&armoured(&flipped)).is_err());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("id");
        fs::write(&path, "x").unwrap();
        let error = Identity::read_or_create(&path).err().unwrap().to_string();
        assert_eq!(error, format!("key {}: it is not an OpenSSH private key", path.display()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
    }
}
