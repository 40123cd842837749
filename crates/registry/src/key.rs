//! The key that proves to a registry who asks: Ed25519, in OpenSSH's format, shared with Ollama.
//!
//! ```text
//! "openssh-key-v1\0" cipher="none" kdf="none" kdf options="" 1 key
//! public:  "ssh-ed25519" 32 bytes
//! private: check check "ssh-ed25519" public(32) seed+public(64) comment, padded by 1, 2, 3 …
//! ```
//!
//! Numbers are big-endian in four bytes, texts have their length before them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};

const MAGIC: &[u8] = b"openssh-key-v1\0";
/// The name of the kind of key, in OpenSSH's files and in public keys.
const KIND: &str = "ssh-ed25519";
/// What is signed in the place of a body's hash where there is none: Base64 of the digits of the digest of no bytes.
pub const NO_BODY: &str =
    "ZTNiMGM0NDI5OGZjMWMxNDlhZmJmNGM4OTk2ZmI5MjQyN2FlNDFlNDY0OWI5MzRjYTQ5NTk5MWI3ODUyYjg1NQ==";
const LABEL: &str = "OPENSSH PRIVATE KEY";
/// Bytes of a key's file at most.
const MAX_FILE: u64 = 64 << 10;
/// The cipher `none` pads to this.
const BLOCK: usize = 8;

/// A key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the key {}: {reason}", path.display())]
pub struct KeyError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// A private key.
pub struct Identity {
    pair: Ed25519KeyPair,
}

impl Identity {
    /// The key in a file, which is made where it is missing, for its owner alone; the public half goes beside it.
    ///
    /// # Errors
    /// The file cannot be read, written or understood.
    pub fn read_or_make(path: &Path) -> Result<Self, KeyError> {
        let fail = |reason: String| KeyError { path: path.to_owned(), reason };
        match read(path) {
            Ok(text) => Self::parse(&text).map_err(fail),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make(path).map_err(|e| fail(format!("cannot be made: {e}")))?;
                // Another process may have been faster: what is there now counts.
                let text = read(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
                Self::parse(&text).map_err(fail)
            }
            Err(e) => Err(fail(format!("cannot be read: {e}"))),
        }
    }

    /// The key of 32 secret bytes.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self { pair: Ed25519KeyPair::from_seed_unchecked(seed).expect("every 32 bytes are a key") }
    }

    /// The public half as registries are told it: base64 of its SSH form.
    pub fn public(&self) -> String {
        STANDARD.encode(public_blob(self.pair.public_key().as_ref()))
    }

    /// A signature in base64.
    pub fn sign(&self, text: &str) -> String {
        STANDARD.encode(self.pair.sign(text.as_bytes()))
    }

    /// Reads the armoured text of a file.
    fn parse(text: &str) -> Result<Self, String> {
        let body = text.trim().strip_prefix(&format!("-----BEGIN {LABEL}-----"));
        let body = body.and_then(|t| t.strip_suffix(&format!("-----END {LABEL}-----")));
        let body = body.ok_or("it is no OpenSSH private key")?;
        let compact: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let bytes = STANDARD.decode(compact).map_err(|e| format!("it is damaged: {e}"))?;
        let mut input = Input(bytes.strip_prefix(MAGIC).ok_or("it is no OpenSSH private key")?);
        let (cipher, kdf, _) = (input.text()?, input.text()?, input.text()?);
        if cipher != b"none" || kdf != b"none" {
            return Err("it is locked with a passphrase; registries need one without".into());
        }
        if input.number()? != 1 {
            return Err("it holds several keys".into());
        }
        let _public = input.text()?;
        let mut private = Input(input.text()?);
        if private.number()? != private.number()? {
            return Err("it is damaged".into());
        }
        if private.text()? != KIND.as_bytes() {
            return Err("it is no Ed25519 key".into());
        }
        let (public, secret) = (private.text()?, private.text()?);
        let seed = secret.get(..32).ok_or("it is damaged")?;
        let pair = Ed25519KeyPair::from_seed_and_public_key(seed, public);
        pair.map(|pair| Self { pair }).map_err(|_| "it is damaged: its halves do not match".into())
    }
}

/// A new key as the text of its two files.
fn generate() -> Result<(String, String), String> {
    let random = SystemRandom::new();
    let (mut seed, mut check) = ([0; 32], [0; 4]);
    random
        .fill(&mut seed)
        .and_then(|()| random.fill(&mut check))
        .map_err(|_| "no random numbers")?;
    let identity = Identity::from_seed(&seed);
    let public = identity.pair.public_key().as_ref();
    let mut private = [check, check].concat();
    put(&mut private, KIND.as_bytes());
    put(&mut private, public);
    put(&mut private, &[&seed[..], public].concat());
    put(&mut private, b"");
    (1u8..).take((BLOCK - private.len() % BLOCK) % BLOCK).for_each(|n| private.push(n));
    let mut out = MAGIC.to_vec();
    for text in [&b"none"[..], b"none", b""] {
        put(&mut out, text);
    }
    out.extend(1u32.to_be_bytes());
    put(&mut out, &public_blob(public));
    put(&mut out, &private);
    let mut text = format!("-----BEGIN {LABEL}-----\n");
    for line in STANDARD.encode(out).as_bytes().chunks(70) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str(&format!("-----END {LABEL}-----\n"));
    Ok((text, format!("{KIND} {}\n", identity.public())))
}

/// Writes a new key, unless there is one by then.
fn make(path: &Path) -> Result<(), String> {
    let (private, public) = generate()?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let said = |e: io::Error| e.to_string();
    fs::create_dir_all(dir).map_err(said)?;
    // Whole or not at all, and never in place of another: a link to a name that exists fails.
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
            // File systems without links.
            Err(_) if !path.exists() => fs::rename(&temp, path).map(|()| true),
            linked => linked.map(|()| true),
        }
    });
    let _ = fs::remove_file(&temp);
    if written.map_err(said)? {
        fs::write(path.with_extension("pub"), &public).map_err(said)?;
        tracing::info!(key = %path.display(), public = public.trim_end(), "made a key for registries");
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

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(File::open(path)?, MAX_FILE), &mut text)?;
    Ok(text)
}

/// The 32 bytes of a public key in the form that [`Identity::public`] has; `None`: it is none.
pub fn public_key(text: &str) -> Option<[u8; 32]> {
    let bytes = STANDARD.decode(text).ok()?;
    let mut input = Input(&bytes);
    (input.text().ok()? == KIND.as_bytes()).then_some(())?;
    let key = input.text().ok()?.try_into().ok()?;
    input.0.is_empty().then_some(key)
}

fn public_blob(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, KIND.as_bytes());
    put(&mut out, key);
    out
}

fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u32).to_be_bytes());
    out.extend(text);
}

/// Bytes that are read from their beginning.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn number(&mut self) -> Result<u32, String> {
        let (number, rest) = self.0.split_first_chunk().ok_or("it is cut off")?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*number))
    }

    fn text(&mut self) -> Result<&'a [u8], String> {
        let len = self.number()? as usize;
        let (text, rest) = self.0.split_at_checked(len).ok_or("it is cut off")?;
        self.0 = rest;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `ssh-keygen -t ed25519 -N "" -C comment`, without the armour.
    const OPENSSH: &str = include_str!("tests/openssh-key.txt");
    const OPENSSH_PUBLIC: &str = include_str!("tests/openssh-key-public.txt");

    fn armoured(body: &str) -> String {
        format!("-----BEGIN {LABEL}-----\n{body}\n-----END {LABEL}-----\n")
    }

    #[test]
    fn a_key_of_openssh_is_read() {
        let identity = Identity::parse(&armoured(OPENSSH)).unwrap();
        assert_eq!(identity.public(), OPENSSH_PUBLIC.trim());
    }

    #[test]
    fn a_missing_key_is_made_for_its_owner_alone_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep").join("id_ed25519");
        let first = Identity::read_or_make(&path).unwrap().public();
        assert_eq!(Identity::read_or_make(&path).unwrap().public(), first);
        let public = fs::read_to_string(path.with_extension("pub")).unwrap();
        assert_eq!(public, format!("ssh-ed25519 {first}\n"));
        assert!(first.len() == 68 && first.starts_with("AAAAC3NzaC1lZDI1NTE5AAAAI"));
        assert!(public_key(&first).is_some_and(|key| STANDARD.encode(public_blob(&key)) == first));
        assert_eq!([&first[..64], "AAAA", "ssh-ed25519", ""].map(public_key), [None; 4]);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn keys_that_cannot_be_used_say_why() {
        let reason = |text: &str| Identity::parse(text).err().unwrap();
        assert_eq!(reason("ssh-ed25519 AAAA"), "it is no OpenSSH private key");
        assert_eq!(reason(""), "it is no OpenSSH private key");
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
        let error = Identity::read_or_make(&path).err().unwrap().to_string();
        assert_eq!(error, format!("the key {}: it is no OpenSSH private key", path.display()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
    }
}
