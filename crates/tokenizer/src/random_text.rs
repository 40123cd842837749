//! Reproducible random text for tests.

/// Pseudo-random number generator (SplitMix64).
pub(crate) struct Random(u64);

/// Characters that are difficult for pre-tokenizers, by kind: words, contractions, scripts, digits
/// of other scripts, white space, marks, joiners, symbols, controls, unassigned code points.
const ALPHABETS: [&str; 14] = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIZ",
    "'sS'tT're'VE'll'LL'd'm",
    " \t\n\r\u{b}\u{c}  \n",
    "0123456789",
    ".,:;!?-_/\\()[]{}<>@#$%^&*+=~`|\"",
    "éÀñßçØøÅœΩλжЯЪԱաⴀǅʰªƻ",
    "中文字汉龥一鿿㐀𠀀々〇豈",
    "ひらカナーㄅㄯㄱㆎ가힣ᄀ각",
    "ไทยລາວខ្មမြहिन्दी",
    "٠١٢۳४५Ⅷ½²①",
    "\u{a0}\u{85}\u{1680}\u{2003}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}",
    "\u{301}\u{308}\u{20dd}\u{fe0f}\u{200d}\u{200b}\u{feff}\u{ad}",
    "😀👩❤€£¥©→∑…“”‘’—：；，、！。",
    "\u{0}\u{1}\u{7f}\u{378}\u{e000}\u{10ffff}\u{fffd}\u{17f}\u{212a}\u{800}",
];

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// About `length` characters in short runs of one alphabet or one character.
    pub(crate) fn text(&mut self, length: usize) -> String {
        let mut text = String::new();
        let mut left = length;
        while left > 0 {
            let alphabet: Vec<char> = ALPHABETS[self.below(ALPHABETS.len())].chars().collect();
            let run = (1 + self.below(5)).min(left);
            let one = (self.below(4) == 0).then(|| alphabet[self.below(alphabet.len())]);
            text.extend(
                (0..run).map(|_| one.unwrap_or_else(|| alphabet[self.below(alphabet.len())])),
            );
            left -= run;
        }
        text
    }
}
