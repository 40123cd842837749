//! Files: opened, written, split, seen as the standard layout, and broken.

mod common;
mod fuzz;
mod malformed;
mod open;
mod split;
mod view;
mod write;
