//! Models of every architecture: adapters, draft models, invalid files; vision towers.

mod adapters;
mod bad_drafts;
#[path = "bad_files/main.rs"]
mod bad_files;
mod blocks;
mod drafts;
mod kin;
mod kit;
mod preprocessing;
mod vision;
