//! Generates `docs/reference/cli.md`, the help of every command, from the command table.

use std::fmt::Write as _;

use clap::CommandFactory;

use super::Cli;

const PAGE: &str = "docs/reference/cli.md";
const HEAD: &str = "# Command line

This page has the help of every command. It is generated from the table that the parser uses.
";
const COLUMNS: usize = 100;

/// Compares the committed page with the generated one, or writes it if `PUNA_WRITE_DOCS` is set.
#[test]
fn the_manual_has_the_help_of_every_command() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../").to_owned() + PAGE;
    let mut root = Cli::command().term_width(COLUMNS);
    root.build();
    let mut text = HEAD.to_owned();
    section(&mut text, &mut root, "puna");
    if std::env::var_os("PUNA_WRITE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "{PAGE} is outdated: PUNA_WRITE_DOCS=1 cargo test -p puna manual writes it"
    );
}

/// Writes the help of a command, then that of its subcommands.
fn section(out: &mut String, command: &mut clap::Command, name: &str) {
    let help = command.render_help().to_string();
    let _ = write!(out, "\n## `{name}`\n\n```text\n");
    for line in help.trim_end().lines() {
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push_str("```\n");
    for subcommand in command.get_subcommands_mut() {
        if !subcommand.is_hide_set() && subcommand.get_name() != "help" {
            let name = format!("{name} {}", subcommand.get_name());
            section(out, subcommand, &name);
        }
    }
}
