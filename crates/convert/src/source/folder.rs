//! Files of a model folder.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use puna_gguf::{escape_for_message, read_limited};

use super::safetensors::SafeTensors;
use crate::error::ConvertError;

/// A file of a model folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderFile {
    /// Path within the folder, with `/` as separator.
    pub name: String,
    /// Path of its content.
    pub path: PathBuf,
}

/// Size limits of vocabularies and indices, and of settings files. Real files are far smaller.
const MAX_VOCABULARY_BYTES: u64 = 256 << 20;
const MAX_SETTINGS_BYTES: u64 = 16 << 20;

/// The files of a model folder.
pub(crate) struct ModelFolder<'a> {
    files: &'a [FolderFile],
}

impl<'a> ModelFolder<'a> {
    pub(crate) fn new(files: &'a [FolderFile]) -> Self {
        Self { files }
    }

    fn path(&self, name: &str) -> Option<&Path> {
        self.files.iter().find(|file| file.name == name).map(|file| file.path.as_path())
    }

    /// Whether the folder has a file of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).is_some()
    }

    /// Reads a JSON file; `None` if the folder does not have it.
    pub(crate) fn json(&self, name: &str) -> Result<Option<serde_json::Value>, ConvertError> {
        // A parsed file takes many times its size in memory, so only vocabularies and indices may
        // be large.
        let is_large = name.starts_with("tokenizer") || name.ends_with(".index.json");
        let limit = if is_large { MAX_VOCABULARY_BYTES } else { MAX_SETTINGS_BYTES };
        let Some(bytes) = self.bytes(name, limit)? else { return Ok(None) };
        let invalid = |e: serde_json::Error| ConvertError::Json {
            file: name.to_owned(),
            reason: e.to_string(),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(invalid)
    }

    /// Reads a text file; `None` if the folder does not have it.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, ConvertError> {
        let bytes = self.bytes(name, MAX_VOCABULARY_BYTES)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Reads a file of at most `limit` bytes; `None` if the folder does not have it.
    pub(crate) fn bytes(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, ConvertError> {
        let Some(path) = self.path(name) else { return Ok(None) };
        read_limited(path, limit).map(Some).map_err(|e| ConvertError::read(path, &e))
    }

    /// Reads the first `len` bytes of a file; `None` if the folder does not have it.
    pub(crate) fn first_bytes(
        &self,
        name: &str,
        len: u64,
    ) -> Result<Option<Vec<u8>>, ConvertError> {
        let Some(path) = self.path(name) else { return Ok(None) };
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(len).read_to_end(&mut start));
        read.map(|_| Some(start)).map_err(|e| ConvertError::read(path, &e))
    }

    /// Opens the weight files. If the top folder has some, subfolders are ignored: they hold the
    /// same weights in other formats.
    pub(crate) fn safetensors(&self) -> Result<Vec<SafeTensors>, ConvertError> {
        let is_weights = |file: &&FolderFile| file.name.ends_with(".safetensors");
        let has_top = self.files.iter().filter(is_weights).any(|file| !file.name.contains('/'));
        let files = self
            .files
            .iter()
            .filter(is_weights)
            .filter(|file| !has_top || !file.name.contains('/'));
        self.check_index()?;
        files.map(|file| SafeTensors::open(&file.name, &file.path)).collect()
    }

    /// Checks that all files named in the index exist.
    fn check_index(&self) -> Result<(), ConvertError> {
        let file = "model.safetensors.index.json";
        let Some(index) = self.json(file)? else { return Ok(()) };
        let names = index.get("weight_map").and_then(serde_json::Value::as_object);
        let mut names =
            names.into_iter().flat_map(|map| map.values()).filter_map(serde_json::Value::as_str);
        match names.find(|name| self.path(name).is_none()) {
            Some(name) => Err(ConvertError::Shard {
                file: file.to_owned(),
                missing: escape_for_message(name),
            }),
            None => Ok(()),
        }
    }
}
