//! Tests of GGUF files: opening, writing, split files, views, and malformed files.

mod common;
mod fuzz;
mod malformed;
mod open;
mod split;
mod view;
mod write;
