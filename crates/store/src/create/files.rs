//! Uploaded files: which kind they are, and the layers they become.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use puna_gguf::{Gguf, GgufError, View};

use super::request::{FileTemplate, Pace, Progress};
use super::{ProgressFn, split, stored};
use crate::blobs::NewBlob;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::facts::Facts;
use crate::files::read_limited;
use crate::import::{self, ImportError, ImportFile};
use crate::manifest::{Layer, media};
use crate::requantize::{FileType, Imatrix, QuantizeOptions, fallbacks, requantize, unmatched};
use crate::store::Store;

/// More than any `sentence_bert_config.json` has.
const SENTENCE_CONFIG_BYTES: u64 = 1 << 20;

/// What stands for a blob that is not there yet in lines about the work on it, since clients tell bars apart by digests.
/// The first is Ollama's own.
const QUANTIZING: &str = "0000000000000000000";
const CONVERTING: &str = "1111111111111111111";
const READING: &str = "3333333333333333333";
const JOINING: &str = "4444444444444444444";

/// Name and digest of a file.
type Given = (String, String);

/// The files of a model.
#[derive(Default)]
pub(super) struct Sources {
    gguf: Vec<Given>,
    /// A folder of safetensors, to be converted.
    folder: Vec<Given>,
}

/// A file as a layer.
pub(super) struct SourceFile {
    pub(super) layer: Layer,
    pub(super) is_new: bool,
    pub(super) facts: Arc<Facts>,
}

impl Sources {
    /// Tells the kinds by the names, and where they do not say it by the first bytes.
    pub(super) fn of<'a>(
        store: &Store,
        files: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, StoreError> {
        let files: Vec<_> =
            files.into_iter().map(|(name, digest)| (name.clone(), digest.clone())).collect();
        let is = |name: &str, suffix: &str| name.to_ascii_lowercase().ends_with(suffix);
        if files.iter().any(|(name, _)| is(name, ".safetensors")) {
            // A GGUF file beside them is the projector of their model, or another one.
            let (gguf, folder) = files.into_iter().partition(|(name, _)| is(name, ".gguf"));
            return Ok(Self { gguf, folder });
        }
        if files.iter().any(|(name, _)| is(name, ".gguf")) {
            return Ok(Self { gguf: files, folder: Vec::new() });
        }
        for (_, digest) in &files {
            let path = store.blob_path(&stored(store, digest)?);
            let mut magic = [0; 4];
            let read = File::open(&path).and_then(|mut file| file.read(&mut magic));
            read.map_err(|e| StoreError::io("read", &path, &e))?;
            if magic == *b"GGUF" {
                return Ok(Self { gguf: files, folder: Vec::new() });
            }
        }
        Err(StoreError::UnknownFiles {
            files: files.iter().map(|(name, _)| crate::name::shown(name)).collect(),
        })
    }

    /// Refuses weights of more than one model. Files that cannot be read are left to those that read them.
    pub(super) fn check_one_model(&self, store: &Store) -> Result<(), StoreError> {
        let (single, groups) = split::group(&self.gguf);
        let mut models: Vec<String> = groups.into_keys().map(|(prefix, _)| prefix).collect();
        models.extend((!self.folder.is_empty()).then(|| "a folder of safetensors".to_owned()));
        for (name, digest) in single {
            let Ok(digest) = stored(store, digest) else { continue };
            let Ok(facts) = store.facts(&digest, &store.blob_path(&digest)) else { continue };
            if media_type(&facts) == media::MODEL {
                models.push(crate::name::shown(name));
            }
        }
        if models.len() > 1 { Err(StoreError::ManyModels { files: models }) } else { Ok(()) }
    }

    /// Tokens that a sentence encoder was trained to read, where its folder says so. Its position table is often longer, but
    /// sentence-transformers cuts texts there.
    pub(super) fn sentence_limit(&self, store: &Store) -> Result<Option<u64>, StoreError> {
        let Some((name, digest)) =
            self.folder.iter().find(|(name, _)| name == "sentence_bert_config.json")
        else {
            return Ok(None);
        };
        let bytes = read_limited(&store.blob_path(&stored(store, digest)?), SENTENCE_CONFIG_BYTES)?;
        let config: serde_json::Value = serde_json::from_slice(&bytes)
            .map_err(|e| ImportError::Json { file: name.clone(), reason: e.to_string() })?;
        Ok(config.get("max_seq_length").and_then(serde_json::Value::as_u64).filter(|&n| n > 0))
    }

    pub(super) fn into_layers(
        self,
        store: &Store,
        progress: ProgressFn<'_>,
    ) -> Result<Vec<SourceFile>, StoreError> {
        let mut layers = Vec::new();
        if !self.folder.is_empty() {
            layers.push(converted_layer(store, &self.folder, progress)?);
        }
        let (single, groups) = split::group(&self.gguf);
        for file in single {
            layers.push(gguf_layer(store, file, progress)?);
        }
        for ((prefix, count), parts) in groups {
            progress(Progress::status("parsing GGUF"));
            let blob = split::merge(store, &prefix, count, &parts, &mut |done, total| {
                progress(Progress::bytes("joining parts", JOINING, done, total));
            })?;
            layers.push(new_layer(store, &blob)?);
        }
        Ok(layers)
    }
}

/// The blob of a GGUF file stays as it is; it is read, which finds everything that is wrong with its header.
fn gguf_layer(
    store: &Store,
    file: &(String, String),
    progress: ProgressFn<'_>,
) -> Result<SourceFile, StoreError> {
    let (name, digest) = file;
    progress(Progress::status("parsing GGUF"));
    let digest = stored(store, digest)?;
    let path = store.blob_path(&digest);
    let facts = match store.facts(&digest, &path) {
        Err(StoreError::GgufFile {
            error: error @ (GgufError::BadMagic { .. } | GgufError::TruncatedHeader { .. }),
            ..
        }) => return Err(StoreError::NotGgufFile { file: crate::name::shown(name), error }),
        // The name that the client gave says more than the blob's.
        Err(StoreError::GgufFile { error, .. }) => {
            return Err(StoreError::BadFile { file: name.clone(), error });
        }
        facts => facts?,
    };
    if media_type(&facts) == media::MODEL && facts.parameter_count == 0 {
        return Err(StoreError::NoTensors { file: crate::name::shown(name) });
    }
    Ok(SourceFile {
        layer: Layer::new(media_type(&facts), digest, size(store, &digest)?),
        is_new: false,
        facts,
    })
}

/// The part that a GGUF file plays in a model.
fn media_type(facts: &Facts) -> &'static str {
    match facts.kind.as_str() {
        "adapter" => media::ADAPTER,
        _ if facts.is_control_vector() => media::ADAPTER,
        _ if facts.is_projector() => media::PROJECTOR,
        _ => media::MODEL,
    }
}

fn converted_layer(
    store: &Store,
    files: &[(String, String)],
    progress: ProgressFn<'_>,
) -> Result<SourceFile, StoreError> {
    progress(Progress::status("converting model"));
    let file = |(name, digest): &(String, String)| -> Result<ImportFile, StoreError> {
        Ok(ImportFile { name: name.clone(), path: store.blob_path(&stored(store, digest)?) })
    };
    let files = files.iter().map(file).collect::<Result<Vec<_>, _>>()?;
    let mut blob = store.blob_writer()?;
    let mut pace = Pace::new();
    import::convert(&files, &mut blob, &mut |status, done, total| {
        if pace.is_due(done >= total) {
            progress(Progress::bytes(
                status,
                if status == import::CONVERTING { CONVERTING } else { READING },
                done,
                total,
            ));
        }
    })?;
    new_layer(store, &blob.finish(None)?)
}

/// The layers of adapters: GGUF files, and folders of PEFT's, which are converted for the model that they are for.
pub(super) fn adapter_layers(
    store: &Store,
    files: &BTreeMap<String, String>,
    model: Option<&Layer>,
    progress: ProgressFn<'_>,
) -> Result<Vec<SourceFile>, StoreError> {
    let dir = |name: &str| name.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
    let weights = files.keys().filter(|name| name.ends_with(".safetensors"));
    let folders: BTreeSet<String> = weights.map(|name| dir(name)).collect();
    let is_gguf = |name: &str| name.to_ascii_lowercase().ends_with(".gguf");
    let single: Vec<_> =
        files.iter().filter(|(name, _)| is_gguf(name) || !folders.contains(&dir(name))).collect();
    let mut layers = match single.is_empty() {
        true => Vec::new(),
        false => Sources::of(store, single)?.into_layers(store, progress)?,
    };
    for folder in folders {
        progress(Progress::status("converting adapter"));
        let model = model.ok_or(StoreError::AdapterAlone)?;
        let view = View::new(Arc::new(Gguf::open(&store.layer_path(model)?)?))?;
        let inside = files.iter().filter(|(name, _)| dir(name) == folder && !is_gguf(name));
        let file = |(name, digest): (&String, &String)| -> Result<ImportFile, StoreError> {
            let name = name.rsplit('/').next().unwrap_or(name).to_owned();
            Ok(ImportFile { name, path: store.blob_path(&stored(store, digest)?) })
        };
        let inside = inside.map(file).collect::<Result<Vec<_>, _>>()?;
        let mut blob = store.blob_writer()?;
        import::convert_adapter(&inside, view.metadata(), &mut blob)?;
        layers.push(new_layer(store, &blob.finish(None)?)?);
    }
    Ok(layers)
}

/// The layer of a GGUF file that was written here.
fn new_layer(store: &Store, blob: &NewBlob) -> Result<SourceFile, StoreError> {
    let facts = store.facts(&blob.digest, &store.blob_path(&blob.digest))?;
    let layer = Layer::new(media_type(&facts), blob.digest, blob.size);
    Ok(SourceFile { layer, is_new: blob.is_new, facts })
}

/// The Jinja template of a layer's file, with the texts of the tokens that it may write.
pub(super) fn template(
    store: &Store,
    layer: &Layer,
    facts: &Facts,
) -> Result<Option<FileTemplate>, StoreError> {
    let Some(source) = facts.chat_template.clone() else { return Ok(None) };
    let gguf = Gguf::open(&store.layer_path(layer)?)?;
    let meta = gguf.metadata();
    let token = |key: &str| {
        let number = meta.opt_u32(key).ok().flatten();
        let mut tokens = meta.strings("tokenizer.ggml.tokens").ok().flatten();
        let text =
            number.zip(tokens.as_mut()).and_then(|(number, tokens)| tokens.nth(number as usize));
        String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
    };
    let (bos, eos) = (token("tokenizer.ggml.bos_token_id"), token("tokenizer.ggml.eos_token_id"));
    Ok(Some(FileTemplate { source, bos, eos }))
}

/// Refuses an adapter that is made for another architecture than a model's, in whichever form the model's file names it.
/// Control vectors do not name any.
pub(super) fn check_adapter(
    store: &Store,
    adapter: &Layer,
    model: &Layer,
) -> Result<(), StoreError> {
    let facts = store.facts(&adapter.digest, &store.layer_path(adapter)?)?;
    if facts.is_control_vector() {
        return Ok(());
    }
    let adapter = facts.architecture.clone();
    let view = View::new(Arc::new(Gguf::open(&store.layer_path(model)?)?))?;
    let names = [view.gguf().metadata(), view.metadata()].map(|meta| meta.architecture());
    if names.contains(&Ok(&*adapter)) {
        return Ok(());
    }
    let model = names[1].clone()?.to_owned();
    Err(StoreError::AdapterArchitecture { adapter, model })
}

fn size(store: &Store, digest: &Digest) -> Result<u64, StoreError> {
    let path: PathBuf = store.blob_path(digest);
    std::fs::metadata(&path).map(|meta| meta.len()).map_err(|e| StoreError::io("read", &path, &e))
}

/// Types that `create` quantizes to: those that need no importance matrix.
pub(crate) const QUANTIZE_TYPES: [&str; 20] = [
    "F32",
    "F16",
    "BF16",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K_S",
    "Q3_K_M",
    "Q3_K_L",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4_MOE",
];

/// Further types, that are worth it with an importance matrix alone.
pub(crate) const IMATRIX_TYPES: [&str; 11] = [
    "Q2_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS",
    "IQ1_M", "IQ1_S",
];

/// Refuses a type that nothing is quantized to.
///
/// # Errors
/// [`StoreError::QuantizeType`]
pub fn check_quantize_type(name: &str, has_imatrix: bool) -> Result<(), StoreError> {
    quantize_type(name, has_imatrix).map(drop)
}

/// The type that a request asks for.
pub(super) fn quantize_type(name: &str, has_imatrix: bool) -> Result<FileType, StoreError> {
    let known = |ty: &FileType| {
        QUANTIZE_TYPES.contains(&ty.name()) || has_imatrix && IMATRIX_TYPES.contains(&ty.name())
    };
    let found = FileType::from_name(name).filter(known);
    found.ok_or_else(|| StoreError::QuantizeType(name.to_ascii_uppercase()))
}

/// The importance matrix that a request names.
pub(super) fn imatrix(store: &Store, digest: &str) -> Result<Imatrix, StoreError> {
    Imatrix::open(&store.blob_path(&stored(store, digest)?))
}

/// The layer of a model in another type; only files that were never quantized are good enough for it.
pub(super) fn quantized_layer(
    store: &Store,
    layer: &Layer,
    target: FileType,
    imatrix: Option<&Imatrix>,
    progress: ProgressFn<'_>,
) -> Result<Option<SourceFile>, StoreError> {
    let path = store.layer_path(layer)?;
    let facts = store.facts(&layer.digest, &path)?;
    if !matches!(facts.file_type.as_str(), "F32" | "F16" | "BF16") {
        return Err(StoreError::QuantizeSource);
    }
    if facts.file_type == target.name() {
        return Ok(None);
    }
    let status = format!("quantizing {} model to {}", facts.file_type, target.name());
    let gguf = Gguf::open(&path)?;
    for fallback in fallbacks(&gguf, target, imatrix.is_some()) {
        progress(Progress::status(fallback.to_string()));
    }
    if let Some(unmatched) = imatrix.and_then(|matrix| unmatched(&gguf, target, matrix)) {
        progress(Progress::status(unmatched.to_string()));
    }
    let mut blob = store.blob_writer()?;
    let mut pace = Pace::new();
    let options = QuantizeOptions { imatrix, ..QuantizeOptions::default() };
    requantize(&gguf, target, &options, &mut blob, &mut |done, total| {
        if pace.is_due(done >= total) {
            progress(Progress::bytes(&status, QUANTIZING, done, total));
        }
    })?;
    progress(Progress::status("verifying conversion"));
    new_layer(store, &blob.finish(None)?).map(Some)
}
