//! Stored and loaded models.
//!
//! - [`manager`] drives the scheduler and starts runners;
//! - [`memory`] reads the memory of the machine, [`memory_plans`] has the memory that stored models
//!   need, and `context_window` the windows that follow from both;
//! - [`names`] parses model names of requests;
//! - [`registry`] has the settings of the registry client;
//! - [`unsupported`] remembers which models of unknown architectures the log has named;
//! - [`cleanup`] removes the remains of interrupted work from the store.

pub(crate) mod blob_access;
pub(crate) mod cleanup;
mod context_window;
pub(crate) mod disk_reserve;
pub(crate) mod manager;
pub(crate) mod memory;
pub(crate) mod memory_plans;
pub(crate) mod names;
pub(crate) mod quota;
pub(crate) mod registry_client_settings;
pub(crate) mod unsupported;
