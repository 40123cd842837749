//! The `puna` program: command line, terminal chat and progress; nothing that another crate could hold.

#[allow(dead_code, unused_imports)] // what the `run` command will use
mod chat;

fn main() {}
