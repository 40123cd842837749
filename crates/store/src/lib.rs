//! The model store: model names, manifests, blobs and Modelfiles. It creates models from files,
//! from other models and from safetensors folders.
//!
//! The layout is Ollama's, so that both programs can use one folder at the same time:
//!
//! ```text
//! blobs/sha256-<64 hex>                         content, named by its digest
//! manifests/<host>/<namespace>/<model>/<tag>    JSON: the model's layers and config, by digest
//! manifests-v2/<host>/<namespace>/<model>/<tag> a link to the blob of the manifest or list
//! trash/                                        files removed in the last day
//! puna-tmp/                                     unfinished files, and lock files
//! ```
//!
//! Each file is written to a temporary file, flushed and renamed. The manifest is written last, so
//! a crash at any moment leaves either the old model or the new one.
//!
//! ```no_run
//! # fn main() -> Result<(), puna_store::StoreError> {
//! use puna_store::{ModelName, Store};
//! let store = Store::open("/home/me/.ollama/models")?;
//! for entry in store.list()? {
//!     println!("{} {} {}", entry.name, entry.digest.short(), entry.size());
//! }
//! let model = store.resolve(&ModelName::parse("cria")?)?;
//! println!("{:?}", model.capabilities());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod admission;
mod anchor;
mod blobs;
mod builtin;
mod create;
mod digest;
pub mod embedded;
mod entry;
mod error;
mod file_job;
mod files;
mod fingerprint;
mod gguf_info;
mod gojson;
mod home_dir;
mod link_local_file;
mod list_cache;
mod list_cache_format;
mod listing;
mod lock_holder;
mod manifest;
mod manifest_index;
mod manifest_list;
mod model;
mod modelfile;
mod name;
mod name_files;
mod name_writer;
mod pending_blobs;
mod pins;
mod progress;
mod prune;
mod pulls;
mod quantize_types;
mod references;
mod remote;
mod removal;
mod requantize;
mod store;
mod store_mode;
mod summary;
#[cfg(test)]
mod tests;
mod transfer;
mod trash;
mod unresponsive_dirs;
mod uploads;
mod verify;

pub use admission::{AdmissionFuture, AdmissionGuard, ModelAdmission, NewModel};
pub use blobs::{BlobWriter, NewBlob};
pub use builtin::{BuiltInFormat, PARSERS, RENDERERS};
pub use create::{
    BuiltModel, CheckDraft, CheckModel, CheckTemplate, CreateHooks, CreateRequest, DetectTemplate,
    FileTemplate, LocalFile, LocalPlan, NamedTemplate, check_quantize_type, plan_local,
};
pub use digest::{Digest, DigestError, Hasher};
pub use entry::{ChildList, Entry, StoreLocation, StoredChild, runner_rank};
pub use error::StoreError;
pub use file_job::{FileJob, InProcessExecutor, JobExecutor, NamedFile, QuantizeJob};
pub use files::{
    create_private_dir, is_file_at, is_lock_unsupported, last_use, lock_file, sync_dir, touch,
    write_atomic,
};
pub use fingerprint::{FileFingerprint, same_file};
pub use gguf_info::{GgufInfo, file_type_name, parameter_size};
pub use home_dir::{account_home_dir, home_dir};
pub use link_local_file::{LinkMethod, LinkOutcome};
pub use list_cache::Listing;
pub use lock_holder::LockHolder;
pub use manifest::{Config, Layer, Manifest, check_value_count, media};
pub use manifest_list::{Child, ManifestDocument, ManifestList};
pub use model::{Model, Weights};
pub use modelfile::{
    ExpectedInput, Instruction, LineProblem, Modelfile, ModelfileError, check_ranges,
    format_parameters, parse_parameter,
};
pub use name::{
    DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, ModelName, ModelRef, ModelSource, NameError,
};
pub use pins::WorkGuard;
pub use progress::{Progress, ProgressFn};
pub use prune::{Leftover, LeftoverKind, PruneOptions, PruneOutcome, UNUSED_BLOB_GRACE};
pub use pulls::UnfinishedPull;
pub use puna_gguf::PartName;
pub use remote::Remote;
pub use removal::ModelVersion;
pub use requantize::{
    FileType, Imatrix, ImatrixRow, QuantizeOptions, TypeFallback, UnmatchedTensors, fallbacks,
    requantize, requantize_part, unmatched_tensors, write_imatrix,
};
pub use store::{DeleteOutcome, Store, default_root};
pub use store_mode::StoreMode;
pub use summary::{Details, Summary};
pub use transfer::{BlobLock, PartialBlob, PartialPath};
pub use trash::RestoreOutcome;
pub use uploads::UploadRecordFile;
pub use verify::{Damage, DisplacedBlob, InvalidManifest};
