//! A draft model that guesses with parts of its model: it computes on the model's own backend, behind the model's newest state and
//! beside its cache. So it has nothing to read of a text, keeps nothing, and forgets nothing.

use std::collections::HashMap;
use std::time::Instant;

use puna_graph::StepInput;
use puna_models::Want;

use super::model::{Answers, CONFIDENT, Question, TIMES, likeliest};
use super::newest::Newest;
use crate::error::EngineError;
use crate::pages::Pages;
use crate::sequence::JobId;
use crate::stepper::Stepper;

/// The draft model's view of all sequences.
pub struct Companion {
    /// Features of a hidden state.
    width: usize,
    /// The model's newest hidden state of each sequence that it writes.
    states: HashMap<JobId, State>,
    /// Seconds of a step of guesses.
    times: Newest,
}

/// What the model made of a token.
struct State {
    /// Tokens up to and with it.
    tokens: usize,
    features: Vec<f32>,
}

/// A sequence on its way through the rounds.
struct Asked {
    at: usize,
    token: u32,
    features: Vec<f32>,
    guess: Vec<u32>,
}

impl Companion {
    /// One that reads hidden states of so many features.
    pub fn new(width: usize) -> Self {
        Self { width, states: HashMap::new(), times: Newest::default() }
    }

    /// Seconds that guessing a token takes; nothing is known at first.
    pub fn token_seconds(&self) -> f64 {
        self.times.median().unwrap_or(0.0)
    }

    /// Takes note of the hidden state that a sequence's newest token is drawn from, a row of those that a step has handed out.
    pub fn computed(&mut self, id: JobId, tokens: usize, handed_out: &[f32], row: usize) {
        let state = &handed_out[row * self.width..][..self.width];
        let known = self.states.entry(id).or_insert_with(|| State { tokens, features: Vec::new() });
        known.tokens = tokens;
        known.features.clear();
        known.features.extend_from_slice(state);
    }

    /// Guesses for some sequences, a step for all of them at a time, as long as it is sure.
    pub fn ask(
        &mut self,
        questions: &[Question<'_>],
        (stepper, pages): (&mut Stepper, &Pages),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<Answers, EngineError> {
        let mut answers = Answers { guesses: vec![Vec::new(); questions.len()], guessing: 0.0 };
        let mut asked: Vec<Asked> =
            questions.iter().enumerate().filter_map(|(at, question)| self.begin(at, question)).collect();
        while !asked.is_empty() {
            let input = input(&asked, questions, pages);
            stepper.prepare(Want::Guess, &input)?;
            let start = Instant::now();
            let Some(cols) = stepper.run(Want::Guess, &input)? else { break };
            let seconds = start.elapsed().as_secs_f64();
            self.times.push(seconds, TIMES);
            answers.guessing += seconds;
            let states = stepper.backend.handed_out(0).chunks_exact(self.width);
            let rows = stepper.backend.result().chunks_exact(cols).zip(states);
            let mut going_on = Vec::with_capacity(asked.len());
            for (mut one, (row, state)) in asked.into_iter().zip(rows) {
                let question = &questions[one.at];
                let (token, chance) = likeliest(row);
                let is_sure = (chance >= CONFIDENT || question.always) && !is_end(token);
                if is_sure {
                    one.guess.push(token);
                    one.token = token;
                    one.features.copy_from_slice(state);
                }
                if is_sure && one.guess.len() < question.most {
                    going_on.push(one);
                } else {
                    answers.guesses[one.at] = one.guess;
                }
            }
            asked = going_on;
        }
        Ok(answers)
    }

    /// A sequence that can be guessed for: the state that its newest token was drawn from is known.
    fn begin(&self, at: usize, question: &Question<'_>) -> Option<Asked> {
        let state = self.states.get(&question.id)?;
        let &token = question.tokens.last()?;
        let is_newest = state.tokens + 1 == question.tokens.len();
        let asked = || Asked { at, token, features: state.features.clone(), guess: Vec::new() };
        (is_newest && question.most > 0).then(asked)
    }

    /// A sequence ends or starts anew.
    pub fn leave(&mut self, id: JobId) {
        self.states.remove(&id);
    }
}

/// A step of guesses. A row has the newest token's position and the place of the one before, whose keys and values are the last
/// in the cache.
fn input(asked: &[Asked], questions: &[Question<'_>], pages: &Pages) -> StepInput {
    let mut input = StepInput::default();
    for (row, one) in asked.iter().enumerate() {
        let question = &questions[one.at];
        let newest = question.tokens.len() - 1;
        input.tokens.push(one.token);
        input.positions.push(newest as u32);
        input.given.extend_from_slice(&one.features);
        input.segments.push(question.held.segment(pages, row, 1, newest - 1));
    }
    input
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::held::Held;

    #[test]
    fn only_the_state_that_the_newest_token_was_drawn_from_is_gone_on_with() {
        let mut companion = Companion::new(2);
        let held = Held::default();
        let question = |id, tokens, most| Question { id: JobId(id), tokens, most, always: true, held: &held };
        assert!(companion.begin(0, &question(1, &[5, 6], 3)).is_none(), "nothing is known");
        companion.computed(JobId(1), 1, &[1.0, 2.0, 3.0, 4.0], 1);
        let asked = companion.begin(0, &question(1, &[5, 6], 3)).unwrap();
        assert_eq!((asked.token, &asked.features[..]), (6, &[3.0, 4.0][..]));
        assert!(companion.begin(0, &question(1, &[5, 6, 7], 3)).is_none(), "a token more");
        assert!(companion.begin(0, &question(1, &[5, 6], 0)).is_none(), "nothing is asked for");
        companion.computed(JobId(1), 2, &[1.0, 2.0], 0);
        assert_eq!(companion.begin(0, &question(1, &[5, 6, 7], 3)).unwrap().features, [1.0, 2.0]);
        companion.leave(JobId(1));
        assert!(companion.begin(0, &question(1, &[5, 6, 7], 3)).is_none(), "it has left");
    }
}
