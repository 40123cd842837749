//! The files that give models their names, in two folders:
//!
//! ```text
//! manifests/<host>/<namespace>/<model>/<tag>      the manifest
//! manifests-v2/<host>/<namespace>/<model>/<tag>   since Ollama 0.40: a link to the blob of the
//!                                                 manifest or manifest list; a hard link or
//!                                                 a copy if symbolic links are impossible
//! ```
//!
//! If a name is in both folders, `manifests-v2` counts. The file in `manifests` is then an
//! *anchor*, which keeps the blobs for older versions of Ollama. The public registry is
//! `ollama.com` in `manifests-v2` and `registry.ollama.ai` in `manifests`; both spellings are one
//! host.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use crate::digest::Digest;
use crate::error::StoreError;
use crate::files::read_limited;
use crate::manifest::TEXT_LIMIT;
use crate::name::{DEFAULT_HOST, DEFAULT_NAMESPACE, ModelName, OTHER_PUBLIC_HOST, is_public};

/// Names under which Ollama 0.40 keeps tags for older versions after it has converted a file. They
/// are no models.
const SHADOW_MODELS: [&str; 4] = ["llamacpp", "ggml", "mlx", "ollama"];

/// A folder of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NameFolder {
    /// `manifests-v2`, with links to the blobs of manifests.
    ManifestsV2,
    /// `manifests`, with manifests.
    Manifests,
}

impl NameFolder {
    /// Both folders, the preferred one first.
    pub(crate) const ALL: [Self; 2] = [Self::ManifestsV2, Self::Manifests];

    /// The path of the folder in the store at `root`.
    pub(crate) fn at(self, root: &Path) -> PathBuf {
        root.join(match self {
            Self::ManifestsV2 => "manifests-v2",
            Self::Manifests => "manifests",
        })
    }

    /// The path that the file of a name has or would have.
    pub(crate) fn path(self, root: &Path, name: &ModelName) -> PathBuf {
        let [host, namespace, model, tag] = name.parts();
        let host = match self {
            Self::ManifestsV2 if is_public(host) => OTHER_PUBLIC_HOST.to_owned(),
            Self::ManifestsV2 => host.replace(':', "%3A"),
            Self::Manifests if cfg!(windows) => host.replace(':', "%3A"),
            Self::Manifests => host.to_owned(),
        };
        [&host, namespace, model, tag].into_iter().fold(self.at(root), |path, part| path.join(part))
    }

    /// All paths that other programs may use for the file of a name, in the name's own case.
    fn spellings(self, root: &Path, name: &ModelName) -> Vec<PathBuf> {
        let mut paths = vec![self.path(root, name)];
        let [host, namespace, model, tag] = name.parts();
        let below = |host: &str| self.at(root).join(host).join(namespace).join(model).join(tag);
        if is_public(host) {
            paths.extend([DEFAULT_HOST, OTHER_PUBLIC_HOST].map(below));
        } else if host.contains(':') {
            paths
                .extend([host.to_owned(), host.replace(':', "%3A")].iter().map(|host| below(host)));
        }
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        paths
    }
}

/// The model name that a file and the folders above it spell, if it is valid.
pub(crate) fn name_of(parts: &[String], file: &str) -> Option<ModelName> {
    let [host, namespace, model] = parts else { return None };
    ModelName::from_parts(&decode_host(host), namespace, model, file).ok()
}

/// The host that a folder's name spells.
fn decode_host(folder: &str) -> String {
    folder.replace("%3A", ":").replace("%3a", ":")
}

/// Whether a name in `manifests` is no model and only keeps the blobs of a converted model for
/// older versions of Ollama.
pub(crate) fn is_shadow(name: &ModelName) -> bool {
    let [host, namespace, model, tag] = name.parts();
    is_public(host)
        && namespace.eq_ignore_ascii_case(DEFAULT_NAMESPACE)
        && SHADOW_MODELS.iter().any(|shadow| model.eq_ignore_ascii_case(shadow))
        && tag.len() == 64
        && tag.bytes().all(|c| c.is_ascii_hexdigit())
}

/// The file of a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameFile {
    /// The name as the path spells it.
    pub(crate) name: ModelName,
    /// The folder of names that contains it.
    pub(crate) folder: NameFolder,
    /// Its path.
    pub(crate) path: PathBuf,
}

/// The content of a name's file.
#[derive(Debug)]
pub(crate) struct NameText {
    /// The manifest or manifest list.
    pub(crate) bytes: Vec<u8>,
    /// Its digest.
    pub(crate) digest: Digest,
    /// When the name was written.
    pub(crate) modified: SystemTime,
}

impl NameFile {
    /// The files of a name in the store at `root`, the one that counts first. Case is ignored.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub(crate) fn all_of(root: &Path, name: &ModelName) -> Result<Vec<Self>, StoreError> {
        let mut found: Vec<Self> = Vec::new();
        for folder in NameFolder::ALL {
            for path in folder.spellings(root, name) {
                if fs::symlink_metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
                    found.push(Self { name: name.clone(), folder, path });
                }
            }
        }
        if found.is_empty() {
            found = NameScan::of_name(root, name)?.files;
            found.sort_by(|a, b| (a.folder, &a.path).cmp(&(b.folder, &b.path)));
        }
        Ok(found)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file does not exist, is no regular file or is too large. Or a link of `manifests-v2`
    /// points to no blob of this store, or to a blob with other content than its digest.
    pub(crate) fn read(&self, root: &Path) -> Result<NameText, StoreError> {
        check_file(&self.path)?;
        let linked = match self.folder {
            NameFolder::ManifestsV2 => self.linked_blob(root)?,
            NameFolder::Manifests => None,
        };
        let bytes = read_limited(&self.path, TEXT_LIMIT)?;
        let digest = Digest::of(&bytes);
        if let Some(expected) = linked.filter(|expected| *expected != digest) {
            return Err(
                self.error(format!("it is a link to the blob {expected}, which has the digest {digest}: repair it with `verify --repair`, or remove it with `rm`"))
            );
        }
        Ok(NameText { bytes, digest, modified: self.modified()? })
    }

    /// When the name was written. For a link, the link's own time, because the blob's time changes
    /// when a program uses it.
    ///
    /// # Errors
    /// The file does not exist, or the system reports no time.
    pub(crate) fn modified(&self) -> Result<SystemTime, StoreError> {
        let meta = match self.folder {
            NameFolder::ManifestsV2 => fs::symlink_metadata(&self.path),
            NameFolder::Manifests => fs::metadata(&self.path),
        };
        meta.and_then(|meta| meta.modified()).map_err(|e| StoreError::io("read", &self.path, &e))
    }

    /// The blob that a link of `manifests-v2` points to; `None` for a regular file.
    fn linked_blob(&self, root: &Path) -> Result<Option<Digest>, StoreError> {
        let Ok(target) = fs::read_link(&self.path) else { return Ok(None) };
        let shown = target.display().to_string();
        let digest = target.file_name().and_then(|name| name.to_str()?.parse::<Digest>().ok());
        let Some(digest) = digest else {
            return Err(self.error(format!(
                "it is a link to {shown}, which is not a blob: pull the model again, or remove it with `rm`"
            )));
        };
        let there = self.path.canonicalize().map_err(|e| StoreError::io("read", &self.path, &e))?;
        let blob = root.join("blobs").join(digest.file_name());
        match blob.canonicalize() {
            Ok(blob) if blob == there => Ok(Some(digest)),
            _ => Err(self.error(format!("it is a link to {shown}, which is not a blob of this store: pull the model again, or remove it with `rm`"))),
        }
    }

    fn error(&self, reason: String) -> StoreError {
        StoreError::Manifest { path: self.path.clone(), reason }
    }
}

/// Rejects files that cannot be manifests: opening a pipe would block. The error is
/// [`StoreError::Manifest`], so that the name can be removed.
fn check_file(path: &Path) -> Result<(), StoreError> {
    let reason = match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => "it is not a regular file".to_owned(),
        Ok(meta) if meta.len() > TEXT_LIMIT => {
            format!("it has {} bytes, at most {TEXT_LIMIT} are expected", meta.len())
        }
        // Links that form a cycle.
        Err(e)
            if !is_absent_or_denied(&e)
                && fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink()) =>
        {
            e.to_string()
        }
        _ => return Ok(()),
    };
    Err(StoreError::Manifest { path: path.to_owned(), reason })
}

/// Whether an error means that a file is absent or access is denied.
fn is_absent_or_denied(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
}

/// The error for a file whose path spells no model name.
pub(crate) fn foreign_file_error(path: PathBuf) -> StoreError {
    StoreError::Manifest { path, reason: "its path is not a model name".into() }
}

/// The error for a dangling link.
pub(crate) fn dangling_link_error(file: &NameFile) -> StoreError {
    file.error(
        "it is a link that cannot be followed: pull the model again, or remove it with `rm`".into(),
    )
}

/// Folders above the files of names: host, namespace and model.
pub(crate) const NAME_DEPTH: usize = 3;

/// All files in the folders of names.
#[derive(Default)]
pub(crate) struct NameScan {
    /// The files of names, sorted by name.
    pub(crate) files: Vec<NameFile>,
    /// Files at the depth of names whose paths spell no model name.
    pub(crate) foreign: Vec<PathBuf>,
    /// Files above that depth, and folders at it.
    pub(crate) misplaced: Vec<PathBuf>,
}

impl NameScan {
    /// Scans both folders of the store at `root`.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub(crate) fn of(root: &Path) -> Result<Self, StoreError> {
        Self::scan(root, None)
    }

    /// Scans the folders of one name, ignoring case.
    ///
    /// # Errors
    /// A folder cannot be read.
    fn of_name(root: &Path, name: &ModelName) -> Result<Self, StoreError> {
        let mut scan = Self::scan(root, Some(name))?;
        scan.files.retain(|file| file.name.same(name));
        Ok(scan)
    }

    /// Scans both folders; with `only`, the folders of that name.
    fn scan(root: &Path, only: Option<&ModelName>) -> Result<Self, StoreError> {
        let mut scan = Self::default();
        for folder in NameFolder::ALL {
            scan.enter(folder, &folder.at(root), &mut Vec::new(), only)?;
        }
        scan.files.sort();
        Ok(scan)
    }

    fn enter(
        &mut self,
        folder: NameFolder,
        dir: &Path,
        parts: &mut Vec<String>,
        only: Option<&ModelName>,
    ) -> Result<(), StoreError> {
        let is_lowest = parts.len() == NAME_DEPTH;
        for (path, is_dir) in entries_of(dir)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if only.is_some_and(|only| !spells_part(&name, only, parts.len())) {
                continue;
            }
            match (is_lowest, is_dir) {
                (false, true) => {
                    parts.push(name);
                    self.enter(folder, &path, parts, only)?;
                    parts.pop();
                }
                (true, false) => {
                    match name_of(parts, &name)
                        .filter(|_| path.file_name().is_some_and(|n| *n == *name))
                    {
                        Some(name) => self.files.push(NameFile { name, folder, path }),
                        None => self.foreign.push(path),
                    }
                }
                _ => self.misplaced.push(path),
            }
        }
        Ok(())
    }
}

/// Whether a file or folder at this depth of a folder of names spells that part of a name,
/// ignoring case.
fn spells_part(file: &str, name: &ModelName, depth: usize) -> bool {
    let part = name.parts()[depth];
    if depth > 0 {
        return file.eq_ignore_ascii_case(part);
    }
    let host = decode_host(file);
    host.eq_ignore_ascii_case(part) || (is_public(&host) && is_public(part))
}

/// The visible entries of a folder, and whether each is a folder. Empty if the folder does not
/// exist.
pub(crate) fn entries_of(dir: &Path) -> Result<Vec<(PathBuf, bool)>, StoreError> {
    let fail = |e: io::Error| StoreError::io("read the folder", dir, &e);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // The folder never existed, or was removed after its parent was read.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(fail(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        // Finder, NFS and editors leave hidden files, and Ollama uses them as temporary files.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = entry.file_type().map_err(fail)?;
        let is_dir = kind.is_dir() || (kind.is_symlink() && entry.path().is_dir());
        found.push((entry.path(), is_dir));
    }
    found.sort();
    Ok(found)
}

/// Removes the empty folders above a removed file, up to the folder of names.
pub(crate) fn remove_empty_folders(root: &Path, file: &Path) {
    let tops = NameFolder::ALL.map(|folder| folder.at(root));
    for dir in file.ancestors().skip(1).take_while(|dir| !tops.iter().any(|top| top == dir)) {
        crate::files::sync_dir(dir);
        if dir.components().any(|part| part == Component::ParentDir) || fs::remove_dir(dir).is_err()
        {
            break;
        }
    }
}
