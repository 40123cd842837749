//! Rules for upload sessions that all storage drivers share.

pub(crate) mod admission;
