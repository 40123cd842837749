//! Pulls manifest lists: manifests and blobs of the selected children, then the list under the
//! model's name.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use puna_store::{
    Child, Digest, Manifest, ManifestDocument, ManifestList, ModelName, NewModel, Store,
    StoreError, runner_rank,
};

use super::store_manifest::write_model;
use super::{BlobSpec, PinnedBlobs, Sources, record_pull, with_optional_notices};
use crate::Registry;
use crate::blocking::blocking;
use crate::client::settings::{Options, Progress, Report, send_progress};
use crate::display::single_line;
use crate::error::{ManifestProblem, RegistryError};
use crate::manifest::{MAX_MANIFEST_BYTES, read_any_manifest, read_manifest};

/// The largest number of children that a message names.
const MAX_NAMED: usize = 8;
/// The longest runner or format that a message shows, in characters.
const MAX_SHOWN_CHARS: usize = 40;

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
        let list = read_list(&bytes).map_err(RegistryError::while_pulling_manifest)?;
        let mut pinned = PinnedBlobs::new(store);
        let mut children = Vec::new();
        for at in select_children(&list, &name, options)? {
            let runner = &list.children[at].runner;
            let child_name =
                if runner.is_empty() { list.children[at].digest.short() } else { shorten(runner) };
            send_progress(report, Progress::status(format!("pulling manifest for {child_name}")))
                .await;
            let text = self
                .child_text(&mut sources, store, &list.children[at], (options, report), &mut pinned)
                .await;
            let child = text.and_then(|text| read_child(&list.children[at], text, options));
            children.push(
                child.map_err(|error| {
                    child_error(&list, at, &name, error).while_pulling_manifest()
                })?,
            );
        }
        let mut seen = HashSet::new();
        let layers = children.iter().flat_map(|child| child.manifest.blobs());
        let blobs: Vec<_> = layers
            .map(|layer| (layer.digest, layer.size))
            .filter(|blob| seen.insert(*blob))
            .collect();
        let manifests = children.iter().map(|child| child.text.len() as u64);
        let manifests = manifests.chain([bytes.len() as u64; 2]).collect();
        let new = NewModel { name: name.clone(), blobs: blobs.clone(), manifests };
        record_pull(store, new, options).await?;
        let blobs: Vec<_> =
            blobs.into_iter().map(|(digest, size)| BlobSpec::blob(digest, size)).collect();
        self.pull_blobs(&mut sources, store, &blobs, (options, report), &mut pinned).await?;
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
        (options, report): (&Options, &Report),
        pinned: &mut PinnedBlobs,
    ) -> Result<Bytes, RegistryError> {
        if let Some(text) = &child.inline {
            return Ok(Bytes::copy_from_slice(text));
        }
        let (at, digest) = (store.clone(), child.digest);
        let is_reusable = options.reusable_blobs([digest]).await?.private_to(&digest).is_none();
        let stored = move || Ok(is_reusable.then(|| stored_manifest(&at, &digest)).flatten());
        if let Some(text) = blocking(stored).await? {
            pinned.digests.push(digest);
            return Ok(text);
        }
        loop {
            let Some(session) = sources.first().cloned() else {
                return Err(RegistryError::NotFound);
            };
            let error =
                match with_optional_notices(&session, Some(report), session.child_manifest(digest))
                    .await
                {
                    Ok(text) => return Ok(text),
                    Err(error) => error,
                };
            if error.is_local() {
                return Err(error);
            }
            sources.advance_after(error)?;
        }
    }

    /// Fetches a manifest of a model's repository by its digest, from the first source that has it.
    pub(crate) async fn find_manifest(
        &self,
        name: &ModelName,
        digest: Digest,
        options: &Options,
    ) -> Result<Bytes, RegistryError> {
        let sessions = self.sessions(name, options, &self.rate_limits(options))?;
        let mut sources = Sources { sessions, mirror_errors: Vec::new() };
        loop {
            let Some(session) = sources.first().cloned() else {
                return Err(RegistryError::NotFound);
            };
            match session.child_manifest(digest).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) if error.is_local() => return Err(error),
                Err(error) => sources.advance_after(error)?,
            }
        }
    }
}

/// Reads a manifest list.
pub(super) fn read_list(bytes: &[u8]) -> Result<ManifestList, RegistryError> {
    Ok(ManifestList::parse(bytes).map_err(|reason| ManifestProblem::Invalid { reason })?)
}

/// Refuses a plain manifest that states another runner than the wanted one.
pub(super) fn check_stated_runner(
    name: &ModelName,
    bytes: &[u8],
    options: &Options,
) -> Result<(), RegistryError> {
    let Some(wanted) = &options.runner else { return Ok(()) };
    match ManifestDocument::parse(bytes) {
        Ok(ManifestDocument::Manifest { runner, .. })
            if !runner.is_empty() && !runner.eq_ignore_ascii_case(wanted) =>
        {
            Err(no_runner_error(name, wanted, shorten(&runner)).into())
        }
        _ => Ok(()),
    }
}

/// Chooses the children to fetch.
fn select_children(
    list: &ManifestList,
    name: &ModelName,
    options: &Options,
) -> Result<Vec<usize>, RegistryError> {
    let children = || 0..list.children.len();
    if let Some(wanted) = &options.runner {
        let is_runner_wanted = |at: &usize| list.children[*at].runner.eq_ignore_ascii_case(wanted);
        let named = children().find(is_runner_wanted);
        let named = named.ok_or_else(|| no_runner_error(name, wanted, describe_runners(list)))?;
        return Ok(if options.all_runners { children().collect() } else { vec![named] });
    }
    if options.all_runners {
        return Ok(children().collect());
    }
    match children().filter_map(|at| Some((runner_rank(&list.children[at])?, at))).min() {
        Some((_, best)) => Ok(vec![best]),
        None => Err(RegistryError::NoRunnableChild {
            name: name.to_string(),
            known: describe_runners(list),
        }),
    }
}

/// Reads the manifest of a child. A child that was chosen to run here must not come in tensors.
fn read_child(
    child: &Child,
    text: Bytes,
    options: &Options,
) -> Result<ChildManifest, RegistryError> {
    if let Ok(ManifestDocument::List(_)) = ManifestDocument::parse(&text) {
        return Err(ManifestProblem::NestedList.into());
    }
    let is_to_run = options.runner.is_none() && !options.all_runners;
    let manifest = if is_to_run { read_manifest(&text)? } else { read_any_manifest(&text)? };
    Ok(ChildManifest { text, manifest, is_inline: child.inline.is_some() })
}

/// Reads a manifest that is a blob of the store, and pins the blob.
fn stored_manifest(store: &Store, digest: &Digest) -> Option<Bytes> {
    let path = store.blob_path(digest);
    let size = std::fs::metadata(&path).ok().map(|meta| meta.len())?;
    if size > MAX_MANIFEST_BYTES as u64 || !store.pin_blob(digest, size) {
        return None;
    }
    let text = std::fs::read(&path).ok().filter(|text| Digest::of(text) == *digest);
    if text.is_none() {
        store.unpin_blobs([*digest]);
    }
    text.map(Bytes::from)
}

/// Adds the child's description to an error.
fn child_error(
    list: &ManifestList,
    at: usize,
    name: &ModelName,
    error: RegistryError,
) -> RegistryError {
    let child = describe_child(at, &list.children[at]);
    match error {
        error if error.is_local() => error,
        error if error.is_not_found() => RegistryError::ChildNotFound {
            name: name.to_string(),
            child,
            known: describe_runners(list),
        },
        error => RegistryError::Child { child, error: Box::new(error) },
    }
}

/// Describes a child for a message.
pub(crate) fn describe_child(at: usize, child: &Child) -> String {
    match child.runner.as_str() {
        "" => format!("child {} ({})", at + 1, child.digest),
        runner => format!("child {} for {} ({})", at + 1, shorten(runner), child.digest),
    }
}

/// Describes the runners and formats of a list for a message.
fn describe_runners(list: &ManifestList) -> String {
    let one = |child: &Child| {
        let runner =
            if child.runner.is_empty() { "no runner".into() } else { shorten(&child.runner) };
        if child.format.is_empty() {
            runner
        } else {
            format!("{runner} ({})", shorten(&child.format))
        }
    };
    list.children.iter().take(MAX_NAMED).map(one).collect::<Vec<_>>().join(", ")
}

fn no_runner_error(name: &ModelName, wanted: &str, known: String) -> StoreError {
    StoreError::NoRunner { name: name.to_string(), wanted: shorten(wanted), known }
}

/// The beginning of a text from the registry.
fn shorten(text: &str) -> String {
    single_line(text, MAX_SHOWN_CHARS)
}
