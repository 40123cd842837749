//! The speculation of one sequence: its index, its record, its newest guess.

use super::record::Record;
use super::{Drafter, Guess, Kind, Speculated, Speculation};

/// A guess that no step checked: what it would have been worth shows all the same, as the tokens come.
#[derive(Debug)]
struct Unchecked {
    guess: Guess,
    /// Tokens before it.
    at: usize,
}

/// What a sequence needs for guessing.
pub struct Guesser {
    pub speculation: Speculation,
    lookup: Box<dyn Drafter>,
    pub record: Record,
    unchecked: Option<Unchecked>,
    pub counts: Speculated,
}

impl Guesser {
    pub fn new(speculation: Speculation, lookup: Box<dyn Drafter>) -> Self {
        let (record, counts) = (Record::of_sequence(), Speculated::default());
        Self { speculation, lookup, record, unchecked: None, counts }
    }

    /// Guesses at most `most` tokens from the text. None of them is an end: nothing follows one.
    pub fn look_up(
        &mut self,
        tokens: &[u32],
        most: usize,
        is_end: impl Fn(u32) -> bool,
    ) -> Option<Guess> {
        if !self.speculation.lookup || most == 0 {
            return None;
        }
        let mut guess = self.lookup.draft(tokens, most)?;
        let known =
            guess.tokens.iter().position(|&token| is_end(token)).unwrap_or(guess.tokens.len());
        guess.tokens.truncate(known.min(most));
        (!guess.tokens.is_empty()).then_some(guess)
    }

    /// Keeps a guess that no step checks.
    pub fn keep(&mut self, guess: Guess, tokens: &[u32]) {
        // One that is being watched says more than its own beginning.
        if self.unchecked.is_none() {
            self.unchecked = Some(Unchecked { guess, at: tokens.len() });
        }
    }

    /// Compares the kept guess with what came.
    pub fn settle(&mut self, tokens: &[u32], all: &mut Record) {
        let Some(Unchecked { guess, at }) = &self.unchecked else { return };
        let came = &tokens[(*at).min(tokens.len())..];
        let equal = guess.tokens.iter().zip(came).take_while(|(a, b)| a == b).count();
        if equal == guess.tokens.len() || equal < came.len() {
            let (kind, guessed) = (guess.kind, guess.tokens.len());
            self.unchecked = None;
            self.note(kind, guessed, equal, all);
        }
    }

    /// Takes note of what a step made of a guess.
    pub fn checked(&mut self, kind: Kind, guessed: usize, accepted: usize, all: &mut Record) {
        self.unchecked = None;
        self.note(kind, guessed, accepted, all);
    }

    fn note(&mut self, kind: Kind, guessed: usize, accepted: usize, all: &mut Record) {
        self.record.note(kind, guessed, accepted);
        all.note(kind, guessed, accepted);
    }

    /// The text has changed at its beginning.
    pub fn forget(&mut self) {
        self.lookup.forget();
        self.unchecked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::lookup::Lookup;

    fn guesser(speculation: Speculation) -> Guesser {
        Guesser::new(speculation, Box::new(Lookup::default()))
    }

    #[test]
    fn no_guess_goes_on_behind_an_end() {
        let text = [1, 2, 3, 99, 4, 5, 1, 2];
        let guess = guesser(Speculation::AUTO).look_up(&text, 4, |t| t == 99).unwrap();
        assert_eq!(guess.tokens, [3]);
        assert_eq!(guesser(Speculation::AUTO).look_up(&text, 4, |t| t == 3), None);
    }

    #[test]
    fn what_is_switched_off_guesses_nothing() {
        assert_eq!(guesser(Speculation::OFF).look_up(&[1, 2, 3, 1, 2], 4, |_| false), None);
    }

    #[test]
    fn guesses_that_were_not_checked_are_judged_by_what_came() {
        let mut all = Record::of_loop();
        let mut guesser = guesser(Speculation::AUTO);
        let before = guesser.record.chance(Kind::Short, &all);
        let guess = Guess { tokens: vec![5, 6], kind: Kind::Short };
        guesser.keep(guess.clone(), &[1]);
        guesser.settle(&[1, 5], &mut all);
        assert_eq!(guesser.record.chance(Kind::Short, &all), before, "still open");
        guesser.settle(&[1, 5, 6], &mut all);
        let good = guesser.record.chance(Kind::Short, &all);
        assert!(good > before);
        guesser.keep(guess, &[1]);
        guesser.settle(&[1, 9], &mut all);
        assert!(guesser.record.chance(Kind::Short, &all) < good);
        assert_eq!(guesser.counts, Speculated::default(), "no step checked them");
    }
}
