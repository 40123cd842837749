//! Reads bundles into the store.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use puna_store::{Digest, ModelName, Store, StoreError};

use super::{
    BLOB_DIR, IMAGE_NAME_ANNOTATION, INDEX_FILE, ImageLayout, Index, LAYOUT_FILE,
    REF_NAME_ANNOTATION,
};
use crate::Registry;
use crate::disk_space::store_bytes;
use crate::display::single_line;
use crate::error::{BundleProblem, RegistryError};
use crate::manifest::{MAX_MANIFEST_BYTES, read_manifest, select_from_index};
use crate::packaging::Package;
use crate::packaging::descriptor::Descriptor;
use crate::packaging::tar::{TarEntry, TarReader};

/// Largest number of models in a bundle.
const MAX_MODELS: usize = 10_000;
/// Largest depth of nested indexes.
const MAX_DEPTH: usize = 4;
/// First bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Largest padding after the end of an archive, in bytes.
const MAX_TRAILING_BYTES: u64 = 1 << 20;

impl Registry {
    /// Stores the models of a bundle, which may be compressed with gzip, and returns their names.
    ///
    /// Each blob is verified. No model is stored before all models are complete. A bundle of one
    /// model can be stored under another `name`. `progress` gets the bytes of blobs that were read.
    ///
    /// # Errors
    /// The input is not a valid bundle; then nothing is stored. Or the store cannot be written;
    /// then models that were stored before stay.
    pub fn read_bundle(
        &self,
        store: &Arc<Store>,
        input: impl Read,
        name: Option<&ModelName>,
        keep_unused: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<ModelName>, RegistryError> {
        let mut import = BundleImport {
            store,
            index_files: IndexFiles::default(),
            pinned: HashSet::new(),
            added: Vec::new(),
            read_bytes: 0,
        };
        let work = store.begin_work();
        let done = import.read(input, progress).and_then(|()| {
            let models = import.listed_models(name)?;
            models.iter().try_for_each(|model| import.check_complete(model))?;
            models
                .into_iter()
                .map(|model| self.store_bundled(&import, model, keep_unused))
                .collect()
        });
        // Manifests are now stored under their names, and packed layers are unpacked.
        store.unpin_blobs(import.pinned.iter().copied());
        drop(work);
        let removed = store.discard_blobs(&import.added);
        let names = done?;
        removed?;
        Ok(names)
    }

    fn store_bundled(
        &self,
        import: &BundleImport<'_>,
        model: BundledModel,
        keep_unused: bool,
    ) -> Result<ModelName, RegistryError> {
        let name = import.store.stored_spelling(&model.name)?;
        match model.package {
            Some(package) => {
                let (detect, executor) = (
                    self.settings().detect_template.as_deref(),
                    self.settings().executor.as_deref(),
                );
                package.store(import.store, &name, keep_unused, detect, executor)?;
            }
            None => {
                import.store.store_manifest(&name, &model.manifest, keep_unused, &mut || ())?;
            }
        }
        Ok(name)
    }
}

/// Model of a bundle.
struct BundledModel {
    name: ModelName,
    manifest: Vec<u8>,
    /// The package, if the model is not in Ollama's format.
    package: Option<Package>,
}

/// Files of the archive other than blobs.
#[derive(Default)]
struct IndexFiles {
    layout: bool,
    index: Option<Index>,
}

struct BundleImport<'a> {
    store: &'a Arc<Store>,
    index_files: IndexFiles,
    /// Blobs of the bundle; `added` has the blobs that were not in the store before.
    pinned: HashSet<Digest>,
    added: Vec<Digest>,
    read_bytes: u64,
}

impl BundleImport<'_> {
    /// Reads the whole archive and stores its blobs.
    fn read(
        &mut self,
        input: impl Read,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        let mut input = BufReader::with_capacity(1 << 20, input);
        let mut magic = Vec::new();
        input.by_ref().take(2).read_to_end(&mut magic).map_err(read_error)?;
        let is_packed = magic == GZIP_MAGIC;
        let input = io::Cursor::new(magic).chain(input);
        let input: Box<dyn Read> =
            if is_packed { Box::new(MultiGzDecoder::new(input)) } else { Box::new(input) };
        let mut archive = TarReader::new(input);
        while let Some(entry) = archive.next_file().map_err(read_error)? {
            self.read_entry(&mut archive, &entry, progress)?;
        }
        // A program that writes to a pipe must be able to write the end of the archive.
        io::copy(&mut archive.into_inner().take(MAX_TRAILING_BYTES), &mut io::sink())
            .map(drop)
            .map_err(read_error)
    }

    fn read_entry(
        &mut self,
        archive: &mut TarReader<Box<dyn Read + '_>>,
        entry: &TarEntry,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        let name = entry.name.trim_start_matches("./");
        if name == LAYOUT_FILE {
            let layout: ImageLayout = parse_json(name, &read_small_file(archive, entry)?)?;
            if !layout.version.starts_with("1.") {
                let version = single_line(&layout.version, 20);
                return Err(BundleProblem::LayoutVersion { version }.into());
            }
            self.index_files.layout = true;
        } else if name == INDEX_FILE {
            self.index_files.index = Some(parse_json(name, &read_small_file(archive, entry)?)?);
        } else if let Some(hex) = name.strip_prefix(BLOB_DIR)
            && let Ok(digest) = format!("sha256:{hex}").parse()
        {
            self.read_blob(archive, &digest, entry.size, progress)?;
        }
        Ok(())
    }

    fn read_blob(
        &mut self,
        archive: &mut TarReader<Box<dyn Read + '_>>,
        digest: &Digest,
        size: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RegistryError> {
        if self.store.pin_blob(digest, size) && self.store.verify_blob(digest).is_ok() {
            self.pinned.insert(*digest);
            self.read_bytes += size;
            progress(self.read_bytes);
            return Ok(());
        }
        let blob = store_bytes(
            self.store,
            archive,
            size,
            "the models of the bundle",
            read_error,
            &mut |bytes| {
                self.read_bytes += bytes;
                progress(self.read_bytes);
            },
        )?;
        let stored = blob.finish(Some(digest)).map_err(|error| match error {
            StoreError::DigestMismatch { expected, .. } => {
                RegistryError::from(BundleProblem::DamagedBlob(expected))
            }
            other => other.into(),
        })?;
        self.pinned.insert(*digest);
        self.added.extend(stored.is_new.then_some(*digest));
        Ok(())
    }

    /// The models that the index lists.
    fn listed_models(&self, name: Option<&ModelName>) -> Result<Vec<BundledModel>, RegistryError> {
        let IndexFiles { layout: true, index: Some(index) } = &self.index_files else {
            return Err(BundleProblem::NoIndex { layout: LAYOUT_FILE, index: INDEX_FILE }.into());
        };
        match (index.manifests.len(), name) {
            (0, _) => return Err(BundleProblem::NoModels.into()),
            (1, _) | (..=MAX_MODELS, None) => {}
            (models, Some(_)) => return Err(BundleProblem::OneName { models }.into()),
            (models, None) => {
                return Err(BundleProblem::TooManyModels { models, max: MAX_MODELS }.into());
            }
        }
        let mut models: Vec<BundledModel> = Vec::new();
        for listed in &index.manifests {
            let model = self.read_model(listed, name)?;
            match models.iter().find(|other| other.name.same(&model.name)) {
                None => models.push(model),
                // The same model twice counts once.
                Some(other) if other.manifest == model.manifest => {}
                // The second model would replace the first.
                Some(other) => {
                    let [first, second] = [other, &model].map(|model| Digest::of(&model.manifest));
                    let name = Box::new(model.name);
                    return Err(BundleProblem::SameName { name, first, second }.into());
                }
            }
        }
        Ok(models)
    }

    fn read_model(
        &self,
        listed: &Descriptor,
        name: Option<&ModelName>,
    ) -> Result<BundledModel, RegistryError> {
        let name = name.cloned().map_or_else(|| name_of(listed), Ok)?;
        let mut manifest = self.manifest_bytes(&listed.digest)?;
        let mut depth = 0;
        while let Some(digest) = select_from_index(&manifest)? {
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(BundleProblem::NestedLists { name: Box::new(name) }.into());
            }
            manifest = self.manifest_bytes(&digest)?;
        }
        let package = Package::read(&manifest)?;
        Ok(BundledModel { name, manifest, package })
    }

    /// Checks that all blobs of a model are in the store.
    fn check_complete(&self, model: &BundledModel) -> Result<(), RegistryError> {
        let wanted = match &model.package {
            Some(package) => package.blobs(),
            None => {
                let manifest = read_manifest(&model.manifest).map_err(|error| match error {
                    RegistryError::NotAManifest(problem) => {
                        let name = Box::new(model.name.clone());
                        let problem = Box::new(problem);
                        BundleProblem::Manifest { name, problem }.into()
                    }
                    other => other,
                })?;
                manifest.blobs().map(|layer| (layer.digest, layer.size)).collect()
            }
        };
        let lacks = |(digest, size): &&(Digest, u64)| !self.store.pin_blob(digest, *size);
        match wanted.iter().find(lacks) {
            Some((digest, _)) => {
                let (digest, name) = (*digest, Box::new(model.name.clone()));
                Err(BundleProblem::MissingBlob { digest, name }.into())
            }
            None => Ok(()),
        }
    }

    /// Reads a manifest of the archive.
    fn manifest_bytes(&self, digest: &Digest) -> Result<Vec<u8>, RegistryError> {
        if !self.pinned.contains(digest) {
            return Err(BundleProblem::MissingManifest(*digest).into());
        }
        let path = self.store.blob_path(digest);
        let read_error = |e: io::Error| StoreError::io("read", &path, &e);
        let mut bytes = Vec::new();
        let limit = MAX_MANIFEST_BYTES as u64 + 1;
        File::open(&path)
            .map_err(read_error)?
            .take(limit)
            .read_to_end(&mut bytes)
            .map_err(read_error)?;
        match bytes.len() > MAX_MANIFEST_BYTES {
            true => {
                let (digest, max) = (*digest, MAX_MANIFEST_BYTES);
                Err(BundleProblem::LargeManifest { digest, max }.into())
            }
            false => Ok(bytes),
        }
    }
}

/// The name of a model. A tag alone is not a name.
fn name_of(listed: &Descriptor) -> Result<ModelName, BundleProblem> {
    let name_annotation =
        |key: &str| listed.annotations.get(key)?.as_str().filter(|text| text.contains(':'));
    let Some(text) =
        name_annotation(IMAGE_NAME_ANNOTATION).or_else(|| name_annotation(REF_NAME_ANNOTATION))
    else {
        return Err(BundleProblem::Unnamed(listed.digest));
    };
    let text = text.strip_prefix("docker.io/").unwrap_or(text);
    ModelName::parse(text).map_err(|error| {
        let (text, error) = (single_line(text, 100), Box::new(error));
        BundleProblem::InvalidName { manifest: listed.digest, text, error }
    })
}

/// Reads a small file into memory.
fn read_small_file(archive: &mut impl Read, entry: &TarEntry) -> Result<Vec<u8>, RegistryError> {
    if entry.size > MAX_MANIFEST_BYTES as u64 {
        let (name, size) = (single_line(&entry.name, 40), entry.size);
        return Err(BundleProblem::LargeFile { name, size }.into());
    }
    let mut bytes = Vec::new();
    archive.read_to_end(&mut bytes).map_err(read_error)?;
    Ok(bytes)
}

fn parse_json<T: serde::de::DeserializeOwned>(
    name: &str,
    bytes: &[u8],
) -> Result<T, BundleProblem> {
    serde_json::from_slice(bytes).map_err(|e| {
        let (name, reason) = (name.to_owned(), e.to_string());
        BundleProblem::FileJson { name, reason }
    })
}

fn read_error(error: io::Error) -> RegistryError {
    BundleProblem::Input { reason: error.to_string() }.into()
}
