//! Split GGUF files become one blob, as every program that reads the store expects.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use puna_gguf::{Gguf, Writer};

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
pub(super) fn group(files: &[(String, String)]) -> (Vec<&(String, String)>, BTreeMap<SplitName, Parts>) {
    let mut single = Vec::new();
    let mut groups = BTreeMap::<_, Parts>::new();
    for file in files {
        match part_of(&file.0) {
            Some((prefix, number, count)) => {
                groups.entry((prefix.to_owned(), count)).or_default().insert(number, file.clone());
            }
            None => single.push(file),
        }
    }
    (single, groups)
}

/// Prefix, number and count of a name that ends in `-00001-of-00003.gguf`.
fn part_of(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|c| c.is_ascii_digit());
    if !digits(number) || !digits(count) {
        return None;
    }
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

/// Writes the parts of a model into one blob.
pub(super) fn merge(store: &Store, prefix: &str, count: u32, parts: &Parts) -> Result<NewBlob, StoreError> {
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
    let dir = LinkDir::new(store)?;
    for (number, (_, digest)) in parts {
        let target = dir.path.join(format!("part-{number:05}-of-{count:05}.gguf"));
        let source = store.blob_path(&stored(store, digest)?);
        let link = fs::hard_link(&source, &target).or_else(|_| fs::copy(&source, &target).map(|_| ()));
        link.map_err(|e| StoreError::io("link", &source, &e))?;
    }
    let gguf = Gguf::open(&dir.path.join(format!("part-00001-of-{count:05}.gguf")))?;
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
    for tensor in gguf.tensors() {
        body.write(gguf.data(tensor))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_by_their_names() {
        assert_eq!(part_of("a/m-00002-of-00003.gguf"), Some(("a/m", 2, 3)));
        for other in ["m.gguf", "m-2-of-3.gguf", "m-00002-of-00003.bin", "00002-of-00003.gguf"] {
            assert_eq!(part_of(other), None);
        }
    }
}
