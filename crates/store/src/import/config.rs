//! Typed access to `config.json` and its like.

use serde_json::Value;

use super::{Folder, ImportError};
use crate::error::StoreError;

/// A JSON object with the name of its file, for messages.
pub(super) struct Json {
    file: String,
    value: Value,
}

impl Json {
    pub(super) fn read(folder: &Folder<'_>, file: &str) -> Result<Self, StoreError> {
        let value = folder.json(file)?.ok_or_else(|| ImportError::FileMissing(file.to_owned()))?;
        Ok(Self { file: file.to_owned(), value })
    }

    fn key(&self, key: &str, want: &'static str) -> ImportError {
        ImportError::Key { file: self.file.clone(), key: key.to_owned(), want }
    }

    /// The first of `architectures`.
    pub(super) fn architecture(&self) -> Result<String, ImportError> {
        let first = self.value.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        first.map(str::to_owned).ok_or_else(|| self.key("architectures", "a list of names"))
    }

    /// A whole number between 1 and 2^31.
    pub(super) fn count(&self, key: &str) -> Result<u32, ImportError> {
        self.opt_count(key)?.ok_or_else(|| self.key(key, "a positive number"))
    }

    pub(super) fn opt_count(&self, key: &str) -> Result<Option<u32>, ImportError> {
        let Some(value) = self.value.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let count = value.as_u64().filter(|n| (1..1 << 31).contains(n));
        count.map(|n| Some(n as u32)).ok_or_else(|| self.key(key, "a positive number"))
    }

    pub(super) fn float(&self, key: &str, default: f32) -> Result<f32, ImportError> {
        match self.value.get(key).filter(|value| !value.is_null()) {
            None => Ok(default),
            Some(value) => value.as_f64().map(|x| x as f32).ok_or_else(|| self.key(key, "a number")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.value.get(key).and_then(Value::as_str)
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        self.value.get(key).and_then(Value::as_bool)
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.value.get(key)
    }
}
