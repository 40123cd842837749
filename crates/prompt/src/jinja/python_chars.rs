//! Character classes and case conversion as in Python.

/// `str.isspace`: Unicode white space and a few control characters.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Removes leading white space.
pub(super) fn trim_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// Removes trailing white space.
pub(super) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Removes leading and trailing white space.
pub(super) fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Code points of the digit zero in all scripts. The other nine digits follow each.
const ZEROS: [u32; 68] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
    0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
    0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650,
    0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x11f50, 0x16a60, 0x16ac0,
    0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e4f0, 0x1e950,
    0x1fbf0,
];

/// Ranges of other characters for one digit: superscripts, circled digits.
const DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// Ranges of letters and ideographs that are numerals.
const NUMERALS: [(u32, u32); 72] = [
    (0x3405, 0x3405),
    (0x3483, 0x3483),
    (0x382a, 0x382a),
    (0x3b4d, 0x3b4d),
    (0x4e00, 0x4e00),
    (0x4e03, 0x4e03),
    (0x4e07, 0x4e07),
    (0x4e09, 0x4e09),
    (0x4e5d, 0x4e5d),
    (0x4e8c, 0x4e8c),
    (0x4e94, 0x4e94),
    (0x4e96, 0x4e96),
    (0x4ebf, 0x4ec0),
    (0x4edf, 0x4edf),
    (0x4ee8, 0x4ee8),
    (0x4f0d, 0x4f0d),
    (0x4f70, 0x4f70),
    (0x5104, 0x5104),
    (0x5146, 0x5146),
    (0x5169, 0x5169),
    (0x516b, 0x516b),
    (0x516d, 0x516d),
    (0x5341, 0x5341),
    (0x5343, 0x5345),
    (0x534c, 0x534c),
    (0x53c1, 0x53c4),
    (0x56db, 0x56db),
    (0x58f1, 0x58f1),
    (0x58f9, 0x58f9),
    (0x5e7a, 0x5e7a),
    (0x5efe, 0x5eff),
    (0x5f0c, 0x5f0e),
    (0x5f10, 0x5f10),
    (0x62fe, 0x62fe),
    (0x634c, 0x634c),
    (0x67d2, 0x67d2),
    (0x6f06, 0x6f06),
    (0x7396, 0x7396),
    (0x767e, 0x767e),
    (0x8086, 0x8086),
    (0x842c, 0x842c),
    (0x8cae, 0x8cae),
    (0x8cb3, 0x8cb3),
    (0x8d30, 0x8d30),
    (0x9621, 0x9621),
    (0x9646, 0x9646),
    (0x964c, 0x964c),
    (0x9678, 0x9678),
    (0x96f6, 0x96f6),
    (0xf96b, 0xf96b),
    (0xf973, 0xf973),
    (0xf978, 0xf978),
    (0xf9b2, 0xf9b2),
    (0xf9d1, 0xf9d1),
    (0xf9d3, 0xf9d3),
    (0xf9fd, 0xf9fd),
    (0x20001, 0x20001),
    (0x20064, 0x20064),
    (0x200e2, 0x200e2),
    (0x20121, 0x20121),
    (0x2092a, 0x2092a),
    (0x20983, 0x20983),
    (0x2098c, 0x2098c),
    (0x2099c, 0x2099c),
    (0x20aea, 0x20aea),
    (0x20afd, 0x20afd),
    (0x20b19, 0x20b19),
    (0x22390, 0x22390),
    (0x22998, 0x22998),
    (0x23b1b, 0x23b1b),
    (0x2626d, 0x2626d),
    (0x2f890, 0x2f890),
];

fn is_in(c: char, ranges: &[(u32, u32)]) -> bool {
    let c = u32::from(c);
    let after = ranges.partition_point(|(first, _)| *first <= c);
    after > 0 && c <= ranges[after - 1].1
}

/// The value of a decimal digit of any script.
pub(super) fn decimal(c: char) -> Option<u32> {
    let c = u32::from(c);
    let after = ZEROS.partition_point(|zero| *zero <= c);
    let value = c - ZEROS.get(after.checked_sub(1)?)?;
    (value < 10).then_some(value)
}

/// `str.isdigit`.
pub(super) fn is_digit(c: char) -> bool {
    decimal(c).is_some() || is_in(c, &DIGITS)
}

/// `str.isnumeric`.
pub(super) fn is_numeric(c: char) -> bool {
    c.is_numeric() || is_in(c, &NUMERALS)
}

/// `str.isalpha`.
pub(super) fn is_alpha(c: char) -> bool {
    c.is_alphabetic() && !c.is_numeric()
}

/// Returns true for characters with a case, which `str.title` treats as letters of a word.
pub(super) fn is_cased(c: char) -> bool {
    c.is_uppercase() || c.is_lowercase() || is_titlecase(c)
}

/// Returns true for titlecase characters, which combine an upper and a lower case letter.
fn is_titlecase(c: char) -> bool {
    matches!(
        c,
        '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}'
    ) || (matches!(c, '\u{1f88}'..='\u{1faf}') && u32::from(c) & 8 != 0)
}

/// The titlecase form of a letter.
fn to_title(c: char) -> String {
    let code = u32::from(c);
    let one = |code: u32| char::from_u32(code).unwrap_or(c).to_string();
    match code {
        0x1c4..=0x1cc => one((code - 0x1c4) / 3 * 3 + 0x1c5),
        0x1f1..=0x1f3 => one(0x1f2),
        // Georgian has capitals only in words of capitals.
        0x10d0..=0x10fa | 0x10fd..=0x10ff => one(code),
        0x1f80..=0x1faf => one(code | 8),
        0x1fb3 | 0x1fc3 | 0x1ff3 => one(code + 9),
        0x1fbc | 0x1fcc | 0x1ffc => one(code),
        0x149 => c.to_uppercase().collect(),
        0x1fb2 | 0x1fb4 | 0x1fb7 | 0x1fc2 | 0x1fc4 | 0x1fc7 | 0x1ff2 | 0x1ff4 | 0x1ff7 => {
            c.to_uppercase().map(|c| if c == '\u{399}' { '\u{345}' } else { c }).collect()
        }
        _ => {
            let mut capital = c.to_uppercase();
            let first = capital.next().unwrap_or(c);
            std::iter::once(first).chain(capital.flat_map(char::to_lowercase)).collect()
        }
    }
}

/// `str.casefold`.
pub(super) fn fold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{131}' => out.push(c),
            '\u{1e9e}' => out.push_str("ss"),
            // In Cherokee, the capitals were encoded first, and folding maps to them.
            '\u{13a0}'..='\u{13f5}' => out.push(c),
            '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
            _ => out.extend(c.to_uppercase().flat_map(char::to_lowercase)),
        }
    }
    out
}

/// `str.capitalize`: titlecase for the first letter, lower case for the rest. The lower case of a
/// letter may depend on the letters before it.
pub(super) fn capitalize(text: &str) -> String {
    let Some(first) = text.chars().next() else { return String::new() };
    let lower = text.to_lowercase();
    let skipped: usize = first.to_lowercase().map(char::len_utf8).sum();
    to_title(first) + lower.get(skipped..).unwrap_or_default()
}
