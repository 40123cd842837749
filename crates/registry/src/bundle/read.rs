//! Reading bundles.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use puna_store::{Digest, ModelName, Store, StoreError};

use super::{BLOBS, IMAGE_NAME, INDEX, Index, LAYOUT, Layout, REF_NAME};
use crate::Registry;
use crate::address::plain;
use crate::descriptor::Descriptor;
use crate::error::RegistryError;
use crate::manifest::{MAX_MANIFEST, picked, read_manifest};
use crate::packaging::Package;
use crate::space::store_bytes;
use crate::tar::{Archive, Entry};

/// Models of a bundle at most.
const MAX_MODELS: usize = 10_000;
/// Lists that lead to other lists, at most.
const MAX_DEPTH: usize = 4;
/// What compressed archives begin with.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Bytes that programs pad the end of an archive with, at most.
const END: u64 = 1 << 20;

impl Registry {
    /// Stores the models of a bundle, which may be compressed (gzip), and gives their names. Nothing of it counts before its digest is
    /// known, and no model is stored before all of them are whole. A bundle of one model can be given another `name`. `progress`
    /// gets the bytes of blobs that were read.
    ///
    /// # Errors
    /// It is no bundle or damaged, and nothing of it is stored; or the store cannot be written, and what is stored by then stays.
    pub fn read_bundle(
        &self,
        store: &Arc<Store>,
        input: impl Read,
        name: Option<&ModelName>,
        keep_unused: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<ModelName>, RegistryError> {
        let mut import =
            Import { store, seen: Seen::default(), held: HashSet::new(), new: Vec::new(), read: 0 };
        let work = store.work();
        let done = import.read(input, progress).and_then(|()| {
            let models = import.models(name)?;
            models.iter().try_for_each(|model| import.check(model))?;
            models.into_iter().map(|model| self.keep(&import, model, keep_unused)).collect()
        });
        // Manifests are stored under their names, and packed layers as what was in them.
        store.let_go(import.held.iter().copied());
        drop(work);
        let removed = store.discard_blobs(&import.new);
        let names = done?;
        removed?;
        Ok(names)
    }

    fn keep(
        &self,
        import: &Import<'_>,
        model: Model,
        keep_unused: bool,
    ) -> Result<ModelName, RegistryError> {
        let name = import.store.spelled(&model.name)?;
        match model.package {
            Some(package) => {
                package.store(import.store, &name, keep_unused, self.settings().detect_template)?;
            }
            None => {
                import.store.store_manifest(&name, &model.manifest, keep_unused, &mut || ())?;
            }
        }
        Ok(name)
    }
}

/// A model of a bundle.
struct Model {
    name: ModelName,
    manifest: Vec<u8>,
    /// How it is packaged, if in another way than Ollama's.
    package: Option<Package>,
}

/// What an archive has besides blobs.
#[derive(Default)]
struct Seen {
    layout: bool,
    index: Option<Index>,
}

struct Import<'a> {
    store: &'a Arc<Store>,
    seen: Seen,
    /// The blobs of the bundle, and those of them that were not in the store.
    held: HashSet<Digest>,
    new: Vec<Digest>,
    read: u64,
}

impl Import<'_> {
    /// Reads the archive to its end; its blobs are in the store then.
    fn read(
        &mut self,
        input: impl Read,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        let mut input = BufReader::with_capacity(1 << 20, input);
        let mut magic = Vec::new();
        input.by_ref().take(2).read_to_end(&mut magic).map_err(unread)?;
        let is_packed = magic == GZIP;
        let input = io::Cursor::new(magic).chain(input);
        let input: Box<dyn Read> =
            if is_packed { Box::new(MultiGzDecoder::new(input)) } else { Box::new(input) };
        let mut archive = Archive::new(input);
        while let Some(entry) = archive.next_file().map_err(unread)? {
            self.take(&mut archive, &entry, progress)?;
        }
        // Whoever writes into a pipe has more to write: the end of the archive.
        io::copy(&mut archive.into_inner().take(END), &mut io::sink()).map(drop).map_err(unread)
    }

    fn take(
        &mut self,
        archive: &mut Archive<Box<dyn Read + '_>>,
        entry: &Entry,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        let name = entry.name.trim_start_matches("./");
        if name == LAYOUT {
            let layout: Layout = parsed(name, &small(archive, entry)?)?;
            if !layout.version.starts_with("1.") {
                let version = plain(&layout.version, 20);
                return Err(wrong(format!("its layout has version {version:?}, and 1 is known")));
            }
            self.seen.layout = true;
        } else if name == INDEX {
            self.seen.index = Some(parsed(name, &small(archive, entry)?)?);
        } else if let Some(hex) = name.strip_prefix(BLOBS)
            && let Ok(digest) = format!("sha256:{hex}").parse()
        {
            self.blob(archive, &digest, entry.size, progress)?;
        }
        Ok(())
    }

    fn blob(
        &mut self,
        archive: &mut Archive<Box<dyn Read + '_>>,
        digest: &Digest,
        size: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        if self.store.hold_blob(digest, size) && self.store.verify_blob(digest).is_ok() {
            self.held.insert(*digest);
            self.read += size;
            progress(self.read);
            return Ok(());
        }
        let blob = store_bytes(
            self.store,
            archive,
            size,
            "the models of the bundle",
            unread,
            &mut |bytes| {
                self.read += bytes;
                progress(self.read);
            },
        )?;
        let stored = blob.finish(Some(digest)).map_err(|error| match error {
            StoreError::DigestMismatch { expected, .. } => {
                wrong(format!("its blob {} is damaged: copy the file again", expected.short()))
            }
            other => other.into(),
        })?;
        self.held.insert(*digest);
        self.new.extend(stored.is_new.then_some(*digest));
        Ok(())
    }

    /// The models that the archive lists.
    fn models(&self, name: Option<&ModelName>) -> Result<Vec<Model>, RegistryError> {
        let Seen { layout: true, index: Some(index) } = &self.seen else {
            return Err(wrong(format!(
                "it has no {LAYOUT} and {INDEX}: `puna export` makes bundles"
            )));
        };
        match (index.manifests.len(), name) {
            (0, _) => return Err(wrong("it has no models".into())),
            (1, _) | (..=MAX_MODELS, None) => {}
            (n, Some(_)) => {
                return Err(wrong(format!("it has {n} models, which one name cannot be given to")));
            }
            (n, None) => return Err(wrong(format!("it lists {n} models, more than {MAX_MODELS}"))),
        }
        let mut models: Vec<Model> = Vec::new();
        for listed in &index.manifests {
            let model = self.model(listed, name)?;
            match models.iter().find(|other| other.name.same(&model.name)) {
                None => models.push(model),
                // The same one twice is one.
                Some(other) if other.manifest == model.manifest => {}
                // Of two the last would replace the other.
                Some(other) => {
                    let [one, two] =
                        [other, &model].map(|model| Digest::of(&model.manifest).short());
                    return Err(wrong(format!(
                        "it calls two models {}: {one} and {two}",
                        model.name
                    )));
                }
            }
        }
        Ok(models)
    }

    fn model(&self, listed: &Descriptor, name: Option<&ModelName>) -> Result<Model, RegistryError> {
        let name = name.cloned().map_or_else(|| name_of(listed), Ok)?;
        let mut manifest = self.bytes(&listed.digest)?;
        let mut depth = 0;
        while let Some(digest) = picked(&manifest)? {
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(wrong(format!("its list of {name} leads from list to list")));
            }
            manifest = self.bytes(&digest)?;
        }
        let package = Package::read(&manifest)?;
        Ok(Model { name, manifest, package })
    }

    /// Whether all blobs of a model are there.
    fn check(&self, model: &Model) -> Result<(), RegistryError> {
        let wanted = match &model.package {
            Some(package) => package.blobs(),
            None => {
                let manifest = read_manifest(&model.manifest).map_err(|error| match error {
                    RegistryError::NotAManifest(reason) => {
                        wrong(format!("of its {}: {reason}", model.name))
                    }
                    other => other,
                })?;
                manifest.blobs().map(|layer| (layer.digest, layer.size)).collect()
            }
        };
        let lacks = |(digest, size): &&(Digest, u64)| !self.store.hold_blob(digest, *size);
        match wanted.iter().find(lacks) {
            Some((digest, _)) => {
                Err(wrong(format!("it lacks the blob {} of {}", digest.short(), model.name)))
            }
            None => Ok(()),
        }
    }

    /// A manifest of the archive.
    fn bytes(&self, digest: &Digest) -> Result<Vec<u8>, RegistryError> {
        if !self.held.contains(digest) {
            return Err(wrong(format!("it lacks the manifest {}", digest.short())));
        }
        let path = self.store.blob_path(digest);
        let unread = |e: io::Error| StoreError::io("read", &path, &e);
        let mut bytes = Vec::new();
        let limit = MAX_MANIFEST as u64 + 1;
        File::open(&path).map_err(unread)?.take(limit).read_to_end(&mut bytes).map_err(unread)?;
        match bytes.len() > MAX_MANIFEST {
            true => Err(wrong(format!(
                "its manifest {} has more than {MAX_MANIFEST} bytes",
                digest.short()
            ))),
            false => Ok(bytes),
        }
    }
}

/// What a model is called; a bare tag is no name.
fn name_of(listed: &Descriptor) -> Result<ModelName, RegistryError> {
    let said = |key: &str| listed.annotations.get(key)?.as_str().filter(|text| text.contains(':'));
    let short = listed.digest.short();
    let Some(text) = said(IMAGE_NAME).or_else(|| said(REF_NAME)) else {
        return Err(wrong(format!("its model {short} has no name there: give it one (--name)")));
    };
    let text = text.strip_prefix("docker.io/").unwrap_or(text);
    ModelName::parse(text).map_err(|error| {
        wrong(format!(
            "its model {short} is called {:?}: {error}; give it another name (--name)",
            plain(text, 100)
        ))
    })
}

/// A file that is read into memory.
fn small(archive: &mut impl Read, entry: &Entry) -> Result<Vec<u8>, RegistryError> {
    if entry.size > MAX_MANIFEST as u64 {
        return Err(wrong(format!("its {} has {} bytes", plain(&entry.name, 40), entry.size)));
    }
    let mut bytes = Vec::new();
    archive.read_to_end(&mut bytes).map_err(unread)?;
    Ok(bytes)
}

fn parsed<T: serde::de::DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, RegistryError> {
    serde_json::from_slice(bytes)
        .map_err(|e| wrong(format!("its {name} is not what it should be: {e}")))
}

fn wrong(what: String) -> RegistryError {
    RegistryError::Bundle(what)
}

fn unread(error: io::Error) -> RegistryError {
    wrong(error.to_string())
}
