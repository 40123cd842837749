//! Authentication at registries: `WWW-Authenticate` challenges, the client's Ed25519 key, and the
//! credentials that `docker login` stores.

pub(crate) mod challenge;
mod credential_helper;
pub(crate) mod docker_config;
pub(crate) mod identity;
