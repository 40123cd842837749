//! Stop strings in a stream of text.

/// Result of pushing a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopEvent {
    /// Text that may be sent. It is not part of a stop string, whatever follows.
    pub emit: String,
    /// Index of the stop string that was found. The text before it is in `emit`. The stop string
    /// and all text after it are dropped, and the generation ends.
    pub stopped: Option<usize>,
}

/// Maximum number of stop strings.
const MAX_STOPS: usize = 256;
/// Maximum length of a stop string in bytes. A token is compared with each beginning of each string
/// that the held-back text can have.
const MAX_STOP_BYTES: usize = 1024;

/// Checks the number and the lengths of stop strings.
///
/// # Errors
/// The limit that is exceeded.
pub fn check_stops(stops: &[String]) -> Result<(), String> {
    if stops.len() > MAX_STOPS {
        return Err(format!("{} stop strings: use at most {MAX_STOPS}", stops.len()));
    }
    let longest = stops.iter().map(String::len).max().unwrap_or(0);
    match longest > MAX_STOP_BYTES {
        true => Err(format!("a stop string of {longest} bytes: use at most {MAX_STOP_BYTES}")),
        false => Ok(()),
    }
}

/// Finds stop strings across token boundaries, and holds back text that may be the start of one.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

impl StopMatcher {
    /// Makes a matcher for a list of strings. Empty strings never match.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Adds the text of the next token. The stop string that starts first wins; of those that start
    /// together, the first in the list. Do not push more text after a match.
    pub fn push(&mut self, text: &str) -> StopEvent {
        if self.held.is_empty() && self.stops.is_empty() {
            return StopEvent { emit: text.to_owned(), stopped: None };
        }
        self.held.push_str(text);
        let found = self.stops().filter_map(|(i, stop)| Some((self.held.find(stop)?, i))).min();
        if let Some((at, index)) = found {
            let mut emit = std::mem::take(&mut self.held);
            emit.truncate(at);
            return StopEvent { emit, stopped: Some(index) };
        }
        let safe = self.held.len() - self.longest_partial_match();
        let held = self.held.split_off(safe);
        StopEvent { emit: std::mem::replace(&mut self.held, held), stopped: None }
    }

    /// Returns the held-back text at the end of the generation.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Held-back text that may be the start of a stop string.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// Length of the longest suffix of the held-back text that is a prefix of some stop string.
    fn longest_partial_match(&self) -> usize {
        let partial_match_len = |stop: &str| {
            let max = stop.len().saturating_sub(1).min(self.held.len());
            let is_held = |n: &usize| stop.is_char_boundary(*n) && self.held.ends_with(&stop[..*n]);
            (1..=max).rev().find(is_held).unwrap_or(0)
        };
        self.stops().map(|(_, stop)| partial_match_len(stop)).max().unwrap_or(0)
    }

    fn stops(&self) -> impl Iterator<Item = (usize, &str)> {
        self.stops.iter().map(String::as_str).enumerate().filter(|(_, stop)| !stop.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All emitted text for some pieces, and the index of the stop string that was found.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        for piece in pieces {
            let event = matcher.push(piece);
            out.push_str(&event.emit);
            if event.stopped.is_some() {
                return (out, event.stopped);
            }
        }
        (out + &matcher.finish(), None)
    }

    #[test]
    fn many_or_long_stop_strings_are_refused() {
        let ok = |stops: &[String]| check_stops(stops).is_ok();
        assert!(ok(&vec!["a".repeat(MAX_STOP_BYTES); MAX_STOPS]));
        assert!(!ok(&vec![String::new(); MAX_STOPS + 1]) && !ok(&["a".repeat(MAX_STOP_BYTES + 1)]));
    }

    #[test]
    fn a_stop_string_inside_a_token_cuts_the_token() {
        assert_eq!(
            run(&["ris"], &["The capital is", " Paris", "."]),
            ("The capital is Pa".into(), Some(0))
        );
    }

    #[test]
    fn a_stop_string_may_span_three_tokens() {
        assert_eq!(run(&["\n\nUser:"], &["Hi\n", "\nUs", "er: more"]), ("Hi".into(), Some(0)));
    }

    #[test]
    fn a_stop_string_of_characters_of_several_bytes_is_found() {
        assert_eq!(run(&["→終"], &["a→", "終b"]), ("a".into(), Some(0)));
        assert_eq!(run(&["é"], &["cafe", "é!"]), ("cafe".into(), Some(0)));
    }

    #[test]
    fn the_earliest_of_overlapping_stop_strings_wins_and_then_the_first_listed() {
        assert_eq!(run(&["b", "ab"], &["xab"]), ("x".into(), Some(1)));
        assert_eq!(run(&["ab", "b"], &["xa", "b"]), ("x".into(), Some(0)));
        assert_eq!(run(&["a", "ab"], &["xab"]), ("x".into(), Some(0)));
    }

    #[test]
    fn only_possible_starts_of_a_stop_string_are_held_back() {
        let mut matcher = StopMatcher::new(vec!["<end>".into()]);
        assert_eq!(matcher.push("text <e").emit, "text ");
        assert_eq!(matcher.held(), "<e");
        assert_eq!(matcher.push("m> and <").emit, "<em> and ");
        assert_eq!(matcher.finish(), "<");
    }

    #[test]
    fn empty_stop_strings_never_match_but_keep_their_index() {
        assert_eq!(run(&["", "x"], &["ab", "cx"]), ("abc".into(), Some(1)));
        assert_eq!(run(&[""], &["ab"]), ("ab".into(), None));
        assert_eq!(run(&[], &["ab", "c"]), ("abc".into(), None));
    }

    proptest! {
        #[test]
        fn splitting_a_text_does_not_change_the_emitted_text(
            text in "[abé]{0,24}", stop in "[abé]{1,4}", cuts in prop::collection::vec(0usize..24, 0..6),
        ) {
            let want = match text.find(&stop) {
                Some(at) => (text[..at].to_owned(), Some(0)),
                None => (text.clone(), None),
            };
            let mut cuts: Vec<usize> = cuts.iter().map(|&c| text.floor_char_boundary(c)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(run(&[&stop], &pieces), want);
        }
    }
}
