//! What an architecture reads: keys and tensors of a file after translation.
//!
//! Models published in Ollama's library differ from llama.cpp's form of the same architecture: other key names,
//! other tensor names, tensors of an image encoder among those of the language model. A [`View`] shows such a file
//! in llama.cpp's form. Nothing on disk is rewritten: a tensor of the view is one of the file under its own or another
//! name, or, in a few forms, made of several of them when it is asked for. A file in llama.cpp's form is shown as it is.

mod forms;
mod prediction;
mod rules;
mod skipped;
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
use rules::{Draft, Entry, Make};

/// A model as its architecture's code wants to see it.
#[derive(Debug)]
pub struct View {
    gguf: Arc<Gguf>,
    metadata: Metadata,
    entries: Vec<Entry>,
    by_name: HashMap<Box<str>, usize>,
    translation: Option<Translation>,
}

/// What a view changed, for `puna inspect`.
#[derive(Debug, Clone, PartialEq)]
pub struct Translation {
    /// The form the file is in, such as `gemma3 as published by Ollama`.
    pub form: &'static str,
    /// The file's `general.architecture`.
    pub from: String,
    /// The view's.
    pub to: String,
    /// Tensors that have another name than in the file: old and new.
    pub renamed: Vec<(String, String)>,
    /// Keys that the view has and the file has not.
    pub added: Vec<String>,
    /// Keys whose value differs from the file's.
    pub changed: Vec<String>,
    /// Keys that the view leaves out.
    pub removed: Vec<String>,
    /// Names in the file of the tensors that the view leaves out.
    pub dropped: Vec<String>,
}

impl Translation {
    fn is_empty(&self) -> bool {
        let lists = [&self.added, &self.changed, &self.removed, &self.dropped];
        self.renamed.is_empty() && lists.iter().all(|list| list.is_empty())
    }
}

impl View {
    /// Recognises the form the file is in and translates it.
    pub fn new(gguf: Arc<Gguf>) -> Result<View, GgufError> {
        let mut draft = Draft::new(&gguf);
        match forms::recognise(&draft) {
            Some(form) => {
                form.rules.iter().for_each(|rule| draft.apply(rule));
                // A marker may stand in a file that needs nothing.
                let translation = Some(draft.report(form.name)).filter(|report| !report.is_empty());
                Ok(Self::build(Arc::clone(&gguf), draft, translation))
            }
            None => Ok(Self::build(Arc::clone(&gguf), draft, None)),
        }
    }

    /// Shows the file as it is, in whatever form.
    pub fn untranslated(gguf: Arc<Gguf>) -> View {
        let draft = Draft::new(&gguf);
        Self::build(Arc::clone(&gguf), draft, None)
    }

    fn build(gguf: Arc<Gguf>, draft: Draft<'_>, translation: Option<Translation>) -> View {
        let (metadata, entries) = (draft.metadata, draft.entries);
        let by_name =
            entries.iter().enumerate().map(|(i, entry)| (entry.name.clone(), i)).collect();
        View { metadata, entries, by_name, translation, gguf }
    }

    /// The file behind the view. `show` and everything else that is about the file reads this.
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    /// Keys and values as the architecture expects them.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What was translated; `None` for a file that is shown as it is.
    pub fn translation(&self) -> Option<&Translation> {
        self.translation.as_ref()
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.by_name.get(name).map(|&i| self.view(&self.entries[i]))
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.entries.iter().map(|entry| self.view(entry))
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> TensorView<'a> {
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
    /// The name that the architecture knows.
    pub name: &'a str,
    /// How the elements are stored.
    pub ty: TensorType,
    /// The dimensions, fastest first: `shape[0]` is the length of a row.
    pub shape: &'a [u64],
    /// The tensor of the file that this one shows; of a made one, one of those it is made of.
    pub source: &'a TensorInfo,
    entry: &'a Entry,
    view: &'a View,
}

impl<'a> TensorView<'a> {
    /// The data: borrowed from the mapping, or made, at every call.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        match &self.entry.make {
            // Of a matrix that was cut, the first rows.
            None => Cow::Borrowed(&self.view.gguf.data(self.source)[..self.size() as usize]),
            Some(make) => Cow::Owned(make.data(&self.view.gguf)),
        }
    }

    /// The data as a piece that lives on its own, at a multiple of 32 bytes. A copy only if the tensor is made or the
    /// file's alignment is smaller than that.
    pub fn shared(&self) -> SharedBytes {
        match &self.entry.make {
            None => self.view.gguf.shared(self.source).slice(0, self.size() as usize),
            Some(make) => SharedBytes::aligned(&make.data(&self.view.gguf)),
        }
    }

    /// Whether the data is not in the file as it is shown: it takes memory of its own.
    pub fn is_made(&self) -> bool {
        self.entry.make.is_some()
    }

    /// The two tensors of the file that this one was made of expert by expert, if it was: who can read them apart needs no copy.
    pub fn halves(&self) -> Option<[&'a TensorInfo; 2]> {
        match self.entry.make {
            Some(Make::Interleave(halves, _)) => {
                Some(halves.map(|half| &self.view.gguf.tensors()[half]))
            }
            _ => None,
        }
    }

    /// Bytes of the data.
    pub fn size(&self) -> u64 {
        self.entry.size
    }

    /// How many values the tensor has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}
