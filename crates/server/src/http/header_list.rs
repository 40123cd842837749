//! Lists of names in headers of answers.

use axum::http::HeaderValue;

/// The names with commas between them, each cut after `longest` characters; `None` if there are none. What a header cannot
/// hold is percent-encoded, as in a URI.
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
