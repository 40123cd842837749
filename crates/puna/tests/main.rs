//! Integration tests of the program: commands, server, list of architectures.

mod architectures;
#[path = "cli/main.rs"]
mod cli;
mod kit;
mod server;
mod shared_tables;
