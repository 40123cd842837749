//! Joins texts of separate blocks and items.

/// Appends a text after a blank line. Nothing is inserted if one of the texts is empty or the first
/// ends with a newline.
pub(crate) fn append_paragraph(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() && !text.ends_with('\n') {
        text.push_str("\n\n");
    }
    text.push_str(more);
}
