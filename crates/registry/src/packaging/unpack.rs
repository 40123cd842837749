//! Files in packed layers: tar, plain or compressed. Sizes are bounded before they are written.

use std::fs::File;
use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;
use puna_store::{Digest, Store, StoreError};
use ruzstd::decoding::StreamingDecoder;

use crate::error::RegistryError;
use crate::space::room;
use crate::tar::Archive;

/// Files in a layer at most.
const MAX_FILES: usize = 10_000;
/// How many times as long as a layer its files may be, and what they may always be.
const MAX_RATIO: u64 = 20;
const ALWAYS: u64 = 16 << 20;
/// Bytes after which it is looked whether there is room for more.
const LOOK: u64 = 64 << 20;

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
    while let Some(entry) = archive.next_file().map_err(|e| wrong(e.to_string()))? {
        if files.len() >= MAX_FILES {
            return Err(wrong(format!("it has more than {MAX_FILES} files")));
        }
        let name = check_name(&entry.name)?;
        files.push((name, keep(store, &mut archive, entry.size)?));
    }
    Ok(files)
}

/// Makes a blob of the next bytes.
fn keep(store: &Store, input: &mut impl Read, size: u64) -> Result<Digest, RegistryError> {
    let mut blob = store.blob_writer()?;
    let mut buffer = vec![0; 1 << 18];
    let (mut left, mut looked) = (size, LOOK);
    while left > 0 {
        if looked >= LOOK {
            looked = 0;
            room(store, "the files of a packed layer", left.min(LOOK))?;
        }
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let n = input.read(&mut buffer[..want]).map_err(|e| wrong(e.to_string()))?;
        if n == 0 {
            return Err(wrong("it is cut off".into()));
        }
        blob.write(&buffer[..n])?;
        left -= n as u64;
        looked += n as u64;
    }
    Ok(blob.finish(None)?.digest)
}
