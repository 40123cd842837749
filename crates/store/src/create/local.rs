//! The client's side of `create`: a Modelfile and the local files it names become a request and a list of files to
//! upload.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::request::{CreateRequest, Progress};
use crate::digest::Digest;
use crate::error::StoreError;
use crate::home::home_of;
use crate::import::ImportError;
use crate::modelfile::{Instruction, Modelfile, parse_parameter};
use crate::remote::Remote;

/// A file that the request refers to by its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// Where it is.
    pub path: PathBuf,
    /// The digest of its content.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
}

/// A request and what must be uploaded before it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LocalPlan {
    /// The request.
    pub request: CreateRequest,
    /// The files, each once.
    pub files: Vec<LocalFile>,
    /// Deprecated parameters that were left out.
    pub deprecated: Vec<String>,
}

/// Makes a request of a Modelfile whose paths are relative to `base`. `home` is what `~` stands for.
///
/// # Errors
/// Files that cannot be read, folders without a model, values of the wrong type.
pub fn plan_local(
    modelfile: &Modelfile,
    base: &Path,
    home: Option<&Path>,
    progress: &mut dyn FnMut(Progress),
) -> Result<LocalPlan, StoreError> {
    let mut planner = Planner { plan: LocalPlan::default(), base, home, progress };
    let mut values: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut sources: BTreeMap<PathBuf, Digest> = BTreeMap::new();
    let mut drafts: BTreeMap<PathBuf, Digest> = BTreeMap::new();
    let mut adapters: BTreeMap<PathBuf, Digest> = BTreeMap::new();
    for instruction in &modelfile.instructions {
        let request = &mut planner.plan.request;
        match instruction {
            Instruction::From(text) => match planner.local(text)? {
                Source::Name => {
                    let from = &mut planner.plan.request.from;
                    // Several servers of one model.
                    let before = from.take().filter(|before| {
                        [before, text].into_iter().all(|text| matches!(Remote::parse(text), Ok(Some(_))))
                    });
                    *from = Some(before.into_iter().chain([text.clone()]).collect::<Vec<_>>().join(","));
                }
                Source::Files(files) => sources.extend(files),
            },
            Instruction::Adapter(text) => match planner.local(text)? {
                Source::Name => return Err(StoreError::NoFile { path: PathBuf::from(text) }),
                Source::Files(files) => adapters.extend(files),
            },
            Instruction::Draft(text) => match planner.local(text)? {
                Source::Name => return Err(StoreError::NoFile { path: PathBuf::from(text) }),
                Source::Files(files) => drafts.extend(files),
            },
            Instruction::Template(text) => request.template = Some(text.clone()),
            Instruction::System(text) => request.system = Some(text.clone()),
            Instruction::License(text) => request.license.push(text.clone()),
            Instruction::Renderer(text) => request.renderer = Some(text.clone()),
            Instruction::Parser(text) => request.parser = Some(text.clone()),
            Instruction::Requires(text) => request.requires = Some(text.clone()),
            Instruction::Message { role, content } => {
                let message = [("role", role), ("content", content)];
                let message = message.map(|(key, text)| (key.to_owned(), Value::from(text.as_str())));
                request.messages.push(Value::Object(message.into_iter().collect()));
            }
            Instruction::Parameter { name, value } => match values.iter_mut().find(|row| row.0 == name) {
                Some(row) => row.1.push(value),
                None => values.push((name, vec![value])),
            },
        }
    }
    let mut plan = planner.plan;
    // Digests stand under one name, whatever they are of.
    let same = |path: &&PathBuf| sources.get(*path).is_some_and(|digest| drafts[*path] == *digest);
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
            Some(value) => {
                plan.request.parameters.insert(name.to_owned(), value);
            }
            None => plan.deprecated.push(name.to_owned()),
        }
    }
    Ok(plan)
}

/// What a `FROM` stands for.
enum Source {
    /// Nothing local.
    Name,
    /// Files with their digests.
    Files(BTreeMap<PathBuf, Digest>),
}

struct Planner<'a> {
    plan: LocalPlan,
    base: &'a Path,
    home: Option<&'a Path>,
    progress: &'a mut dyn FnMut(Progress),
}

impl Planner<'_> {
    fn local(&mut self, text: &str) -> Result<Source, StoreError> {
        // A digest names a blob that the server has already.
        if let Ok(digest) = text.trim_start_matches('@').parse::<Digest>() {
            return Ok(Source::Files([(PathBuf::from("model.gguf"), digest)].into()));
        }
        let path = self.expand(text)?;
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(e) if is_absent(&e) && is_path(text) => {
                return Err(StoreError::NoFile { path: PathBuf::from(text) });
            }
            Err(e) if is_absent(&e) => return Ok(Source::Name),
            Err(e) => return Err(StoreError::io("read", &path, &e)),
        };
        let path = path.canonicalize().map_err(|e| StoreError::io("read", &path, &e))?;
        if !meta.is_dir() && !meta.is_file() {
            return Err(StoreError::NotRegular { path });
        }
        if meta.is_file() {
            return Ok(Source::Files([(path.clone(), self.hash(&path)?)].into()));
        }
        let mut files = BTreeMap::new();
        for file in select(&path)? {
            let digest = self.hash(&file)?;
            files.insert(file, digest);
        }
        Ok(Source::Files(files))
    }

    /// The path that a text means: `~` is the home folder, all else is relative to the Modelfile.
    fn expand(&self, text: &str) -> Result<PathBuf, StoreError> {
        let Some(rest) = text.strip_prefix('~') else { return Ok(self.base.join(text)) };
        let (user, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let home = if user.is_empty() { self.home.map(Path::to_owned) } else { home_of(user) };
        let home = home.ok_or_else(|| StoreError::Import(ImportError::NoHome(user.to_owned())))?;
        Ok(home.join(rest))
    }

    fn hash(&mut self, path: &Path) -> Result<Digest, StoreError> {
        (self.progress)(Progress::status("gathering model components"));
        let read = || Digest::of_reader(&mut File::open(path)?);
        let (digest, size) = read().map_err(|e| StoreError::io("read", path, &e))?;
        if !self.plan.files.iter().any(|file| file.digest == digest) {
            self.plan.files.push(LocalFile { path: path.to_owned(), digest, size });
        }
        Ok(digest)
    }
}

/// Whether a text cannot be meant as a model's name.
fn is_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let is_file = lower.ends_with(".gguf") || lower.ends_with(".safetensors");
    is_file || text.starts_with(['/', '.', '~']) || text.contains('\\')
}

/// Whether nothing is at a path, be it that the text cannot be one.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::*;
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

/// The names under which files are sent: relative to the deepest folder that holds all of them.
fn named(files: &BTreeMap<PathBuf, Digest>) -> BTreeMap<String, String> {
    let common = files.keys().map(|path| path.parent().unwrap_or(path).to_owned()).reduce(|a, b| {
        a.components().zip(b.components()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect::<PathBuf>()
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
    files.iter().map(|(path, digest)| (name(path), digest.to_string())).collect()
}

/// Weights that a folder may hold, best first: a pattern of the name, and whether folders below count too.
const WEIGHTS: [(&str, &str, bool); 7] = [
    ("model", ".safetensors", true),
    ("consolidated", ".safetensors", false),
    ("adapter_model", ".safetensors", false),
    ("pytorch_model", ".bin", false),
    ("consolidated", ".pth", false),
    ("", ".gguf", false),
    ("", ".bin", false),
];

/// The files of a model's folder: weights of one kind, its JSON files, its vocabulary.
fn select(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let (top, below) = listing(dir)?;
    let matching = |prefix: &str, suffix: &str, deep: bool| {
        let files = top.iter().chain(below.iter().filter(|_| deep));
        let hit = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(prefix) && name.ends_with(suffix)
        };
        files.filter(hit).cloned().collect::<Vec<_>>()
    };
    let group = WEIGHTS.iter().find_map(|&(prefix, suffix, deep)| {
        let files = matching(prefix, suffix, deep);
        let fits = files.iter().all(|path| has_content_of(path, suffix));
        (!files.is_empty() && fits).then_some((suffix, files))
    });
    let Some((suffix, mut files)) = group else {
        return Err(ImportError::NoModel { dir: dir.to_owned() }.into());
    };
    match suffix {
        ".safetensors" | ".gguf" => {}
        _ => return Err(ImportError::Pickle { path: files.remove(0) }.into()),
    }
    if suffix == ".safetensors" {
        files.extend(matching("", ".json", true));
        for name in ["chat_template.jinja", "vocab.txt", "merges.txt"] {
            files.extend(top.iter().filter(|path| path.ends_with(name)).cloned());
        }
        let mut model = matching("tokenizer", ".model", false);
        if model.is_empty() {
            model = matching("tokenizer", ".model", true);
        }
        files.extend(model);
    }
    files.into_iter().map(|path| within(dir, &path)).collect()
}

/// The files of a folder and those of its folders, in order.
fn listing(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), StoreError> {
    let read = |dir: &Path| -> std::io::Result<Vec<PathBuf>> {
        let mut paths = fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<std::io::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    let all = read(dir).map_err(|e| StoreError::io("read the folder", dir, &e))?;
    let (dirs, mut top): (Vec<_>, Vec<_>) = all.into_iter().partition(|path| path.is_dir());
    // A link that leads nowhere stays: what it stands for is missing, and is to be told.
    top.retain(|path| fs::metadata(path).map_or(true, |meta| meta.is_file()));
    let below =
        dirs.iter().filter_map(|dir| read(dir).ok()).flatten().filter(|path| path.is_file()).collect();
    Ok((top, below))
}

/// Whether a file of weights is what its name says, not the text that stands for a file in version control.
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

/// A file of a folder, links resolved; one that leads out of the folder is refused.
fn within(dir: &Path, path: &Path) -> Result<PathBuf, StoreError> {
    let real = path.canonicalize().map_err(|e| StoreError::io("read", path, &e))?;
    if real.starts_with(dir) {
        return Ok(real);
    }
    let shown = path.strip_prefix(dir).unwrap_or(path).to_owned();
    Err(ImportError::InsecurePath { path: shown, cached: path.to_string_lossy().contains(".cache") }.into())
}
