//! Files in packed layers: tar, plain or compressed. Nothing in them becomes a path; sizes are bounded before they are written.
//!
//! ```text
//! header (512): name[100] … size[12, octal or big-endian] … type[1] … "ustar" … prefix[155]; data, padded to 512
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;
use puna_store::{Digest, Store, StoreError};
use ruzstd::decoding::StreamingDecoder;

use crate::error::RegistryError;
use crate::space::room;

/// Bytes of a header, and what data is padded to.
const BLOCK: usize = 512;
/// Files in a layer at most.
const MAX_FILES: usize = 10_000;
/// Bytes of a long name or of a list of attributes at most.
const MAX_NAME: u64 = 64 << 10;
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
    let (mut files, mut long_name) = (Vec::new(), None);
    while let Some(header) = next_header(input)? {
        let size = number(&header[124..136]).ok_or_else(|| wrong("a file has no size".into()))?;
        match header[156] {
            0 | b'0' | b'7' => {
                let name = long_name.take().map_or_else(|| name_of(&header), Ok)?;
                if files.len() >= MAX_FILES {
                    return Err(wrong(format!("it has more than {MAX_FILES} files")));
                }
                files.push((check_name(&name)?, keep(store, input, size)?));
            }
            b'L' => long_name = Some(text(&short(input, size)?)?),
            b'x' => long_name = path_attribute(&short(input, size)?)?.or(long_name),
            kind => {
                // Folders have no data; links and devices are of no use here, whatever they say.
                long_name = None;
                let has_data = !matches!(kind, b'1'..=b'6');
                skip(input, if has_data { size } else { 0 })?;
                continue;
            }
        }
        skip(input, padding(size))?;
    }
    Ok(files)
}

/// The next header; `None` at the end.
fn next_header(input: &mut impl Read) -> Result<Option<[u8; BLOCK]>, RegistryError> {
    let mut header = [0; BLOCK];
    let mut have = 0;
    while have < BLOCK {
        match input.read(&mut header[have..]).map_err(|e| wrong(e.to_string()))? {
            0 if have == 0 => return Ok(None),
            0 => return Err(wrong("it is cut off".into())),
            n => have += n,
        }
    }
    if header.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(i, b)| u64::from(if (148..156).contains(&i) { b' ' } else { *b }))
        .sum();
    match number(&header[148..156]) == Some(sum) {
        true => Ok(Some(header)),
        false => Err(wrong("it is no tar archive".into())),
    }
}

/// A number in octal digits, or big-endian behind a set bit.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let start = field.len().checked_sub(8).filter(|_| field.len() >= 12)?;
        let high = field[1..start].iter().all(|byte| *byte == 0);
        return high.then(|| u64::from_be_bytes(field[start..].try_into().expect("eight bytes")));
    }
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches([' ', '\0']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn name_of(header: &[u8; BLOCK]) -> Result<String, RegistryError> {
    let name = text(&header[..100])?;
    let prefix = if &header[257..262] == b"ustar" && header[262] == 0 {
        text(&header[345..500])?
    } else {
        String::new()
    };
    Ok(if prefix.is_empty() { name } else { format!("{prefix}/{name}") })
}

/// Text up to the first zero.
fn text(bytes: &[u8]) -> Result<String, RegistryError> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).map_err(|_| wrong("a name is no text".into()))
}

/// `path` of attributes such as `21 path=some/file.gguf\n`.
fn path_attribute(bytes: &[u8]) -> Result<Option<String>, RegistryError> {
    let text = std::str::from_utf8(bytes).map_err(|_| wrong("its attributes are no text".into()))?;
    let mut values = text.lines().filter_map(|line| line.split_once(' ')?.1.strip_prefix("path="));
    Ok(values.next_back().map(str::to_owned))
}

/// A small piece of data.
fn short(input: &mut impl Read, size: u64) -> Result<Vec<u8>, RegistryError> {
    if size > MAX_NAME {
        return Err(wrong(format!("a name has {size} bytes")));
    }
    let mut bytes = vec![0; size as usize];
    input.read_exact(&mut bytes).map_err(|e| wrong(e.to_string()))?;
    Ok(bytes)
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

fn skip(input: &mut impl Read, bytes: u64) -> Result<(), RegistryError> {
    let skipped = io::copy(&mut input.take(bytes), &mut io::sink()).map_err(|e| wrong(e.to_string()))?;
    if skipped < bytes { Err(wrong("it is cut off".into())) } else { Ok(()) }
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
