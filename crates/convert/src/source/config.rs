//! Typed access to `config.json` and other JSON settings.

use serde_json::Value;

use super::folder::ModelFolder;
use crate::error::ConvertError;

/// A JSON object and the name of its file, which error messages show.
pub(crate) struct Config {
    file: String,
    value: Value,
}

impl Config {
    pub(crate) fn read(folder: &ModelFolder<'_>, file: &str) -> Result<Self, ConvertError> {
        let value = folder.json(file)?.ok_or_else(|| ConvertError::FileMissing(file.to_owned()))?;
        Ok(Self { file: file.to_owned(), value })
    }

    /// Merges the section about the text model of a multimodal configuration into the top level.
    pub(crate) fn merge_text_config(mut self) -> Self {
        let text = ["text_config", "language_config"]
            .iter()
            .find_map(|key| self.value.get(key)?.as_object());
        let text = text.cloned();
        if let (Some(text), Some(all)) = (text, self.value.as_object_mut()) {
            all.extend(
                text.into_iter().filter(|(key, value)| key != "architectures" && !value.is_null()),
            );
        }
        self
    }

    /// The section about rotary embeddings: `rope_parameters`, or `rope_scaling` in older
    /// configurations.
    pub(crate) fn rope_parameters(&self) -> Self {
        let object = |key| self.value.get(key).filter(|value| value.is_object());
        let value =
            object("rope_parameters").or(object("rope_scaling")).cloned().unwrap_or_default();
        Self { file: self.file.clone(), value }
    }

    /// The object under a key, if there is one.
    pub(crate) fn opt_section(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| value.is_object())?.clone();
        Some(Self { file: self.file.clone(), value })
    }

    /// The object under a key, or the whole object if there is none.
    pub(crate) fn section_or_self(&self, key: &str) -> Self {
        let value =
            self.value.get(key).filter(|value| value.is_object()).unwrap_or(&self.value).clone();
        Self { file: self.file.clone(), value }
    }

    pub(crate) fn invalid(&self, key: &str, want: &'static str) -> ConvertError {
        ConvertError::Key { file: self.file.clone(), key: key.to_owned(), want }
    }

    pub(crate) fn invalid_value(&self, key: &str, found: String) -> ConvertError {
        ConvertError::KeyValue { file: self.file.clone(), key: key.to_owned(), found }
    }

    /// The first entry of `architectures`.
    pub(crate) fn architecture(&self) -> Result<String, ConvertError> {
        let first =
            self.value.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        first.map(str::to_owned).ok_or_else(|| self.invalid("architectures", "a list of names"))
    }

    /// A whole number from 1 to 2^31 - 1.
    pub(crate) fn count(&self, key: &str) -> Result<u32, ConvertError> {
        self.opt_count(key)?.ok_or_else(|| self.invalid(key, "a positive number"))
    }

    pub(crate) fn opt_count(&self, key: &str) -> Result<Option<u32>, ConvertError> {
        let Some(value) = self.value.get(key).filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let count = value.as_u64().filter(|n| (1..1 << 31).contains(n));
        count.map(|n| Some(n as u32)).ok_or_else(|| self.invalid(key, "a positive number"))
    }

    /// A whole number from 0 to 2^31 - 1.
    pub(crate) fn opt_count_or_zero(&self, key: &str) -> Result<Option<u32>, ConvertError> {
        match self.value.get(key) {
            Some(value) if value.as_u64() == Some(0) => Ok(Some(0)),
            _ => self.opt_count(key),
        }
    }

    /// A list of whole numbers.
    pub(crate) fn numbers(&self, key: &str) -> Result<Vec<u32>, ConvertError> {
        let list = self.value.get(key).and_then(Value::as_array);
        let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let numbers = list.and_then(|list| list.iter().map(number).collect());
        numbers.ok_or_else(|| self.invalid(key, "a list of whole numbers"))
    }

    /// The value of the first key that is present.
    pub(crate) fn first_count_or_zero(&self, keys: &[&str]) -> Result<Option<u32>, ConvertError> {
        for key in keys {
            if let Some(number) = self.opt_count_or_zero(key)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The value of the first key that is present.
    pub(crate) fn first_count(&self, keys: &[&str]) -> Result<Option<u32>, ConvertError> {
        for key in keys {
            if let Some(count) = self.opt_count(key)? {
                return Ok(Some(count));
            }
        }
        Ok(None)
    }

    /// The value of the first key that is present; an error if none is.
    pub(crate) fn first_required_count(&self, keys: &[&str]) -> Result<u32, ConvertError> {
        let missing =
            || self.invalid(keys.first().copied().unwrap_or_default(), "a positive number");
        self.first_count(keys)?.ok_or_else(missing)
    }

    /// The value of the first key that is present.
    pub(crate) fn first_float(&self, keys: &[&str]) -> Result<Option<f32>, ConvertError> {
        for key in keys {
            if let Some(number) = self.opt_float(key)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    pub(crate) fn float_or(&self, key: &str, default: f32) -> Result<f32, ConvertError> {
        Ok(self.opt_float(key)?.unwrap_or(default))
    }

    pub(crate) fn opt_float(&self, key: &str) -> Result<Option<f32>, ConvertError> {
        match self.value.get(key).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => {
                let number = value.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
                number.map(Some).ok_or_else(|| self.invalid(key, "a number"))
            }
        }
    }

    pub(crate) fn floats(&self, key: &str) -> Result<Vec<f32>, ConvertError> {
        let list = self.value.get(key).and_then(Value::as_array);
        let number = |x: &Value| x.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        let numbers = list.and_then(|list| list.iter().map(number).collect());
        numbers.ok_or_else(|| self.invalid(key, "a list of numbers"))
    }

    pub(crate) fn strings(&self, key: &str) -> Option<Vec<String>> {
        let list = self.value.get(key)?.as_array()?;
        list.iter().map(|text| text.as_str().map(str::to_owned)).collect()
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.value.get(key).and_then(Value::as_str)
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.value.get(key).and_then(Value::as_bool)
    }

    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.value.get(key)
    }
}
