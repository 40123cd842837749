//! Tar archives, as far as files in them go: their names and their bytes. Nothing in an archive becomes a path, and what it
//! says of sizes is not believed before the bytes are there.
//!
//! ```text
//! header (512): name[100] … size[12, octal or big-endian] … sum[8] type[1] … "ustar" … prefix[155]; data, padded to 512
//! ```

use std::io::{self, Read, Write};

/// Bytes of a header, and what data is padded to.
const BLOCK: usize = 512;
/// Bytes of a long name at most.
const MAX_NAME: u64 = 64 << 10;
/// Bytes of a file's attributes at most: those of its file system are among them.
const MAX_ATTRIBUTES: u64 = 1 << 20;
/// The first size that eleven octal digits cannot say.
const OCTAL_LIMIT: u64 = 1 << 33;

/// An archive that is read from its beginning to its end.
pub(crate) struct Archive<R> {
    input: R,
    /// Bytes of the current file that were not read, and of what pads it.
    left: u64,
    padding: u64,
    /// The first link that was passed over.
    link: Option<String>,
}

/// A file of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) size: u64,
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, link: None }
    }

    /// The name of the first link that was passed over.
    pub(crate) fn link(&self) -> Option<&str> {
        self.link.as_deref()
    }

    /// What comes behind what was read.
    pub(crate) fn into_inner(self) -> R {
        self.input
    }

    /// The next file, whose bytes [`Archive::read`] gives then; `None` at the end. Folders, links and devices are passed over.
    ///
    /// # Errors
    /// It is no archive, or is cut off.
    pub(crate) fn next_file(&mut self) -> io::Result<Option<Entry>> {
        let mut said = Attributes::default();
        loop {
            self.pass(self.left)?;
            self.pass(self.padding)?;
            (self.left, self.padding) = (0, 0);
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header[156];
            let is_file = matches!(kind, 0 | b'0' | b'7');
            let size = number(&header[124..136]).ok_or_else(|| wrong("a file has no size"))?;
            // More than eleven octal digits can say is often said in attributes alone.
            let size = said.size.filter(|_| is_file).unwrap_or(size);
            // Folders have no data; links and devices are of no use here, whatever they say.
            self.left = if matches!(kind, b'1'..=b'6') { 0 } else { size };
            self.padding = padding(self.left);
            match kind {
                _ if is_file => {
                    let name = said.path.take().map_or_else(|| name_of(&header), Ok)?;
                    return Ok(Some(Entry { name, size }));
                }
                b'L' => said.path = Some(text(&self.short("a name", MAX_NAME)?)?),
                b'x' => said.read(&self.short("a list of attributes", MAX_ATTRIBUTES)?)?,
                b'1' | b'2' if self.link.is_none() => {
                    self.link = said.path.take().or_else(|| name_of(&header).ok());
                    said = Attributes::default();
                }
                _ => said = Attributes::default(),
            }
        }
    }

    /// The next header; `None` at the end.
    fn header(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut header = [0; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            match self.input.read(&mut header[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(wrong("it is cut off")),
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        match number(&header[148..156]) == Some(sum(&header)) {
            true => Ok(Some(header)),
            false => Err(wrong("it is no tar archive")),
        }
    }

    /// The bytes of a name or of attributes.
    fn short(&mut self, what: &str, most: u64) -> io::Result<Vec<u8>> {
        if self.left > most {
            return Err(wrong(&format!("{what} has {} bytes", self.left)));
        }
        let mut bytes = vec![0; self.left as usize];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn pass(&mut self, bytes: u64) -> io::Result<()> {
        let passed = io::copy(&mut (&mut self.input).take(bytes), &mut io::sink())?;
        if passed < bytes { Err(wrong("it is cut off")) } else { Ok(()) }
    }
}

/// The bytes of the current file.
impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        match self.input.read(&mut buffer[..want])? {
            0 => Err(wrong("it is cut off")),
            n => {
                self.left -= n as u64;
                Ok(n)
            }
        }
    }
}

/// What is wrong with an archive, as an error of whoever reads it.
fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The sum of a header's bytes, those of the sum itself as blanks.
fn sum(header: &[u8; BLOCK]) -> u64 {
    let byte =
        |(i, byte): (usize, &u8)| u64::from(if (148..156).contains(&i) { b' ' } else { *byte });
    header.iter().enumerate().map(byte).sum()
}

/// A number in octal digits, or big-endian behind a set bit.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let start = field.len().checked_sub(8).filter(|_| field.len() >= 12)?;
        let high = field[1..start].iter().all(|byte| *byte == 0);
        return high.then(|| u64::from_be_bytes(field[start..].try_into().expect("eight bytes")));
    }
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches([' ', '\0']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

fn name_of(header: &[u8; BLOCK]) -> io::Result<String> {
    let name = text(&header[..100])?;
    let prefix = if &header[257..262] == b"ustar" && header[262] == 0 {
        text(&header[345..500])?
    } else {
        String::new()
    };
    Ok(if prefix.is_empty() { name } else { format!("{prefix}/{name}") })
}

/// Text up to the first zero.
fn text(bytes: &[u8]) -> io::Result<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8(bytes[..end].to_vec()).map_err(|_| wrong("a name is no text"))
}

/// What stands before a file's header about it.
#[derive(Default)]
struct Attributes {
    path: Option<String>,
    size: Option<u64>,
}

impl Attributes {
    /// Reads records such as `21 path=some/file.gguf\n`, each of which says its length first. Values of other keys are any bytes.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (key, value, rest) =
                record(bytes).ok_or_else(|| wrong("a file's attributes are damaged"))?;
            bytes = rest;
            match key {
                b"path" => self.path = Some(text(value)?),
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    self.size = Some(size.ok_or_else(|| wrong("a file has no size"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Key and value of the first attribute, and what is behind it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let pair = record.get(blank + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..equals], &pair[equals + 1..], rest))
}

/// Bytes behind data of a size.
fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// Writes the header of a file, whose bytes and [`padding`] follow. Equal files make equal archives: it says nothing of time and
/// owner.
///
/// # Errors
/// The name has more than 100 bytes, or it cannot be written.
pub(crate) fn write_header(out: &mut dyn Write, name: &str, size: u64) -> io::Result<()> {
    let mut header = [0; BLOCK];
    let put = |header: &mut [u8; BLOCK], at: usize, bytes: &[u8]| {
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
    let sum = sum(&header);
    put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes());
    out.write_all(&header)
}

/// Writes what comes behind the bytes of a file.
pub(crate) fn write_padding(out: &mut dyn Write, size: u64) -> io::Result<()> {
    out.write_all(&[0; BLOCK][..padding(size) as usize])
}

/// Ends an archive.
pub(crate) fn write_end(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
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
    fn files_come_back_whether_they_are_read_or_not() {
        let archive =
            written(&[("a", b"one"), ("b/c", &[7; 1000]), ("empty", b""), ("d", &[1; 512])]);
        assert_eq!(archive.len() % BLOCK, 0);
        let mut read = Archive::new(archive.as_slice());
        for (name, size, wanted) in
            [("a", 3, true), ("b/c", 1000, false), ("empty", 0, true), ("d", 512, true)]
        {
            let entry = read.next_file().unwrap().unwrap();
            assert_eq!(entry, Entry { name: name.into(), size });
            if wanted {
                assert_eq!(io::copy(&mut read, &mut io::sink()).unwrap(), size);
            }
        }
        assert_eq!(read.next_file().unwrap(), None);
    }

    #[test]
    fn sizes_beyond_octal_digits_are_understood() {
        for size in [OCTAL_LIMIT - 1, OCTAL_LIMIT, 5 << 40, u64::MAX] {
            let mut out = Vec::new();
            write_header(&mut out, "big", size).unwrap();
            let mut read = Archive::new(out.as_slice());
            assert_eq!(read.next_file().unwrap(), Some(Entry { name: "big".into(), size }));
            // It is believed when it is there.
            let error = read.next_file().unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                (io::ErrorKind::InvalidData, "it is cut off")
            );
        }
    }

    /// Attributes of the file behind them.
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

    /// The same, as they are written.
    fn list(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(&mut out, "PaxHeaders/x", bytes.len() as u64).unwrap();
        out[156] = b'x';
        let sum = sum(out[..BLOCK].try_into().unwrap());
        out[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(bytes);
        write_padding(&mut out, bytes.len() as u64).unwrap();
        out
    }

    #[test]
    fn attributes_say_sizes_that_headers_do_not() {
        let mut out = attributes(&[("path", b"long"), ("size", b"1000")]);
        write_header(&mut out, "short", 0).unwrap();
        out.extend_from_slice(&[7; 1024]);
        out.extend(written(&[("next", b"one")]));
        let mut read = Archive::new(out.as_slice());
        assert_eq!(read.next_file().unwrap(), Some(Entry { name: "long".into(), size: 1000 }));
        assert_eq!(read.next_file().unwrap(), Some(Entry { name: "next".into(), size: 3 }));
    }

    #[test]
    fn attributes_of_file_systems_are_any_bytes() {
        let big = vec![0xff; 100 << 10];
        let mut out = attributes(&[
            ("SCHILY.xattr.user.binary", b"\xff\0\n9 size=5\n12 path=evil\n"),
            ("SCHILY.xattr.com.apple.ResourceFork", &big),
            ("path", "größer".as_bytes()),
        ]);
        out.extend(written(&[("short", b"one"), ("next", b"")]));
        let mut read = Archive::new(out.as_slice());
        assert_eq!(read.next_file().unwrap(), Some(Entry { name: "größer".into(), size: 3 }));
        assert_eq!(read.next_file().unwrap(), Some(Entry { name: "next".into(), size: 0 }));
    }

    #[test]
    fn damaged_attributes_are_refused() {
        for (records, said) in [
            (&b"12 path=a"[..], "damaged"),
            (b"5 path=a\n", "damaged"),
            (b"0 path=a\n", "damaged"),
            (b"1 path=a\n", "damaged"),
            (b"-1 path=a\n", "damaged"),
            (b"99999999999999999999 path=a\n", "damaged"),
            (b"9 path a\n", "damaged"),
            (b"path=a\n", "damaged"),
            (b"10 path=\xff\n", "a name is no text"),
            (b"10 size=x\n", "a file has no size"),
        ] {
            let mut out = list(records);
            out.extend(written(&[("short", b"one")]));
            let error = Archive::new(out.as_slice()).next_file().unwrap_err().to_string();
            assert!(error.contains(said), "{error}: {records:?}");
        }
        let mut out = attributes(&[("SCHILY.xattr.user.much", &vec![7; 2 << 20])]);
        out.extend(written(&[("short", b"one")]));
        let error = Archive::new(out.as_slice()).next_file().unwrap_err().to_string();
        assert!(error.starts_with("a list of attributes has 2097"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn other_programs_read_what_is_written() {
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
    fn every_beginning_of_an_archive_is_an_error_or_the_end() {
        let archive = written(&[("a", b"one"), ("b", &[7; 600])]);
        for end in 0..archive.len() - 2 * BLOCK {
            let mut read = Archive::new(&archive[..end]);
            let mut all = || -> io::Result<()> {
                while read.next_file()?.is_some() {
                    io::copy(&mut read, &mut io::sink())?;
                }
                Ok(())
            };
            // Only between two files does nobody see that there were more.
            assert_eq!(all().is_ok(), [0, 2 * BLOCK].contains(&end), "{end}");
        }
        let mut damaged = archive;
        damaged[3] = b'x';
        assert_eq!(
            Archive::new(damaged.as_slice()).next_file().unwrap_err().to_string(),
            "it is no tar archive"
        );
    }
}
