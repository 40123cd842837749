//! Generates the section "Shared tables" of `docs/guide/security.md`. A unit test of the server
//! could not: some limits are smaller in unit tests.

use std::fmt::Write as _;

const PAGE: &str = "docs/guide/security.md";
const START: &str = "<!-- shared tables -->\n";
const END: &str = "<!-- end -->";

/// Compares the committed section with the generated one, or writes it if `PUNA_WRITE_DOCS` is set.
#[test]
fn the_manual_has_every_shared_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../").to_owned() + PAGE;
    let committed = std::fs::read_to_string(&path).unwrap();
    let start = committed.find(START).expect("the start of the section") + START.len();
    let end = start + committed[start..].find(END).expect("the end of the section");
    let mut page = committed.clone();
    page.replace_range(start..end, &format!("\n{}\n", table()));
    if std::env::var_os("PUNA_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
        return;
    }
    assert!(
        committed == page,
        "{PAGE} is outdated: PUNA_WRITE_DOCS=1 cargo test -p puna manual writes it"
    );
}

fn table() -> String {
    let mut out = "| table | limit | share of a client | when it is full | test |\n".to_owned();
    out.push_str("|---|---|---|---|---|\n");
    for table in puna_server::shared_tables::all() {
        let (limits, shares) = (join_limits(table.limits), join_limits(table.shares));
        let (name, full, test) = (table.name, table.when_full, table.test);
        let _ = writeln!(out, "| {name} | {limits} | {shares} | {full} | `{test}` |");
    }
    out
}

fn join_limits(limits: &[impl std::fmt::Display]) -> String {
    limits.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
