//! Split GGUF files become one blob, as every program that reads the store expects.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use puna_gguf::{Gguf, GgufError, PartName, Writer};

use super::request::Pace;
use super::stored;
use crate::blobs::NewBlob;
use crate::error::StoreError;
use crate::files::{TEMP_DIR, TempFile};
use crate::store::Store;

/// Parts of one model: file names and digests by their number, which counts from 1.
pub(super) type Parts = BTreeMap<u32, (String, String)>;

/// The prefix and the number of parts that names of parts state.
pub(super) type SplitName = (String, u32);

/// Files that stand alone, and the parts of split models put together.
pub(super) fn group(
    files: &[(String, String)],
) -> (Vec<&(String, String)>, BTreeMap<SplitName, Parts>) {
    let mut single = Vec::new();
    let mut groups = BTreeMap::<_, Parts>::new();
    for file in files {
        match PartName::of(&file.0) {
            Some(PartName { prefix, number, count }) => {
                groups.entry((prefix.to_owned(), count)).or_default().insert(number, file.clone());
            }
            None => single.push(file),
        }
    }
    (single, groups)
}

/// The file, and if its name is that of a part, the other parts that are beside it.
pub(super) fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let Some(name) = PartName::of(&name) else { return vec![path.to_owned()] };
    let part = |number| path.with_file_name(name.other(number));
    (1..=name.count).map(part).filter(|other| other == path || other.is_file()).collect()
}

/// Refuses files that are some of the parts of a model, but not all.
pub(super) fn check_whole<T>(files: &BTreeMap<PathBuf, T>) -> Result<(), StoreError> {
    for path in files.keys() {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let Some(part) = PartName::of(&name) else { continue };
        let (count, is_missing) =
            (part.count, |other: &String| !files.contains_key(&path.with_file_name(other)));
        let missing: Vec<String> =
            (1..=count).map(|number| part.other(number)).filter(is_missing).collect();
        if let [first, others @ ..] = &missing[..] {
            let others = match others.len() {
                0 => String::new(),
                n => format!(" and {n} more of the {count} parts"),
            };
            let dir = path.parent().unwrap_or(path).display();
            return Err(StoreError::Split(format!(
                "{first}{others} must be beside {name}, and is not in {dir}"
            )));
        }
    }
    Ok(())
}

/// Writes the parts of a model into one blob.
pub(super) fn merge(
    store: &Store,
    prefix: &str,
    count: u32,
    parts: &Parts,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<NewBlob, StoreError> {
    if !parts.contains_key(&1) {
        return Err(StoreError::Split(format!("split GGUF {prefix} is missing first shard")));
    }
    if parts.len() != count as usize {
        return Err(StoreError::Split(format!(
            "split GGUF {prefix} has {} shards, expected {count}",
            parts.len()
        )));
    }
    // Links under the names that belong to parts: the reader of split files finds them by those.
    let (dir, link) = (LinkDir::new(store)?, PartName { prefix: "part", number: 1, count });
    for (number, (_, digest)) in parts {
        let target = dir.path.join(link.other(*number));
        let source = store.blob_path(&stored(store, digest)?);
        let linked =
            fs::hard_link(&source, &target).or_else(|_| fs::copy(&source, &target).map(|_| ()));
        linked.map_err(|e| StoreError::io("link", &source, &e))?;
    }
    // Nobody knows the links.
    let named = |error: GgufError| {
        let link = |number: &u32| dir.path.join(link.other(*number)).display().to_string();
        let said = error.to_string();
        let text = parts
            .iter()
            .fold(said.clone(), |text, (number, (name, _))| text.replace(&link(number), name));
        match error {
            GgufError::Io { .. } => error.into(),
            _ if text == said => error.into(),
            _ => StoreError::Split(text),
        }
    };
    let gguf = Gguf::open(&dir.path.join(link.other(1))).map_err(named)?;
    let mut metadata = gguf.metadata().clone();
    for key in ["split.no", "split.count", "split.tensors.count"] {
        metadata.remove(key);
    }
    let mut writer = Writer::with_metadata(metadata);
    for tensor in gguf.tensors() {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape)?;
    }
    let mut blob = store.blob_writer()?;
    let mut body = writer.start(&mut blob)?;
    let (mut done, mut pace) = (0, Pace::new());
    for tensor in gguf.tensors() {
        body.write(gguf.data(tensor))?;
        done += tensor.size;
        if pace.is_due(done >= gguf.tensor_bytes()) {
            progress(done, gguf.tensor_bytes());
        }
    }
    body.finish()?;
    blob.finish(None)
}

/// A folder that goes when it is dropped.
struct LinkDir {
    path: PathBuf,
}

impl LinkDir {
    fn new(store: &Store) -> Result<Self, StoreError> {
        let name = TempFile::new_name();
        let path = store.root().join(TEMP_DIR).join(Path::new(&format!("{name}-parts")));
        crate::files::create_dir(&path)?;
        Ok(Self { path })
    }
}

impl Drop for LinkDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
