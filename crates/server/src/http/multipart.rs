//! Parses forms with files in request bodies (`multipart/form-data`).

/// Maximum number of fields.
const MAX_FIELDS: usize = 64;

/// The boundary in a `Content-Type`; `None` for other types.
pub(crate) fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = parameter(parameters, "boundary")?;
    Some(value).filter(|value| !value.is_empty() && value.len() <= 70)
}

/// Why a form cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormError {
    /// The form or the header of a part is incomplete.
    #[error("unexpected EOF")]
    Cut,
    /// More than [`MAX_FIELDS`].
    #[error("it has more than {MAX_FIELDS} parts")]
    TooMany,
}

/// Returns the fields with their names, in order.
pub(crate) fn fields<'a>(
    body: &'a [u8],
    boundary: &str,
) -> Result<Vec<(String, &'a [u8])>, FormError> {
    let mark = format!("--{boundary}");
    // The first boundary need not follow a line break.
    let begin = find(body, mark.as_bytes()).ok_or(FormError::Cut)?;
    let mut rest = &body[begin + mark.len()..];
    let mark = format!("\r\n--{boundary}");
    let mut all = Vec::new();
    while !rest.starts_with(b"--") {
        if all.len() == MAX_FIELDS {
            return Err(FormError::TooMany);
        }
        let (field, behind) = part(rest, &mark).ok_or(FormError::Cut)?;
        all.push(field);
        rest = behind;
    }
    Ok(all)
}

/// A field with its name, and the input after the boundary at its end.
type ParsedPart<'a> = ((String, &'a [u8]), &'a [u8]);

/// Parses the part at the start of `rest`.
fn part<'a>(rest: &'a [u8], mark: &str) -> Option<ParsedPart<'a>> {
    let head_end = find(rest, b"\r\n\r\n")?;
    let (head, content) = (std::str::from_utf8(&rest[..head_end]).ok()?, &rest[head_end + 4..]);
    // In a part without content, the line break of its header belongs to the boundary.
    let end = match content.starts_with(&mark.as_bytes()[2..]) {
        true => 0,
        false => find(content, mark.as_bytes())?,
    };
    let next =
        if end == 0 && !content.starts_with(b"\r\n") { mark.len() - 2 } else { end + mark.len() };
    let disposition = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    let (_, parameters) = disposition.split_once(';')?;
    Some(((parameter(parameters, "name")?, &content[..end]), content.get(next..)?))
}

/// Value of a header parameter, without quotes.
fn parameter(parameters: &str, name: &str) -> Option<String> {
    parameters.split(';').find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        let value = value.trim().trim_matches('"');
        key.trim().eq_ignore_ascii_case(name).then(|| value.to_owned())
    })
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_byte_by_byte() {
        let body = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
            --x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n\0\r\n\xff--x\r\n\
            --x\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--x--\r\n";
        let got = fields(body, "x").unwrap();
        let want: [(&str, &[u8]); 3] =
            [("model", b"m"), ("file", b"\0\r\n\xff--x"), ("empty", b"")];
        assert_eq!(
            got.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>(),
            want
        );
        assert_eq!(fields(b"--x--\r\n", "x"), Ok(Vec::new()));
    }

    #[test]
    fn incomplete_forms_are_rejected() {
        let body =
            b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nmodel\r\n--x--\r\n";
        let whole = body.len() - 2 - 2;
        for length in 0..whole {
            assert_eq!(fields(&body[..length], "x"), Err(FormError::Cut), "{length}");
        }
        let many = "--x\r\nContent-Disposition: f; name=a\r\n\r\nb\r\n".repeat(10_000);
        assert_eq!(fields(many.as_bytes(), "x"), Err(FormError::TooMany));
    }

    #[test]
    fn boundaries_are_found_in_their_header() {
        assert_eq!(boundary("multipart/form-data; boundary=\"a b\"").as_deref(), Some("a b"));
        assert_eq!(boundary("Multipart/Form-Data;charset=x; Boundary=abc").as_deref(), Some("abc"));
        for none in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "text/plain; boundary=x",
        ] {
            assert_eq!(boundary(none), None, "{none}");
        }
    }
}
