//! Resolves a MODEL argument of the command line to a file or a stored model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use puna_engine::Adapter;
use puna_gguf::{Gguf, View};
use puna_store::{Model, ModelRef, Weights, embedded};
use puna_tokenizer::Tokenizer;

/// An opened model file.
pub struct ModelFile {
    /// Path of the file, if the argument was a path.
    pub path: Option<PathBuf>,
    /// Path or name for messages.
    pub display_name: String,
    /// The file without changes.
    pub gguf: Arc<Gguf>,
    /// The file with the tensor names and keys that its architecture expects.
    pub view: View,
    /// The stored model, if the argument was a name.
    pub stored: Option<Model>,
}

impl ModelFile {
    /// Opens a path if the file exists, else a stored model. A text that looks like a path is never
    /// a name.
    pub fn open(argument: &str) -> Result<Self> {
        let path = Path::new(argument);
        if is_path(argument) {
            return Self::of_path(path);
        }
        let store = crate::env::store()?;
        let ModelRef { name, runner, .. } = ModelRef::parse(argument)?;
        let model = match store.resolve_for(&name, runner.as_deref()) {
            Err(puna_store::StoreError::NotFound(_)) => {
                bail!(
                    "model '{argument}' not found: neither in {} nor a file",
                    store.root().display()
                )
            }
            model => model?,
        };
        let gguf = match &model.weights {
            Weights::File(path) => Gguf::open(path).with_context(|| path.display().to_string())?,
            Weights::Embedded => Gguf::from_bytes(embedded::weights())?,
            Weights::Remote => bail!(
                "{} is a remote model ({}) and has no file",
                model.name,
                model.config.remote_host
            ),
        };
        let path = match &model.weights {
            Weights::File(path) => Some(path.clone()),
            Weights::Embedded | Weights::Remote => None,
        };
        let gguf = Arc::new(gguf);
        let view = View::new(gguf.clone())?;
        Ok(Self { path, display_name: model.name.to_string(), gguf, view, stored: Some(model) })
    }

    fn of_path(path: &Path) -> Result<Self> {
        check_file(path)?;
        let gguf = Arc::new(Gguf::open(path).with_context(|| path.display().to_string())?);
        let view = View::new(gguf.clone()).with_context(|| path.display().to_string())?;
        Ok(Self {
            path: Some(path.to_owned()),
            display_name: path.display().to_string(),
            gguf,
            view,
            stored: None,
        })
    }

    /// Adapters of the stored model.
    pub fn adapters(&self) -> Result<Vec<Adapter>> {
        let paths = self.stored.iter().flat_map(|model| &model.adapters);
        let open = |path: &PathBuf| {
            let gguf = Gguf::open(path).with_context(|| path.display().to_string())?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            Ok(Adapter::new(name, Arc::new(gguf)))
        };
        paths.map(open).collect()
    }

    /// Tokenizer of the file.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        Tokenizer::from_metadata(self.view.metadata()).with_context(|| self.display_name.clone())
    }
}

/// Whether a MODEL argument is a path: it looks like one, or a file has this path.
pub fn is_path(text: &str) -> bool {
    looks_like_path(text) || std::fs::metadata(text).is_ok_and(|meta| !meta.is_dir())
}

/// Checks a path before it is opened, because opening a pipe blocks until its other end opens.
///
/// # Errors
/// The path does not exist or is not a regular file.
pub fn check_file(path: &Path) -> Result<()> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(meta) if meta.is_dir() => {
            bail!(
                "{shown} is a folder: create a model with `puna create NAME` and `FROM {shown}` in a Modelfile"
            )
        }
        Ok(_) => bail!("{shown} is not a regular file"),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!("{shown}: no such file")
        }
        Err(e) => Err(e).with_context(|| format!("cannot read {shown}")),
    }
}

/// Whether a text is written like a path and so cannot be a name.
pub fn looks_like_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.ends_with(".gguf") || text.starts_with(['/', '.', '~']) || text.contains('\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_distinguished_from_names() {
        for path in ["./m", "/m", "../m", "m.gguf", "dir/m.GGUF", "a\\b"] {
            assert!(looks_like_path(path), "{path}");
        }
        for name in ["m", "me/m", "m:8b", "hf.co/u/r-GGUF:Q4_K_M"] {
            assert!(!looks_like_path(name), "{name}");
        }
    }

    #[test]
    fn missing_files_and_missing_models_have_different_errors() {
        let error = |text: &str| format!("{:#}", ModelFile::open(text).map(|_| ()).unwrap_err());
        assert_eq!(error("./absent.gguf"), "./absent.gguf: no such file");
        assert!(error("absent-model").starts_with("model 'absent-model' not found: neither in"));
        assert!(error(".").contains("is a folder"));
        if cfg!(unix) {
            assert_eq!(error("/dev/null"), "/dev/null is not a regular file");
        }
    }
}
