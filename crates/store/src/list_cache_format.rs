//! Binary format of the list cache: the index of manifests, and the details of models. Each command
//! without a server reads it at start, so that it must be fast to decode. Decoding JSON of two
//! thousand models would take longer than asking the system for all their files.
//!
//! ```text
//! file        = version line, dirs, summaries
//! dirs        = list of (text: folder of manifests, folder)
//! summaries   = list of (digest, summary)
//! folder      = option of fingerprint, then a list of (text, folder),
//!               or at the depth of manifests a list of (text, option of manifest)
//! number      = seven bits a byte, low bits first; all bytes but the last have the high bit set
//! text        = 0, length, bytes; or the number of an earlier text, from 1
//! list        = number of items, items
//! option      = 0, or 1 and the value
//! document    = 0 and a manifest, or 1 and a manifest list
//! fingerprint = five little-endian numbers of eight bytes; a digest has 32 bytes
//! ```

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use crate::digest::Digest;
use crate::fingerprint::FileFingerprint;
use crate::manifest::{Layer, Manifest};
use crate::manifest_index::{IndexedDir, IndexedManifest};
use crate::manifest_list::{Child, ManifestDocument, ManifestList};
use crate::name_files::NAME_DEPTH;
use crate::summary::{Details, Summary};

/// Largest number of items to preallocate for a list.
const MAX_PREALLOCATED_ITEMS: usize = 4096;

/// Decoded cache: folders of manifests, and details of models by the digest of their manifest.
pub(crate) type DecodedLists = (Vec<(PathBuf, IndexedDir)>, Vec<(Digest, Summary)>);

/// Encodes the cache for decoders of the same `version`.
pub(crate) fn encode<'a>(
    version: &str,
    dirs: impl ExactSizeIterator<Item = (&'a Path, &'a IndexedDir)>,
    summaries: impl ExactSizeIterator<Item = (&'a Digest, &'a Summary)>,
) -> Vec<u8> {
    let mut encoder = Encoder { bytes: format!("{version}\n").into_bytes(), texts: HashMap::new() };
    encoder.number(dirs.len() as u64);
    for (path, folder) in dirs {
        // A path that is not UTF-8 is not found again, so that its models are read again.
        path.to_string_lossy().into_owned().encode(&mut encoder);
        folder.encode(&mut encoder);
    }
    encoder.number(summaries.len() as u64);
    for (digest, summary) in summaries {
        digest.encode(&mut encoder);
        summary.encode(&mut encoder);
    }
    encoder.bytes
}

/// Decodes a cache of this version; `None` if the bytes are anything else.
pub(crate) fn decode(version: &str, bytes: &[u8]) -> Option<DecodedLists> {
    let rest = bytes.strip_prefix(version.as_bytes())?.strip_prefix(b"\n")?;
    let mut decoder = Decoder { rest, texts: Vec::new() };
    let dirs =
        decoder.list(|decoder| Some((String::decode(decoder)?.into(), decode_dir(decoder, 0)?)))?;
    let summaries =
        decoder.list(|decoder| Some((Digest::decode(decoder)?, Summary::decode(decoder)?)))?;
    decoder.rest.is_empty().then_some((dirs, summaries))
}

struct Encoder {
    bytes: Vec<u8>,
    /// Earlier texts and their numbers.
    texts: HashMap<String, u64>,
}

impl Encoder {
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }
}

struct Decoder<'a> {
    rest: &'a [u8],
    texts: Vec<&'a str>,
}

impl<'a> Decoder<'a> {
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
        let mut items = Vec::with_capacity(count.min(MAX_PREALLOCATED_ITEMS));
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }
}

/// A type that can be encoded.
trait Codec: Sized {
    fn encode(&self, encoder: &mut Encoder);
    fn decode(decoder: &mut Decoder<'_>) -> Option<Self>;
}

impl Codec for u64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.number(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        decoder.number()
    }
}

impl Codec for String {
    fn encode(&self, encoder: &mut Encoder) {
        if let Some(number) = encoder.texts.get(self).copied() {
            return encoder.number(number);
        }
        encoder.texts.insert(self.clone(), encoder.texts.len() as u64 + 1);
        encoder.number(0);
        encoder.number(self.len() as u64);
        encoder.bytes.extend_from_slice(self.as_bytes());
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        if let Some(before) = decoder.number()?.checked_sub(1) {
            return decoder.texts.get(usize::try_from(before).ok()?).map(|text| (*text).to_owned());
        }
        let length = usize::try_from(decoder.number()?).ok()?;
        let text = std::str::from_utf8(decoder.take(length)?).ok()?;
        decoder.texts.push(text);
        Some(text.to_owned())
    }
}

impl Codec for Digest {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes.extend_from_slice(&self.bytes());
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        decoder.array().map(Self::from_bytes)
    }
}

impl<T: Codec> Codec for Option<T> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes.push(u8::from(self.is_some()));
        self.iter().for_each(|there| there.encode(encoder));
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        match decoder.array()? {
            [0] => Some(None),
            [1] => T::decode(decoder).map(Some),
            _ => None,
        }
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.number(self.len() as u64);
        self.iter().for_each(|item| item.encode(encoder));
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        decoder.list(T::decode)
    }
}

impl Codec for FileFingerprint {
    fn encode(&self, encoder: &mut Encoder) {
        let Self { length, modified, changed, file: (device, number) } = *self;
        for n in [length, modified.cast_unsigned(), changed.cast_unsigned(), device, number] {
            encoder.bytes.extend_from_slice(&n.to_le_bytes());
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        let mut next = || decoder.array().map(u64::from_le_bytes);
        let (length, modified, changed) = (next()?, next()?.cast_signed(), next()?.cast_signed());
        Some(Self { length, modified, changed, file: (next()?, next()?) })
    }
}

/// Encodes all fields in order.
macro_rules! impl_codec {
    ($kind:ident { $($field:ident),* }) => {
        impl Codec for $kind {
            fn encode(&self, encoder: &mut Encoder) {
                let Self { $($field),* } = self;
                $($field.encode(encoder);)*
            }

            fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
                Some(Self { $($field: Codec::decode(decoder)?),* })
            }
        }
    };
}

impl_codec!(Layer { media_type, digest, size, from, name });
impl_codec!(Manifest { config, layers });
impl_codec!(ManifestList { children });
impl_codec!(Child { digest, runner, format, inline });
impl_codec!(Summary {
    details,
    context_length,
    embedding_length,
    capabilities,
    remote_model,
    remote_host
});
impl_codec!(Details {
    parent_model,
    format,
    family,
    families,
    parameter_size,
    quantization_level,
    runner
});

impl Codec for u8 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.bytes.push(*self);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        decoder.array().map(|[byte]| byte)
    }
}

impl Codec for ManifestDocument {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Self::Manifest { manifest, runner } => {
                0u8.encode(encoder);
                manifest.encode(encoder);
                runner.encode(encoder);
            }
            Self::List(list) => {
                1u8.encode(encoder);
                list.encode(encoder);
            }
        }
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        match u8::decode(decoder)? {
            0 => Some(Self::Manifest {
                manifest: Codec::decode(decoder)?,
                runner: Codec::decode(decoder)?,
            }),
            1 => Codec::decode(decoder).map(Self::List),
            _ => None,
        }
    }
}

impl Codec for IndexedManifest {
    fn encode(&self, encoder: &mut Encoder) {
        self.fingerprint.encode(encoder);
        self.digest.encode(encoder);
        self.document.encode(encoder);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Option<Self> {
        Some(Self::new(Codec::decode(decoder)?, Codec::decode(decoder)?, Codec::decode(decoder)?))
    }
}

impl IndexedDir {
    fn encode(&self, encoder: &mut Encoder) {
        self.encode_at(encoder, 0);
    }

    fn encode_at(&self, encoder: &mut Encoder, depth: usize) {
        self.fingerprint.encode(encoder);
        if depth == NAME_DEPTH {
            encoder.number(self.files.len() as u64);
            for (name, text) in &self.files {
                name.encode(encoder);
                text.encode(encoder);
            }
            return;
        }
        encoder.number(self.folders.len() as u64);
        for (name, folder) in &self.folders {
            name.encode(encoder);
            folder.encode_at(encoder, depth + 1);
        }
    }
}

fn decode_dir(decoder: &mut Decoder<'_>, depth: usize) -> Option<IndexedDir> {
    let fingerprint = Codec::decode(decoder)?;
    if depth == NAME_DEPTH {
        let files =
            decoder.list(|decoder| Some((decode_entry_name(decoder)?, Codec::decode(decoder)?)))?;
        return Some(IndexedDir::new(fingerprint, Vec::new(), files));
    }
    let folders = decoder
        .list(|decoder| Some((decode_entry_name(decoder)?, decode_dir(decoder, depth + 1)?)))?;
    Some(IndexedDir::new(fingerprint, folders, Vec::new()))
}

/// Decodes the name of a folder's entry. Rejects names that lead out of the folder.
fn decode_entry_name(decoder: &mut Decoder<'_>) -> Option<String> {
    let name = String::decode(decoder)?;
    let mut parts = Path::new(&name).components();
    let is_name = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name.as_str());
    is_name.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = "version";

    fn fingerprint(n: i64) -> FileFingerprint {
        FileFingerprint { length: 1 << 40, modified: n, changed: i64::MAX, file: (u64::MAX, 7) }
    }

    /// A folder tree with a model of this name, and its details.
    fn sample(name: &str) -> (PathBuf, IndexedDir, Digest, Summary) {
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
        let list = ManifestDocument::List(ManifestList { children: vec![child] });
        let single = ManifestDocument::Manifest { manifest, runner: "llamacpp".into() };
        let text = |document| Some(IndexedManifest::new(fingerprint(-5), digest, document));
        let files = vec![
            (name.to_owned(), text(single)),
            ("unread".to_owned(), None),
            ("list".to_owned(), text(list)),
        ];
        let below = |name: &str, folder| {
            IndexedDir::new(Some(fingerprint(300)), vec![(name.to_owned(), folder)], vec![])
        };
        let model = IndexedDir::new(None, vec![], files);
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
        let (path, root, digest, summary) = sample(name);
        encode(VERSION, [(path.as_path(), &root)].into_iter(), [(&digest, &summary)].into_iter())
    }

    #[test]
    fn written_values_read_back_the_same() {
        let (path, root, digest, summary) = sample("1b");
        let (dirs, summaries) = decode(VERSION, &written("1b")).unwrap();
        assert_eq!(format!("{dirs:?}"), format!("{:?}", [(path, root)]));
        assert_eq!(summaries, [(digest, summary)]);
        assert!(decode("another", &written("1b")).is_none());
    }

    #[test]
    fn names_that_lead_out_of_a_folder_are_rejected() {
        for name in ["..", ".", "/etc", "a/b", "../x", "", "a/"] {
            assert!(decode(VERSION, &written(name)).is_none(), "{name:?}");
        }
    }

    #[test]
    fn truncated_or_damaged_caches_do_not_panic() {
        let whole = written("1b");
        for cut in 0..whole.len() {
            assert!(decode(VERSION, &whole[..cut]).is_none(), "{cut}");
        }
        assert!(decode(VERSION, &[&whole[..], b"x"].concat()).is_none());
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let _ = decode(VERSION, &damaged);
            }
        }
        // A length beyond the end of the file, and a number without an end.
        let claims = [
            &b"version\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f"[..],
            b"version\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ];
        assert!(claims.into_iter().all(|bytes| decode(VERSION, bytes).is_none()));
    }
}
