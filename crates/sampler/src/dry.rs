//! DRY ("don't repeat yourself"): the longer the sequence that a token would repeat, the larger its
//! penalty.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

use crate::candidates::Candidates;
use crate::vocab::Vocab;

/// Longest breaker string in bytes, and longest tail of its expansion in tokens.
const MAX_BREAKER_BYTES: usize = 40;
const MAX_TAIL_TOKENS: usize = 20;
/// `ln` of the largest f32. `base^exponent` stays below it.
const LN_F32_MAX: f32 = 88.722_84;

/// DRY sampler with its window of history.
#[derive(Clone)]
pub(crate) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    last_n: usize,
    breakers: SequenceBreakers,
    window: VecDeque<u32>,
    buffers: RepeatBuffers,
}

/// Buffers of one step, kept to avoid allocations.
#[derive(Clone, Default)]
struct RepeatBuffers {
    /// The window, newest token first.
    recent: Vec<u32>,
    /// For each k: number of tokens up to and including position k that equal the newest tokens.
    repeats: Vec<usize>,
    /// For each token: the longest repeat that it would continue.
    longest: HashMap<u32, usize>,
}

impl Dry {
    /// Returns `None` if the sampler is off.
    pub(crate) fn new(
        multiplier: f32,
        base: f32,
        allowed_length: i32,
        last_n: i32,
        breakers: SequenceBreakers,
    ) -> Option<Self> {
        let last_n = usize::try_from(last_n).ok().filter(|&n| n > 0)?;
        let allowed_length = usize::try_from(allowed_length).unwrap_or(0);
        let on = multiplier != 0.0 && base >= 1.0;
        let (window, buffers) = Default::default();
        on.then_some(Self { multiplier, base, allowed_length, last_n, breakers, window, buffers })
    }

    pub(crate) fn accept(&mut self, token: u32) {
        if self.window.len() == self.last_n {
            self.window.pop_front();
        }
        self.window.push_back(token);
    }

    pub(crate) fn apply_to_logits(&mut self, logits: &mut [f32]) {
        self.find_repeats();
        for (&id, &length) in &self.buffers.longest {
            if let Some(l) = logits.get_mut(id as usize) {
                *l -= self.penalty(id, length);
            }
        }
    }

    pub(crate) fn apply(&mut self, cands: &mut Candidates) {
        self.find_repeats();
        for c in cands.list_mut() {
            if let Some(&length) = self.buffers.longest.get(&c.id) {
                c.logit -= self.penalty(c.id, length);
            }
        }
    }

    /// Fills `buffers.longest`.
    fn find_repeats(&mut self) {
        let RepeatBuffers { recent, repeats, longest } = &mut self.buffers;
        longest.clear();
        if self.window.len() <= self.allowed_length {
            return;
        }
        recent.clear();
        recent.extend(self.window.iter().rev());
        let limit = self.breakers.tokens_since(recent);
        if limit < self.allowed_length {
            return;
        }
        common_prefixes(recent, repeats);
        // The token that followed position k, counted from the end, is at k − 1.
        for (pair, &repeat) in recent.windows(2).zip(&repeats[1..]) {
            let length = repeat.min(limit);
            if length >= self.allowed_length {
                let longest = longest.entry(pair[0]).or_default();
                *longest = length.max(*longest);
            }
        }
    }

    /// `multiplier · base^(length − allowed)`, with an exponent that cannot overflow.
    fn penalty(&self, token: u32, length: usize) -> f32 {
        if self.breakers.is_single(token) {
            return 0.0;
        }
        let cap = if self.base > 1.000_001 { (LN_F32_MAX / self.base.ln()) as usize } else { 0 };
        let exponent = length - self.allowed_length;
        let exponent = if cap > 0 { exponent.min(cap) } else { exponent };
        (f64::from(self.multiplier) * f64::from(self.base).powf(exponent as f64)) as f32
    }
}

/// Z-algorithm: `z[k]` is the length of the longest common prefix of `s` and `s[k..]`.
fn common_prefixes(s: &[u32], z: &mut Vec<usize>) {
    z.clear();
    z.resize(s.len(), 0);
    let (mut left, mut right) = (0, 0);
    for k in 1..s.len() {
        let inside = if k < right { z[k - left].min(right - k) } else { 0 };
        let more = s[inside..].iter().zip(&s[k + inside..]).take_while(|(a, b)| a == b).count();
        z[k] = inside + more;
        if k + z[k] > right {
            (left, right) = (k, k + z[k]);
        }
    }
}

/// Token sequences that end a repeat: matches do not extend across them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SequenceBreakers {
    /// For each head token: the tails that complete a breaker. An empty tail makes the head alone a
    /// breaker.
    tails: HashMap<u32, Vec<Vec<u32>>>,
}

impl SequenceBreakers {
    #[cfg(test)]
    pub(crate) fn from_sequences(sequences: &[Vec<u32>]) -> Self {
        let mut breakers = Self::default();
        for (head, tail) in sequences.iter().filter_map(|s| s.split_first()) {
            breakers.add(*head, tail.to_vec());
        }
        breakers
    }

    /// Expands strings over a vocabulary. A token that contains a string is a breaker alone. A
    /// token that ends in the start of a string is a breaker when the rest of the string,
    /// tokenized, follows.
    pub(crate) fn from_strings(strings: &[String], vocab: &dyn Vocab) -> Self {
        let mut breakers = Self::default();
        let strings: Vec<&str> =
            strings.iter().map(|s| truncate_breaker(s)).filter(|s| !s.is_empty()).collect();
        for id in 0..vocab.n_tokens() as u32 {
            let piece = vocab.piece(id, true);
            for string in &strings {
                breakers.add_token(id, &piece, string, vocab);
            }
        }
        breakers
    }

    fn add_token(&mut self, id: u32, piece: &[u8], string: &str, vocab: &dyn Vocab) {
        let string = string.as_bytes();
        if piece.windows(string.len()).any(|w| w == string) {
            self.add(id, Vec::new());
            return;
        }
        let longest = piece.len().min(string.len() - 1);
        for n in (1..=longest).rev().filter(|&n| piece.ends_with(&string[..n])) {
            let rest: Cow<'_, str> = String::from_utf8_lossy(&string[n..]);
            let mut tail = vocab.tokenize(&rest);
            tail.truncate(MAX_TAIL_TOKENS);
            self.add(id, tail);
        }
    }

    fn add(&mut self, head: u32, tail: Vec<u32>) {
        let tails = self.tails.entry(head).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    /// Number of newest tokens after the last breaker; the whole length if there is none.
    fn tokens_since(&self, recent: &[u32]) -> usize {
        let tokens_since_breaker_at = |i: usize| {
            let tails = self.tails.get(&recent[i])?;
            let follows = |tail: &&Vec<u32>| {
                tail.len() <= i && tail.iter().eq(recent[i - tail.len()..i].iter().rev())
            };
            tails.iter().filter(follows).map(Vec::len).max().map(|n| i - n)
        };
        (0..recent.len()).find_map(tokens_since_breaker_at).unwrap_or(recent.len())
    }

    fn is_single(&self, token: u32) -> bool {
        self.tails.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }
}

/// At most [`MAX_BREAKER_BYTES`] bytes of a string, in whole characters.
fn truncate_breaker(s: &str) -> &str {
    &s[..s.floor_char_boundary(MAX_BREAKER_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vocabulary of the given words. Tokenizes greedily, longest word first.
    struct WordVocab(Vec<&'static str>);

    impl Vocab for WordVocab {
        fn n_tokens(&self) -> usize {
            self.0.len()
        }
        fn piece(&self, id: u32, _special: bool) -> Cow<'_, [u8]> {
            Cow::Borrowed(self.0[id as usize].as_bytes())
        }
        fn tokenize(&self, text: &str) -> Vec<u32> {
            let mut rest = text;
            let mut ids = Vec::new();
            while !rest.is_empty() {
                let fits = |(_, w): &(usize, &&str)| rest.starts_with(**w);
                let best = self.0.iter().enumerate().filter(fits).max_by_key(|(_, w)| w.len());
                let Some((id, word)) = best else { break };
                ids.push(id as u32);
                rest = &rest[word.len()..];
            }
            ids
        }
        fn is_end(&self, _id: u32) -> bool {
            false
        }
        fn end_of_turn(&self) -> Option<u32> {
            None
        }
    }

    #[test]
    fn breaker_strings_are_expanded_over_the_vocabulary() {
        let vocab = WordVocab(vec!["a", ":", "x:y", "<", "|end|", "|", "end", "b<", "<|"]);
        let single = SequenceBreakers::from_strings(&[":".into()], &vocab);
        assert_eq!(single, SequenceBreakers::from_sequences(&[vec![1], vec![2]]));

        let tag = SequenceBreakers::from_strings(&["<|end|".into()], &vocab);
        let (lt, bar_end_bar, b_lt, lt_bar) = (3, 4, 7, 8);
        let (bar, end) = (5, 6);
        let want = [vec![lt, bar_end_bar], vec![b_lt, bar_end_bar], vec![lt_bar, end, bar]];
        assert_eq!(tag, SequenceBreakers::from_sequences(&want));
    }

    #[test]
    fn empty_and_very_long_breaker_strings_are_handled() {
        let vocab = WordVocab(vec!["a", "é"]);
        assert_eq!(
            SequenceBreakers::from_strings(&[String::new()], &vocab),
            SequenceBreakers::default()
        );
        let long = SequenceBreakers::from_strings(&["é".repeat(1000)], &vocab);
        let tail = vec![1; 19];
        assert_eq!(long.tails[&1], vec![tail]);
    }

    #[test]
    fn common_prefixes_match_the_textbook_example() {
        let mut z = Vec::new();
        common_prefixes(&[1, 1, 2, 3, 1, 1, 2, 24, 1, 1, 1, 2], &mut z);
        assert_eq!(z, [0, 1, 0, 0, 3, 1, 0, 0, 2, 3, 1, 0]);
    }
}
