//! A GGUF model: one file, the parts of a split one, or bytes in memory.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::bytes::SharedBytes;
use crate::error::GgufError;
use crate::metadata::Metadata;
use crate::parse::{Header, parse};
use crate::split;
use crate::tensor::{TensorInfo, sort_by_name};

/// An opened model: its header, checked, and its data, mapped. Nothing of the data is read before it is asked for.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, sorted by name.
    sorted: Vec<u32>,
    parts: Vec<Part>,
}

/// One file.
#[derive(Debug)]
pub(crate) struct Part {
    /// Absent where the model came from memory.
    pub path: Option<PathBuf>,
    pub bytes: SharedBytes,
    pub data_start: u64,
}

/// How the data will be read, for the operating system to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// As it thinks best.
    Normal,
    /// Front to back, once.
    Sequential,
    /// Here and there.
    Random,
    /// Soon: start reading now.
    WillNeed,
}

/// How the bytes of a file come into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// Mapped: pages are read when they are touched, and shared between processes.
    Mapped,
    /// Read, all of it, at once. For file systems where mapping is slow, and where a file may be cut while in use.
    Memory,
}

impl Gguf {
    /// Maps and checks the model at `path`. The other parts of a split model are found by their names
    /// (`…-00001-of-00003.gguf`).
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        split::open(path, Storage::Mapped)
    }

    /// [`open`](Gguf::open), mapped or read into memory.
    pub fn open_with(path: &Path, storage: Storage) -> Result<Gguf, GgufError> {
        split::open(path, storage)
    }

    /// Takes a model from memory: `&'static [u8]` (part of the program) or `Vec<u8>`.
    ///
    /// Static bytes are used in place if they are aligned (see [`include_aligned!`](crate::include_aligned)); other
    /// bytes are copied into aligned memory once.
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Gguf, GgufError> {
        let bytes = match bytes.into() {
            Cow::Borrowed(bytes) => SharedBytes::from_static(bytes).into_aligned(),
            Cow::Owned(bytes) => SharedBytes::aligned(&bytes),
        };
        let header = parse(&bytes, 0)?;
        let part = Part { path: None, bytes, data_start: header.data_start };
        Gguf::from_parts(vec![(part, header)])
    }

    /// Puts checked parts together; `metadata` of the first one counts.
    pub(crate) fn from_parts(parts: Vec<(Part, Header)>) -> Result<Gguf, GgufError> {
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

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensors start at multiples of this many bytes from the start of the data section.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Keys and values; of a split model, those of its first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at =
            self.sorted.binary_search_by(|&i| (*self.tensors[i as usize].name).cmp(name)).ok()?;
        Some(&self.tensors[self.sorted[at] as usize])
    }

    /// The data of one of this model's tensors, in place.
    ///
    /// It starts at an address that is a multiple of the smaller of [`alignment`](Gguf::alignment) and 32.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let (part, start, end) = self.range(tensor);
        &part.bytes[start..end]
    }

    /// The data of one of this model's tensors as a piece that lives on its own, at a multiple of 32 bytes. A copy
    /// only in a file whose alignment is smaller than that.
    pub fn shared(&self, tensor: &TensorInfo) -> SharedBytes {
        let (part, start, end) = self.range(tensor);
        part.bytes.slice(start, end).into_aligned()
    }

    /// Where in its part's bytes the data of a tensor lies; within them, by the checks of `parse`.
    fn range(&self, tensor: &TensorInfo) -> (&Part, usize, usize) {
        let part = &self.parts[tensor.part];
        let start = (part.data_start + tensor.offset) as usize;
        (part, start, start + tensor.size as usize)
    }

    /// The number of the file, from 0, in which the data of one of this model's tensors lies.
    pub fn part_of(&self, tensor: &TensorInfo) -> usize {
        tensor.part
    }

    /// The path that was opened; `None` for a model from memory.
    pub fn path(&self) -> Option<&Path> {
        self.parts[0].path.as_deref()
    }

    /// The files of the model, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| part.path.as_deref())
    }

    /// How many files the model consists of.
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of all its files.
    pub fn file_size(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// Bytes of all tensors, padding left out.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.size).sum()
    }

    /// The number of parameters: the values of all tensors.
    pub fn parameter_count(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.elements()))
    }

    /// Tells the operating system how all tensor data will be read. Does nothing where it cannot be told.
    pub fn advise(&self, advice: Advice) {
        for part in &self.parts {
            advise(&part.bytes, part.data_start as usize, part.bytes.len(), advice);
        }
    }

    /// Tells the operating system how one tensor will be read. Does nothing where it cannot be told.
    pub fn advise_tensor(&self, tensor: &TensorInfo, advice: Advice) {
        let (part, start, end) = self.range(tensor);
        advise(&part.bytes, start, end, advice);
    }

    /// Checks that a tensor's data decodes to finite numbers. Reads all of it.
    pub fn check_data(&self, tensor: &TensorInfo) -> Result<(), GgufError> {
        puna_quant::validate(tensor.ty, self.data(tensor)).map_err(|error| {
            GgufError::TensorDataInvalid {
                name: tensor.name.to_string(),
                reason: error.to_string(),
            }
        })
    }

    /// Checks that no file was cut or has grown since it was opened.
    ///
    /// Touching a mapped page beyond the end of a file kills the process; nothing short of copying the model
    /// ([`Storage::Memory`]) protects from a file that is cut while it is in use. Ask this before a long run over the
    /// data.
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        for part in &self.parts {
            let Some(path) = &part.path else { continue };
            let found =
                std::fs::metadata(path).map_err(|e| GgufError::io("look at", path, &e))?.len();
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
    storage: Storage,
) -> Result<(Part, Header), GgufError> {
    // Looked at first: opening a pipe waits for its other end.
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
    let meta = file.metadata().map_err(|e| GgufError::io("look at", path, &e))?;
    let bytes = match usize::try_from(meta.len()) {
        // An empty file cannot be mapped.
        Ok(0) => SharedBytes::from_static(&[]),
        Ok(len) => match storage {
            Storage::Mapped => {
                SharedBytes::map(&file, len).map_err(|e| GgufError::io("map", path, &e))?
            }
            Storage::Memory => {
                SharedBytes::read(&file, len).map_err(|e| GgufError::io("read", path, &e))?
            }
        },
        Err(_) => {
            let reason = "it is larger than the address space".to_owned();
            let kind = std::io::ErrorKind::FileTooLarge;
            return Err(GgufError::Io { action: "map", path: path.to_owned(), kind, reason });
        }
    };
    let header = parse(&bytes, index)?;
    Ok((Part { path: Some(path.to_owned()), bytes, data_start: header.data_start }, header))
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
        // A refused hint changes nothing.
        let _ = map.advise_range(advice, bytes.start() + start, end - start);
    }
}

#[cfg(not(unix))]
fn advise(bytes: &SharedBytes, _start: usize, _end: usize, _advice: Advice) {
    let _ = (bytes.mapping(), bytes.start());
}
