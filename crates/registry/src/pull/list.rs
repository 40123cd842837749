//! Pulling manifest lists: the manifests and blobs of the chosen children, then the list under the model's name.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{
    Child, Digest, Document, Manifest, ManifestList, ModelName, Store, StoreError, runner_rank,
};

use super::write::write_model;
use super::{Held, Sources, Wanted, note, watched};
use crate::Registry;
use crate::address::plain;
use crate::blocking::blocking;
use crate::error::RegistryError;
use crate::manifest::{MAX_MANIFEST, read_any_manifest, read_manifest};
use crate::settings::{Options, Progress, Report, tell};

/// The largest number of children that a message names.
const MAX_NAMED: usize = 8;
/// The longest runner or format that a message shows, in characters.
const MAX_SHOWN: usize = 40;

/// The manifest of a child.
struct ChildManifest {
    text: Bytes,
    manifest: Manifest,
    is_inline: bool,
}

impl Registry {
    /// Fetches the chosen children of a manifest list and stores the list under the name.
    pub(super) async fn pull_list(
        &self,
        mut sources: Sources,
        store: &Arc<Store>,
        name: ModelName,
        bytes: Bytes,
        options: &Options,
        report: &Report,
    ) -> Result<Vec<Digest>, RegistryError> {
        let list = read_list(&bytes).map_err(RegistryError::of_manifest)?;
        let mut held = Held::new(store);
        let mut children = Vec::new();
        for at in select(&list, &name, options)? {
            let runner = &list.children[at].runner;
            let of =
                if runner.is_empty() { list.children[at].digest.short() } else { shown(runner) };
            tell(report, Progress::status(format!("pulling manifest for {of}"))).await;
            let text =
                self.child_text(&mut sources, store, &list.children[at], report, &mut held).await;
            let child = text.and_then(|text| read_child(&list.children[at], text, options));
            children.push(child.map_err(|error| of_child(&list, at, &name, error).of_manifest())?);
        }
        let mut seen = HashSet::new();
        let layers = children.iter().flat_map(|child| child.manifest.blobs());
        let blobs: Vec<_> = layers
            .map(|layer| (layer.digest, layer.size))
            .filter(|blob| seen.insert(*blob))
            .collect();
        note(store, &name, blobs.clone()).await?;
        let blobs: Vec<_> =
            blobs.into_iter().map(|(digest, size)| Wanted::blob(digest, size)).collect();
        self.blobs(&mut sources, store, &blobs, report, &mut held).await?;
        let references = children.into_iter().filter(|child| !child.is_inline);
        let texts = references.map(|child| child.text).collect();
        write_model(store, name, bytes, texts, options, report).await?;
        Ok(Vec::new())
    }

    /// Reads the manifest of a child from the list or the store, or fetches it.
    async fn child_text(
        &self,
        sources: &mut Sources,
        store: &Arc<Store>,
        child: &Child,
        report: &Report,
        held: &mut Held,
    ) -> Result<Bytes, RegistryError> {
        if let Some(text) = &child.inline {
            return Ok(Bytes::copy_from_slice(text));
        }
        let (at, digest) = (store.clone(), child.digest);
        if let Some(text) = blocking(move || Ok(stored_manifest(&at, &digest))).await? {
            held.digests.push(digest);
            return Ok(text);
        }
        loop {
            let Some(session) = sources.first().cloned() else {
                return Err(RegistryError::NotFound);
            };
            let error = match watched(&session, Some(report), session.child_manifest(digest)).await
            {
                Ok(text) => return Ok(text),
                Err(error) => error,
            };
            if error.is_ours() {
                return Err(error);
            }
            sources.pass(error)?;
        }
    }

    /// Fetches a manifest of a model's repository by its digest, from the first source that has it.
    pub(crate) async fn find_manifest(
        &self,
        name: &ModelName,
        digest: Digest,
        options: &Options,
    ) -> Result<Bytes, RegistryError> {
        let sessions = self.sessions(name, options, &self.limits(options))?;
        let mut sources = Sources { sessions, missed: Vec::new() };
        loop {
            let Some(session) = sources.first().cloned() else {
                return Err(RegistryError::NotFound);
            };
            match session.child_manifest(digest).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) if error.is_ours() => return Err(error),
                Err(error) => sources.pass(error)?,
            }
        }
    }
}

/// Reads a manifest list.
pub(super) fn read_list(bytes: &[u8]) -> Result<ManifestList, RegistryError> {
    ManifestList::parse(bytes).map_err(RegistryError::NotAManifest)
}

/// Refuses a plain manifest that states another runner than the wanted one.
pub(super) fn check_runner(
    name: &ModelName,
    bytes: &[u8],
    options: &Options,
) -> Result<(), RegistryError> {
    let Some(wanted) = &options.runner else { return Ok(()) };
    match Document::parse(bytes) {
        Ok(Document::Manifest { runner, .. })
            if !runner.is_empty() && !runner.eq_ignore_ascii_case(wanted) =>
        {
            Err(no_runner(name, wanted, shown(&runner)).into())
        }
        _ => Ok(()),
    }
}

/// Chooses the children to fetch.
fn select(
    list: &ManifestList,
    name: &ModelName,
    options: &Options,
) -> Result<Vec<usize>, RegistryError> {
    let children = || 0..list.children.len();
    if let Some(wanted) = &options.runner {
        let is_wanted = |at: &usize| list.children[*at].runner.eq_ignore_ascii_case(wanted);
        let named = children().find(is_wanted);
        let named = named.ok_or_else(|| no_runner(name, wanted, known(list)))?;
        return Ok(if options.all_runners { children().collect() } else { vec![named] });
    }
    if options.all_runners {
        return Ok(children().collect());
    }
    match children().filter_map(|at| Some((runner_rank(&list.children[at])?, at))).min() {
        Some((_, best)) => Ok(vec![best]),
        None => Err(RegistryError::NoRunnableChild { name: name.to_string(), known: known(list) }),
    }
}

/// Reads the manifest of a child. A child that was chosen to run here must not come in tensors.
fn read_child(
    child: &Child,
    text: Bytes,
    options: &Options,
) -> Result<ChildManifest, RegistryError> {
    if let Ok(Document::List(_)) = Document::parse(&text) {
        return Err(RegistryError::NotAManifest("it is a list itself".into()));
    }
    let is_to_run = options.runner.is_none() && !options.all_runners;
    let manifest = if is_to_run { read_manifest(&text)? } else { read_any_manifest(&text)? };
    Ok(ChildManifest { text, manifest, is_inline: child.inline.is_some() })
}

/// The text of a manifest that is a blob of the store; the blob is held then.
fn stored_manifest(store: &Store, digest: &Digest) -> Option<Bytes> {
    let path = store.blob_path(digest);
    let size = std::fs::metadata(&path).ok().map(|meta| meta.len())?;
    if size > MAX_MANIFEST as u64 || !store.hold_blob(digest, size) {
        return None;
    }
    let text = std::fs::read(&path).ok().filter(|text| Digest::of(text) == *digest);
    if text.is_none() {
        store.let_go([*digest]);
    }
    text.map(Bytes::from)
}

/// An error about a child, which the message names.
fn of_child(
    list: &ManifestList,
    at: usize,
    name: &ModelName,
    error: RegistryError,
) -> RegistryError {
    let child = describe(at, &list.children[at]);
    match error {
        error if error.is_ours() => error,
        error if error.is_absence() => {
            RegistryError::ChildAbsent { name: name.to_string(), child, known: known(list) }
        }
        error => RegistryError::Child { child, error: Box::new(error) },
    }
}

/// Names a child in a message.
pub(crate) fn describe(at: usize, child: &Child) -> String {
    match child.runner.as_str() {
        "" => format!("child {} ({})", at + 1, child.digest),
        runner => format!("child {} for {} ({})", at + 1, shown(runner), child.digest),
    }
}

/// The runners and formats of a list for messages.
fn known(list: &ManifestList) -> String {
    let one = |child: &Child| {
        let runner =
            if child.runner.is_empty() { "no runner".into() } else { shown(&child.runner) };
        if child.format.is_empty() {
            runner
        } else {
            format!("{runner} ({})", shown(&child.format))
        }
    };
    list.children.iter().take(MAX_NAMED).map(one).collect::<Vec<_>>().join(", ")
}

fn no_runner(name: &ModelName, wanted: &str, known: String) -> StoreError {
    StoreError::NoRunner { name: name.to_string(), wanted: shown(wanted), known }
}

/// The beginning of a text from outside.
fn shown(text: &str) -> String {
    plain(text, MAX_SHOWN)
}
