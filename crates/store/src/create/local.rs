//! The client's side of `create`: turns a Modelfile and its local files into a request and a list
//! of files to upload.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use puna_gguf::{Gguf, GgufError, escape_for_message};
use serde_json::Value;

use super::request::CreateRequest;
use super::split;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::home_dir::user_home_dir;
use crate::modelfile::{Instruction, Modelfile, parse_parameter};
use crate::progress::{Progress, ProgressThrottle};
use crate::remote::Remote;

/// A file that the request references by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// Its path.
    pub path: PathBuf,
    /// The digest of its content.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
}

impl LocalFile {
    /// Hashes a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Self, StoreError> {
        match fs::metadata(path) {
            Err(e) if is_absent(&e) => {
                return Err(StoreError::FileNotFound { path: path.to_owned() });
            }
            Ok(meta) if !meta.is_file() => {
                return Err(StoreError::NotRegular { path: path.to_owned() });
            }
            _ => {}
        }
        let mut hasher = FileHasher::of([path])?;
        hasher.read(path, progress)
    }
}

/// Hashes several files with one progress bar.
struct FileHasher {
    total: u64,
    done: u64,
    throttle: ProgressThrottle,
}

impl FileHasher {
    fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self, StoreError> {
        let mut total = 0;
        for path in paths {
            total += fs::metadata(path).map_err(|e| StoreError::io("read", path, &e))?.len();
        }
        Ok(Self { total, done: 0, throttle: ProgressThrottle::new() })
    }

    fn read(
        &mut self,
        path: &Path,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<LocalFile, StoreError> {
        let (before, total) = (self.done, self.total);
        let mut report = |read: u64| {
            let done = before + read;
            if self.throttle.is_due(done >= total) {
                progress(Progress::bytes(
                    "gathering model components",
                    GATHERING_DIGEST,
                    done.min(total),
                    total,
                ));
            }
        };
        let mut read = || Digest::of_reader_with(&mut File::open(path)?, &mut report);
        let (digest, size) = read().map_err(|e| StoreError::io("read", path, &e))?;
        self.done += size;
        Ok(LocalFile { path: path.to_owned(), digest, size })
    }
}

/// Stand-in for a blob's digest in progress messages about hashing.
const GATHERING_DIGEST: &str = "2222222222222222222";

/// A request with the files to upload before it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LocalPlan {
    /// The request.
    pub request: CreateRequest,
    /// The files, each content once.
    pub files: Vec<LocalFile>,
    /// Deprecated parameters that were skipped.
    pub deprecated: Vec<String>,
}

/// Makes a request from a Modelfile. Paths are relative to `base`, and `~` stands for `home`.
///
/// # Errors
/// A file cannot be read, a folder contains no model, or a value has the wrong type.
pub fn plan_local(
    modelfile: &Modelfile,
    base: &Path,
    home: Option<&Path>,
    progress: &mut dyn FnMut(Progress),
) -> Result<LocalPlan, StoreError> {
    let mut builder = RequestBuilder::new(PathResolver { base, home });
    for (number, instruction) in modelfile.instructions.iter().enumerate() {
        let taken = builder.take(instruction);
        taken.map_err(|error| match modelfile.lines.get(number) {
            Some(&line) => StoreError::Line { line, error: Box::new(error) },
            None => error,
        })?;
    }
    builder.finish(progress)
}

/// Builds the request and collects the files.
struct RequestBuilder<'a> {
    resolver: PathResolver<'a>,
    plan: LocalPlan,
    sources: FileDigests,
    drafts: FileDigests,
    adapters: FileDigests,
    /// Values of each parameter, in the order of first occurrence.
    values: Vec<(&'a str, Vec<&'a str>)>,
}

impl<'a> RequestBuilder<'a> {
    fn new(resolver: PathResolver<'a>) -> Self {
        let (sources, drafts, adapters) =
            (FileDigests::new(), FileDigests::new(), FileDigests::new());
        Self { resolver, plan: LocalPlan::default(), sources, drafts, adapters, values: Vec::new() }
    }

    fn take(&mut self, instruction: &'a Instruction) -> Result<(), StoreError> {
        let request = &mut self.plan.request;
        match instruction {
            Instruction::From(text) => self.take_source(text)?,
            Instruction::Adapter(text) => self.adapters.extend(self.resolver.files(text)?),
            Instruction::Draft(text) => self.drafts.extend(self.resolver.files(text)?),
            Instruction::Template(text) => request.template = Some(text.clone()),
            Instruction::System(text) => request.system = Some(text.clone()),
            Instruction::License(text) => request.license.push(text.clone()),
            Instruction::Renderer(text) => request.renderer = Some(text.clone()),
            Instruction::Parser(text) => request.parser = Some(text.clone()),
            Instruction::Requires(text) => {
                super::check::requires(text)?;
                request.requires = Some(text.clone());
            }
            Instruction::Message { role, content } => {
                let message = [("role", role), ("content", content)];
                let message =
                    message.map(|(key, text)| (key.to_owned(), Value::from(text.as_str())));
                request.messages.push(Value::Object(message.into_iter().collect()));
            }
            Instruction::Parameter { name, value } => {
                // The values are parsed again together. Parsing each here reports errors with their
                // line.
                parse_parameter(name, &[value])?;
                match self.values.iter_mut().find(|row| row.0 == name) {
                    Some(row) => row.1.push(value),
                    None => self.values.push((name, vec![value])),
                }
            }
        }
        Ok(())
    }

    fn take_source(&mut self, text: &str) -> Result<(), StoreError> {
        match self.resolver.find(text)? {
            FromSource::Name => {
                let from = &mut self.plan.request.from;
                let is_remote = |text: &str| matches!(Remote::parse(text), Ok(Some(_)));
                *from = Some(match from.take() {
                    None => text.to_owned(),
                    // Several servers of one remote model.
                    Some(before) if is_remote(&before) && is_remote(text) => {
                        format!("{before},{text}")
                    }
                    Some(before) => {
                        let models = [before.as_str(), text].map(escape_for_message);
                        return Err(StoreError::SeveralModels { files: models.into() });
                    }
                });
            }
            FromSource::Files(files) => self.sources.extend(files),
        }
        Ok(())
    }

    fn finish(self, progress: &mut dyn FnMut(Progress)) -> Result<LocalPlan, StoreError> {
        let Self { mut plan, mut sources, mut drafts, mut adapters, values, .. } = self;
        if let (Some(name), Some(path)) = (&plan.request.from, sources.keys().next()) {
            return Err(StoreError::FromNameAndFile {
                name: escape_for_message(name),
                path: path.clone(),
            });
        }
        if let Some(Ok(Some(_))) = plan.request.from.as_deref().map(Remote::parse) {
            // Reject files for a remote model before any is read: the names are enough.
            let named = |path: &PathBuf| (path.display().to_string(), String::new());
            super::check::for_remote(&CreateRequest {
                adapters: adapters.keys().map(named).collect(),
                draft_files: drafts.keys().map(named).collect(),
                ..CreateRequest::default()
            })?;
        }
        [&sources, &drafts, &adapters].into_iter().try_for_each(split::check_whole)?;
        plan.files = hash_files([&mut sources, &mut drafts, &mut adapters], progress)?;
        // One digest under several names is still one file.
        let same =
            |path: &&PathBuf| sources.get(*path).is_some_and(|digest| drafts[*path] == *digest);
        if let Some(path) = drafts.keys().find(same) {
            return Err(StoreError::DraftIsModel { path: path.clone() });
        }
        plan.request.draft_files = named(&drafts);
        plan.request.adapters = named(&adapters);
        if !sources.is_empty() {
            plan.request.files = Some(named(&sources));
        }
        for (name, values) in values {
            match parse_parameter(name, &values)? {
                Some(value) => _ = plan.request.parameters.insert(name.to_owned(), value),
                None => plan.deprecated.push(name.to_owned()),
            }
        }
        Ok(plan)
    }
}

/// Files by path, with their digests if known.
type FileDigests = BTreeMap<PathBuf, Option<Digest>>;

/// Computes the missing digests, and lists each content once.
fn hash_files(
    sets: [&mut FileDigests; 3],
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<LocalFile>, StoreError> {
    let unhashed = |files: &FileDigests| -> Vec<PathBuf> {
        files.iter().filter(|(_, digest)| digest.is_none()).map(|(path, _)| path.clone()).collect()
    };
    let paths: BTreeSet<PathBuf> = sets.iter().flat_map(|files| unhashed(files)).collect();
    let mut hasher = FileHasher::of(paths.iter().map(PathBuf::as_path))?;
    let mut found = BTreeMap::new();
    let mut files: Vec<LocalFile> = Vec::new();
    for path in &paths {
        let file = hasher.read(path, progress)?;
        found.insert(path, file.digest);
        if !files.iter().any(|other| other.digest == file.digest) {
            files.push(file);
        }
    }
    for (path, digest) in sets.into_iter().flatten() {
        *digest = digest.or_else(|| found.get(path).copied());
    }
    Ok(files)
}

/// The meaning of a `FROM` value.
enum FromSource {
    /// The name of a model.
    Name,
    /// Local files, with known digests for blobs on the server.
    Files(FileDigests),
}

/// Resolves paths in a Modelfile.
struct PathResolver<'a> {
    base: &'a Path,
    home: Option<&'a Path>,
}

impl PathResolver<'_> {
    /// The files that a value names. A value that names no file is an error.
    fn files(&self, text: &str) -> Result<FileDigests, StoreError> {
        match self.find(text)? {
            FromSource::Name => Err(StoreError::FileNotFound { path: PathBuf::from(text) }),
            FromSource::Files(files) => Ok(files),
        }
    }

    fn find(&self, text: &str) -> Result<FromSource, StoreError> {
        // A digest names a blob that the server has.
        if let Ok(digest) = text.trim_start_matches('@').parse::<Digest>() {
            return Ok(FromSource::Files(
                [(PathBuf::from(format!("{}.gguf", digest.short())), Some(digest))].into(),
            ));
        }
        let path = self.expand(text)?;
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(e) if is_absent(&e) && is_path(text) => {
                return Err(StoreError::FileNotFound { path: PathBuf::from(text) });
            }
            Err(e) if is_absent(&e) => return Ok(FromSource::Name),
            Err(e) => return Err(StoreError::io("read", &path, &e)),
        };
        let real = path.canonicalize().map_err(|e| StoreError::io("read", &path, &e))?;
        if !meta.is_dir() && !meta.is_file() {
            return Err(StoreError::NotRegular { path: real });
        }
        let files = match (meta.is_file(), path.file_name()) {
            (true, Some(name)) => {
                check_weights(&path, text)?;
                // The name of a link may identify a part of a split model; the name of its target
                // need not.
                let dir = path.parent().and_then(|dir| dir.canonicalize().ok());
                split::parts(&dir.map_or(real, |dir| dir.join(name)))
            }
            (true, None) => vec![real],
            (false, _) => model_files(&real)?,
        };
        Ok(FromSource::Files(files.into_iter().map(|file| (file, None)).collect()))
    }

    /// The path of a value: `~` is the home folder, everything else is relative to the Modelfile's
    /// folder.
    fn expand(&self, text: &str) -> Result<PathBuf, StoreError> {
        let Some(rest) = text.strip_prefix('~') else { return Ok(self.base.join(text)) };
        let (user, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let home =
            if user.is_empty() { self.home.map(Path::to_owned) } else { user_home_dir(user) };
        let home = home.ok_or_else(|| StoreError::NoHome(user.to_owned()))?;
        Ok(home.join(rest))
    }
}

/// Rejects a single file that contains no weights, before it is hashed and sent.
fn check_weights(path: &Path, text: &str) -> Result<(), StoreError> {
    let lower = text.to_ascii_lowercase();
    // The files of a model's folder may be listed one by one.
    if [".safetensors", ".json", ".model", ".txt", ".jinja"].iter().any(|end| lower.ends_with(end))
    {
        return Ok(());
    }
    match Gguf::open(path) {
        Err(error @ (GgufError::BadMagic { .. } | GgufError::TruncatedHeader { .. })) => {
            Err(StoreError::NotWeights { path: PathBuf::from(text), error })
        }
        // The server reports other errors: it may support newer formats.
        _ => Ok(()),
    }
}

/// Whether a text cannot be a model name.
fn is_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let is_file = lower.ends_with(".gguf") || lower.ends_with(".safetensors");
    is_file || text.starts_with(['/', '.', '~']) || text.contains('\\')
}

/// Whether an error means that nothing is at a path, or that the path is invalid.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::*;
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

/// Names of files in the request: paths relative to their deepest common folder.
fn named(files: &FileDigests) -> BTreeMap<String, String> {
    let common =
        files.keys().map(|path| path.parent().unwrap_or(path).to_owned()).reduce(|a, b| {
            a.components()
                .zip(b.components())
                .take_while(|(a, b)| a == b)
                .map(|(a, _)| a)
                .collect::<PathBuf>()
        });
    let common = common.unwrap_or_default();
    let name = |path: &Path| {
        let relative = path.strip_prefix(&common).unwrap_or(path);
        let parts = relative.components().filter_map(|part| match part {
            Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
            _ => None,
        });
        parts.collect::<Vec<_>>().join("/")
    };
    files
        .iter()
        .filter_map(|(path, digest)| Some((name(path), digest.as_ref()?.to_string())))
        .collect()
}

/// Weight files in a folder, most preferred first: prefix and suffix of the name, and whether
/// subfolders count.
const WEIGHT_FILES: [(&str, &str, bool); 8] = [
    ("model", ".safetensors", true),
    ("consolidated", ".safetensors", false),
    ("adapter_model", ".safetensors", false),
    ("pytorch_model", ".safetensors", false),
    ("pytorch_model", ".bin", false),
    ("consolidated", ".pth", false),
    ("", ".gguf", false),
    ("", ".bin", false),
];

/// Files of templates and vocabularies that are neither JSON nor `tokenizer*.model`: tiktoken
/// vocabularies, and T5's name for a SentencePiece model.
const TOKENIZER_FILES: [&str; 9] = [
    "chat_template.jinja",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tokenizer.jsonl",
    "rwkv_vocab_v20230424.txt",
    "qwen.tiktoken",
    "hy.tiktoken",
    "tiktoken.model",
];

/// The files of a model's folder: weights of one format, JSON files and the vocabulary.
fn model_files(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let (top, below) = list_files(dir)?;
    let matching = |prefix: &str, suffix: &str, deep: bool| {
        let files = top.iter().chain(below.iter().filter(|_| deep));
        let hit = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(prefix) && name.ends_with(suffix)
        };
        files.filter(hit).cloned().collect::<Vec<_>>()
    };
    let group = WEIGHT_FILES.iter().find_map(|&(prefix, suffix, deep)| {
        let files = matching(prefix, suffix, deep);
        let fits = files.iter().all(|path| has_content_of(path, suffix));
        (!files.is_empty() && fits).then_some((suffix, files))
    });
    let Some((suffix, mut files)) = group else {
        return Err(StoreError::NoModel { dir: dir.to_owned() });
    };
    match suffix {
        ".safetensors" | ".gguf" => {}
        _ => return Err(StoreError::Pickle { path: files.remove(0) }),
    }
    if suffix == ".safetensors" {
        files.extend(matching("", ".json", true));
        for name in TOKENIZER_FILES {
            files.extend(top.iter().filter(|path| path.ends_with(name)).cloned());
        }
        let mut model = matching("tokenizer", ".model", false);
        if model.is_empty() {
            model = matching("tokenizer", ".model", true);
        }
        files.extend(model);
    }
    files.into_iter().map(|path| resolve_within(dir, &path)).collect()
}

/// The files of a folder, and those of its subfolders, sorted.
fn list_files(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), StoreError> {
    let read = |dir: &Path| -> std::io::Result<Vec<PathBuf>> {
        let mut paths =
            fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<std::io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    let all = read(dir).map_err(|e| StoreError::io("read the folder", dir, &e))?;
    let (dirs, mut top): (Vec<_>, Vec<_>) = all.into_iter().partition(|path| path.is_dir());
    // A dangling link stays, so that the missing file is reported.
    top.retain(|path| fs::metadata(path).map_or(true, |meta| meta.is_file()));
    let below = dirs
        .iter()
        .filter_map(|dir| read(dir).ok())
        .flatten()
        .filter(|path| path.is_file())
        .collect();
    Ok((top, below))
}

/// Whether a weight file has the content that its name promises, and is not a Git LFS pointer.
fn has_content_of(path: &Path, suffix: &str) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(512).read_to_end(&mut head));
    let zip = head.starts_with(b"PK\x03\x04");
    match suffix {
        ".safetensors" => read.is_ok(),
        ".pth" => zip,
        ".bin" => zip || head.starts_with(b"GGUF"),
        _ => head.starts_with(b"GGUF"),
    }
}

/// Resolves the links of a file in a folder. A target outside the folder is an error.
fn resolve_within(dir: &Path, path: &Path) -> Result<PathBuf, StoreError> {
    let real = path.canonicalize().map_err(|e| StoreError::io("read", path, &e))?;
    if real.starts_with(dir) {
        return Ok(real);
    }
    let shown = path.strip_prefix(dir).unwrap_or(path).to_owned();
    Err(StoreError::InsecurePath { path: shown, cached: path.to_string_lossy().contains(".cache") })
}
