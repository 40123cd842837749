//! Admission of new models: limits on what is stored under a name, such as quotas of namespaces.

use std::fmt;
use std::pin::Pin;

use crate::digest::Digest;
use crate::entry::Entry;
use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::name::ModelName;

/// Blobs and manifests of a model that is about to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewModel {
    /// Name of the model.
    pub name: ModelName,
    /// Blobs of the model, with their sizes in bytes.
    pub blobs: Vec<(Digest, u64)>,
    /// Sizes of its manifests in bytes. A size that is not known yet is 0.
    pub manifests: Vec<u64>,
}

impl NewModel {
    /// The model that a manifest describes.
    pub(crate) fn of_manifest(name: &ModelName, manifest: &Manifest, bytes: usize) -> Self {
        let blobs = manifest.blobs().map(|layer| (layer.digest, layer.size)).collect();
        Self { name: name.clone(), blobs, manifests: vec![bytes as u64] }
    }

    /// A model that is created from pulled blobs.
    pub fn pulled(name: &ModelName, blobs: Vec<(Digest, u64)>) -> Self {
        Self { name: name.clone(), blobs, manifests: vec![0] }
    }

    /// The copy of a stored model.
    pub(crate) fn copy_of(name: &ModelName, source: &Entry) -> Self {
        let blobs = source.blobs().map(|layer| (layer.digest, layer.size)).collect();
        let children = source.list.iter().flat_map(|list| &list.children);
        let children = children.filter_map(|child| child.manifest.as_ref());
        let manifest = source.manifest.to_bytes().len() as u64;
        let children = children.map(|child| child.to_bytes().len() as u64);
        Self { name: name.clone(), blobs, manifests: children.chain([manifest]).collect() }
    }
}

/// Decides whether a model may be stored.
pub trait ModelAdmission: Send + Sync + fmt::Debug {
    /// Admits a model. The caller drops the result once the model, or a record of its pull, is
    /// stored.
    fn admit<'a>(&'a self, model: &'a NewModel) -> AdmissionFuture<'a>;
}

/// The admission of a model, or [`StoreError::NotAdmitted`].
pub type AdmissionFuture<'a> =
    Pin<Box<dyn Future<Output = Result<AdmissionGuard, StoreError>> + Send + 'a>>;

/// Keeps other models from using the space of an admitted one.
pub type AdmissionGuard = Box<dyn Send>;
