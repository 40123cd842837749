//! Reads and writes names and contents of regular files in tar archives. Nothing in an archive
//! becomes a file path. Sizes in headers are not trusted before the bytes have arrived.
//!
//! ```text
//! header (512 bytes): name[100] … size[12, octal or big-endian] … checksum[8] type[1] … "ustar" …
//!                     prefix[155]
//! data, padded to 512 bytes
//! ```

use std::io::{self, Read, Write};

/// Size of a header in bytes; data is padded to a multiple of this size.
const BLOCK_BYTES: usize = 512;
/// Largest long name, in bytes.
const MAX_NAME_BYTES: u64 = 64 << 10;
/// Largest list of pax attributes, in bytes. It may contain attributes of the file system.
const MAX_ATTRIBUTES_BYTES: u64 = 1 << 20;
/// First size that does not fit into eleven octal digits.
const OCTAL_LIMIT: u64 = 1 << 33;

/// Reads an archive sequentially.
pub(crate) struct TarReader<R> {
    input: R,
    /// Unread bytes of the current file, and of its padding.
    remaining: u64,
    padding: u64,
    /// Whether a header was read.
    has_header: bool,
    /// Name of the first link that was skipped.
    first_link: Option<String>,
}

/// Regular file of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TarEntry {
    pub(crate) name: String,
    pub(crate) size: u64,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, remaining: 0, padding: 0, has_header: false, first_link: None }
    }

    /// Name of the first link that was skipped.
    pub(crate) fn first_link(&self) -> Option<&str> {
        self.first_link.as_deref()
    }

    /// The input after the bytes that were read.
    pub(crate) fn into_inner(self) -> R {
        self.input
    }

    /// Moves to the next regular file; [`TarReader::read`] then returns its bytes. `None` at the
    /// end. Folders, links and devices are skipped.
    ///
    /// # Errors
    /// The input is not a tar archive, or it is truncated.
    pub(crate) fn next_file(&mut self) -> io::Result<Option<TarEntry>> {
        let mut attributes = PaxAttributes::default();
        loop {
            self.skip(self.remaining)?;
            self.skip(self.padding)?;
            (self.remaining, self.padding) = (0, 0);
            let Some(header) = self.read_header()? else { return Ok(None) };
            let kind = header[156];
            let is_file = matches!(kind, 0 | b'0' | b'7');
            let size = parse_number(&header[124..136])
                .ok_or_else(|| archive_error("a file has no valid size"))?;
            // Sizes beyond eleven octal digits are often in the attributes only.
            let size = attributes.size.filter(|_| is_file).unwrap_or(size);
            // Folders have no data. Links and devices are not used, whatever size they state.
            self.remaining = if matches!(kind, b'1'..=b'6') { 0 } else { size };
            self.padding = padding(self.remaining);
            match kind {
                _ if is_file => {
                    let name = attributes.path.take().map_or_else(|| header_name(&header), Ok)?;
                    return Ok(Some(TarEntry { name, size }));
                }
                b'L' => {
                    attributes.path =
                        Some(text_until_nul(&self.read_short("a name", MAX_NAME_BYTES)?)?)
                }
                b'x' => attributes
                    .read(&self.read_short("a list of attributes", MAX_ATTRIBUTES_BYTES)?)?,
                b'1' | b'2' if self.first_link.is_none() => {
                    self.first_link = attributes.path.take().or_else(|| header_name(&header).ok());
                    attributes = PaxAttributes::default();
                }
                _ => attributes = PaxAttributes::default(),
            }
        }
    }

    /// Reads the next header. `None` at the end.
    fn read_header(&mut self) -> io::Result<Option<[u8; BLOCK_BYTES]>> {
        let mut header = [0; BLOCK_BYTES];
        let mut have = 0;
        while have < BLOCK_BYTES {
            match self.input.read(&mut header[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) if self.has_header => return Err(archive_error("it is truncated")),
                Ok(0) => return Err(archive_error("it is not a tar archive")),
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        match parse_number(&header[148..156]) == Some(header_checksum(&header)) {
            true => {
                self.has_header = true;
                Ok(Some(header))
            }
            false => Err(archive_error("it is not a tar archive")),
        }
    }

    /// Reads a name or a list of attributes.
    fn read_short(&mut self, what: &str, max_bytes: u64) -> io::Result<Vec<u8>> {
        if self.remaining > max_bytes {
            return Err(archive_error(&format!("{what} is too long: {} bytes", self.remaining)));
        }
        let mut bytes = vec![0; self.remaining as usize];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let passed = io::copy(&mut (&mut self.input).take(bytes), &mut io::sink())?;
        if passed < bytes { Err(archive_error("it is truncated")) } else { Ok(()) }
    }
}

/// Reads the bytes of the current file.
impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        match self.input.read(&mut buffer[..want])? {
            0 => Err(archive_error("it is truncated")),
            n => {
                self.remaining -= n as u64;
                Ok(n)
            }
        }
    }
}

/// Error of an invalid archive.
fn archive_error(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Sum of the header's bytes, where the checksum field counts as spaces.
fn header_checksum(header: &[u8; BLOCK_BYTES]) -> u64 {
    let byte =
        |(i, byte): (usize, &u8)| u64::from(if (148..156).contains(&i) { b' ' } else { *byte });
    header.iter().enumerate().map(byte).sum()
}

/// Parses octal digits, or a big-endian number after a set top bit.
fn parse_number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let start = field.len().checked_sub(8).filter(|_| field.len() >= 12)?;
        let high = field[1..start].iter().all(|byte| *byte == 0);
        return high.then(|| u64::from_be_bytes(field[start..].try_into().expect("eight bytes")));
    }
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches([' ', '\0']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn header_name(header: &[u8; BLOCK_BYTES]) -> io::Result<String> {
    let name = text_until_nul(&header[..100])?;
    let prefix = if &header[257..262] == b"ustar" && header[262] == 0 {
        text_until_nul(&header[345..500])?
    } else {
        String::new()
    };
    Ok(if prefix.is_empty() { name } else { format!("{prefix}/{name}") })
}

/// Text before the first NUL.
fn text_until_nul(bytes: &[u8]) -> io::Result<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).map_err(|_| archive_error("a name is not UTF-8 text"))
}

/// Pax attributes of the next file.
#[derive(Default)]
struct PaxAttributes {
    path: Option<String>,
    size: Option<u64>,
}

impl PaxAttributes {
    /// Reads records such as `21 path=some/file.gguf\n`, which start with their length. Values of
    /// other keys may be any bytes.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (key, value, rest) = parse_record(bytes)
                .ok_or_else(|| archive_error("the attributes of a file are invalid"))?;
            bytes = rest;
            match key {
                b"path" => self.path = Some(text_until_nul(value)?),
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    self.size =
                        Some(size.ok_or_else(|| archive_error("a file has no valid size"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Splits the first record into key and value. Returns the rest as third value.
fn parse_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let pair = record.get(blank + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..equals], &pair[equals + 1..], rest))
}

/// Padding after `size` bytes of data.
fn padding(size: u64) -> u64 {
    (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64
}

/// Writes the header of a file. Its bytes and [`padding`] must follow. The header has no time and
/// owner, so equal files give equal archives.
///
/// # Errors
/// The name has more than 100 bytes, or the output fails.
pub(crate) fn write_header(out: &mut dyn Write, name: &str, size: u64) -> io::Result<()> {
    let mut header = [0; BLOCK_BYTES];
    let put = |header: &mut [u8; BLOCK_BYTES], at: usize, bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
    };
    if name.len() > 100 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the name {name} is too long"),
        ));
    }
    put(&mut header, 0, name.as_bytes());
    put(&mut header, 100, b"0000644\0");
    put(&mut header, 108, b"0000000\0");
    put(&mut header, 116, b"0000000\0");
    if size < OCTAL_LIMIT {
        put(&mut header, 124, format!("{size:011o}\0").as_bytes());
    } else {
        header[124] = 0x80;
        put(&mut header, 128, &size.to_be_bytes());
    }
    put(&mut header, 136, b"00000000000\0");
    header[156] = b'0';
    put(&mut header, 257, b"ustar\x0000");
    let checksum = header_checksum(&header);
    put(&mut header, 148, format!("{checksum:06o}\0 ").as_bytes());
    out.write_all(&header)
}

/// Writes the padding after a file of `size` bytes.
pub(crate) fn write_padding(out: &mut dyn Write, size: u64) -> io::Result<()> {
    out.write_all(&[0; BLOCK_BYTES][..padding(size) as usize])
}

/// Writes the end of the archive.
pub(crate) fn write_end(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, bytes) in files {
            write_header(&mut out, name, bytes.len() as u64).unwrap();
            out.extend_from_slice(bytes);
            write_padding(&mut out, bytes.len() as u64).unwrap();
        }
        write_end(&mut out).unwrap();
        out
    }

    #[test]
    fn files_can_be_read_or_skipped() {
        let archive =
            written(&[("a", b"one"), ("b/c", &[7; 1000]), ("empty", b""), ("d", &[1; 512])]);
        assert_eq!(archive.len() % BLOCK_BYTES, 0);
        let mut read = TarReader::new(archive.as_slice());
        for (name, size, wanted) in
            [("a", 3, true), ("b/c", 1000, false), ("empty", 0, true), ("d", 512, true)]
        {
            let entry = read.next_file().unwrap().unwrap();
            assert_eq!(entry, TarEntry { name: name.into(), size });
            if wanted {
                assert_eq!(io::copy(&mut read, &mut io::sink()).unwrap(), size);
            }
        }
        assert_eq!(read.next_file().unwrap(), None);
    }

    #[test]
    fn sizes_beyond_octal_digits_are_read() {
        for size in [OCTAL_LIMIT - 1, OCTAL_LIMIT, 5 << 40, u64::MAX] {
            let mut out = Vec::new();
            write_header(&mut out, "big", size).unwrap();
            let mut read = TarReader::new(out.as_slice());
            assert_eq!(read.next_file().unwrap(), Some(TarEntry { name: "big".into(), size }));
            // The stated size is checked when the bytes are read.
            let error = read.next_file().unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::InvalidData, "it is truncated")
            );
        }
    }

    /// Pax attributes of the following file.
    fn attributes(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let digits = (1..).find(|digits| (rest + digits).to_string().len() == *digits).unwrap();
            bytes.extend_from_slice(format!("{} {key}=", rest + digits).as_bytes());
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        list(&bytes)
    }

    /// Header and data of a list of pax attributes.
    fn list(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(&mut out, "PaxHeaders/x", bytes.len() as u64).unwrap();
        out[156] = b'x';
        let checksum = header_checksum(out[..BLOCK_BYTES].try_into().unwrap());
        out[148..156].copy_from_slice(format!("{checksum:06o}\0 ").as_bytes());
        out.extend_from_slice(bytes);
        write_padding(&mut out, bytes.len() as u64).unwrap();
        out
    }

    #[test]
    fn attributes_override_sizes_of_headers() {
        let mut out = attributes(&[("path", b"long"), ("size", b"1000")]);
        write_header(&mut out, "short", 0).unwrap();
        out.extend_from_slice(&[7; 1024]);
        out.extend(written(&[("next", b"one")]));
        let mut read = TarReader::new(out.as_slice());
        assert_eq!(read.next_file().unwrap(), Some(TarEntry { name: "long".into(), size: 1000 }));
        assert_eq!(read.next_file().unwrap(), Some(TarEntry { name: "next".into(), size: 3 }));
    }

    #[test]
    fn attributes_may_have_any_bytes() {
        let big = vec![0xff; 100 << 10];
        let mut out = attributes(&[
            ("SCHILY.xattr.user.binary", b"\xff\0\n9 size=5\n12 path=evil\n"),
            ("SCHILY.xattr.com.apple.ResourceFork", &big),
            ("path", "größer".as_bytes()),
        ]);
        out.extend(written(&[("short", b"one"), ("next", b"")]));
        let mut read = TarReader::new(out.as_slice());
        assert_eq!(read.next_file().unwrap(), Some(TarEntry { name: "größer".into(), size: 3 }));
        assert_eq!(read.next_file().unwrap(), Some(TarEntry { name: "next".into(), size: 0 }));
    }

    #[test]
    fn damaged_attributes_are_refused() {
        for (records, attributes) in [
            (&b"12 path=a"[..], "attributes of a file are invalid"),
            (b"5 path=a\n", "attributes of a file are invalid"),
            (b"0 path=a\n", "attributes of a file are invalid"),
            (b"1 path=a\n", "attributes of a file are invalid"),
            (b"-1 path=a\n", "attributes of a file are invalid"),
            (b"99999999999999999999 path=a\n", "attributes of a file are invalid"),
            (b"9 path a\n", "attributes of a file are invalid"),
            (b"path=a\n", "attributes of a file are invalid"),
            (b"10 path=\xff\n", "a name is not UTF-8 text"),
            (b"10 size=x\n", "a file has no valid size"),
        ] {
            let mut out = list(records);
            out.extend(written(&[("short", b"one")]));
            let error = TarReader::new(out.as_slice()).next_file().unwrap_err().to_string();
            assert!(error.contains(attributes), "{error}: {records:?}");
        }
        let mut out = attributes(&[("SCHILY.xattr.user.much", &vec![7; 2 << 20])]);
        out.extend(written(&[("short", b"one")]));
        let error = TarReader::new(out.as_slice()).next_file().unwrap_err().to_string();
        assert!(error.starts_with("a list of attributes is too long: 2097"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn other_programs_read_the_written_archives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive.tar");
        std::fs::write(&path, written(&[("a.txt", b"one"), ("b/c", &[7; 1000])])).unwrap();
        let listed = std::process::Command::new("tar").arg("-tvf").arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&listed.stdout);
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        assert!(
            text.contains(" a.txt") && text.contains("1000 1970-01-01") && text.contains(" b/c"),
            "{text}"
        );
    }

    #[test]
    fn a_truncated_archive_is_an_error_or_the_end() {
        let archive = written(&[("a", b"one"), ("b", &[7; 600])]);
        for end in 0..archive.len() - 2 * BLOCK_BYTES {
            let mut read = TarReader::new(&archive[..end]);
            let mut all = || -> io::Result<()> {
                while read.next_file()?.is_some() {
                    io::copy(&mut read, &mut io::sink())?;
                }
                Ok(())
            };
            // A cut between two files cannot be detected.
            let error = all().err().map(|error| error.to_string());
            let text = match end {
                0 => None,
                1..BLOCK_BYTES => Some("it is not a tar archive"),
                end => (end != 2 * BLOCK_BYTES).then_some("it is truncated"),
            };
            assert_eq!(error.as_deref(), text, "{end}");
        }
        let mut damaged = archive;
        damaged[3] = b'x';
        assert_eq!(
            TarReader::new(damaged.as_slice()).next_file().unwrap_err().to_string(),
            "it is not a tar archive"
        );
    }
}
