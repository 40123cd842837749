//! The model store: names, manifests, blobs, Modelfiles, and the creation of models from files, from other models and
//! from safetensors folders.
//!
//! The layout is Ollama's, so that both programs use one folder side by side:
//!
//! ```text
//! blobs/sha256-<64 hex>                         content, named by its digest
//! manifests/<host>/<namespace>/<model>/<tag>    JSON: the model's layers and config, by digest
//! manifests-v2/<host>/<namespace>/<model>/<tag> a link to the blob that is the manifest, or a list of manifests
//! trash/                                        what was removed in the last day
//! puna-tmp/                                     unfinished files, and the locks of those who write and are at work
//! ```
//!
//! Everything is written to a temporary file, flushed and renamed; a manifest is written last. So a crash at any moment
//! leaves every model whole: the old one, or the new one.
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

mod adopt;
mod anchor;
mod blob_notes;
mod blobs;
mod builtin;
mod create;
mod digest;
pub mod embedded;
mod entry;
mod error;
mod facts;
mod files;
mod gojson;
mod holder;
mod home;
mod import;
mod index;
mod inorder;
mod listfile;
mod listing;
mod manifest;
mod manifest_list;
mod model;
mod modelfile;
mod name;
mod name_changes;
mod names;
mod prune;
mod pulls;
mod references;
mod remote;
mod removal;
mod requantize;
mod silent;
mod stamp;
mod store;
mod summary;
#[cfg(test)]
mod tests;
mod transfer;
mod trash;
mod uploads;
mod verify;
mod work;

pub use adopt::{Adopt, Adopted};
pub use blobs::{BlobWriter, NewBlob};
pub use builtin::{BuiltIn, PARSERS, RENDERERS};
pub use create::{
    CheckDraft, CheckModel, CheckTemplate, CreateRequest, DetectTemplate, FileTemplate, Hooks,
    LocalFile, LocalPlan, NamedTemplate, Progress, ProgressFn, check_quantize_type, plan_local,
};
pub use digest::{Digest, DigestError, Hasher};
pub use entry::{ChildList, Entry, Place, StoredChild, runner_rank};
pub use error::StoreError;
pub use facts::{Facts, file_type_name, parameter_size};
pub use files::{has_no_locks, is_at, last_use, lock_file, sync_dir, touch, write_atomic};
pub use holder::Holder;
pub use home::{account_home, home};
pub use import::{
    Dtype, ImportError, ImportFile, SafeTensors, TensorEntry, imported_architectures,
};
pub use listing::Listed;
pub use manifest::{Config, Layer, Manifest, media};
pub use manifest_list::{Child, Document, ManifestList};
pub use model::{Details, Model, Weights};
pub use modelfile::{
    Instruction, LineProblem, Modelfile, ModelfileError, Wanted, check_ranges, format_parameters,
    parse_parameter,
};
pub use name::{
    DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, ModelName, ModelRef, NameError, Source,
};
pub use prune::{Leftover, LeftoverKind, PruneOptions, Pruned};
pub use pulls::Pull;
pub use puna_gguf::PartName;
pub use remote::Remote;
pub use removal::Seen;
pub use requantize::{
    Fallback, FileType, Imatrix, ImatrixRow, QuantizeOptions, Unmatched, fallbacks, requantize,
    requantize_part, unmatched, write_imatrix,
};
pub use stamp::{Stamp, same_file};
pub use store::{Deleted, Store, default_root};
pub use summary::Summary;
pub use transfer::{BlobLock, Partial, Seat};
pub use trash::Restored;
pub use uploads::UploadNote;
pub use verify::{Aside, Damage, Unusable};
pub use work::Work;
