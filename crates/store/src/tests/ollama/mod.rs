//! Models of how Ollama 0.17 and Ollama 0.40 treat the files of a store.
//!
//! They use none of the store's own code, so that tests can compare the store with them.

mod document;
mod name;
mod random;
mod tests;
mod v017;
mod v040;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use random::{Operation, Random};
pub use v017::Ollama017;
pub use v040::{Link, Ollama040, Row};

use crate::Digest;
use document::{CONFIG, Layer, MODEL, ManifestDocument, TEMPLATE, parse_digest};

/// The blobs of a model.
#[derive(Clone, PartialEq, Eq)]
pub struct Content {
    pub weights: Vec<u8>,
    pub template: Option<Vec<u8>>,
    pub config: String,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({})", Digest::of(&self.weights).short())
    }
}

impl Content {
    /// A small model; seeds that are equal modulo 3 share a template, and modulo 2 a config.
    pub fn sample(seed: u32) -> Self {
        let template = (!seed.is_multiple_of(3))
            .then(|| format!("{{{{ .Prompt }}}} {}", seed % 3).into_bytes());
        let config = format!(
            r#"{{"model_format":"gguf","model_family":"llama","model_type":"{}M","#,
            seed % 2
        ) + r#""model_families":["llama"],"file_type":"F32","architecture":"amd64","os":"linux"}"#;
        Self { weights: super::gguf(seed), template, config }
    }

    /// The content after a conversion to another runner's layout.
    pub fn converted(&self) -> Self {
        let mut converted = self.clone();
        converted.weights.extend([0; 32]);
        converted
    }

    /// The manifest of this content; nothing is written.
    fn manifest(&self, runner: &str, format: &str) -> ManifestDocument {
        let layer = |kind: &str, bytes: &[u8]| Layer::new(kind, Digest::of(bytes), bytes.len());
        let mut layers = vec![layer(MODEL, &self.weights)];
        layers.extend(self.template.as_ref().map(|template| layer(TEMPLATE, template)));
        ManifestDocument::manifest(layer(CONFIG, self.config.as_bytes()), layers, runner, format)
    }

    fn write_blobs(&self, blobs: &Blobs) -> io::Result<()> {
        blobs.write(&self.weights)?;
        self.template.as_ref().map(|template| blobs.write(template)).transpose()?;
        blobs.write(self.config.as_bytes())?;
        Ok(())
    }
}

/// The folder `blobs/` of a store.
#[derive(Debug, Clone)]
struct Blobs {
    dir: PathBuf,
}

impl Blobs {
    fn new(root: &Path) -> Self {
        Self { dir: root.join("blobs") }
    }

    fn path(&self, digest: Digest) -> PathBuf {
        self.dir.join(digest.file_name())
    }

    /// Writes a blob unless it exists, and sets its modification time to now.
    fn write(&self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(bytes);
        if self.path(digest).exists() {
            File::options().write(true).open(self.path(digest))?.set_modified(SystemTime::now())?;
            return Ok(digest);
        }
        self.replace(bytes)
    }

    /// Writes a manifest blob, over a file of that name with other bytes too.
    fn write_manifest(&self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(bytes);
        if fs::read(self.path(digest)).is_ok_and(|existing| existing == bytes) {
            return Ok(digest);
        }
        self.replace(bytes)
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<Digest> {
        let digest = Digest::of(bytes);
        fs::create_dir_all(&self.dir)?;
        let temporary = self.dir.join("sha256-0123456789");
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, self.path(digest))?;
        Ok(digest)
    }

    /// Reads a blob and checks its digest.
    fn read(&self, digest: Digest) -> io::Result<Vec<u8>> {
        let bytes = fs::read(self.path(digest))?;
        if Digest::of(&bytes) != digest {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("digest mismatch of {digest}"),
            ));
        }
        Ok(bytes)
    }

    fn remove(&self, digest: Digest) -> io::Result<()> {
        remove_if_exists(&self.path(digest))
    }

    /// The files that loading a manifest opens, or none where one is missing or damaged.
    fn files_of(&self, manifest: &ManifestDocument) -> Option<Vec<PathBuf>> {
        let layers = manifest
            .layers_and_config()
            .filter(|layer| !layer.is_manifest() && !layer.digest.is_empty());
        layers
            .map(|layer| {
                let digest = parse_digest(&layer.digest).ok()?;
                self.read(digest).ok().map(|_| self.path(digest))
            })
            .collect()
    }
}

/// Every digest that some reading of the rules keeps, whether its blob exists or not.
pub fn alive(root: &Path) -> io::Result<BTreeSet<Digest>> {
    let blobs = Blobs::new(root);
    let mut digests = BTreeSet::new();
    for folder in ["manifests", "manifests-v2"] {
        let folder = root.join(folder);
        for parts in entries(&folder)? {
            let path = parts.iter().fold(folder.clone(), |path, part| path.join(part));
            let is_temporary = parts.iter().any(|part| part.starts_with('.'));
            if let Some(bytes) = fs::read(path).ok().filter(|_| !is_temporary) {
                add_alive(&blobs, Digest::of(&bytes), &bytes, &mut digests);
            }
        }
    }
    Ok(digests)
}

/// Adds a manifest blob and every digest that it names, directly or through other manifest blobs.
fn add_alive(blobs: &Blobs, own: Digest, bytes: &[u8], digests: &mut BTreeSet<Digest>) {
    let Ok(document) = ManifestDocument::parse(bytes) else { return };
    digests.insert(own);
    let mut linked = Vec::new();
    for manifest in [&document].into_iter().chain(&document.manifests) {
        for layer in manifest.layers_and_config() {
            let Ok(digest) = layer.digest.parse() else { continue };
            // A manifest blob is followed once only, so that references in a circle end.
            if digests.insert(digest) && layer.is_manifest() {
                linked.push(digest);
            }
        }
    }
    for child in &document.manifests {
        if let Ok(digest) = child.child_digest()
            && digests.insert(digest)
        {
            linked.push(digest);
        }
    }
    for digest in linked {
        if let Ok(bytes) = blobs.read(digest) {
            add_alive(blobs, digest, &bytes, digests);
        }
    }
}

/// Sets the modification time of every blob to `age` before now.
pub fn age_blobs(root: &Path, age: Duration) -> io::Result<()> {
    for file in fs::read_dir(root.join("blobs"))? {
        let path = file?.path();
        if path.is_file() {
            File::options().write(true).open(path)?.set_modified(SystemTime::now() - age)?;
        }
    }
    Ok(())
}

/// The entries of a manifest folder: everything four levels down that is no directory.
fn entries(folder: &Path) -> io::Result<Vec<[String; 4]>> {
    let mut levels = vec![Vec::new()];
    for _ in 0..4 {
        let mut deeper = Vec::new();
        for parts in levels {
            let dir =
                parts.iter().fold(folder.to_path_buf(), |path, part: &String| path.join(part));
            for file in names_in(&dir)? {
                deeper.push([parts.clone(), vec![file]].concat());
            }
        }
        levels = deeper;
    }
    let is_entry = |parts: &[String; 4]| {
        let path = parts.iter().fold(folder.to_path_buf(), |path, part| path.join(part));
        fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_dir())
    };
    Ok(levels.into_iter().filter_map(|parts| parts.try_into().ok()).filter(is_entry).collect())
}

/// The sorted file names in a directory; none for anything else.
fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let files = fs::read_dir(dir)?.map(|file| Ok(file?.file_name().to_string_lossy().into_owned()));
    let mut names = files.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Removes empty directories, `dir` itself too, and follows no symbolic link.
fn prune_directory(dir: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(dir).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    for name in names_in(dir)? {
        prune_directory(&dir.join(name))?;
    }
    if names_in(dir)?.is_empty() { fs::remove_dir(dir) } else { Ok(()) }
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a file and the directories that lead to it.
fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::write(path, bytes)
}
