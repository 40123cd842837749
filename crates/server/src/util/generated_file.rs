//! Files of the repository that tests generate and compare.

/// Compares a committed file with its generated text, or writes the file if `PUNA_WRITE_DOCS` is
/// set.
pub(crate) fn assert_current(file: &str, text: &str) {
    if std::env::var_os("PUNA_WRITE_DOCS").is_some() {
        std::fs::write(path(file), text).unwrap();
    }
    assert!(
        read(file) == text,
        "{file} is outdated: PUNA_WRITE_DOCS=1 cargo test -p puna-server --lib description writes it"
    );
}

/// Returns the text of a committed file.
pub(crate) fn read(file: &str) -> String {
    std::fs::read_to_string(path(file)).unwrap_or_default()
}

fn path(file: &str) -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../").to_owned() + file
}

/// Replaces the text between the line `<!-- NAME -->` of a page and the next `<!-- end -->`.
pub(crate) fn replace_section(page: &mut String, name: &str, text: &str) {
    let marker = format!("<!-- {name} -->\n");
    assert_eq!(page.matches(&marker).count(), 1, "lines {marker}");
    let start = page.find(&marker).unwrap() + marker.len();
    let length = page[start..].find("<!-- end -->").unwrap_or_else(|| panic!("{name} has no end"));
    page.replace_range(start..start + length, &format!("\n{}\n\n", text.trim_end()));
}

/// Formats the row of a table in Markdown.
pub(crate) fn table_row(cells: &[&str]) -> String {
    let cells = cells.iter().map(|cell| format!(" {} |", cell.replace('|', "\\|")));
    format!("|{}\n", cells.collect::<String>().replace("|  |", "| |"))
}
