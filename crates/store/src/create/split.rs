//! Joins split GGUF files into one blob, as programs that read the store expect.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use puna_gguf::PartName;

use crate::blobs::NewBlob;
use crate::error::StoreError;
use crate::file_job::{FileJob, JobExecutor, NamedFile};
use crate::files::{TEMP_DIR, TempFile};
use crate::progress::ProgressFn;
use crate::store::Store;

/// SplitParts of one model: file names and digests by part number, from 1.
pub(super) type SplitParts = BTreeMap<u32, (String, String)>;

/// Prefix and part count in the names of parts.
pub(super) type SplitName = (String, u32);

/// Separates single files from the parts of split models.
pub(super) fn group(
    files: &[(String, String)],
) -> (Vec<&(String, String)>, BTreeMap<SplitName, SplitParts>) {
    let mut single = Vec::new();
    let mut groups = BTreeMap::<_, SplitParts>::new();
    for file in files {
        match PartName::parse(&file.0) {
            Some(PartName { prefix, number, count }) => {
                groups.entry((prefix.to_owned(), count)).or_default().insert(number, file.clone());
            }
            None => single.push(file),
        }
    }
    (single, groups)
}

/// The file and, if its name is that of a part, the other existing parts in its folder.
pub(super) fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let Some(name) = PartName::parse(&name) else { return vec![path.to_owned()] };
    let part = |number| path.with_file_name(name.other(number));
    (1..=name.count).map(part).filter(|other| other == path || other.is_file()).collect()
}

/// Rejects an incomplete set of parts.
pub(super) fn check_whole<T>(files: &BTreeMap<PathBuf, T>) -> Result<(), StoreError> {
    for path in files.keys() {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let Some(part) = PartName::parse(&name) else { continue };
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
            return Err(StoreError::Split(format!("{name} needs {first}{others} in {dir}")));
        }
    }
    Ok(())
}

/// Joins the parts of a model into one blob.
pub(super) fn join(
    store: &Store,
    executor: &dyn JobExecutor,
    prefix: &str,
    count: u32,
    parts: &SplitParts,
    progress: ProgressFn<'_>,
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
    // Links with the names of parts, by which the GGUF reader finds the others.
    let (dir, link) = (LinkDir::new(store)?, PartName { prefix: "part", number: 1, count });
    let mut linked_parts = Vec::with_capacity(parts.len());
    for (number, (name, digest)) in parts {
        let target = dir.path.join(link.other(*number));
        let source = store.blob_path(&store.pin_uploaded_blob(digest)?);
        let linked =
            fs::hard_link(&source, &target).or_else(|_| fs::copy(&source, &target).map(|_| ()));
        linked.map_err(|e| StoreError::io("link", &source, &e))?;
        linked_parts.push(NamedFile { name: name.clone(), path: target });
    }
    let mut blob = store.blob_writer()?;
    executor.execute(&FileJob::Join { parts: linked_parts }, &mut blob, progress)?;
    blob.finish(None)
}

/// A temporary folder, removed when dropped.
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
