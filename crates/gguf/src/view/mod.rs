//! Compatibility view: presents the keys and tensors of a file as the architecture's code expects
//! them.
//!
//! Models in Ollama's library differ from llama.cpp's layout: other key names, other tensor names,
//! and tensors of an image encoder in addition to the language model's. A [`View`] maps these files
//! to llama.cpp's layout and does not rewrite them. A tensor of the view is a tensor of the file,
//! possibly renamed, or in a few layouts data derived from several tensors on access. A file in
//! llama.cpp's layout is unchanged.

mod block_removal;
mod layouts;
mod mtp_blocks;
mod rules;
mod vocabulary;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use puna_quant::TensorType;

use crate::bytes::SharedBytes;
use crate::error::GgufError;
use crate::file::Gguf;
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;
use rules::{DerivedData, ViewBuilder, ViewEntry};

/// A model in the layout that its architecture expects.
#[derive(Debug)]
pub struct View {
    gguf: Arc<Gguf>,
    metadata: Metadata,
    entries: Vec<ViewEntry>,
    by_name: HashMap<Box<str>, usize>,
    translation: Option<Translation>,
}

/// Changes that a view made, for `puna inspect`.
#[derive(Debug, Clone, PartialEq)]
pub struct Translation {
    /// Name of the file's layout, such as `gemma3 as published by Ollama`.
    pub layout: &'static str,
    /// `general.architecture` of the file.
    pub from: String,
    /// `general.architecture` of the view.
    pub to: String,
    /// Renamed tensors: old and new name.
    pub renamed: Vec<(String, String)>,
    /// Keys that only the view has.
    pub added: Vec<String>,
    /// Keys with another value than in the file.
    pub changed: Vec<String>,
    /// Keys that only the file has.
    pub removed: Vec<String>,
    /// Names of the file's tensors that the view leaves out.
    pub dropped: Vec<String>,
}

impl Translation {
    fn is_empty(&self) -> bool {
        let lists = [&self.added, &self.changed, &self.removed, &self.dropped];
        self.renamed.is_empty() && lists.iter().all(|list| list.is_empty())
    }
}

impl View {
    /// Detects the layout of the file and translates it.
    pub fn new(gguf: Arc<Gguf>) -> Result<View, GgufError> {
        let mut builder = ViewBuilder::new(&gguf);
        match layouts::detect(&builder) {
            Some(layout) => {
                layout.rules.iter().for_each(|rule| builder.apply(rule));
                // A file may have a marker but need no translation.
                let translation =
                    Some(builder.report(layout.name)).filter(|report| !report.is_empty());
                Ok(Self::build(Arc::clone(&gguf), builder, translation))
            }
            None => Ok(Self::build(Arc::clone(&gguf), builder, None)),
        }
    }

    /// Whether a view may translate files with this `general.architecture`.
    pub fn may_translate(architecture: &str) -> bool {
        layouts::has_architecture(architecture)
    }

    /// Presents the file unchanged, in any layout.
    pub fn untranslated(gguf: Arc<Gguf>) -> View {
        let builder = ViewBuilder::new(&gguf);
        Self::build(Arc::clone(&gguf), builder, None)
    }

    fn build(gguf: Arc<Gguf>, builder: ViewBuilder<'_>, translation: Option<Translation>) -> View {
        let (metadata, entries) = (builder.metadata, builder.entries);
        let by_name =
            entries.iter().enumerate().map(|(i, entry)| (entry.name.clone(), i)).collect();
        View { metadata, entries, by_name, translation, gguf }
    }

    /// The file behind the view. `show` and other information about the file use it.
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    /// Keys and values as the architecture expects them.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The translation. `None` for an unchanged file.
    pub fn translation(&self) -> Option<&Translation> {
        self.translation.as_ref()
    }

    /// Finds a tensor by name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.by_name.get(name).map(|&i| self.view(&self.entries[i]))
    }

    /// Tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.entries.iter().map(|entry| self.view(entry))
    }

    fn view<'a>(&'a self, entry: &'a ViewEntry) -> TensorView<'a> {
        let source = &self.gguf.tensors()[entry.source];
        TensorView {
            name: &entry.name,
            ty: entry.ty,
            shape: &entry.shape,
            source,
            entry,
            view: self,
        }
    }
}

/// A tensor of a view.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Name as the architecture expects it.
    pub name: &'a str,
    /// Storage type of the elements.
    pub ty: TensorType,
    /// Dimensions, fastest first: `shape[0]` is the length of a row.
    pub shape: &'a [u64],
    /// Source tensor in the file. Of derived data, one of the sources.
    pub source: &'a TensorInfo,
    entry: &'a ViewEntry,
    view: &'a View,
}

impl<'a> TensorView<'a> {
    /// The data: borrowed from the mapping, or derived at every call.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        match &self.entry.derived {
            // A truncated matrix keeps its first rows.
            None => Cow::Borrowed(&self.view.gguf.data(self.source)[..self.size() as usize]),
            Some(derived) => Cow::Owned(derived.data(&self.view.gguf)),
        }
    }

    /// The data with shared ownership, aligned to 32 bytes. Copies it only if it is derived, or if
    /// the file's alignment is smaller.
    pub fn shared(&self) -> SharedBytes {
        match &self.entry.derived {
            None => self.view.gguf.shared(self.source).slice(0, self.size() as usize),
            Some(derived) => SharedBytes::aligned(&derived.data(&self.view.gguf)),
        }
    }

    /// Whether the data is derived, and so takes additional memory.
    pub fn is_derived(&self) -> bool {
        self.entry.derived.is_some()
    }

    /// The two tensors of the file that this one interleaves by expert, if any. A caller that
    /// supports separate tensors needs no copy.
    pub fn interleaved_sources(&self) -> Option<[&'a TensorInfo; 2]> {
        match self.entry.derived {
            Some(DerivedData::Interleave(halves, _)) => {
                Some(halves.map(|half| &self.view.gguf.tensors()[half]))
            }
            _ => None,
        }
    }

    /// Size of the data in bytes.
    pub fn size(&self) -> u64 {
        self.entry.size
    }

    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}
