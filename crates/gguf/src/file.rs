//! A GGUF model: a single file, a split file, or bytes in memory.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::bytes::SharedBytes;
use crate::error::GgufError;
use crate::metadata::Metadata;
use crate::parse::{Header, parse};
use crate::split;
use crate::tensor::{TensorInfo, sort_by_name};

/// An open model: its validated header and its mapped data. Data is read on access.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, sorted by name.
    sorted: Vec<u32>,
    parts: Vec<SplitPart>,
}

/// One file of a model.
#[derive(Debug)]
pub(crate) struct SplitPart {
    /// `None` if the model came from memory.
    pub path: Option<PathBuf>,
    pub bytes: SharedBytes,
    pub data_start: u64,
}

/// Expected access pattern of data, as a hint to the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// No particular pattern.
    Normal,
    /// Sequential, once.
    Sequential,
    /// Random.
    Random,
    /// Soon: the operating system may start reading.
    WillNeed,
}

/// How the bytes of a file are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadMode {
    /// Mapped. Pages are read on access and shared between processes.
    Mapped,
    /// Read completely into memory. For file systems with slow mapping, and for files that may be
    /// truncated while in use.
    Memory,
}

impl Gguf {
    /// Maps and validates the model at `path`. Finds the other parts of a split file by name
    /// (`…-00001-of-00003.gguf`).
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        split::open(path, LoadMode::Mapped)
    }

    /// Like [`open`](Gguf::open), with a choice of mapping or reading into memory.
    pub fn open_with(path: &Path, mode: LoadMode) -> Result<Gguf, GgufError> {
        split::open(path, mode)
    }

    /// Opens a model in memory: `&'static [u8]` or `Vec<u8>`.
    ///
    /// Uses static data in place if it is aligned (see
    /// [`include_aligned!`](crate::include_aligned)). Copies other data once into aligned memory.
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Gguf, GgufError> {
        let bytes = match bytes.into() {
            Cow::Borrowed(bytes) => SharedBytes::from_static(bytes).into_aligned(),
            Cow::Owned(bytes) => SharedBytes::aligned(&bytes),
        };
        let header = parse(&bytes, 0)?;
        let part = SplitPart { path: None, bytes, data_start: header.data_start };
        Gguf::from_parts(vec![(part, header)])
    }

    /// Joins validated parts. The metadata is that of the first part.
    pub(crate) fn from_parts(parts: Vec<(SplitPart, Header)>) -> Result<Gguf, GgufError> {
        let mut merged = Gguf {
            version: 0,
            alignment: 0,
            metadata: Metadata::new(),
            tensors: Vec::new(),
            sorted: Vec::new(),
            parts: Vec::new(),
        };
        for (part, header) in parts {
            if merged.parts.is_empty() {
                (merged.version, merged.alignment) = (header.version, header.alignment);
                merged.metadata = header.metadata;
                merged.tensors = header.tensors;
            } else {
                merged.tensors.extend(header.tensors);
            }
            merged.parts.push(part);
        }
        merged.sorted = sort_by_name(&merged.tensors)?;
        Ok(merged)
    }

    /// Version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment in bytes of tensors, relative to the start of the data section.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Keys and values. For a split file, the keys and values of its first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Tensors in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Finds a tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at =
            self.sorted.binary_search_by(|&i| (*self.tensors[i as usize].name).cmp(name)).ok()?;
        Some(&self.tensors[self.sorted[at] as usize])
    }

    /// Data of a tensor of this model, in place.
    ///
    /// Its address is a multiple of the smaller of [`alignment`](Gguf::alignment) and 32.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let (part, start, end) = self.range(tensor);
        &part.bytes[start..end]
    }

    /// Data of a tensor of this model with shared ownership, aligned to 32 bytes. Copies the data
    /// only if the file's alignment is smaller.
    pub fn shared(&self, tensor: &TensorInfo) -> SharedBytes {
        let (part, start, end) = self.range(tensor);
        part.bytes.slice(start, end).into_aligned()
    }

    /// Byte range of a tensor in its part. `parse` has checked that it lies within the file.
    fn range(&self, tensor: &TensorInfo) -> (&SplitPart, usize, usize) {
        let part = &self.parts[tensor.part];
        let start = (part.data_start + tensor.offset) as usize;
        (part, start, start + tensor.size as usize)
    }

    /// Index of the file, from 0, that contains the data of a tensor of this model.
    pub fn part_of(&self, tensor: &TensorInfo) -> usize {
        tensor.part
    }

    /// The path that was opened. `None` for a model from memory.
    pub fn path(&self) -> Option<&Path> {
        self.parts[0].path.as_deref()
    }

    /// Paths of all files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| part.path.as_deref())
    }

    /// Number of files.
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// Size of all files in bytes.
    pub fn file_size(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// Size of all tensors in bytes, without padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.size).sum()
    }

    /// Number of parameters: the values of all tensors.
    pub fn parameter_count(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.elements()))
    }

    /// Gives the operating system a hint on the access to all tensor data. No effect where that is
    /// not supported.
    pub fn advise(&self, advice: Advice) {
        for part in &self.parts {
            advise(&part.bytes, part.data_start as usize, part.bytes.len(), advice);
        }
    }

    /// Gives the operating system a hint on the access to a tensor. No effect where that is not
    /// supported.
    pub fn advise_tensor(&self, tensor: &TensorInfo, advice: Advice) {
        let (part, start, end) = self.range(tensor);
        advise(&part.bytes, start, end, advice);
    }

    /// Checks that a tensor's data decodes to finite numbers. Reads all data.
    pub fn check_data(&self, tensor: &TensorInfo) -> Result<(), GgufError> {
        puna_quant::validate(tensor.ty, self.data(tensor)).map_err(|error| {
            GgufError::TensorDataInvalid {
                name: tensor.name.to_string(),
                reason: error.to_string(),
            }
        })
    }

    /// Checks that no file has changed its size since it was opened.
    ///
    /// Access to a mapped page beyond the end of a file kills the process. Only a copy of the model
    /// ([`LoadMode::Memory`]) protects against truncation while in use. Call this before a long
    /// pass over the data.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        for part in &self.parts {
            let Some(path) = &part.path else { continue };
            let found = std::fs::metadata(path)
                .map_err(|e| GgufError::io("read the metadata of", path, &e))?
                .len();
            let expected = part.bytes.len() as u64;
            if found != expected {
                return Err(GgufError::FileChanged { path: path.clone(), expected, found });
            }
        }
        Ok(())
    }
}

/// Maps or reads one file and parses its header.
pub(crate) fn open_part(
    path: &Path,
    index: usize,
    mode: LoadMode,
) -> Result<(SplitPart, Header), GgufError> {
    // Checks the file type first, since opening a pipe would wait for its other end.
    let meta = std::fs::metadata(path).map_err(|e| GgufError::io("open", path, &e))?;
    let file = meta.is_file().then(|| File::open(path)).transpose();
    let file = file.map_err(|e| GgufError::io("open", path, &e))?;
    let Some(file) = file else {
        let what = if meta.is_dir() { "it is a directory" } else { "it is not a regular file" };
        let kind = std::io::ErrorKind::InvalidInput;
        return Err(GgufError::Io {
            action: "read",
            path: path.to_owned(),
            kind,
            reason: what.to_owned(),
        });
    };
    let meta = file.metadata().map_err(|e| GgufError::io("read the metadata of", path, &e))?;
    let bytes = match usize::try_from(meta.len()) {
        // An empty file cannot be mapped.
        Ok(0) => SharedBytes::from_static(&[]),
        Ok(len) => match mode {
            LoadMode::Mapped => {
                SharedBytes::map(&file, len).map_err(|e| GgufError::io("map", path, &e))?
            }
            LoadMode::Memory => {
                SharedBytes::read(&file, len).map_err(|e| GgufError::io("read", path, &e))?
            }
        },
        Err(_) => {
            let reason = "it exceeds the address space".to_owned();
            let kind = std::io::ErrorKind::FileTooLarge;
            return Err(GgufError::Io { action: "map", path: path.to_owned(), kind, reason });
        }
    };
    let header = parse(&bytes, index)?;
    Ok((SplitPart { path: Some(path.to_owned()), bytes, data_start: header.data_start }, header))
}

#[cfg(unix)]
fn advise(bytes: &SharedBytes, start: usize, end: usize, advice: Advice) {
    let Some(map) = bytes.mapping() else { return };
    let advice = match advice {
        Advice::Normal => memmap2::Advice::Normal,
        Advice::Sequential => memmap2::Advice::Sequential,
        Advice::Random => memmap2::Advice::Random,
        Advice::WillNeed => memmap2::Advice::WillNeed,
    };
    if end > start {
        // A rejected hint has no effect.
        let _ = map.advise_range(advice, bytes.start() + start, end - start);
    }
}

#[cfg(not(unix))]
fn advise(bytes: &SharedBytes, _start: usize, _end: usize, _advice: Advice) {
    let _ = (bytes.mapping(), bytes.start());
}
