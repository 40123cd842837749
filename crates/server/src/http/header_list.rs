//! Formats lists of names as response headers.

use axum::http::HeaderValue;

/// Joins names with commas, each cut after `longest` characters; `None` if there are none.
/// Characters that a header cannot hold are percent-encoded.
pub(super) fn list_value(names: &[String], longest: usize) -> Option<HeaderValue> {
    let encoded = |name: &String| {
        let mut text = String::new();
        for c in name.chars().take(longest) {
            if (c.is_ascii_graphic() || c == ' ') && c != ',' && c != '%' {
                text.push(c);
            } else {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| text += &format!("%{byte:02X}"));
            }
        }
        text
    };
    let list = names.iter().map(encoded).collect::<Vec<_>>().join(", ");
    HeaderValue::from_str(&list).ok().filter(|_| !names.is_empty())
}
