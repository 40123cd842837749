//! Types of the registry protocol: repositories, references, manifests, upload ids and name
//! patterns.

pub(crate) mod client_network;
pub(crate) mod manifest;
pub(crate) mod manifest_error;
pub(crate) mod manifest_list;
pub(crate) mod name_error;
pub(crate) mod name_pattern;
pub(crate) mod quota_unit;
pub(crate) mod repository;
pub(crate) mod shared_table;
pub(crate) mod storage_usage;
pub(crate) mod stored_object;
pub(crate) mod upload_id;
