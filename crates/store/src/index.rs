//! What lists remember of the folders of manifests: a folder that is as it was need not be listed again, and a manifest not
//! be read. What is left of a list is one look at each of them.
//!
//! Nothing is believed that was not compared: a folder's time changes with each file that is made, renamed or removed in it, by
//! whichever program, and a file's own with each that is written in place. So what is remembered may as well be on disk. Not every
//! file system keeps the times of folders that well (shares, FAT, what programs mount): there folders are listed each time.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::entry::NameDocument;
use crate::error::StoreError;
use crate::manifest_list::Document;
use crate::names::{DEPTH, NameFile, NameFolder, NameText, foreign, name_of};
use crate::stamp::Stamp;

/// So many models are worth a second thread.
const WORTH_A_THREAD: usize = if cfg!(test) { 2 } else { 200 };

/// The numbers by which Linux calls file systems whose folders' times show all that happens in them: ext2 to ext4, XFS, Btrfs, ZFS,
/// bcachefs, F2FS, tmpfs, and overlays over these.
const SHOWING: [u32; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0xf2f5_2010,
    0x0102_1994,
    0x794c_7630,
];

/// Whether the time of a folder changes with each of its entries.
fn shows_changes(dir: &Path) -> bool {
    #[cfg(target_os = "linux")]
    return rustix::fs::statfs(dir).is_ok_and(|system| SHOWING.contains(&(system.f_type as u32)));
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (dir, SHOWING);
        false
    }
}

/// What is remembered of a folder, and of what is below it.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// As it was when its entries were read; `None` where they may have changed unseen.
    pub(crate) stamp: Option<Stamp>,
    /// Those of its entries that may be folders, by name; none where manifests are.
    pub(crate) folders: Vec<(String, Folder)>,
    /// Those that may be manifests, with what is remembered of them.
    pub(crate) files: Vec<(String, Option<Text>)>,
    /// As it is, by a look in advance that is about to be used.
    seen: Option<Stamp>,
}

/// What a file says.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) stamp: Stamp,
    pub(crate) digest: Digest,
    pub(crate) document: Document,
    /// As it is, by a look in advance that is about to be used.
    seen: Option<Stamp>,
}

impl Folder {
    /// As it was written down.
    pub(crate) fn new(
        stamp: Option<Stamp>,
        folders: Vec<(String, Folder)>,
        files: Vec<(String, Option<Text>)>,
    ) -> Self {
        Self { stamp, folders, files, seen: None }
    }

    /// How many manifests are remembered.
    #[cfg(test)]
    pub(crate) fn manifests(&self) -> usize {
        let below: usize = self.folders.iter().map(|(_, folder)| folder.manifests()).sum();
        below + self.files.iter().filter(|(_, text)| text.is_some()).count()
    }

    /// The folders with manifests, and where they are.
    fn models<'a>(
        &'a mut self,
        at: PathBuf,
        depth: usize,
        into: &mut Vec<(PathBuf, &'a mut Folder)>,
    ) {
        if depth == DEPTH {
            into.push((at, self));
            return;
        }
        for (name, folder) in &mut self.folders {
            folder.models(at.join(name), depth + 1, into);
        }
    }

    /// Looks at all of it that will be compared.
    fn look_ahead(&mut self, at: &Path, near: &mut Near) {
        let (Some(dir), Some(name)) = (at.parent(), at.file_name()) else { return };
        near.enter(dir);
        let mut below = PathBuf::from(name);
        self.seen = near.stamp(&below);
        for (name, text) in &mut self.files {
            let Some(text) = text else { continue };
            below.push(name);
            text.seen = near.stamp(&below);
            below.pop();
        }
    }

    /// Whether all of it is as it was, where manifests are by a look in advance, and nothing of it has to be read.
    fn is_as_it_was(&self, at: &Path, depth: usize) -> bool {
        if depth == DEPTH {
            let is_same = |(_, text): &(String, Option<Text>)| {
                text.as_ref().is_some_and(|text| text.seen == Some(text.stamp))
            };
            return self.stamp.is_some()
                && self.seen == self.stamp
                && self.files.iter().all(is_same);
        }
        if self.stamp.is_none() && self.folders.is_empty() && depth == 0 {
            // There was no such folder.
            return Stamp::at(at).is_none();
        }
        self.stamp.is_some()
            && Stamp::at(at) == self.stamp
            && self
                .folders
                .iter()
                .all(|(name, folder)| folder.is_as_it_was(&at.join(name), depth + 1))
    }

    /// Forgets a look in advance.
    fn look_away(&mut self) {
        self.seen = None;
        self.folders.iter_mut().for_each(|(_, folder)| folder.look_away());
        self.files
            .iter_mut()
            .filter_map(|(_, text)| text.as_mut())
            .for_each(|text| text.seen = None);
    }
}

/// A folder whose way was gone once: the system is asked for what is below it from there, since the long way to each of thousands of
/// files is most of what asking costs.
#[derive(Default)]
struct Near {
    dir: PathBuf,
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    open: Option<std::os::fd::OwnedFd>,
}

impl Near {
    fn enter(&mut self, dir: &Path) {
        if self.dir == dir {
            return;
        }
        self.dir = dir.to_owned();
        #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
        {
            use rustix::fs::{Mode, OFlags};
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            self.open = rustix::fs::open(dir, flags, Mode::empty()).ok();
        }
    }

    /// Of what is below it; `None` where there is none.
    fn stamp(&self, below: &Path) -> Option<Stamp> {
        #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
        if let Some(dir) = &self.open {
            let stat = rustix::fs::statat(dir, below, rustix::fs::AtFlags::empty());
            return stat.ok().map(|stat| Stamp::of_stat(&stat));
        }
        Stamp::at(&self.dir.join(below))
    }
}

impl Text {
    /// As it was written down.
    pub(crate) fn new(stamp: Stamp, digest: Digest, document: Document) -> Self {
        Self { stamp, digest, document, seen: None }
    }
}

/// Asks the system for what is remembered of many models in two threads at once: that is most of the time that a list takes. What is
/// as it was by then is believed; whatever is not, is looked at again.
fn look_ahead(root: &Path, before: &mut Folder) {
    let mut models = Vec::new();
    before.models(root.to_owned(), 0, &mut models);
    if models.len() < WORTH_A_THREAD {
        return;
    }
    fn look(models: &mut [(PathBuf, &mut Folder)]) {
        let mut near = Near::default();
        models.iter_mut().for_each(|(at, folder)| folder.look_ahead(at, &mut near));
    }
    let half = models.len() / 2;
    let (first, second) = models.split_at_mut(half);
    std::thread::scope(|scope| {
        // Without another thread nothing is known in advance.
        let _ = std::thread::Builder::new().spawn_scoped(scope, || look(first));
        look(second);
    });
}

/// What is below a folder of names.
#[derive(Default)]
pub(crate) struct Looked {
    /// The files of names in the order of these, and what they say or what is wrong with them.
    pub(crate) models: Vec<(NameFile, Result<NameDocument, StoreError>)>,
    /// What is wrong with files at the depth of names whose paths spell none.
    pub(crate) foreign: Vec<StoreError>,
    /// What is to be remembered. What a look does not come by is forgotten.
    pub(crate) now: Folder,
    /// How much of that had to be read.
    pub(crate) read: usize,
    /// Nothing has changed since what is remembered was: of models nothing is said.
    pub(crate) is_same: bool,
}

impl Looked {
    /// Looks at a folder of names of the store at `root`, of which something may be remembered.
    ///
    /// # Errors
    /// A folder is there that cannot be read.
    pub(crate) fn at(root: &Path, folder: NameFolder, before: Folder) -> Result<Self, StoreError> {
        Self::unless_same(root, folder, before, false)
    }

    /// The same; where nothing has changed since and `is_known`, nothing is said of names.
    ///
    /// # Errors
    /// As [`Looked::at`].
    pub(crate) fn unless_same(
        root: &Path,
        folder: NameFolder,
        mut before: Folder,
        is_known: bool,
    ) -> Result<Self, StoreError> {
        let top = folder.at(root);
        look_ahead(&top, &mut before);
        if is_known && before.is_as_it_was(&top, 0) {
            before.look_away();
            return Ok(Self { now: before, is_same: true, ..Self::default() });
        }
        let (looked, showing) = (Self::default(), HashMap::new());
        let mut look = Look { root, folder, looked, parts: Vec::new(), showing };
        let now = look.folder(&top, before)?;
        let mut looked = Self { now, ..look.looked };
        // They nearly are.
        looked.models.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(looked)
    }
}

/// A look on its way.
struct Look<'a> {
    /// The store's folder.
    root: &'a Path,
    /// The folder of names.
    folder: NameFolder,
    looked: Looked,
    /// The names of the folders that it is in.
    parts: Vec<String>,
    /// By device, whether the times of its folders are to be believed.
    showing: HashMap<u64, bool>,
}

impl Look<'_> {
    /// Looks at a folder; there is nothing in one that is none.
    fn folder(&mut self, dir: &Path, mut before: Folder) -> Result<Folder, StoreError> {
        let seen = before.seen.take().filter(|seen| before.stamp == Some(*seen));
        let stamp = seen.or_else(|| Stamp::at(dir));
        let stamp = stamp.filter(|stamp| {
            *self.showing.entry(stamp.file.0).or_insert_with(|| shows_changes(dir))
        });
        if stamp.is_some() && stamp == before.stamp {
            return self.entries(dir, before);
        }
        let stamp = stamp.filter(Stamp::is_settled);
        let of_files = self.parts.len() == DEPTH;
        let mut names = names_in(dir, of_files)?;
        names.sort();
        let mut now = Folder { stamp, ..Folder::default() };
        let (mut folders, mut files): (HashMap<_, _>, HashMap<_, _>) =
            (before.folders.into_iter().collect(), before.files.into_iter().collect());
        for name in names {
            match name.to_str().map(str::to_owned) {
                Some(name) if of_files => {
                    let text = files.remove(&name).flatten();
                    now.files.push((name, text));
                }
                Some(name) => {
                    let below = folders.remove(&name).unwrap_or_default();
                    now.folders.push((name, below));
                }
                // No model has such a name, nor is one below it.
                None => {
                    now.stamp = None;
                    let path = Some(dir.join(name)).filter(|path| of_files && path.is_file());
                    self.looked.foreign.extend(path.map(foreign));
                }
            }
        }
        self.looked.read += usize::from(now.stamp.is_some());
        self.entries(dir, now)
    }

    /// Looks at what is in a folder.
    fn entries(&mut self, dir: &Path, mut now: Folder) -> Result<Folder, StoreError> {
        for (name, below) in &mut now.folders {
            self.parts.push(name.clone());
            *below = self.folder(&dir.join(name), std::mem::take(below))?;
            self.parts.pop();
        }
        for (name, text) in &mut now.files {
            let path = dir.join(&*name);
            let Some(model) = name_of(&self.parts, name) else {
                self.looked.foreign.extend(Some(path).filter(|path| path.is_file()).map(foreign));
                continue;
            };
            let file = NameFile { name: model, folder: self.folder, path };
            match self.manifest(&file, text).transpose() {
                None => {}
                Some(named) => self.looked.models.push((file, named)),
            }
        }
        Ok(now)
    }

    /// What the file of a name says, and what is remembered of it; `None` where there is no file, or no more.
    fn manifest(
        &mut self,
        file: &NameFile,
        text: &mut Option<Text>,
    ) -> Result<Option<NameDocument>, StoreError> {
        let path = &file.path;
        let mut before = text.take();
        let seen = before.as_mut().and_then(|known| known.seen.take());
        if let Some(known) = before.take_if(|known| seen == Some(known.stamp)) {
            return text.insert(known).document_of(file).map(Some);
        }
        let fail = |e: &io::Error| StoreError::io("read", path, e);
        let meta = match fs::metadata(path) {
            Ok(meta) if meta.is_file() => meta,
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(fail(&e)),
        };
        let stamp = Stamp::of(&meta).map_err(|e| fail(&e))?;
        if let Some(known) = before.filter(|known| known.stamp == stamp) {
            return text.insert(known).document_of(file).map(Some);
        }
        let is_settled = stamp.is_settled();
        let NameText { bytes, digest, modified } = match file.read(self.root) {
            Err(error) if error.is_absence() => return Ok(None),
            read => read?,
        };
        let parsed = Document::parse(&bytes);
        let document =
            parsed.map_err(|reason| StoreError::Manifest { path: path.clone(), reason })?;
        if is_settled {
            self.looked.read += 1;
            *text = Some(Text::new(stamp, digest, document.clone()));
        }
        Ok(Some(NameDocument { digest, modified, document }))
    }
}

impl Text {
    fn document_of(&self, file: &NameFile) -> Result<NameDocument, StoreError> {
        let modified = match file.folder {
            NameFolder::ManifestsV2 => file.modified()?,
            NameFolder::Manifests => self.stamp.modified(),
        };
        Ok(NameDocument { digest: self.digest, modified, document: self.document.clone() })
    }
}

/// The names of a folder's entries but for those that are surely of the other kind. A link may be either.
pub(crate) fn names_in(dir: &Path, of_files: bool) -> Result<Vec<PathBuf>, StoreError> {
    let fail = |e: io::Error| StoreError::io("read the folder", dir, &e);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // Never there, or removed while we look.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(fail(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        // What Finder, NFS and editors leave is nobody's.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = entry.file_type();
        if !kind.is_ok_and(|kind| if of_files { kind.is_dir() } else { kind.is_file() }) {
            names.push(entry.file_name().into());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::stamp::SETTLED;

    const MANIFEST: &str = r#"{"layers":[{"mediaType":"m","digest":"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","size":1}]}"#;

    fn settle() {
        std::thread::sleep(SETTLED * 2);
    }

    /// A folder of manifests, and that of one model below it.
    struct Bench {
        root: tempfile::TempDir,
        dir: PathBuf,
    }

    impl Bench {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let dir = root.path().join("manifests/h/n/m");
            fs::create_dir_all(&dir).unwrap();
            Self { root, dir }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.dir.join(name)
        }

        /// The tags in the folder and the sizes of their layers, how much had to be read for that, and what is remembered.
        fn look(&self, before: Folder) -> (Vec<(String, u64)>, usize, Folder) {
            let looked = Looked::at(self.root.path(), NameFolder::Manifests, before).unwrap();
            let size = |named: NameDocument| match named.document {
                Document::Manifest { manifest, .. } => manifest.layers[0].size,
                Document::List(_) => panic!("no list"),
            };
            let models = looked.models.into_iter();
            let found =
                models.map(|(file, named)| (file.name.tag().to_owned(), size(named.unwrap())));
            (found.collect(), looked.read, looked.now)
        }
    }

    fn names(found: &[(String, u64)]) -> Vec<String> {
        found.iter().map(|(name, _)| name.clone()).collect()
    }

    #[test]
    fn what_is_as_it_was_is_not_read_again_and_whatever_changes_shows() {
        let bench = Bench::new();
        // So that there is a second thread.
        let other = bench.root.path().join("manifests/h/n/other");
        fs::create_dir_all(&other).unwrap();
        fs::write(bench.at("a"), MANIFEST).unwrap();
        fs::write(bench.at("b"), MANIFEST).unwrap();
        settle();
        let (found, _, index) = bench.look(Folder::default());
        assert_eq!((names(&found), index.manifests()), (vec!["a".into(), "b".into()], 2));
        let (again, read, index) = bench.look(index);
        assert_eq!((&again, read), (&found, 0));

        // In place, of the same length: by another program that does not rename.
        fs::write(bench.at("a"), MANIFEST.replace("\"size\":1", "\"size\":2")).unwrap();
        let (found, _, index) = bench.look(index);
        assert_eq!(found, [("a".into(), 2), ("b".into(), 1)]);
        fs::rename(bench.at("b"), bench.at("c")).unwrap();
        let (found, _, index) = bench.look(index);
        assert_eq!(names(&found), ["a", "c"]);
        settle();
        let (_, _, index) = bench.look(index);
        fs::remove_file(bench.at("a")).unwrap();
        fs::write(bench.at("d"), MANIFEST).unwrap();
        let (found, _, index) = bench.look(index);
        assert_eq!(names(&found), ["c", "d"]);
        assert_eq!(index.manifests(), 1, "what is gone is forgotten, and what is new may change");
        settle();
        let (_, _, index) = bench.look(index);
        fs::rename(&bench.dir, bench.root.path().join("manifests/h/n/moved")).unwrap();
        fs::remove_dir(&other).unwrap();
        let (found, _, index) = bench.look(index);
        assert_eq!((names(&found), index.manifests()), (vec!["c".into(), "d".into()], 2));
        fs::remove_dir_all(bench.root.path().join("manifests/h")).unwrap();
        assert_eq!(bench.look(index).0, []);
    }

    #[test]
    fn what_may_still_change_unseen_is_not_remembered() {
        let bench = Bench::new();
        let path = bench.at("a");
        fs::write(&path, MANIFEST).unwrap();
        // By a clock that is ahead, or just now.
        let soon = SystemTime::now() + Duration::from_secs(3600);
        fs::File::options().append(true).open(&path).unwrap().set_modified(soon).unwrap();
        settle();
        let (found, _, index) = bench.look(Folder::default());
        assert_eq!((found.len(), index.manifests()), (1, 0));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_shows_what_it_leads_to_now() {
        let bench = Bench::new();
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("target");
        std::os::unix::fs::symlink(&target, bench.at("a")).unwrap();
        settle();
        let (found, _, index) = bench.look(Folder::default());
        assert_eq!(found, []);
        fs::write(&target, MANIFEST).unwrap();
        let (found, _, index) = bench.look(index);
        assert_eq!(found.len(), 1);
        fs::remove_file(&target).unwrap();
        assert_eq!(bench.look(index).0, []);
    }

    #[cfg(unix)]
    #[test]
    fn a_name_that_is_no_text_is_told_each_time() {
        use std::os::unix::ffi::OsStrExt;
        let bench = Bench::new();
        fs::write(bench.dir.join(std::ffi::OsStr::from_bytes(b"\xff")), MANIFEST).unwrap();
        fs::write(bench.at("a"), MANIFEST).unwrap();
        settle();
        let mut index = Folder::default();
        for _ in 0..2 {
            let looked = Looked::at(bench.root.path(), NameFolder::Manifests, index).unwrap();
            assert_eq!((looked.models.len(), looked.foreign.len()), (1, 1));
            index = looked.now;
        }
        assert_eq!(index.manifests(), 1);
    }
}
