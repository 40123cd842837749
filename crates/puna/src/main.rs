//! The `puna` program: command line, terminal chat and progress; nothing that another crate could hold.

fn main() {}
