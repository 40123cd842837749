//! The server of model registries: what a store holds, for Ollama's clients, Puna's, and those of the OCI distribution
//! rules (`/v2/…`), to pull and to push.
//!
//! [`Through`] stands before it and fetches what others have when somebody asks for it.
//!
//! A request goes through these rooms: `path` (what is asked for) → `routes` (the protocol: headers, ranges, uploads, error
//! bodies) → [`Library`] (where things are kept). [`StoreLibrary`] keeps them in a folder of models, beside an Ollama that
//! uses it too:
//!
//! ```text
//! blobs/, manifests/                    models of Ollama's form, as everywhere in the store
//! puna-registry/blobs/sha256-<hex>      what was pushed: all blobs, until a model takes them over by a hard link
//! puna-registry/repositories/<name>/    manifests of other forms, byte for byte, in repositories of any name (`/` is `+`)
//!     manifests/<hex>                   a manifest
//!     tags/<tag>                        the digest that a tag stands for
//!     referrers/<hex>/<hex>             the manifests that have another one as their subject
//!     lists/<hex>/<hex>                 the manifest lists that have another one as their child
//! puna-registry/uploads/<id>            an upload in progress: its bytes, and beside it `<id>.json`
//! puna-registry/damaged/sha256-<hex>    a blob that has other bytes than its name says, for a week
//! puna-registry/trash/<seconds>/        what was removed then, for a day
//! puna-registry/lock                    held by whoever changes manifests, of whichever process
//! puna-registry/history/<id>-<n>.json   when things came and were last pulled, as one who serves the folder knows it
//! puna-registry/sizes/<name>/<hex>      how large the blobs of an upstream's manifest are that was handed out
//! ```
//!
//! Nothing of those below `puna-registry` is in a folder that Ollama looks into: it would clear blobs away that none of its models uses.

#![forbid(unsafe_code)]

mod access;
mod error;
mod figures;
mod history;
mod holding;
mod id;
mod library;
mod lock;
mod manifest;
mod manifest_list;
mod name;
mod notes;
mod path;
mod pattern;
mod place;
mod quota;
mod range;
mod retention;
mod routes;
mod settings;
mod stock;
#[cfg(test)]
mod tests;
mod uploading;
mod via;
mod waiting;

pub use access::{Begun, Holder, Keys, Limit, NoKeys, Right};
pub use error::MirrorError;
pub use figures::Figure;
pub use history::History;
pub use holding::{Holding, Shown, Whose};
pub use id::UploadId;
pub use library::{
    Asker, Blob, Body, Fetches, Library, ObjectLibrary, Part, Storage, StoreLibrary, Through,
    UpstreamLookup, UpstreamManifest, Upstreams,
};
pub use manifest::{Descriptor, Kind, Manifest};
pub use name::{Reference, Repository};
pub use notes::{Note, Notes};
pub use path::unescaped;
pub use pattern::check_namespace;
pub use place::{Local, Secure};
pub use quota::Quota;
pub use retention::{Removal, Retained, Rule, retain};
pub use routes::{Caller, Mirror};
pub use settings::Settings;
pub use waiting::Answer;
