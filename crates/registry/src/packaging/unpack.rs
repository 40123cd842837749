//! Files in packed layers: tar, plain or compressed. Sizes are bounded before they are written.

use std::fs::File;
use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;
use puna_store::{Digest, Store, StoreError};
use ruzstd::decoding::StreamingDecoder;

use crate::error::RegistryError;
use crate::space::store_bytes;
use crate::tar::Archive;

/// Files in a layer at most.
const MAX_FILES: usize = 10_000;
/// How many times as long as a layer its files may be, and what they may always be.
const MAX_RATIO: u64 = 20;
const ALWAYS: u64 = 16 << 20;

/// How the files of a layer are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The layer is the file.
    Raw,
    Tar,
    TarGzip,
    TarZstd,
}

impl Form {
    /// By the end of a media type.
    pub(crate) fn of(text: &str) -> Option<Self> {
        match text {
            "raw" | "gguf" | "safetensors" => Some(Self::Raw),
            "tar" => Some(Self::Tar),
            "tar+gzip" => Some(Self::TarGzip),
            "tar+zstd" => Some(Self::TarZstd),
            _ => None,
        }
    }
}

/// A name of plain parts between single slashes.
pub(crate) fn check_name(name: &str) -> Result<String, RegistryError> {
    let plain = name.trim_start_matches("./");
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0']);
    match plain.split('/').all(is_plain) {
        true => Ok(plain.to_owned()),
        false => Err(wrong(format!("a file is called {:?}", crate::address::plain(name, 100)))),
    }
}

fn wrong(what: String) -> RegistryError {
    RegistryError::NotAManifest(format!("its packed layer cannot be unpacked: {what}"))
}

fn unread(error: io::Error) -> RegistryError {
    wrong(error.to_string())
}

/// Stores the files of a layer as blobs.
pub(crate) fn unpack(
    store: &Store,
    layer: &Digest,
    size: u64,
    form: Form,
) -> Result<Vec<(String, Digest)>, RegistryError> {
    let path = store.blob_path(layer);
    let file = File::open(&path).map_err(|e| StoreError::io("read", &path, &e))?;
    let file = BufReader::with_capacity(1 << 20, file);
    let limit = size.saturating_mul(MAX_RATIO).saturating_add(ALWAYS);
    let found = match form {
        Form::Raw | Form::Tar => files(store, &mut Bounded::new(file, limit)),
        Form::TarGzip => files(store, &mut Bounded::new(MultiGzDecoder::new(file), limit)),
        Form::TarZstd => match StreamingDecoder::new(file) {
            Ok(decoder) => files(store, &mut Bounded::new(decoder, limit)),
            Err(e) => Err(wrong(e.to_string())),
        },
    };
    found.map_err(|error| match error {
        RegistryError::NotAManifest(what) => {
            RegistryError::NotAManifest(format!("{what} (layer {})", layer.short()))
        }
        other => other,
    })
}

/// A reader that ends with an error after too many bytes.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R> Bounded<R> {
    fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(n as u64)
            .ok_or_else(|| io::Error::other("it is many times as long as the layer"))?;
        Ok(n)
    }
}

fn files(store: &Store, input: &mut impl Read) -> Result<Vec<(String, Digest)>, RegistryError> {
    let mut archive = Archive::new(input);
    let mut files = Vec::new();
    while let Some(entry) = archive.next_file().map_err(unread)? {
        if files.len() >= MAX_FILES {
            return Err(wrong(format!("it has more than {MAX_FILES} files")));
        }
        let name = check_name(&entry.name)?;
        let what = "the files of a packed layer";
        let blob = store_bytes(store, &mut archive, entry.size, what, unread, &mut |_| ())?;
        files.push((name, blob.finish(None)?.digest));
    }
    match archive.link().filter(|_| files.is_empty()) {
        Some(link) => {
            let link = crate::address::plain(link, 100);
            Err(wrong(format!("it has a link {link:?} in the place of a file")))
        }
        None => Ok(files),
    }
}
