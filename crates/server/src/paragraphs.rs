//! Texts of separate blocks and items that become one text.

/// Appends a text behind a blank line. Where one of the texts is empty or the first ends its last line, nothing is put between.
pub(crate) fn append_paragraph(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() && !text.ends_with('\n') {
        text.push_str("\n\n");
    }
    text.push_str(more);
}
