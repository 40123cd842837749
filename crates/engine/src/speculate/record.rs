//! How often guesses came true.

use super::Kind;

/// What a new kind of guess is believed to be worth before anything is known.
const FIRST: [f64; Kind::COUNT] = [0.3, 0.5, 0.8, 0.6];
/// Weight of what was believed before, in guessed tokens.
const BELIEF: f64 = 3.0;
/// A sequence remembers about its last ten guesses, the loop about its last hundred.
const SEQUENCE_MEMORY: f64 = 0.9;
const LOOP_MEMORY: f64 = 0.99;

/// Tokens that were guessed and those that came true, the older the less they count.
#[derive(Debug, Clone, Copy, Default)]
struct Score {
    tried: f64,
    true_: f64,
}

/// Scores by kind of guess.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    scores: [Score; Kind::COUNT],
    memory: f64,
}

impl Record {
    /// Of one sequence.
    pub fn of_sequence() -> Self {
        Self { scores: Default::default(), memory: SEQUENCE_MEMORY }
    }

    /// Of all sequences, which a new one starts from.
    pub fn of_loop() -> Self {
        Self { scores: Default::default(), memory: LOOP_MEMORY }
    }

    /// Takes note of a guess of `guessed` tokens whose first `accepted` came true. Those behind the first wrong one say
    /// nothing: they continued another text.
    pub fn note(&mut self, kind: Kind, guessed: usize, accepted: usize) {
        let score = &mut self.scores[kind as usize];
        score.tried =
            score.tried * self.memory + (accepted + usize::from(accepted < guessed)) as f64;
        score.true_ = score.true_ * self.memory + accepted as f64;
    }

    /// The chance that a guessed token comes true after all before it did.
    pub fn chance(&self, kind: Kind, all: &Record) -> f64 {
        let before = all.mixed(kind, FIRST[kind as usize]);
        self.mixed(kind, before)
    }

    fn mixed(&self, kind: Kind, before: f64) -> f64 {
        let score = self.scores[kind as usize];
        (score.true_ + BELIEF * before) / (score.tried + BELIEF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_follow_what_happened() {
        let all = Record::of_loop();
        let mut own = Record::of_sequence();
        let start = own.chance(Kind::Short, &all);
        (0..30).for_each(|_| own.note(Kind::Short, 3, 3));
        assert!(own.chance(Kind::Short, &all) > 0.9 && start < 0.5);
        (0..30).for_each(|_| own.note(Kind::Short, 3, 0));
        assert!(own.chance(Kind::Short, &all) < 0.2);
        let other = own.chance(Kind::Long, &all);
        assert!((other - FIRST[Kind::Long as usize]).abs() < 1e-9, "kinds are apart");
    }

    #[test]
    fn a_new_sequence_starts_from_the_experience_of_others() {
        let mut all = Record::of_loop();
        (0..100).for_each(|_| all.note(Kind::Model, 3, 0));
        assert!(Record::of_sequence().chance(Kind::Model, &all) < 0.1);
    }

    #[test]
    fn tokens_behind_the_first_wrong_one_do_not_count() {
        let all = Record::of_loop();
        let (mut one, mut ten) = (Record::of_sequence(), Record::of_sequence());
        one.note(Kind::Long, 1, 0);
        ten.note(Kind::Long, 10, 0);
        assert_eq!(one.chance(Kind::Long, &all), ten.chance(Kind::Long, &all));
    }
}
