//! Image and audio files named in a prompt, for multimodal models.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};

use anyhow::{Result, bail};
use puna_api::ollama::Image;

/// Size limit of an attached file, in bytes.
const MAX_BYTES: u64 = 100 << 20;
/// Longest path, in characters. It bounds the work for a long text.
const MAX_PATH_CHARS: usize = 4096;
const EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "png", "webp", "wav"];
/// Characters that shells escape with a backslash when a user drops a file on the terminal.
const ESCAPED_CHARACTERS: &str = " ()[]{}$&;'\\*?~";

/// A prompt without the paths of its files, and the contents of the files.
#[derive(Debug, Default, PartialEq)]
pub struct Attachments {
    /// Text of the prompt without the paths.
    pub text: String,
    /// Contents of the files, in the order in which the text names them.
    pub images: Vec<Image>,
}

/// Removes the paths of attachable files from a prompt and reads the files. Prints each one on
/// `err`. Paths of missing files stay in the text. A file that cannot be attached is printed on
/// `err` and returned as an error.
pub fn take_attachments(prompt: &str, err: &mut dyn Write) -> Result<Attachments> {
    let mut attached = Attachments { text: prompt.to_owned(), images: Vec::new() };
    for found in paths(prompt) {
        let path = unescape(found);
        let (bytes, kind) = match read_media_file(&path) {
            Ok(Some(media)) => media,
            Ok(None) => continue,
            Err(e) => {
                writeln!(err, "Couldn't process file: {:?}", e.to_string())?;
                return Err(e);
            }
        };
        writeln!(err, "Added {kind} '{path}'")?;
        for written in [format!("'{path}'"), format!("'{found}'"), found.to_owned()] {
            attached.text = attached.text.replace(&written, "");
        }
        attached.images.push(Image::Bytes(bytes));
    }
    attached.text = attached.text.trim().to_owned();
    Ok(attached)
}

/// Whether a text contains the path of an attachable file type that begins with `word`.
pub(super) fn names_attachment(text: &str, word: &str) -> bool {
    paths(text).iter().any(|path| path.starts_with(word))
}

/// Substrings of a text that look like paths of images or audio, from left to right:
/// `(?:[a-zA-Z]:)?(?:\./
/// /
/// \\)[\S\\ ]+?\.(?i:jpg
/// jpeg
/// png
/// webp
/// wav)\b`.
fn paths(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        match path_length(&text[at..]) {
            Some(length) => {
                found.push(&text[at..at + length]);
                at += length;
            }
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    found
}

/// Length of the path at the start of a text.
fn path_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let drive = if bytes[0].is_ascii_alphabetic() && bytes.get(1) == Some(&b':') { 2 } else { 0 };
    let start = match &bytes[drive..] {
        [b'.', b'/', ..] => drive + 2,
        [b'/' | b'\\', ..] => drive + 1,
        _ => return None,
    };
    // At least one character precedes the dot.
    let mut rest = text[start..].char_indices().take(MAX_PATH_CHARS).skip(1);
    let first = text[start..].chars().next()?;
    if !may_stand_in_path(first) {
        return None;
    }
    rest.by_ref().take_while(|(_, ch)| may_stand_in_path(*ch)).find_map(|(i, ch)| {
        let dot = start + i;
        (ch == '.').then(|| extension_length(&text[dot + 1..])).flatten().map(|n| dot + 1 + n)
    })
}

fn may_stand_in_path(ch: char) -> bool {
    !matches!(ch, '\t' | '\n' | '\r' | '\x0c')
}

fn extension_length(text: &str) -> Option<usize> {
    let fits = |extension: &&&str| {
        let head = text.as_bytes().get(..extension.len());
        let next = text.as_bytes().get(extension.len());
        let ends = next.is_none_or(|b| !b.is_ascii_alphanumeric() && *b != b'_');
        ends && head.is_some_and(|head| head.eq_ignore_ascii_case(extension.as_bytes()))
    };
    EXTENSIONS.iter().find(fits).map(|extension| extension.len())
}

fn unescape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut chars = path.chars().peekable();
    while let Some(ch) = chars.next() {
        match chars.peek() {
            Some(&next) if ch == '\\' && ESCAPED_CHARACTERS.contains(next) => {
                out.push(next);
                chars.next();
            }
            _ => out.push(ch),
        }
    }
    out
}

/// Contents of an image or audio file, and the word for its kind; `None` if the file does not
/// exist.
fn read_media_file(path: &str) -> Result<Option<(Vec<u8>, &'static str)>> {
    // The metadata is checked first, because opening a pipe blocks until its other end opens.
    let opened = std::fs::metadata(path).and_then(|meta| match meta.is_file() {
        true => File::open(path),
        false => Err(std::io::Error::other("not a regular file")),
    });
    let file = match opened {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => bail!("open {path}: {}", os_text(&e)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    let kind = match &bytes[..] {
        [0xff, 0xd8, 0xff, ..] | [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => "image",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => "audio",
        _ => bail!("invalid file type: {}", content_type(&bytes)),
    };
    if bytes.len() as u64 > MAX_BYTES {
        bail!("file size exceeds maximum limit (100MB)");
    }
    Ok(Some((bytes, kind)))
}

/// MIME type for an error message: plain text or unknown binary data.
fn content_type(bytes: &[u8]) -> &'static str {
    let head = &bytes[..bytes.len().min(512)];
    let binary = |b: &u8| *b < 0x20 && !matches!(*b, b'\t' | b'\n' | 0x0c | b'\r' | 0x1b);
    match head.iter().any(binary) {
        true => "application/octet-stream",
        false => "text/plain; charset=utf-8",
    }
}

fn os_text(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

    #[test]
    fn paths_match_the_documented_expression() {
        assert_eq!(paths("what is ./a.png and /b c.JPG?"), ["./a.png", "/b c.JPG"]);
        assert_eq!(paths(r"see C:\pics\x.webp, C:/y.wav"), [r"C:\pics\x.webp", "C:/y.wav"]);
        assert_eq!(paths("/a.pngs /tmp/b.jpeg"), ["/a.pngs /tmp/b.jpeg"]);
        assert_eq!(paths("./é.png"), ["./é.png"]);
        assert_eq!(paths("a.png, /.png or /x\ny.png"), Vec::<&str>::new());
        assert_eq!(paths("1/2 of it"), Vec::<&str>::new());
        assert!(names_attachment("/tmp/a.png what?", "/tmp/a.png"));
        assert!(!names_attachment("/bye", "/bye"));
    }

    #[test]
    fn file_paths_are_removed_from_the_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("my cat.png");
        std::fs::write(&path, PNG).expect("written");
        let escaped = path.display().to_string().replace(' ', "\\ ");
        let prompt = format!("describe '{escaped}' and /nowhere/x.jpg please");
        let mut told = Vec::new();
        let attached = take_attachments(&prompt, &mut told).expect("attached");
        assert_eq!(attached.text, "describe  and /nowhere/x.jpg please");
        assert_eq!(attached.images, [Image::Bytes(PNG.to_vec())]);
        assert_eq!(String::from_utf8_lossy(&told), format!("Added image '{}'\n", path.display()));
    }

    #[test]
    fn other_file_types_are_refused_with_their_content_type() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("note.png");
        std::fs::write(&path, "just text").expect("written");
        let mut told = Vec::new();
        let error =
            take_attachments(&format!("see {}", path.display()), &mut told).expect_err("refused");
        assert_eq!(error.to_string(), "invalid file type: text/plain; charset=utf-8");
        let told = String::from_utf8_lossy(&told).into_owned();
        assert_eq!(
            told,
            "Couldn't process file: \"invalid file type: text/plain; charset=utf-8\"\n"
        );
    }

    #[test]
    fn escaped_special_characters_are_unescaped() {
        assert_eq!(unescape(r"/a\ b\(1\)\'s\\x\y.png"), r"/a b(1)'s\x\y.png");
    }
}
