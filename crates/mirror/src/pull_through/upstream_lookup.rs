//! Lookups of manifests in upstream registries.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use puna_registry::{Options, Registry, RegistryError, RegistryModel, TagContent};
use puna_store::{Digest, ModelRef};

/// What an upstream has under a tag.
pub enum UpstreamManifest {
    /// A model.
    Model(Box<RegistryModel>),
    /// A manifest list, byte for byte.
    List(Bytes),
}

/// Asks upstream registries for manifests.
pub trait UpstreamLookup: Send + Sync + 'static {
    /// Returns what a tag points to.
    fn look_up_tag<'a>(
        &'a self,
        reference: &'a ModelRef,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<UpstreamManifest, RegistryError>>;

    /// Fetches a manifest of the model's repository by digest.
    fn fetch_manifest<'a>(
        &'a self,
        reference: &'a ModelRef,
        digest: Digest,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<Bytes, RegistryError>>;
}

impl UpstreamLookup for Registry {
    fn look_up_tag<'a>(
        &'a self,
        reference: &'a ModelRef,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<UpstreamManifest, RegistryError>> {
        Box::pin(async {
            Ok(match Registry::look_up_tag(self, reference, options).await? {
                TagContent::Model(found) => UpstreamManifest::Model(found),
                TagContent::List(bytes) => UpstreamManifest::List(bytes),
            })
        })
    }

    fn fetch_manifest<'a>(
        &'a self,
        reference: &'a ModelRef,
        digest: Digest,
        options: &'a Options,
    ) -> BoxFuture<'a, Result<Bytes, RegistryError>> {
        Box::pin(Registry::fetch_manifest(self, reference, digest, options))
    }
}

/// Whether the upstream says that it does not have the object.
pub(super) fn is_not_found(error: &RegistryError) -> bool {
    matches!(error, RegistryError::NotFound)
        || matches!(error, RegistryError::Status { code: 404, .. })
}
