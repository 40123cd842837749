//! The store as Ollama 0.40 treats it: entries in `manifests-v2/`, manifest lists, and downgrade
//! anchors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::document::{LIST, Layer, MANIFEST, MODEL, ManifestDocument, parse_digest};
use super::name::{LEGACY_PUBLIC_HOST, Name, V2_PUBLIC_HOST};
use super::{Blobs, Content, entries, names_in, prune_directory, remove_if_exists, write_file};
use crate::Digest;

/// Runners by preference on Linux.
const PREFERENCES: [&str; 3] = ["llamacpp", "ggml", "mlx"];
/// Start-up leaves younger blobs alone.
const UNUSED_BLOB_GRACE: Duration = Duration::from_secs(60 * 60);

/// How an entry in `manifests-v2/` refers to its blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Symbolic,
    Hard,
    Copy,
}

/// A row of `/api/tags`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub name: String,
    pub digest: Digest,
    pub runner: String,
    pub size: u64,
}

/// Ollama 0.40 on a store.
pub struct Ollama040 {
    root: PathBuf,
    blobs: Blobs,
    link: Link,
}

impl Ollama040 {
    /// Writes entries as symbolic links where the system has them.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), blobs: Blobs::new(root), link: Link::Symbolic }
    }

    pub fn with_link(self, link: Link) -> Self {
        Self { link, ..self }
    }

    /// Writes a model in `manifests-v2/` alone and removes the entry in `manifests/`.
    pub fn create(&self, name: &str, content: &Content) -> io::Result<()> {
        let name = Name::parse(name)?;
        let candidates = self.referenced_digests(&name).unwrap_or_default();
        content.write_blobs(&self.blobs)?;
        let json = content.manifest("ggml", "gguf").to_json() + "\n";
        self.write_entry(&name, json.as_bytes())?;
        self.remove_unreferenced(&candidates)
    }

    /// Writes a pulled manifest and its anchor, then removes the blobs of the replaced model.
    pub fn pull_plain(&self, name: &str, content: &Content) -> io::Result<()> {
        let name = Name::parse(name)?;
        let candidates = self.referenced_digests(&name).unwrap_or_default();
        content.write_blobs(&self.blobs)?;
        let manifest = content.manifest("", "");
        let digest = self.write_entry(&name, manifest.to_json().as_bytes())?;
        self.write_anchor(&name, &manifest, &[digest])?;
        self.remove_unreferenced(&candidates)
    }

    /// Writes a list of references to `(runner, format, content)`, and stores the children in
    /// `fetched`.
    pub fn pull_list(
        &self,
        name: &str,
        children: &[(&str, &str, Content)],
        fetched: &[usize],
    ) -> io::Result<()> {
        let name = Name::parse(name)?;
        let candidates = self.referenced_digests(&name).unwrap_or_default();
        let mut references = Vec::new();
        for (index, (runner, format, content)) in children.iter().enumerate() {
            let json = content.manifest(runner, format).to_json();
            if fetched.contains(&index) {
                content.write_blobs(&self.blobs)?;
                self.blobs.write_manifest(json.as_bytes())?;
            }
            references.push(ManifestDocument::reference(
                Digest::of(json.as_bytes()),
                runner,
                format,
            ));
        }
        let list = ManifestDocument::list(references);
        let digest = self.write_entry(&name, list.to_json().as_bytes())?;
        if let Some((child, manifest)) = self.select(&list, None) {
            self.write_anchor(&name, &manifest, &[digest, child])?;
        }
        self.remove_unreferenced(&candidates)
    }

    /// Writes a list that holds its children's manifests; no child has a manifest blob.
    pub fn pull_inline_list(
        &self,
        name: &str,
        children: &[(&str, &str, Content)],
    ) -> io::Result<()> {
        let name = Name::parse(name)?;
        let candidates = self.referenced_digests(&name).unwrap_or_default();
        for (_, _, content) in children {
            content.write_blobs(&self.blobs)?;
        }
        let manifests =
            children.iter().map(|(runner, format, content)| content.manifest(runner, format));
        let list = ManifestDocument::list(manifests.collect());
        let digest = self.write_entry(&name, list.to_json().as_bytes())?;
        if let Some((_, manifest)) = self.select(&list, None) {
            self.write_anchor(&name, &manifest, &[digest])?;
        }
        self.remove_unreferenced(&candidates)
    }

    /// Writes the same manifest under another name, in `manifests-v2/` alone.
    pub fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (Name::parse(from)?, Name::parse(to)?);
        if from.normalized() == to.normalized() {
            return Ok(());
        }
        let (bytes, _) = self.read(&from)?;
        self.write_entry(&to, &bytes).map(drop)
    }

    /// Removes the entries of both folders, then the blobs that no other entry keeps.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = Name::parse(name)?;
        let candidates = self.referenced_digests(&name)?;
        remove_if_exists(&name.v2_path(&self.root))?;
        for legacy in legacy_names(&name) {
            remove_if_exists(&legacy.legacy_path(&self.root))?;
        }
        self.prune_manifest_folders()?;
        self.remove_unreferenced(&candidates)
    }

    /// Converts a `ggml` model for `llamacpp`; returns whether the name has a converted child then.
    ///
    /// The list names both children, the anchor is the source, and a shadow tag names the converted
    /// child.
    pub fn migrate(&self, name: &str) -> io::Result<bool> {
        let name = Name::parse(name)?;
        let parent = ManifestDocument::parse(&self.read(&name)?.0)?;
        let children = if parent.is_list() { parent.manifests } else { vec![parent] };
        let (mut source, mut references, mut linked) = (None, Vec::new(), Vec::new());
        for child in children {
            let is_converted = child.runner == "llamacpp" && child.format == "gguf";
            let Some(manifest) =
                self.resolve_child(&child).and_then(|child| self.with_metadata(child))
            else {
                if !is_converted {
                    references.push(child);
                }
                continue;
            };
            let is_whole = self.blobs.files_of(&manifest).is_some();
            if manifest.runner == "llamacpp" && manifest.format == "gguf" {
                if is_whole {
                    return Ok(true);
                }
                continue;
            }
            let digest = self.blobs.write_manifest(manifest.to_json().as_bytes())?;
            references.push(ManifestDocument::reference(
                digest,
                &manifest.runner,
                &manifest.format,
            ));
            if source.is_none()
                && manifest.runner == "ggml"
                && manifest.format == "gguf"
                && is_whole
            {
                linked.push(digest);
                source = Some(manifest);
            }
        }
        let Some(source) = source else { return Ok(false) };
        let json = self.convert(&source)?.to_json();
        let converted = self.blobs.write_manifest(json.as_bytes())?;
        let shadow = Name::parse(&format!("llamacpp:{}", converted.hex()))?;
        write_file(&shadow.legacy_path(&self.root), json.as_bytes())?;
        references.push(ManifestDocument::reference(converted, "llamacpp", "gguf"));
        linked.push(converted);
        let list =
            self.blobs.write_manifest(ManifestDocument::list(references).to_json().as_bytes())?;
        self.link(&name, list)?;
        linked.insert(0, list);
        self.write_anchor(&name, &source, &linked)?;
        Ok(true)
    }

    /// Starts the server: it removes old files in `blobs/` that no entry keeps, and empty
    /// directories.
    pub fn start(&self) -> io::Result<()> {
        let retained = self.retained_digests()?;
        let limit = SystemTime::now() - UNUSED_BLOB_GRACE;
        for file in names_in(&self.blobs.dir)? {
            let path = self.blobs.dir.join(&file);
            let metadata = fs::symlink_metadata(&path)?;
            let is_retained = file.parse().is_ok_and(|digest: Digest| retained.contains(&digest));
            if metadata.is_file() && metadata.modified()? < limit && !is_retained {
                fs::remove_file(path)?;
            }
        }
        self.prune_manifest_folders()
    }

    /// The full names of all models that have a child to run, with one spelling of the public host.
    pub fn names(&self) -> io::Result<BTreeSet<String>> {
        Ok(self.models()?.keys().map(Name::to_string).collect())
    }

    /// The rows of `/api/tags`, one per local child of a list, sorted by name and digest.
    pub fn rows(&self) -> io::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for (name, (digest, document)) in self.models()? {
            // An unreadable config drops all rows of a name.
            rows.extend(self.rows_of(&name, digest, &document).unwrap_or_default());
        }
        rows.sort();
        Ok(rows)
    }

    /// The files of the child for a runner, or none where no child fits or a file is missing or
    /// damaged.
    pub fn load(&self, name: &str, runner: Option<&str>) -> io::Result<Option<Vec<PathBuf>>> {
        let Ok((bytes, _)) = self.read(&Name::parse(name)?) else { return Ok(None) };
        let manifest = ManifestDocument::parse(&bytes)
            .ok()
            .and_then(|document| self.select(&document, runner));
        Ok(manifest.and_then(|(_, manifest)| self.blobs.files_of(&manifest)))
    }

    fn rows_of(&self, name: &Name, own: Digest, document: &ManifestDocument) -> Option<Vec<Row>> {
        let children: Vec<_> = if document.is_list() {
            document
                .manifests
                .iter()
                .filter_map(|child| Some((child, self.resolve_child(child)?)))
                .collect()
        } else {
            vec![(document, document.clone())]
        };
        let rows = children.into_iter().map(|(child, manifest)| {
            let default = self.default_metadata(&manifest)?;
            let runner = if child.runner.is_empty() { default.0 } else { &child.runner };
            let digest = if document.is_list() { child.child_digest().ok()? } else { own };
            Some(Row {
                name: name.shortest(),
                digest,
                runner: runner.to_lowercase(),
                size: manifest.size(),
            })
        });
        rows.collect()
    }

    /// Writes a manifest blob and its entry, and removes the entries in `manifests/`.
    fn write_entry(&self, name: &Name, bytes: &[u8]) -> io::Result<Digest> {
        let digest = self.blobs.write_manifest(bytes)?;
        self.link(name, digest)?;
        for legacy in legacy_names(name) {
            remove_if_exists(&legacy.legacy_path(&self.root))?;
        }
        prune_directory(&self.root.join("manifests"))?;
        Ok(digest)
    }

    /// Points the entry of a name to a blob.
    fn link(&self, name: &Name, digest: Digest) -> io::Result<()> {
        let (path, blob) = (name.v2_path(&self.root), self.blobs.path(digest));
        self.blobs.read(digest)?;
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        remove_if_exists(&path)?;
        #[cfg(unix)]
        if self.link == Link::Symbolic {
            let target = Path::new("../../../../blobs").join(digest.file_name());
            return std::os::unix::fs::symlink(target, path);
        }
        if self.link == Link::Copy {
            let temporary = path.with_file_name(".manifest-0123456789");
            fs::copy(blob, &temporary)?;
            return fs::rename(temporary, path);
        }
        fs::hard_link(blob, path)
    }

    /// Writes the runnable manifest to `manifests/`, with layers that keep the given manifest
    /// blobs.
    fn write_anchor(
        &self,
        name: &Name,
        manifest: &ManifestDocument,
        linked: &[Digest],
    ) -> io::Result<()> {
        let mut anchor = manifest.clone();
        for digest in linked {
            let bytes = self.blobs.read(*digest)?;
            let media_type =
                if ManifestDocument::parse(&bytes)?.is_list() { LIST } else { MANIFEST };
            anchor.layers.push(Layer::new(media_type, *digest, bytes.len()));
        }
        write_file(&name.legacy_path(&self.root), anchor.to_json().as_bytes())
    }

    /// Converts the weights of a source; template and config stay the same.
    fn convert(&self, source: &ManifestDocument) -> io::Result<ManifestDocument> {
        let mut converted = source.clone();
        converted.runner = "llamacpp".to_owned();
        for layer in converted.layers.iter_mut().filter(|layer| layer.media_type == MODEL) {
            let weights = self.blobs.read(parse_digest(&layer.digest)?)?;
            let content = Content { weights, template: None, config: String::new() }.converted();
            *layer = Layer::new(MODEL, self.blobs.write(&content.weights)?, content.weights.len());
        }
        Ok(converted)
    }

    /// The runner and the format of manifests without these fields, by the config's format of
    /// weights.
    fn default_metadata(
        &self,
        manifest: &ManifestDocument,
    ) -> Option<(&'static str, &'static str)> {
        if manifest.config.digest.is_empty() {
            return Some(("ggml", "gguf"));
        }
        // Nothing checks the digest of a config here.
        let path = self.blobs.path(parse_digest(&manifest.config.digest).ok()?);
        let config: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let is_safetensors = config["model_format"] == "safetensors";
        Some(if is_safetensors { ("mlx", "safetensors") } else { ("ggml", "gguf") })
    }

    /// Completes a manifest, without the layers that only an anchor has.
    fn with_metadata(&self, mut manifest: ManifestDocument) -> Option<ManifestDocument> {
        let (runner, format) = self.default_metadata(&manifest)?;
        for (field, default) in [(&mut manifest.runner, runner), (&mut manifest.format, format)] {
            *field = if field.is_empty() { default.to_owned() } else { field.to_lowercase() };
        }
        manifest.layers.retain(|layer| !layer.is_manifest());
        Some(manifest)
    }

    /// The manifest of a list's child, with the runner and the format of the list; none where it is
    /// missing.
    fn resolve_child(&self, child: &ManifestDocument) -> Option<ManifestDocument> {
        if !child.is_reference() {
            return Some(child.clone());
        }
        let bytes = self.blobs.read(parse_digest(&child.digest).ok()?).ok()?;
        let mut manifest =
            ManifestDocument::parse(&bytes).ok().filter(|manifest| !manifest.is_list())?;
        for (field, of_list) in
            [(&mut manifest.runner, &child.runner), (&mut manifest.format, &child.format)]
        {
            if field.is_empty() {
                field.clone_from(of_list);
            }
        }
        Some(manifest)
    }

    /// The local child for a runner, or the first one by preference; a plain manifest is its own
    /// child.
    fn select(
        &self,
        document: &ManifestDocument,
        runner: Option<&str>,
    ) -> Option<(Digest, ManifestDocument)> {
        if !document.is_list() {
            let has_runner = document.runner.is_empty()
                || runner.is_none_or(|runner| document.runner.eq_ignore_ascii_case(runner));
            return has_runner
                .then(|| document.child_digest().ok())
                .flatten()
                .zip(Some(document.clone()));
        }
        let preferences = runner.map_or(PREFERENCES.to_vec(), |runner| vec![runner]);
        preferences.into_iter().find_map(|runner| {
            let mut children =
                document.manifests.iter().filter(|child| child.runner.eq_ignore_ascii_case(runner));
            children
                .find_map(|child| Some((child.child_digest().ok()?, self.resolve_child(child)?)))
        })
    }

    /// The bytes of a name's manifest or list, and their digest.
    fn read(&self, name: &Name) -> io::Result<(Vec<u8>, Digest)> {
        let v2 = name.v2_path(&self.root);
        // A dangling link counts as no entry.
        if v2.exists() {
            return self.read_entry(&v2);
        }
        let legacy = legacy_names(name).into_iter().map(|name| name.legacy_path(&self.root));
        let path = legacy.into_iter().find(|path| fs::symlink_metadata(path).is_ok());
        self.read_entry(&path.ok_or(io::ErrorKind::NotFound)?)
    }

    /// Reads an entry; a link must lead to the blob of its digest.
    fn read_entry(&self, path: &Path) -> io::Result<(Vec<u8>, Digest)> {
        let bytes = fs::read(path)?;
        let digest = Digest::of(&bytes);
        if fs::symlink_metadata(path)?.is_symlink() {
            let target = fs::canonicalize(path)?;
            if fs::canonicalize(self.blobs.path(digest)).ok() != Some(target) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "link to no blob of its digest",
                ));
            }
        }
        Ok((bytes, digest))
    }

    /// The entries of all names and shadows; an entry in `manifests-v2/` hides one in `manifests/`.
    fn collect(&self) -> io::Result<BTreeMap<Name, PathBuf>> {
        let mut paths = BTreeMap::new();
        for folder in ["manifests-v2", "manifests"] {
            let folder = self.root.join(folder);
            for parts in entries(&folder)? {
                let path = parts.iter().fold(folder.clone(), |path, part| path.join(part));
                let [host, namespace, model, tag] = parts.each_ref().map(String::as_str);
                let name = Name::from_parts([&host.replace("%3A", ":"), namespace, model, tag]);
                if let Some(name) = name.filter(|_| path.exists()) {
                    paths.entry(name.normalized()).or_insert(path);
                }
            }
        }
        Ok(paths)
    }

    /// All models that have a child to run.
    fn models(&self) -> io::Result<BTreeMap<Name, (Digest, ManifestDocument)>> {
        let readable = self.collect()?.into_iter().filter_map(|(name, path)| {
            let (bytes, digest) = self.read_entry(&path).ok()?;
            let document = ManifestDocument::parse(&bytes).ok()?;
            self.select(&document, None)?;
            Some((name, (digest, document)))
        });
        Ok(readable.filter(|(name, _)| !name.is_shadow()).collect())
    }

    fn referenced_digests(&self, name: &Name) -> io::Result<Vec<Digest>> {
        let (bytes, digest) = self.read(name)?;
        self.digests_of(digest, &bytes)
    }

    /// The digests that an entry keeps; a list keeps the blobs of its local children.
    fn digests_of(&self, own: Digest, bytes: &[u8]) -> io::Result<Vec<Digest>> {
        let document = ManifestDocument::parse(bytes)?;
        let mut digests = vec![own];
        let mut manifests = Vec::new();
        if document.is_list() {
            for child in &document.manifests {
                digests.push(child.child_digest()?);
                manifests.extend(self.resolve_child(child));
            }
        } else {
            manifests.push(document);
        }
        for layer in manifests.iter().flat_map(ManifestDocument::layers_and_config) {
            if !layer.digest.is_empty() {
                digests.push(parse_digest(&layer.digest)?);
            }
        }
        Ok(digests)
    }

    fn retained_digests(&self) -> io::Result<BTreeSet<Digest>> {
        let mut retained = BTreeSet::new();
        for path in self.collect()?.values() {
            // An entry that is unreadable keeps nothing.
            let digests =
                self.read_entry(path).and_then(|(bytes, digest)| self.digests_of(digest, &bytes));
            retained.extend(digests.unwrap_or_default());
        }
        Ok(retained)
    }

    fn remove_unreferenced(&self, candidates: &[Digest]) -> io::Result<()> {
        let retained = self.retained_digests()?;
        let mut unreferenced = candidates.iter().filter(|digest| !retained.contains(digest));
        unreferenced.try_for_each(|digest| self.blobs.remove(*digest))
    }

    fn prune_manifest_folders(&self) -> io::Result<()> {
        prune_directory(&self.root.join("manifests"))?;
        prune_directory(&self.root.join("manifests-v2"))
    }
}

/// The names under which `manifests/` may have an entry: both spellings of the public host.
fn legacy_names(name: &Name) -> Vec<Name> {
    if !name.is_public() {
        return vec![name.clone()];
    }
    let is_usual = name.host.eq_ignore_ascii_case(LEGACY_PUBLIC_HOST);
    vec![name.clone(), name.with_host(if is_usual { V2_PUBLIC_HOST } else { LEGACY_PUBLIC_HOST })]
}
