//! Owner ids of stored responses and namespaces of cached prefixes: HMACs of the API key, or of the
//! address without keys, with a secret of the server.
//!
//! All loopback addresses are one owner. The secret is a file beside the key file, so that ids
//! outlive a restart and cannot be computed for another key or address.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ring::hmac::{self, HMAC_SHA256};
use ring::rand::{SecureRandom, SystemRandom};

use super::Key;
use crate::config::PrefixSharing;
use crate::http::Owner;

/// Length of the secret in bytes.
const SECRET_BYTES: usize = 32;

/// Name of the secret's file, beside the key file.
const SECRET_FILE: &str = "owner.secret";

/// Sender of a request, as the middleware identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClientIdentity {
    /// The API key with this hash, in this group.
    Key { hash: String, group: Option<String> },
    /// A client without a key.
    Address(IpAddr),
}

impl ClientIdentity {
    /// The identity of a key.
    pub(crate) fn of_key(key: &Key) -> Self {
        Self::Key { hash: key.hash.clone(), group: key.group.clone() }
    }
}

/// Computes owners and cache namespaces of clients.
pub(crate) struct OwnerHasher {
    secret: hmac::Key,
    sharing: PrefixSharing,
}

impl OwnerHasher {
    /// Reads the secret beside the key file, or creates it. Without a writable folder it is random
    /// until the server stops; a later server does not find stored responses of earlier ones.
    pub(crate) fn open(key_file: &Path, sharing: PrefixSharing) -> Self {
        let path = key_file.with_file_name(SECRET_FILE);
        let bytes = match key_file.as_os_str().is_empty() {
            true => random(),
            false => read_or_create(&path).unwrap_or_else(|error| {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot store the secret of cache owners; it is lost when the server stops");
                random()
            }),
        };
        Self { secret: hmac::Key::new(HMAC_SHA256, &bytes), sharing }
    }

    /// Owner of what a client stores.
    pub(crate) fn owner(&self, identity: &ClientIdentity) -> Owner {
        Owner(self.hash(&identity_text(identity)))
    }

    /// Namespace of the prefixes that a client finds in the cache.
    pub(crate) fn cache_namespace(&self, identity: &ClientIdentity) -> u128 {
        match (self.sharing, identity) {
            (PrefixSharing::All, _) => self.hash("all"),
            (PrefixSharing::Group, ClientIdentity::Key { group: Some(group), .. }) => {
                self.hash(&format!("group {group}"))
            }
            (PrefixSharing::Key | PrefixSharing::Group, identity) => {
                self.hash(&identity_text(identity))
            }
        }
    }

    fn hash(&self, identity: &str) -> u128 {
        first_128_bits(hmac::sign(&self.secret, identity.as_bytes()).as_ref())
    }
}

/// A namespace within `namespace` for requests with this salt. Different salts, and different
/// namespaces with one salt, give different results.
pub(crate) fn salted_namespace(namespace: u128, salt: &str) -> u128 {
    let key = hmac::Key::new(HMAC_SHA256, &namespace.to_le_bytes());
    first_128_bits(hmac::sign(&key, salt.as_bytes()).as_ref())
}

/// Text that identifies a client among all.
fn identity_text(identity: &ClientIdentity) -> String {
    match identity {
        ClientIdentity::Key { hash, .. } => format!("key {hash}"),
        ClientIdentity::Address(address) => match address.to_canonical() {
            local if local.is_loopback() => "this machine".to_owned(),
            other => format!("address {other}"),
        },
    }
}

/// First 128 bits of a hash, which suffice to tell namespaces apart.
pub(crate) fn first_128_bits(hash: &[u8]) -> u128 {
    hash.iter().take(16).fold(0, |all, byte| all << 8 | u128::from(*byte))
}

fn random() -> [u8; SECRET_BYTES] {
    let mut bytes = [0; SECRET_BYTES];
    // A failure of the system's generator must not give all servers the same secret.
    SystemRandom::new().fill(&mut bytes).expect("the system provides random numbers");
    bytes
}

/// Reads the secret. Creates it with access for its owner only if there is none, or none of the
/// right length.
fn read_or_create(path: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    match read(path) {
        Ok(bytes) => return Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => return Err(error),
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.map_or_else(|| PathBuf::from("."), Path::to_owned);
    std::fs::create_dir_all(&folder)?;
    // Temporary files are created with access for their owner only.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    let bytes = random();
    file.write_all(&bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    // Of two servers that start at once, both use the file that was written last.
    read(path)
}

fn read(path: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    File::open(path)?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, group: Option<&str>) -> ClientIdentity {
        ClientIdentity::Key { hash: name.to_owned(), group: group.map(str::to_owned) }
    }

    fn at(address: &str) -> ClientIdentity {
        ClientIdentity::Address(address.parse().unwrap())
    }

    #[test]
    fn owners_are_keys_and_addresses_and_this_machine_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let owners = OwnerHasher::open(&folder.path().join("keys.toml"), PrefixSharing::Key);
        let all = [
            key("a", None),
            key("b", Some("team")),
            at("10.0.0.1"),
            at("10.0.0.2"),
            at("127.0.0.1"),
        ];
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                assert_eq!(owners.owner(a) == owners.owner(b), i == j, "{a:?}, {b:?}");
                let same = owners.cache_namespace(a) == owners.cache_namespace(b);
                assert_eq!(same, i == j, "{a:?}, {b:?}");
            }
        }
        for same in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(owners.owner(&at(same)), owners.owner(&all[4]), "{same}");
        }
        assert_eq!(owners.owner(&at("::ffff:10.0.0.1")), owners.owner(&all[2]));
    }

    #[test]
    fn sharing_joins_prefixes_of_a_group_or_of_all_but_no_stored_responses() {
        let folder = tempfile::tempdir().unwrap();
        let of = |sharing| OwnerHasher::open(&folder.path().join("keys.toml"), sharing);
        let (a, b, c) = (key("a", Some("team")), key("b", Some("team")), key("c", None));
        let namespaces = |owners: &OwnerHasher| [&a, &b, &c].map(|p| owners.cache_namespace(p));
        let [a1, b1, c1] = namespaces(&of(PrefixSharing::Group));
        assert!(a1 == b1 && b1 != c1);
        let [a2, b2, c2] = namespaces(&of(PrefixSharing::All));
        assert!(a2 == b2 && b2 == c2);
        let owners = of(PrefixSharing::All);
        assert_ne!(owners.owner(&a), owners.owner(&b));
    }

    #[test]
    fn a_salt_separates_within_a_namespace_and_joins_none() {
        let [a, b] = [1, 2].map(|n| salted_namespace(n, "x"));
        assert!(a != b && a != salted_namespace(1, "y") && a != 1);
        assert_eq!(a, salted_namespace(1, "x"));
    }

    #[test]
    fn the_secret_outlives_a_restart_and_is_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new").join("keys.toml");
        let owner =
            |file: &Path| OwnerHasher::open(file, PrefixSharing::Key).owner(&key("a", None));
        assert_eq!(owner(&file), owner(&file));
        let secret = file.with_file_name(SECRET_FILE);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
        }
        // Another server has another secret; a file that a full disk cut short is replaced.
        assert_ne!(owner(&file), owner(&folder.path().join("keys.toml")));
        std::fs::write(&secret, b"short").unwrap();
        assert_eq!(owner(&file), owner(&file));
        // Without a folder for it the owners differ between starts.
        assert_ne!(owner(Path::new("")), owner(Path::new("")));
    }
}
