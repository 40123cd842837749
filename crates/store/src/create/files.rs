//! Uploaded files: detects their kinds and turns them into layers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_convert::ConvertError;
use puna_gguf::{Gguf, GgufError, View, escape_for_message};

use super::request::FileTemplate;
use super::split;
use crate::blobs::NewBlob;
use crate::digest::Digest;
use crate::error::StoreError;
use crate::file_job::{FileJob, JobExecutor, NamedFile, QuantizeJob};
use crate::files::read_limited;
use crate::gguf_info::GgufInfo;
use crate::manifest::{Layer, media};
use crate::progress::{Progress, ProgressFn};
use crate::quantize_types::{IMATRIX_TYPES, QUANTIZE_TYPES};
use crate::requantize::FileType;
use crate::store::Store;

/// Largest size of `sentence_bert_config.json` in bytes.
const MAX_SENTENCE_CONFIG_BYTES: u64 = 1 << 20;

/// Name and digest of a file.
type NamedDigest = (String, String);

/// The uploaded files of a model.
#[derive(Default)]
pub(super) struct UploadedFiles {
    gguf: Vec<NamedDigest>,
    /// The files of a safetensors folder, to be converted.
    folder: Vec<NamedDigest>,
}

/// A layer made from a file.
pub(super) struct FileLayer {
    pub(super) layer: Layer,
    pub(super) is_new: bool,
    pub(super) info: Arc<GgufInfo>,
}

impl UploadedFiles {
    /// Detects the kinds of files by their names, or else by their first bytes.
    pub(super) fn of<'a>(
        store: &Store,
        files: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, StoreError> {
        let files: Vec<_> =
            files.into_iter().map(|(name, digest)| (name.clone(), digest.clone())).collect();
        let is = |name: &str, suffix: &str| name.to_ascii_lowercase().ends_with(suffix);
        if files.iter().any(|(name, _)| is(name, ".safetensors")) {
            // A GGUF file next to safetensors is the projector of their model, or another model.
            let (gguf, folder) = files.into_iter().partition(|(name, _)| is(name, ".gguf"));
            return Ok(Self { gguf, folder });
        }
        if files.iter().any(|(name, _)| is(name, ".gguf")) {
            return Ok(Self { gguf: files, folder: Vec::new() });
        }
        for (_, digest) in &files {
            let path = store.blob_path(&store.pin_uploaded_blob(digest)?);
            let mut magic = [0; 4];
            let read = File::open(&path).and_then(|mut file| file.read(&mut magic));
            read.map_err(|e| StoreError::io("read", &path, &e))?;
            if magic == *b"GGUF" {
                return Ok(Self { gguf: files, folder: Vec::new() });
            }
        }
        Err(StoreError::UnknownFiles {
            files: files.iter().map(|(name, _)| escape_for_message(name)).collect(),
        })
    }

    /// Rejects weights of more than one model. Unreadable files are left to the later steps.
    pub(super) fn check_one_model(&self, store: &Store) -> Result<(), StoreError> {
        let (single, groups) = split::group(&self.gguf);
        let mut models: Vec<String> = groups.into_keys().map(|(prefix, _)| prefix).collect();
        models.extend((!self.folder.is_empty()).then(|| "a folder of safetensors".to_owned()));
        for (name, digest) in single {
            let Ok(digest) = store.pin_uploaded_blob(digest) else { continue };
            let Ok(info) = store.gguf_info_cache.read(&digest, &store.blob_path(&digest)) else {
                continue;
            };
            if media_type(&info) == media::MODEL {
                models.push(escape_for_message(name));
            }
        }
        if models.len() > 1 { Err(StoreError::SeveralModels { files: models }) } else { Ok(()) }
    }

    /// The trained length of a sentence encoder in tokens, if its folder states it. Its position
    /// table is often longer, but sentence-transformers truncates texts at this length.
    pub(super) fn sentence_limit(&self, store: &Store) -> Result<Option<u64>, StoreError> {
        let Some((name, digest)) =
            self.folder.iter().find(|(name, _)| name == "sentence_bert_config.json")
        else {
            return Ok(None);
        };
        let bytes = read_limited(
            &store.blob_path(&store.pin_uploaded_blob(digest)?),
            MAX_SENTENCE_CONFIG_BYTES,
        )?;
        let config: serde_json::Value = serde_json::from_slice(&bytes)
            .map_err(|e| ConvertError::Json { file: name.clone(), reason: e.to_string() })?;
        Ok(config.get("max_seq_length").and_then(serde_json::Value::as_u64).filter(|&n| n > 0))
    }

    pub(super) fn into_layers(
        self,
        store: &Store,
        executor: &dyn JobExecutor,
        progress: ProgressFn<'_>,
    ) -> Result<Vec<FileLayer>, StoreError> {
        let mut layers = Vec::new();
        if !self.folder.is_empty() {
            layers.push(converted_layer(store, executor, &self.folder, progress)?);
        }
        let (single, groups) = split::group(&self.gguf);
        for file in single {
            layers.push(gguf_layer(store, file, progress)?);
        }
        for ((prefix, count), parts) in groups {
            progress(Progress::status("parsing GGUF"));
            let blob = split::join(store, executor, &prefix, count, &parts, progress)?;
            layers.push(new_layer(store, &blob)?);
        }
        Ok(layers)
    }
}

/// A GGUF file is used as it is. Reading its metadata validates the header.
fn gguf_layer(
    store: &Store,
    file: &(String, String),
    progress: ProgressFn<'_>,
) -> Result<FileLayer, StoreError> {
    let (name, digest) = file;
    progress(Progress::status("parsing GGUF"));
    let digest = store.pin_uploaded_blob(digest)?;
    let path = store.blob_path(&digest);
    let info = match store.gguf_info_cache.read(&digest, &path) {
        Err(StoreError::GgufFile {
            error: error @ (GgufError::BadMagic { .. } | GgufError::TruncatedHeader { .. }),
            ..
        }) => {
            return Err(StoreError::NotGgufFile { file: escape_for_message(name), error });
        }
        // The client's file name says more than the blob's.
        Err(StoreError::GgufFile { error, .. }) => {
            return Err(StoreError::BadFile { file: name.clone(), error });
        }
        info => info?,
    };
    if media_type(&info) == media::MODEL && info.parameter_count == 0 {
        return Err(StoreError::NoTensors { file: escape_for_message(name) });
    }
    Ok(FileLayer {
        layer: Layer::new(media_type(&info), digest, size(store, &digest)?),
        is_new: false,
        info,
    })
}

/// The layer type of a GGUF file.
fn media_type(info: &GgufInfo) -> &'static str {
    match info.kind.as_str() {
        "adapter" => media::ADAPTER,
        _ if info.is_control_vector() => media::ADAPTER,
        _ if info.is_projector() => media::PROJECTOR,
        _ => media::MODEL,
    }
}

fn converted_layer(
    store: &Store,
    executor: &dyn JobExecutor,
    files: &[NamedDigest],
    progress: ProgressFn<'_>,
) -> Result<FileLayer, StoreError> {
    progress(Progress::status("converting model"));
    let file = |(name, digest): &NamedDigest| -> Result<NamedFile, StoreError> {
        Ok(NamedFile {
            name: name.clone(),
            path: store.blob_path(&store.pin_uploaded_blob(digest)?),
        })
    };
    let files = files.iter().map(file).collect::<Result<_, _>>()?;
    let mut blob = store.blob_writer()?;
    executor.execute(&FileJob::Convert { files }, &mut blob, progress)?;
    new_layer(store, &blob.finish(None)?)
}

/// The layers of adapters: GGUF files, and PEFT folders, which are converted for their model.
pub(super) fn adapter_layers(
    store: &Store,
    executor: &dyn JobExecutor,
    files: &BTreeMap<String, String>,
    model: Option<&Layer>,
    progress: ProgressFn<'_>,
) -> Result<Vec<FileLayer>, StoreError> {
    let dir = |name: &str| name.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
    let weights = files.keys().filter(|name| name.ends_with(".safetensors"));
    let folders: BTreeSet<String> = weights.map(|name| dir(name)).collect();
    let is_gguf = |name: &str| name.to_ascii_lowercase().ends_with(".gguf");
    let single: Vec<_> =
        files.iter().filter(|(name, _)| is_gguf(name) || !folders.contains(&dir(name))).collect();
    let mut layers = match single.is_empty() {
        true => Vec::new(),
        false => UploadedFiles::of(store, single)?.into_layers(store, executor, progress)?,
    };
    for folder in folders {
        progress(Progress::status("converting adapter"));
        let model = model.ok_or(StoreError::AdapterWithoutModel)?;
        let model = store.layer_path(model)?;
        let inside = files.iter().filter(|(name, _)| dir(name) == folder && !is_gguf(name));
        let file = |(name, digest): (&String, &String)| -> Result<NamedFile, StoreError> {
            let name = name.rsplit('/').next().unwrap_or(name).to_owned();
            Ok(NamedFile { name, path: store.blob_path(&store.pin_uploaded_blob(digest)?) })
        };
        let files = inside.map(file).collect::<Result<_, _>>()?;
        let mut blob = store.blob_writer()?;
        executor.execute(&FileJob::ConvertAdapter { files, model }, &mut blob, progress)?;
        layers.push(new_layer(store, &blob.finish(None)?)?);
    }
    Ok(layers)
}

/// The layer of a GGUF file that was written here.
fn new_layer(store: &Store, blob: &NewBlob) -> Result<FileLayer, StoreError> {
    let info = store.gguf_info_cache.read(&blob.digest, &store.blob_path(&blob.digest))?;
    let layer = Layer::new(media_type(&info), blob.digest, blob.size);
    Ok(FileLayer { layer, is_new: blob.is_new, info })
}

/// The Jinja template of a layer's file, with the texts of its BOS and EOS tokens.
pub(super) fn template(
    store: &Store,
    layer: &Layer,
    info: &GgufInfo,
) -> Result<Option<FileTemplate>, StoreError> {
    let Some(source) = info.chat_template.clone() else { return Ok(None) };
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

/// Rejects an adapter of another architecture than the model's. The names in the file and in the
/// compatibility view both count. Control vectors name no architecture.
pub(super) fn check_adapter(
    store: &Store,
    adapter: &Layer,
    model: &Layer,
) -> Result<(), StoreError> {
    let info = store.created_gguf_info("adapter", adapter)?;
    if info.is_control_vector() {
        return Ok(());
    }
    let adapter = info.architecture.clone();
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

/// Rejects an unsupported quantization type.
///
/// # Errors
/// [`StoreError::QuantizeType`]
pub fn check_quantize_type(name: &str, has_imatrix: bool) -> Result<(), StoreError> {
    quantize_type(name, has_imatrix).map(drop)
}

/// The file type that a request names.
pub(super) fn quantize_type(name: &str, has_imatrix: bool) -> Result<FileType, StoreError> {
    let known = |ty: &FileType| {
        QUANTIZE_TYPES.contains(&ty.name()) || has_imatrix && IMATRIX_TYPES.contains(&ty.name())
    };
    let found = FileType::from_name(name).filter(known);
    found.ok_or_else(|| StoreError::QuantizeType(name.to_ascii_uppercase()))
}

/// The path of the importance matrix that a request names, once it is checked.
pub(super) fn imatrix(
    store: &Store,
    executor: &dyn JobExecutor,
    digest: &str,
) -> Result<PathBuf, StoreError> {
    let path = store.blob_path(&store.pin_uploaded_blob(digest)?);
    let check = FileJob::CheckImatrix { path: path.clone() };
    executor.execute(&check, &mut std::io::sink(), &mut |_| {})?;
    Ok(path)
}

/// Quantizes the layer of a model, whose weights must be unquantized. `None` if it already has the
/// type.
pub(super) fn quantized_layer(
    store: &Store,
    executor: &dyn JobExecutor,
    layer: &Layer,
    target: FileType,
    imatrix: Option<&Path>,
    progress: ProgressFn<'_>,
) -> Result<Option<FileLayer>, StoreError> {
    let path = store.layer_path(layer)?;
    let info = store.created_gguf_info("model", layer)?;
    if !matches!(info.file_type.as_str(), "F32" | "F16" | "BF16") {
        return Err(StoreError::QuantizeSource);
    }
    if info.file_type == target.name() {
        return Ok(None);
    }
    let job = QuantizeJob {
        source: path,
        part: None,
        target: target.name().to_owned(),
        imatrix: imatrix.map(Path::to_owned),
        threads: 0,
        status: format!("quantizing {} model to {}", info.file_type, target.name()),
    };
    let mut blob = store.blob_writer()?;
    executor.execute(&FileJob::Quantize(job), &mut blob, progress)?;
    progress(Progress::status("verifying conversion"));
    new_layer(store, &blob.finish(None)?).map(Some)
}
