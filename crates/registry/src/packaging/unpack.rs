//! Unpacks layers: tar, plain or compressed. Sizes are limited before anything is written.

use std::fs::File;
use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;
use puna_store::{Digest, Store, StoreError};
use ruzstd::decoding::StreamingDecoder;

use crate::disk_space::store_bytes;
use crate::error::{ManifestProblem, RegistryError, UnpackProblem};
use crate::packaging::tar::TarReader;

/// Largest number of files in a layer.
const MAX_FILES: usize = 10_000;
/// Largest ratio of unpacked to packed size, and the unpacked bytes that are always allowed.
const MAX_EXPANSION: u64 = 20;
const ALWAYS_ALLOWED_BYTES: u64 = 16 << 20;

/// Encoding of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerEncoding {
    /// The layer is a file.
    Raw,
    Tar,
    TarGzip,
    TarZstd,
}

impl LayerEncoding {
    /// The encoding that a media type's suffix names.
    pub(crate) fn from_media_type_suffix(text: &str) -> Option<Self> {
        match text {
            "raw" | "gguf" | "safetensors" => Some(Self::Raw),
            "tar" => Some(Self::Tar),
            "tar+gzip" => Some(Self::TarGzip),
            "tar+zstd" => Some(Self::TarZstd),
            _ => None,
        }
    }
}

/// Checks that a name is a relative path without `.`, `..` and empty segments.
pub(crate) fn check_name(name: &str) -> Result<String, RegistryError> {
    let plain = name.trim_start_matches("./");
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0']);
    match plain.split('/').all(is_plain) {
        true => Ok(plain.to_owned()),
        false => {
            let name = crate::display::single_line(name, 100);
            Err(unpack_error(UnpackProblem::FileName { name }))
        }
    }
}

fn unpack_error(problem: UnpackProblem) -> RegistryError {
    ManifestProblem::Unpack(problem).into()
}

fn read_error(error: io::Error) -> RegistryError {
    unpack_error(UnpackProblem::Input { reason: error.to_string() })
}

/// Stores the files of a layer as blobs.
pub(crate) fn unpack(
    store: &Store,
    layer: &Digest,
    size: u64,
    encoding: LayerEncoding,
) -> Result<Vec<(String, Digest)>, RegistryError> {
    let path = store.blob_path(layer);
    let file = File::open(&path).map_err(|e| StoreError::io("read", &path, &e))?;
    let file = BufReader::with_capacity(1 << 20, file);
    let limit = size.saturating_mul(MAX_EXPANSION).saturating_add(ALWAYS_ALLOWED_BYTES);
    let found = match encoding {
        LayerEncoding::Raw | LayerEncoding::Tar => {
            store_files(store, &mut BoundedReader::new(file, limit))
        }
        LayerEncoding::TarGzip => {
            store_files(store, &mut BoundedReader::new(MultiGzDecoder::new(file), limit))
        }
        LayerEncoding::TarZstd => match StreamingDecoder::new(file) {
            Ok(decoder) => store_files(store, &mut BoundedReader::new(decoder, limit)),
            Err(e) => Err(unpack_error(UnpackProblem::Input { reason: e.to_string() })),
        },
    };
    found.map_err(|error| match error {
        RegistryError::NotAManifest(problem) => {
            ManifestProblem::InLayer { problem: Box::new(problem), layer: *layer }.into()
        }
        other => other,
    })
}

/// Reader that fails after too many bytes.
struct BoundedReader<R> {
    inner: R,
    remaining: u64,
}

impl<R> BoundedReader<R> {
    fn new(inner: R, limit: u64) -> Self {
        Self { inner, remaining: limit }
    }
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.remaining = self
            .remaining
            .checked_sub(n as u64)
            .ok_or_else(|| io::Error::other("its content is far larger than the layer"))?;
        Ok(n)
    }
}

fn store_files(
    store: &Store,
    input: &mut impl Read,
) -> Result<Vec<(String, Digest)>, RegistryError> {
    let mut archive = TarReader::new(input);
    let mut files = Vec::new();
    while let Some(entry) = archive.next_file().map_err(read_error)? {
        if files.len() >= MAX_FILES {
            return Err(unpack_error(UnpackProblem::TooManyFiles { max: MAX_FILES }));
        }
        let name = check_name(&entry.name)?;
        let what = "the files of a packed layer";
        let blob = store_bytes(store, &mut archive, entry.size, what, read_error, &mut |_| ())?;
        files.push((name, blob.finish(None)?.digest));
    }
    match archive.first_link().filter(|_| files.is_empty()) {
        Some(link) => {
            let link = crate::display::single_line(link, 100);
            Err(unpack_error(UnpackProblem::Link { link }))
        }
        None => Ok(files),
    }
}
