//! Character classes: the meaning of `\p{L}`, `\p{N}`, `\s` and others in pre-tokenizers.
//!
//! ASCII uses a table of 128 entries. Other code points use a two-stage table, built from
//! [`data::RANGES`] on first use: about 4,400 blocks of 256 code points, most of which are uniform
//! and shared.

mod data;

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use crate::control::is_set;

/// A set of character classes. The class of a character has exactly one bit.
pub(crate) type Class = u16;

pub(crate) const LU: Class = 1;
pub(crate) const LL: Class = 1 << 1;
pub(crate) const LT: Class = 1 << 2;
pub(crate) const LM: Class = 1 << 3;
pub(crate) const LO: Class = 1 << 4;
/// `\p{Mn}`: nonspacing marks.
pub(crate) const MN: Class = 1 << 5;
/// Other marks.
const MC: Class = 1 << 12;
/// `\p{M}`: marks.
pub(crate) const M: Class = MN | MC;
/// `\p{N}`: numbers.
pub(crate) const N: Class = 1 << 6;
/// `\p{P}`: punctuation.
pub(crate) const P: Class = 1 << 7;
/// `\p{S}`: symbols.
pub(crate) const S: Class = 1 << 8;
/// `\s`: the property White_Space.
pub(crate) const WS: Class = 1 << 9;
/// Controls other than white space, format characters, private use, and surrogates.
pub(crate) const C: Class = 1 << 10;
/// Unassigned.
pub(crate) const CN: Class = 1 << 11;
/// `\p{L}`: letters.
pub(crate) const L: Class = LU | LL | LT | LM | LO;
/// Every character.
pub(crate) const ANY: Class = (1 << 13) - 1;

/// Groups of the ranges in `data.rs`, by number: Cn, Cc, Cf, Co, Cs, Lu, Ll, Lt, Lm, Lo, Mn, Mc and
/// Me, N, P, S, Z. All of Z is white space, and some of Cc, which [`ClassTable::build`] corrects.
const GROUPS: [Class; 16] = [CN, C, C, C, C, LU, LL, LT, LM, LO, MN, MC, N, P, S, WS];

/// Code points per block of the table.
const BLOCK: usize = 256;
const CODE_POINTS: usize = 0x11_0000;

/// Classes of all code points.
pub(crate) struct ClassTable {
    ascii: [Class; 128],
    blocks: Vec<u16>,
    classes: Vec<Class>,
}

static TABLE: LazyLock<ClassTable> = LazyLock::new(ClassTable::build);

/// The table of this process.
pub(crate) fn table() -> &'static ClassTable {
    &TABLE
}

impl ClassTable {
    fn build() -> ClassTable {
        // One shared block per group, then blocks with several groups.
        let mut classes: Vec<Class> = GROUPS.iter().flat_map(|&g| [g; BLOCK]).collect();
        let mut blocks = Vec::with_capacity(CODE_POINTS / BLOCK);
        let mut range = 0;
        let end_of =
            |range: usize| data::RANGES.get(range + 1).map_or(CODE_POINTS, |&r| (r >> 4) as usize);
        let group_of = |range: usize| (data::RANGES[range] & 15) as usize;
        for first in (0..CODE_POINTS).step_by(BLOCK) {
            while end_of(range) <= first {
                range += 1;
            }
            if end_of(range) >= first + BLOCK {
                blocks.push(group_of(range) as u16);
                continue;
            }
            blocks.push((classes.len() / BLOCK) as u16);
            let mut r = range;
            for c in first..first + BLOCK {
                if end_of(r) <= c {
                    r += 1;
                }
                classes.push(GROUPS[group_of(r)]);
            }
        }
        let mut table = ClassTable { ascii: [0; 128], blocks, classes };
        for c in (9..14).chain([0x85]) {
            let at = table.index(c);
            table.classes[at] = WS;
        }
        table.ascii = std::array::from_fn(|c| table.classes[table.index(c as u32)]);
        table
    }

    fn index(&self, c: u32) -> usize {
        usize::from(self.blocks[c as usize / BLOCK]) * BLOCK + c as usize % BLOCK
    }

    /// Class of a code point; 0 beyond the last one.
    pub(crate) fn class(&self, c: u32) -> Class {
        if c < 128 {
            self.ascii[c as usize]
        } else if (c as usize) < CODE_POINTS {
            self.classes[self.index(c)]
        } else {
            0
        }
    }
}

/// A piece of text to scan: valid UTF-8, addressed by byte. Once the scan is cancelled, the text
/// appears to be empty, which ends every loop over it.
#[derive(Clone, Copy)]
pub(crate) struct Scan<'a> {
    bytes: &'a [u8],
    table: &'static ClassTable,
    cancelled: &'a AtomicBool,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(text: &'a str, cancelled: &'a AtomicBool) -> Self {
        Scan { bytes: text.as_bytes(), table: table(), cancelled }
    }

    /// The part from `start` to `end`, which must be character boundaries.
    pub(crate) fn part(self, start: usize, end: usize) -> Self {
        Scan { bytes: &self.bytes[start..end], ..self }
    }

    pub(crate) fn cancelled(self) -> &'a AtomicBool {
        self.cancelled
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        if is_set(self.cancelled) { 0 } else { self.bytes.len() }
    }

    /// Byte at `pos`; 0 at and beyond the end.
    #[inline]
    pub(crate) fn byte(self, pos: usize) -> u8 {
        match self.bytes.get(pos) {
            Some(&byte) if !is_set(self.cancelled) => byte,
            _ => 0,
        }
    }

    /// Class and length in bytes of the character at `pos`; zeros at the end.
    #[inline(always)]
    pub(crate) fn at(self, pos: usize) -> (Class, usize) {
        match self.bytes.get(pos) {
            Some(_) if is_set(self.cancelled) => (0, 0),
            Some(&b) if b < 128 => (self.table.ascii[usize::from(b)], 1),
            Some(_) => {
                let (c, len) = decode(self.bytes, pos);
                (self.table.classes[self.table.index(c)], len)
            }
            None => (0, 0),
        }
    }

    #[inline(always)]
    pub(crate) fn class(self, pos: usize) -> Class {
        self.at(pos).0
    }

    /// Code point and length in bytes of the character at `pos`. `None` at the end.
    #[inline]
    pub(crate) fn char(self, pos: usize) -> Option<(u32, usize)> {
        match self.bytes.get(pos) {
            Some(_) if is_set(self.cancelled) => None,
            Some(&b) if b < 128 => Some((u32::from(b), 1)),
            Some(_) => Some(decode(self.bytes, pos)),
            None => None,
        }
    }

    /// End of the longest run of characters of `class` from `pos`.
    #[inline]
    pub(crate) fn run(self, mut pos: usize, class: Class) -> usize {
        loop {
            let (c, len) = self.at(pos);
            if c & class == 0 {
                return pos;
            }
            pos += len;
        }
    }

    /// End of the longest run of at most `limit` characters of `class` from `pos`.
    #[inline]
    pub(crate) fn run_of(self, mut pos: usize, class: Class, limit: usize) -> usize {
        for _ in 0..limit {
            let (c, len) = self.at(pos);
            if c & class == 0 {
                break;
            }
            pos += len;
        }
        pos
    }
}

/// Decodes the multi-byte character at `pos` of valid UTF-8.
#[inline]
fn decode(bytes: &[u8], pos: usize) -> (u32, usize) {
    let b = |i: usize| u32::from(bytes.get(pos + i).copied().unwrap_or(0));
    let lead = b(0);
    match lead {
        0..0xE0 => ((lead & 0x1F) << 6 | (b(1) & 0x3F), 2),
        0xE0..0xF0 => ((lead & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F), 3),
        _ => (
            ((lead & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F))
                & 0x1F_FFFF,
            4,
        ),
    }
}

/// Han ideographs of llama.cpp's scanner for Kimi K2: whole blocks, without radicals and iteration
/// marks.
pub(crate) fn is_han(c: u32) -> bool {
    matches!(c, 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x20000..=0x2A6DF | 0x2A700..=0x2EBEF
        | 0x2F800..=0x2FA1F)
}

/// `\p{Han}`, with radicals, iteration marks and numerals.
pub(crate) fn is_han_script(c: u32) -> bool {
    matches!(c, 0x2E80..=0x2E99 | 0x2E9B..=0x2EF3 | 0x2F00..=0x2FD5 | 0x3005 | 0x3007 | 0x3021..=0x3029
        | 0x3038..=0x303B | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFA6D | 0xFA70..=0xFAD9
        | 0x16FE2..=0x16FE3 | 0x16FF0..=0x16FF1 | 0x20000..=0x2A6DF | 0x2A700..=0x2EBE0 | 0x2F800..=0x2FA1D
        | 0x30000..=0x323AF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_point_has_the_class_of_the_regex_crate() {
        let expect = |pattern: &str, class: Class| {
            let regex = fancy_regex::Regex::new(&format!("^{pattern}$")).unwrap();
            let mut text = [0; 4];
            for c in '\0'..=char::MAX {
                let is = regex.is_match(c.encode_utf8(&mut text)).unwrap();
                assert_eq!(
                    table().class(u32::from(c)) & class != 0,
                    is,
                    "{pattern} U+{:04X}",
                    u32::from(c)
                );
                assert_eq!(
                    Scan::new(c.encode_utf8(&mut text), &crate::control::NEVER).at(0),
                    (table().class(u32::from(c)), c.len_utf8())
                );
            }
        };
        for (pattern, class) in [
            ("\\p{Lu}", LU),
            ("\\p{Ll}", LL),
            ("\\p{Lt}", LT),
            ("\\p{Lm}", LM),
            ("\\p{Lo}", LO),
            ("\\p{Mn}", MN),
        ] {
            expect(pattern, class);
        }
        for (pattern, class) in [
            ("\\p{M}", M),
            ("\\p{N}", N),
            ("\\p{P}", P),
            ("\\p{S}", S),
            ("\\s", WS),
            ("[\\p{Cc}\\p{Cf}\\p{Co}&&\\S]", C),
            ("\\p{Cn}", CN),
        ] {
            expect(pattern, class);
        }
    }
}
