//! What lists have read, written down. A command without a server begins with it each time, so that it is made to be read quickly: what
//! JSON says of two thousand models takes longer to read than to ask the system for all of their files.
//!
//! ```text
//! file    = a line that says who made it, places, summaries
//! place   = text (the folder of manifests), folder
//! folder  = option of stamp, then above the manifests a list of (text, folder), or else one of (text, option of document)
//! number  = seven bits a byte, the lowest first; the highest bit is set but in the last one
//! text    = 0, its length and its bytes; or the number of one that came before, from 1
//! list    = the number of its items, and these
//! option  = 0, or 1 and what there is
//! document = 0 and a manifest, or 1 and a list of manifests
//! stamp   = five numbers of eight bytes, the lowest first; a digest has 32 bytes
//! ```

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use crate::digest::Digest;
use crate::index::{Folder, Text};
use crate::manifest::{Layer, Manifest};
use crate::manifest_list::{Child, Document, ManifestList};
use crate::model::Details;
use crate::names::DEPTH;
use crate::stamp::Stamp;
use crate::summary::Summary;

/// Items that room is made for before they are there.
const FIRST: usize = 4096;

/// What is written down: the folders of manifests, and what is told of models by the digests of their manifests.
pub(crate) type Lists = (Vec<(PathBuf, Folder)>, Vec<(Digest, Summary)>);

/// The bytes of what is known, for readers of the same `form`.
pub(crate) fn write<'a>(
    form: &str,
    places: impl ExactSizeIterator<Item = (&'a Path, &'a Folder)>,
    summaries: impl ExactSizeIterator<Item = (&'a Digest, &'a Summary)>,
) -> Vec<u8> {
    let mut pen = Pen { bytes: format!("{form}\n").into_bytes(), texts: HashMap::new() };
    pen.number(places.len() as u64);
    for (path, folder) in places {
        // One whose path is no text is found by nobody, which costs its models a reading.
        path.to_string_lossy().into_owned().write(&mut pen);
        folder.write(&mut pen);
    }
    pen.number(summaries.len() as u64);
    for (digest, summary) in summaries {
        digest.write(&mut pen);
        summary.write(&mut pen);
    }
    pen.bytes
}

/// Reads what was written down in this form; `None` where that is anything else.
pub(crate) fn read(form: &str, bytes: &[u8]) -> Option<Lists> {
    let rest = bytes.strip_prefix(form.as_bytes())?.strip_prefix(b"\n")?;
    let mut reader = Reader { rest, texts: Vec::new() };
    let places =
        reader.list(|reader| Some((String::read(reader)?.into(), read_folder(reader, 0)?)))?;
    let summaries = reader.list(|reader| Some((Digest::read(reader)?, Summary::read(reader)?)))?;
    reader.rest.is_empty().then_some((places, summaries))
}

struct Pen {
    bytes: Vec<u8>,
    /// Those that came before, and their numbers.
    texts: HashMap<String, u64>,
}

impl Pen {
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    texts: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(n);
            }
        }
        None
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.number()?).ok()?;
        let mut items = Vec::with_capacity(count.min(FIRST));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }
}

/// What can be written down.
trait Keep: Sized {
    fn write(&self, pen: &mut Pen);
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

impl Keep for u64 {
    fn write(&self, pen: &mut Pen) {
        pen.number(*self);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.number()
    }
}

impl Keep for String {
    fn write(&self, pen: &mut Pen) {
        if let Some(number) = pen.texts.get(self).copied() {
            return pen.number(number);
        }
        pen.texts.insert(self.clone(), pen.texts.len() as u64 + 1);
        pen.number(0);
        pen.number(self.len() as u64);
        pen.bytes.extend_from_slice(self.as_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        if let Some(before) = reader.number()?.checked_sub(1) {
            return reader.texts.get(usize::try_from(before).ok()?).map(|text| (*text).to_owned());
        }
        let length = usize::try_from(reader.number()?).ok()?;
        let text = std::str::from_utf8(reader.take(length)?).ok()?;
        reader.texts.push(text);
        Some(text.to_owned())
    }
}

impl Keep for Digest {
    fn write(&self, pen: &mut Pen) {
        pen.bytes.extend_from_slice(&self.bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.array().map(Self::from_bytes)
    }
}

impl<T: Keep> Keep for Option<T> {
    fn write(&self, pen: &mut Pen) {
        pen.bytes.push(u8::from(self.is_some()));
        self.iter().for_each(|there| there.write(pen));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        match reader.array()? {
            [0] => Some(None),
            [1] => T::read(reader).map(Some),
            _ => None,
        }
    }
}

impl<T: Keep> Keep for Vec<T> {
    fn write(&self, pen: &mut Pen) {
        pen.number(self.len() as u64);
        self.iter().for_each(|item| item.write(pen));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.list(T::read)
    }
}

impl Keep for Stamp {
    fn write(&self, pen: &mut Pen) {
        let Self { length, modified, changed, file: (device, number) } = *self;
        for n in [length, modified.cast_unsigned(), changed.cast_unsigned(), device, number] {
            pen.bytes.extend_from_slice(&n.to_le_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut next = || reader.array().map(u64::from_le_bytes);
        let (length, modified, changed) = (next()?, next()?.cast_signed(), next()?.cast_signed());
        Some(Self { length, modified, changed, file: (next()?, next()?) })
    }
}

/// All fields, one after another.
macro_rules! keep {
    ($kind:ident { $($field:ident),* }) => {
        impl Keep for $kind {
            fn write(&self, pen: &mut Pen) {
                let Self { $($field),* } = self;
                $($field.write(pen);)*
            }

            fn read(reader: &mut Reader<'_>) -> Option<Self> {
                Some(Self { $($field: Keep::read(reader)?),* })
            }
        }
    };
}

keep!(Layer { media_type, digest, size, from, name });
keep!(Manifest { config, layers });
keep!(ManifestList { children });
keep!(Child { digest, runner, format, inline });
keep!(Summary {
    details,
    context_length,
    embedding_length,
    capabilities,
    remote_model,
    remote_host
});
keep!(Details {
    parent_model,
    format,
    family,
    families,
    parameter_size,
    quantization_level,
    runner
});

impl Keep for u8 {
    fn write(&self, pen: &mut Pen) {
        pen.bytes.push(*self);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.array().map(|[byte]| byte)
    }
}

impl Keep for Document {
    fn write(&self, pen: &mut Pen) {
        match self {
            Self::Manifest { manifest, runner } => {
                0u8.write(pen);
                manifest.write(pen);
                runner.write(pen);
            }
            Self::List(list) => {
                1u8.write(pen);
                list.write(pen);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        match u8::read(reader)? {
            0 => {
                Some(Self::Manifest { manifest: Keep::read(reader)?, runner: Keep::read(reader)? })
            }
            1 => Keep::read(reader).map(Self::List),
            _ => None,
        }
    }
}

impl Keep for Text {
    fn write(&self, pen: &mut Pen) {
        self.stamp.write(pen);
        self.digest.write(pen);
        self.document.write(pen);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self::new(Keep::read(reader)?, Keep::read(reader)?, Keep::read(reader)?))
    }
}

impl Folder {
    fn write(&self, pen: &mut Pen) {
        self.write_at(pen, 0);
    }

    fn write_at(&self, pen: &mut Pen, depth: usize) {
        self.stamp.write(pen);
        if depth == DEPTH {
            pen.number(self.files.len() as u64);
            for (name, text) in &self.files {
                name.write(pen);
                text.write(pen);
            }
            return;
        }
        pen.number(self.folders.len() as u64);
        for (name, folder) in &self.folders {
            name.write(pen);
            folder.write_at(pen, depth + 1);
        }
    }
}

fn read_folder(reader: &mut Reader<'_>, depth: usize) -> Option<Folder> {
    let stamp = Keep::read(reader)?;
    if depth == DEPTH {
        let files = reader.list(|reader| Some((read_name(reader)?, Keep::read(reader)?)))?;
        return Some(Folder::new(stamp, Vec::new(), files));
    }
    let folders =
        reader.list(|reader| Some((read_name(reader)?, read_folder(reader, depth + 1)?)))?;
    Some(Folder::new(stamp, folders, Vec::new()))
}

/// The name of an entry of a folder. One that leads elsewhere than into that folder was not written by us.
fn read_name(reader: &mut Reader<'_>) -> Option<String> {
    let name = String::read(reader)?;
    let mut parts = Path::new(&name).components();
    let is_name = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name.as_str());
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "form";

    fn stamp(n: i64) -> Stamp {
        Stamp { length: 1 << 40, modified: n, changed: i64::MAX, file: (u64::MAX, 7) }
    }

    /// A tree with a model of this name, and what is told of it.
    fn kept(name: &str) -> (PathBuf, Folder, Digest, Summary) {
        let digest = Digest::of(b"x");
        let layer = Layer {
            from: Some("m:latest".into()),
            ..Layer::new("application/x", digest, u64::MAX)
        };
        let manifest = Manifest { config: Some(layer.clone()), layers: vec![layer.clone(), layer] };
        let child = Child {
            digest,
            runner: "ggml".into(),
            format: "gguf".into(),
            inline: Some(b"{}".to_vec()),
        };
        let list = Document::List(ManifestList { children: vec![child] });
        let single = Document::Manifest { manifest, runner: "llamacpp".into() };
        let text = |document| Some(Text::new(stamp(-5), digest, document));
        let files = vec![
            (name.to_owned(), text(single)),
            ("unread".to_owned(), None),
            ("list".to_owned(), text(list)),
        ];
        let below = |name: &str, folder| {
            Folder::new(Some(stamp(300)), vec![(name.to_owned(), folder)], vec![])
        };
        let model = Folder::new(None, vec![], files);
        let root = below("host:5000", below("me", below("model", model)));
        let details = Details {
            parent_model: String::new(),
            format: "gguf".into(),
            family: "llama".into(),
            families: Some(vec!["llama".into(), "clip".into()]),
            parameter_size: "1.5B".into(),
            quantization_level: "Q4_K_M".into(),
            runner: "ggml".into(),
        };
        let summary = Summary {
            details,
            context_length: 131_072,
            embedding_length: 0,
            capabilities: vec!["completion".into()],
            remote_model: String::new(),
            remote_host: String::new(),
        };
        (PathBuf::from("/a/manifests"), root, digest, summary)
    }

    fn written(name: &str) -> Vec<u8> {
        let (path, root, digest, summary) = kept(name);
        write(FORM, [(path.as_path(), &root)].into_iter(), [(&digest, &summary)].into_iter())
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let (path, root, digest, summary) = kept("1b");
        let (places, summaries) = read(FORM, &written("1b")).unwrap();
        assert_eq!(format!("{places:?}"), format!("{:?}", [(path, root)]));
        assert_eq!(summaries, [(digest, summary)]);
        assert!(read("another", &written("1b")).is_none());
    }

    #[test]
    fn what_leads_elsewhere_is_nobodys() {
        for name in ["..", ".", "/etc", "a/b", "../x", "", "a/"] {
            assert!(read(FORM, &written(name)).is_none(), "{name:?}");
        }
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_nothing_or_something_and_no_panic() {
        let whole = written("1b");
        for cut in 0..whole.len() {
            assert!(read(FORM, &whole[..cut]).is_none(), "{cut}");
        }
        assert!(read(FORM, &[&whole[..], b"x"].concat()).is_none());
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let _ = read(FORM, &damaged);
            }
        }
        // Numbers that promise more than there is, and those without an end.
        let claims = [
            &b"form\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
            b"form\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ];
        assert!(claims.into_iter().all(|bytes| read(FORM, bytes).is_none()));
    }
}
