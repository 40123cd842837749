//! The program: its commands, its server, its list of architectures.

mod architectures;
#[path = "cli/main.rs"]
mod cli;
mod kit;
mod server;
