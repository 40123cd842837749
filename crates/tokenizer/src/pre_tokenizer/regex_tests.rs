//! Compares pattern sets with their expressions in a general regex engine, on random text.

use super::*;
use crate::control::NEVER;
use crate::random_text::Random;

/// Numbers of pattern sets and their expressions, as in llama.cpp.
#[rustfmt::skip]
const EXPRESSIONS: &[(u8, &[&str])] = &[
    (1, &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (2, &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
    ]),
    (3, &[
        r"[\r\n]",
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
    ]),
    (4, &[
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ]),
    (5, &[
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
        r"\p{N}",
    ]),
    (6, &[
        r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (7, &[
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}",
    ]),
    (8, &[
        r"[\p{P}\$\+<=>\^~\|`]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"[0-9][0-9][0-9]",
    ]),
    (9, &[
        r"\p{N}",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    ]),
    (10, &[
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    ]),
    (11, &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (12, &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (13, &[
        r" ?[^(\s|.,!?…。，、।۔،)]+",
    ]),
    (14, &[
        r" ?[^(\s|.,!?…。，、।۔،)]+",
        r"\p{N}",
    ]),
    (15, &[
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (16, &[
        r"<sentinel:[0-9]+>",
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    ]),
    (17, &[
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (18, &[
        r"[^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))*((?=[\p{L}\p{M}])([^A-Z]))+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?((?=[\p{L}\p{M}])([^a-z]))+((?=[\p{L}\p{M}])([^A-Z]))*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (19, &[
        r"@numbers from the right",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (20, &[
        r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{2F800}-\x{2FA1F}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{2F800}-\x{2FA1F}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (21, &[
        r"\p{N}+",
        r"(?=(\d{3})+(?!\d))",
    ]),
    (22, &[
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ]),
    (23, &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (24, &[
        r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (25, &[
        r"@numbers from the right",
        r"[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ]),
    (26, &[
        r"[^\n]+|[\n]+",
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (27, &[
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ]),
    (28, &[
        r"[^\n]+|[\n]+",
    ]),
    (29, &[
        r"\p{N}{1,3}",
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (30, &[
        r"\S+",
    ]),
    (31, &[
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    ]),
];

/// Expressions of `original` sets that differ by more than the case of contractions.
#[rustfmt::skip]
const ORIGINALS: &[(u8, &[&str])] = &[
    (15, &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (17, &[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
    (20, &[
        r"\p{Han}+|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ]),
];

/// A reference expression. With `collapse` it follows llama.cpp's rules: letter categories collapse
/// to `\p{L}`, digits are ASCII, and in expressions without categories white space beyond ASCII
/// reads as U+000B.
struct ReferenceRegex {
    regex: Option<fancy_regex::Regex>,
    blank_spaces: bool,
}

impl ReferenceRegex {
    fn new(expression: &str, collapse: bool) -> Self {
        if expression.starts_with('@') {
            return ReferenceRegex { regex: None, blank_spaces: false };
        }
        let mut text = expression.replace("\\d", "[0-9]");
        if collapse {
            for category in ["\\p{Lu}", "\\p{Ll}", "\\p{Lt}", "\\p{Lm}", "\\p{Lo}"] {
                text = text.replace(category, "\\p{L}");
            }
        }
        let regex = fancy_regex::Regex::new(&text).unwrap();
        ReferenceRegex {
            regex: Some(regex),
            blank_spaces: collapse && !expression.contains("\\p{"),
        }
    }

    fn ends(&self, piece: &str) -> Vec<usize> {
        let Some(regex) = &self.regex else { return numbers_from_the_right(piece) };
        let (mut seen, mut real) = (String::new(), Vec::new());
        for (at, c) in piece.char_indices() {
            let c =
                if self.blank_spaces && !c.is_ascii() && c.is_whitespace() { '\u{b}' } else { c };
            real.resize(seen.len(), 0);
            real.push(at);
            seen.push(c);
        }
        real.resize(seen.len(), 0);
        real.push(piece.len());
        let found = regex.find_iter(&seen).map(|m| m.unwrap());
        let mut ends: Vec<usize> = found.flat_map(|m| [real[m.start()], real[m.end()]]).collect();
        ends.push(piece.len());
        ends.retain(|&end| end > 0);
        ends.dedup();
        ends
    }
}

fn numbers_from_the_right(piece: &str) -> Vec<usize> {
    let run = fancy_regex::Regex::new("\\p{N}+").unwrap();
    let mut ends = Vec::new();
    for m in run.find_iter(piece).map(|m| m.unwrap()) {
        let mut at: Vec<usize> = m.as_str().char_indices().map(|(i, _)| m.start() + i).collect();
        at.push(m.end());
        ends.extend((1..at.len()).filter(|i| (at.len() - 1 - i).is_multiple_of(3)).map(|i| at[i]));
    }
    ends.push(piece.len());
    ends.dedup();
    ends.retain(|&end| end > 0);
    ends
}

fn split<'a>(text: &'a str, ends: &[usize]) -> Vec<&'a str> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).map(|(start, &end)| &text[start..end]).collect()
}

fn compare(set: &PatternSet, regexes: &[ReferenceRegex], original: bool, text: &str) {
    let mut want = vec![text];
    for regex in regexes {
        want = want.into_iter().flat_map(|piece| split(piece, &regex.ends(piece))).collect();
    }
    want.retain(|piece| !piece.is_empty());
    let mut ends = Vec::new();
    set.split(text, original, &NEVER, &mut |end| ends.push(end));
    assert_eq!(split(text, &ends), want, "set {} (original: {original}) on {text:?}", set.number);
}

fn check(number: u8, expressions: &[&str], original: bool, texts: usize) {
    let set = PRE_TOKENIZERS
        .iter()
        .map(|row| row.set)
        .find(|set| set.number == number)
        .expect("a set of that number");
    let regexes: Vec<_> = expressions.iter().map(|e| ReferenceRegex::new(e, !original)).collect();
    let mut random = Random::new(u64::from(number));
    compare(set, &regexes, original, "");
    for _ in 0..texts {
        let length = random.below(40);
        compare(set, &regexes, original, &random.text(length));
    }
}

/// Number of texts per pattern set. `PUNA_TEST_ROUNDS` sets more for a change to a scanner.
fn rounds() -> usize {
    std::env::var("PUNA_TEST_ROUNDS").ok().and_then(|v| v.parse().ok()).unwrap_or(300)
}

#[test]
fn every_pattern_set_splits_like_its_expressions() {
    for (number, expressions) in EXPRESSIONS {
        check(*number, expressions, false, rounds());
    }
    assert!(
        PRE_TOKENIZERS
            .iter()
            .all(|row| EXPRESSIONS.iter().any(|(number, _)| *number == row.set.number))
    );
}

#[test]
fn original_expressions_distinguish_case_in_all_scripts() {
    for (number, expressions) in ORIGINALS {
        check(*number, expressions, true, rounds());
    }
}

#[test]
fn original_ranges_contain_white_space() {
    for (number, expressions) in EXPRESSIONS.iter().filter(|(number, _)| [3, 7].contains(number)) {
        check(*number, expressions, true, rounds());
    }
}

#[test]
fn long_runs_are_split_like_the_expressions() {
    let long = |c: &str, count: usize| c.repeat(count);
    let texts: Vec<String> =
        [" ", "\n", "\u{3000}", "7", "a", "A", "é", "中", ".", "\u{301}", "\u{378}"]
            .iter()
            .flat_map(|c| {
                [3, 511, 512, 513, 1030].map(|n| {
                    [long(c, n), format!("x{}y", long(c, n)), format!(" {}\t!", long(c, n))]
                })
            })
            .flatten()
            .collect();
    for (number, expressions) in EXPRESSIONS {
        let set = PRE_TOKENIZERS
            .iter()
            .map(|row| row.set)
            .find(|set| set.number == *number)
            .expect("a set");
        let regexes: Vec<_> = expressions.iter().map(|e| ReferenceRegex::new(e, true)).collect();
        for text in &texts {
            compare(set, &regexes, false, text);
        }
    }
}

#[test]
fn a_megabyte_of_one_character_takes_linear_time() {
    let start = std::time::Instant::now();
    let mut last = 0;
    for c in [" ", "\n", "\u{2003}", "a", "A", "7", "!", "'", "\u{301}", "中", " \n", "aA", "ñA"]
    {
        let text = c.repeat(1_000_000 / c.len());
        for row in PRE_TOKENIZERS {
            row.set.split(&text, false, &NEVER, &mut |end| last = end);
            assert_eq!(last, text.len());
        }
    }
    // Quadratic time would take hours. A busy machine takes seconds.
    assert!(start.elapsed().as_secs() < 120, "{:?}", start.elapsed());
}

#[test]
fn texts_with_escaped_spaces_are_split_at_line_ends_only() {
    // `Bpe` cuts such texts at line ends before it replaces spaces.
    assert!(PRE_TOKENIZERS.iter().all(|row| !row.escape_spaces || row.set.is_lines()));
}

#[test]
fn every_stage_ends_once_it_is_cancelled() {
    let cancelled = AtomicBool::new(true);
    for c in [" ", "\n", "a", "7", "!", "中", "\u{301}", "<sentinel:1"] {
        for row in PRE_TOKENIZERS {
            for original in [false, true] {
                row.set.split(&c.repeat(1000), original, &cancelled, &mut |_| panic!("an end"));
            }
        }
    }
}

#[test]
fn every_name_is_listed_once() {
    let names = known();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    assert!(names.iter().all(|name| find(name).is_some()));
}
