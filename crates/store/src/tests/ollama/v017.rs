//! The store as Ollama 0.17 treats it: plain manifest files, and no knowledge of `manifests-v2/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::document::{ManifestDocument, parse_digest};
use super::name::Name;
use super::{Blobs, Content, entries, names_in, prune_directory, write_file};

/// Ollama 0.17 on a store.
pub struct Ollama017 {
    root: PathBuf,
    blobs: Blobs,
}

impl Ollama017 {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), blobs: Blobs::new(root) }
    }

    /// Writes a model, then removes the blobs that only the replaced manifest named.
    pub fn create(&self, name: &str, content: &Content) -> io::Result<()> {
        self.write(name, content, "\n")
    }

    /// As [`Ollama017::create`], with the bytes that a registry sends.
    pub fn pull(&self, name: &str, content: &Content) -> io::Result<()> {
        self.write(name, content, "")
    }

    fn write(&self, name: &str, content: &Content, end: &str) -> io::Result<()> {
        let name = Name::parse(name)?;
        let replaced = self.read(&name).ok();
        content.write_blobs(&self.blobs)?;
        let json = content.manifest("", "").to_json() + end;
        write_file(&name.legacy_path(&self.root), json.as_bytes())?;
        replaced.map_or(Ok(()), |manifest| self.remove_unused(digests_of(&manifest)))
    }

    /// Copies the manifest byte for byte.
    pub fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (Name::parse(from)?, Name::parse(to)?);
        if from == to {
            return Ok(());
        }
        let bytes = fs::read(from.legacy_path(&self.root))?;
        write_file(&to.legacy_path(&self.root), &bytes)
    }

    /// Removes the manifest, then the blobs that no other readable manifest names.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let name = Name::parse(name)?;
        let manifest = self.read(&name)?;
        fs::remove_file(name.legacy_path(&self.root))?;
        prune_directory(&self.root.join("manifests"))?;
        self.remove_unused(digests_of(&manifest))
    }

    /// Starts the server: it collects garbage unless an entry is unreadable or has an invalid name.
    pub fn start(&self) -> io::Result<()> {
        if self.manifests(false).is_err() { Ok(()) } else { self.prune() }
    }

    /// Removes every file in `blobs/` that no readable manifest names, at any age, and empty
    /// directories.
    pub fn prune(&self) -> io::Result<()> {
        let in_use = self.digests_in_use()?;
        for file in names_in(&self.blobs.dir)? {
            let digest = file.replace('-', ":");
            if parse_digest(&digest).is_err() || !in_use.contains(&digest) {
                // The removal fails for directories, which stay.
                let _ = fs::remove_file(self.blobs.dir.join(file));
            }
        }
        prune_directory(&self.root.join("manifests"))
    }

    /// The full names of all models.
    pub fn names(&self) -> io::Result<BTreeSet<String>> {
        Ok(self.manifests(true)?.keys().map(Name::to_string).collect())
    }

    /// The files of a model, or none where one is missing or damaged.
    pub fn load(&self, name: &str) -> io::Result<Option<Vec<PathBuf>>> {
        let manifest = self.read(&Name::parse(name)?);
        Ok(manifest.ok().and_then(|manifest| self.blobs.files_of(&manifest)))
    }

    fn read(&self, name: &Name) -> io::Result<ManifestDocument> {
        Ok(serde_json::from_slice(&fs::read(name.legacy_path(&self.root))?)?)
    }

    fn manifests(&self, skips_unreadable: bool) -> io::Result<BTreeMap<Name, ManifestDocument>> {
        let mut manifests = BTreeMap::new();
        let folder = self.root.join("manifests");
        for parts in entries(&folder)? {
            let parts = parts.each_ref().map(String::as_str);
            // A dangling link fails the whole listing.
            if fs::metadata(parts.iter().fold(folder.clone(), |path, part| path.join(part)))?
                .is_dir()
            {
                continue;
            }
            let invalid =
                || io::Error::new(io::ErrorKind::InvalidData, format!("invalid name {parts:?}"));
            let manifest = Name::from_parts(parts)
                .ok_or_else(invalid)
                .and_then(|name| self.read(&name).map(|manifest| (name, manifest)));
            match manifest {
                Ok((name, manifest)) => drop(manifests.insert(name, manifest)),
                Err(_) if skips_unreadable => {}
                Err(error) => return Err(error),
            }
        }
        Ok(manifests)
    }

    fn digests_in_use(&self) -> io::Result<BTreeSet<String>> {
        Ok(self.manifests(true)?.values().flat_map(digests_of).collect())
    }

    fn remove_unused(&self, candidates: Vec<String>) -> io::Result<()> {
        let in_use = self.digests_in_use()?;
        for digest in candidates.iter().filter(|digest| !in_use.contains(*digest)) {
            self.blobs.remove(parse_digest(digest)?)?;
        }
        Ok(())
    }
}

fn digests_of(manifest: &ManifestDocument) -> Vec<String> {
    let layers = manifest.layers_and_config().filter(|layer| !layer.digest.is_empty());
    layers.map(|layer| layer.digest.clone()).collect()
}
