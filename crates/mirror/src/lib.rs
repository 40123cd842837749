//! Registry server: serves models and other OCI artifacts over the registry protocol (`/v2/…`) to
//! Ollama, Puna and OCI clients.
//!
//! A request passes `http::target` (parses the path), `auth` (who may do it), `http` (headers,
//! ranges, error bodies), `quota`, and [`Storage`] (where manifests and blobs lie). [`PullThrough`]
//! is a layer in front of a storage that fetches missing models from upstream registries on demand.
//!
//! [`FileStorage`] keeps everything in a model directory that an Ollama server may share:
//!
//! ```text
//! blobs/, manifests/                    models in Ollama's format, as everywhere in the store
//! puna-registry/blobs/sha256-<hex>      pushed blobs; a model gets its blobs by hard links
//! puna-registry/repositories/<name>/    other manifests, byte for byte (`/` in names is `+`)
//!     manifests/<hex>                   a manifest
//!     tags/<tag>                        the digest that a tag points to
//!     referrers/<hex>/<hex>             manifests whose subject is another manifest
//!     lists/<hex>/<hex>                 manifest lists that have a manifest as their child
//! puna-registry/uploads/<id>            bytes of an open upload; its record is `<id>.json`
//! puna-registry/damaged/sha256-<hex>    blobs whose content has another digest, for a week
//! puna-registry/trash/<seconds>/        what was removed at that time, for a day
//! puna-registry/lock                    lock file of the process that changes manifests
//! puna-registry/history/<id>-<n>.json   usage log of one mirror: arrival and last pull
//! puna-registry/sizes/<name>/<hex>      blob sizes that a served upstream manifest declares
//! ```
//!
//! Everything below `puna-registry` lies outside the directories that Ollama prunes. Ollama would
//! remove blobs that none of its models references.

#![forbid(unsafe_code)]

mod auth;
mod blocking;
mod error;
mod http;
mod integrity;
mod locks;
mod loop_detection;
mod metrics;
mod pull_through;
mod quota;
mod retention;
mod settings;
mod shared_tables;
mod storage;
#[cfg(test)]
mod tests;
mod types;
mod uploads;

pub use auth::{
    Action, Grant, Keys, NoKeys, Permission, Principal, RateLimit, RequestPermit, Resource,
};
pub use blocking::StorageFuture;
pub use error::{
    AuthenticationError, BucketProblem, ChildProblem, Denial, InternalError, LimitReached,
    LoopProblem, MirrorError, PendingFetch, SignatureProblem, UploadProblem, UpstreamProblem,
};
pub use http::base_url::{LocalRequest, TlsConnection};
pub use http::target::{REGISTRY_ROUTES, RegistryRoute, unescaped};
pub use http::{ClientAddress, Mirror, QuotaGuard};
pub use metrics::{METRIC_FAMILIES, Metric, MetricFamily, MetricKind};
pub use pull_through::{PullThrough, UpstreamLookup, UpstreamManifest, Upstreams};
pub use quota::enforcement::FreeQuota;
pub use quota::{DEFAULT_QUOTA_OBJECTS, Quota};
pub use retention::usage_log::UsageLog;
pub use retention::{Removal, RetentionReport, Rule, apply_retention};
pub use settings::Settings;
pub use shared_tables::{SHARED_TABLES, TABLE_EXEMPTIONS};
pub use storage::note_store::{NoteInfo, NoteStore};
pub use storage::{
    Blob, BlobStore, ByteStream, FileStorage, InventoryScope, ManifestStore, ObjectInventory,
    S3Location, S3Storage, Storage, UploadPart, UploadStore,
};
pub use types::client_network::client_network;
pub use types::manifest::{Descriptor, Manifest, ManifestKind};
pub use types::manifest_error::{ManifestError, ManifestProblem};
pub use types::name_error::NameError;
pub use types::name_pattern::check_namespace;
pub use types::quota_unit::QuotaUnit;
pub use types::repository::{Reference, Repository};
pub use types::shared_table::{SharedTable, TableExemption, TableLimit};
pub use types::storage_usage::{NamespaceUsages, StorageUsage, StoredUpload};
pub use types::stored_object::{Owner, StoredObject, TagEntry};
pub use types::upload_id::UploadId;
