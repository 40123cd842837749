//! Draft models that guess one token after the other with parts of their model: they compute on the model's own backend, beside its
//! cache, from a state that the model's step has handed out. One that has keys and values of its own follows what the model computes.

use std::collections::HashMap;
use std::time::Instant;

use puna_graph::{Segment, StepInput};
use puna_models::{Seen, Want};

use super::model::{DraftRequest, DraftTokens, TIMES, likeliest};
use super::rolling_median::Newest;
use super::source::Computed;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::pages::Pages;
use crate::sequence::JobId;
use crate::sequence_pages::SequencePages;

/// The draft model's view of all sequences.
pub struct Chain {
    /// Features of a state.
    width: usize,
    sees: Seen,
    /// The state that came with the newest computed token of each sequence that the model writes.
    states: HashMap<JobId, State>,
    /// What the newest step has computed and was not followed yet.
    pending: Vec<Pending>,
    /// Seconds of a step of guesses.
    times: Newest,
}

/// What the model made of a token.
struct State {
    /// Tokens up to and with it.
    tokens: usize,
    features: Vec<f32>,
}

/// Tokens of a sequence whose keys and values are to be kept.
struct Pending {
    id: JobId,
    /// Tokens before them.
    past: usize,
    /// The state that came with the token before each of them.
    states: Vec<f32>,
}

/// A sequence on its way through the rounds.
struct Asked {
    at: usize,
    token: u32,
    features: Vec<f32>,
    guess: Vec<u32>,
    most: usize,
}

impl Chain {
    /// One that reads states of so many features.
    pub fn new(width: usize, sees: Seen) -> Self {
        Self { width, sees, states: HashMap::new(), pending: Vec::new(), times: Newest::default() }
    }

    /// Whose keys and values guesses see.
    pub fn sees(&self) -> Seen {
        self.sees
    }

    /// Seconds that guessing a token takes; nothing is known at first.
    pub fn token_seconds(&self) -> f64 {
        self.times.median().unwrap_or(0.0)
    }

    /// Takes note of what a step has handed out for a sequence, of whose tokens `computed` are computed now.
    pub fn computed(&mut self, id: JobId, computed: usize, extra_output: &[f32], step: Computed) {
        let width = self.width;
        let all = match (self.sees, step.output) {
            (Seen::Own, _) => &extra_output[step.first * width..][..(computed - step.past) * width],
            (Seen::Model, Some(output)) => &extra_output[output * width..][..width],
            (Seen::Model, None) => return,
        };
        let Some(newest) = all.len().checked_sub(width) else { return };
        let known =
            self.states.entry(id).or_insert_with(|| State { tokens: 0, features: Vec::new() });
        if self.sees == Seen::Own {
            // Nothing came with what is before the text; what came with a token that others have computed is not known.
            let known_before = known.tokens == step.past && step.past > 0;
            let mut states =
                if known_before { std::mem::take(&mut known.features) } else { vec![0.0; width] };
            states.extend_from_slice(&all[..newest]);
            self.pending.push(Pending { id, past: step.past, states });
        }
        known.tokens = computed;
        known.features.clear();
        known.features.extend_from_slice(&all[newest..]);
    }

    /// Keeps keys and values of what the newest step has computed, before others may find its pages. `tokens_of` knows each
    /// sequence's tokens and pages.
    pub fn follow<'a>(
        &mut self,
        tokens_of: impl Fn(JobId) -> Option<(&'a [u32], &'a SequencePages)>,
        (executor, pages): (&mut ModelExecutor, &Pages),
    ) -> Result<(), EngineError> {
        let mut input = StepInput::default();
        for Pending { id, past, states } in self.pending.drain(..) {
            let Some((tokens, held)) = tokens_of(id) else { continue };
            let (first_row, rows) = (input.tokens.len(), states.len() / self.width);
            input.tokens.extend_from_slice(&tokens[past..past + rows]);
            input.positions.extend((past..past + rows).map(|p| p as u32));
            input.given.extend(states);
            input.segments.push(followed(held, pages, first_row, rows, past));
        }
        if !input.tokens.is_empty() {
            executor.run(Want::Follow, &input)?;
        }
        Ok(())
    }

    /// Guesses for some sequences, a step for all of them at a time, as long as it is sure.
    pub fn ask(
        &mut self,
        questions: &[DraftRequest<'_>],
        (executor, pages): (&mut ModelExecutor, &Pages),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        let mut answers = DraftTokens { guesses: vec![Vec::new(); questions.len()], guessing: 0.0 };
        let mut asked: Vec<Asked> = questions
            .iter()
            .enumerate()
            .filter_map(|(at, question)| self.begin(at, question))
            .collect();
        while !asked.is_empty() {
            let input = self.input(&asked, questions, pages);
            executor.prepare(Want::Guess, &input)?;
            let start = Instant::now();
            let Some(cols) = executor.run(Want::Guess, &input)? else { break };
            let seconds = start.elapsed().as_secs_f64();
            self.times.push(seconds, TIMES);
            answers.guessing += seconds;
            let states = executor.backend.extra_output(0).chunks_exact(self.width);
            let rows = executor.backend.result().chunks_exact(cols).zip(states);
            let mut going_on = Vec::with_capacity(asked.len());
            for (mut one, (row, state)) in asked.into_iter().zip(rows) {
                let question = &questions[one.at];
                let (entry, chance) = likeliest(row);
                let token = executor.model.guessed_token(entry as usize);
                let token = question.takes(token, chance, &is_end).then_some(token);
                if let Some(token) = token {
                    one.token = token;
                    one.features.copy_from_slice(state);
                }
                if answers.goes_on(one.at, &mut one.guess, token, one.most) {
                    going_on.push(one);
                }
            }
            asked = going_on;
        }
        Ok(answers)
    }

    /// A sequence that can be guessed for: the state that its newest token was drawn from is known, and there is room for what
    /// guesses keep.
    fn begin(&self, at: usize, question: &DraftRequest<'_>) -> Option<Asked> {
        let state = self.states.get(&question.id)?;
        let &token = question.tokens.last()?;
        let is_newest = state.tokens + 1 == question.tokens.len();
        let most = match self.sees {
            Seen::Model => question.most,
            Seen::Own => {
                question.most.min((question.held.room() + 1).saturating_sub(question.tokens.len()))
            }
        };
        let asked =
            || Asked { at, token, features: state.features.clone(), guess: Vec::new(), most };
        (is_newest && most > 0).then(asked)
    }

    /// A sequence ends or starts anew.
    pub fn leave(&mut self, id: JobId) {
        self.states.remove(&id);
        self.pending.retain(|pending| pending.id != id);
    }

    /// A step of guesses. A row that sees the model's keys and values has the newest token's position and the place of the one
    /// before, whose are the last in the cache; others are where their token is.
    fn input(&self, asked: &[Asked], questions: &[DraftRequest<'_>], pages: &Pages) -> StepInput {
        let mut input = StepInput::default();
        for (row, one) in asked.iter().enumerate() {
            let question = &questions[one.at];
            let newest = question.tokens.len() - 1;
            let (position, segment) = match self.sees {
                Seen::Model => (newest, question.held.segment(pages, row, 1, newest - 1)),
                Seen::Own => {
                    let place = newest + one.guess.len();
                    (place, followed(question.held, pages, row, 1, place))
                }
            };
            input.tokens.push(one.token);
            input.positions.push(position as u32);
            input.given.extend_from_slice(&one.features);
            input.segments.push(segment);
            input.outputs.push(row as u32);
        }
        input
    }
}

/// The part of a step that follows a sequence: no state came with what is before its first token, which is not seen.
fn followed(
    held: &SequencePages,
    pages: &Pages,
    first_row: usize,
    rows: usize,
    past: usize,
) -> Segment {
    Segment { encoded: 1, ..held.segment(pages, first_row, rows, past) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question<'a>(
        id: u64,
        tokens: &'a [u32],
        most: usize,
        held: &'a SequencePages,
    ) -> DraftRequest<'a> {
        DraftRequest { id: JobId(id), tokens, most, always: true, held }
    }

    fn output(row: usize) -> Computed {
        Computed { past: 0, first: 0, output: Some(row) }
    }

    #[test]
    fn only_the_state_that_the_newest_token_was_drawn_from_is_gone_on_with() {
        let mut chain = Chain::new(2, Seen::Model);
        let held = SequencePages::default();
        let question = |id, tokens, most| question(id, tokens, most, &held);
        assert!(chain.begin(0, &question(1, &[5, 6], 3)).is_none(), "nothing is known");
        chain.computed(JobId(1), 1, &[1.0, 2.0, 3.0, 4.0], output(1));
        let asked = chain.begin(0, &question(1, &[5, 6], 3)).unwrap();
        assert_eq!((asked.token, &asked.features[..]), (6, &[3.0, 4.0][..]));
        assert!(chain.begin(0, &question(1, &[5, 6, 7], 3)).is_none(), "a token more");
        assert!(chain.begin(0, &question(1, &[5, 6], 0)).is_none(), "nothing is asked for");
        chain.computed(JobId(1), 2, &[1.0, 2.0], output(0));
        assert_eq!(chain.begin(0, &question(1, &[5, 6, 7], 3)).unwrap().features, [1.0, 2.0]);
        chain.leave(JobId(1));
        assert!(chain.begin(0, &question(1, &[5, 6, 7], 3)).is_none(), "it has left");
    }

    #[test]
    fn what_is_kept_of_a_token_is_made_with_the_state_of_the_one_before() {
        let mut chain = Chain::new(1, Seen::Own);
        let computed = |chain: &mut Chain, past, computed, extra_output: &[f32], first| {
            chain.computed(
                JobId(1),
                computed,
                extra_output,
                Computed { past, first, output: None },
            );
            let pending = chain.pending.pop().unwrap();
            (pending.past, pending.states)
        };
        // Rows of another sequence are before, and one behind that did not come true.
        let extra_output = [9.0, 1.0, 2.0, 3.0, 8.0];
        assert_eq!(computed(&mut chain, 0, 3, &extra_output, 1), (0, vec![0.0, 1.0, 2.0]));
        assert_eq!(computed(&mut chain, 3, 4, &[4.0], 0), (3, vec![3.0]));
        assert_eq!(computed(&mut chain, 4, 6, &[5.0, 6.0], 0), (4, vec![4.0, 5.0]));
        // What lies between is what others have computed.
        assert_eq!(computed(&mut chain, 64, 66, &[5.0, 6.0], 0), (64, vec![0.0, 5.0]));
        chain.leave(JobId(1));
        assert_eq!(computed(&mut chain, 66, 67, &[7.0], 0), (66, vec![0.0]));
    }

    #[test]
    fn guesses_that_keep_something_end_where_there_is_no_room() {
        let held = SequencePages::default();
        let mut chain = Chain::new(1, Seen::Own);
        chain.computed(JobId(1), 1, &[1.0], Computed { past: 0, first: 0, output: None });
        assert!(chain.begin(0, &question(1, &[5, 6], 3, &held)).is_none());
    }
}
