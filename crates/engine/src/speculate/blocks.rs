//! Draft models that guess a block of tokens at once: the newest token and masks for those that follow are rows of a step, behind
//! what the model's own steps have put into its cache for them. What depends on the token before it is decided token by token.

use std::time::Instant;

use puna_graph::StepInput;
use puna_models::{Block, Link, Want};

use super::model::{DraftRequest, DraftTokens, TIMES, likeliest};
use super::rolling_median::Newest;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::pages::Pages;

/// The draft model at work.
pub struct Blocks {
    form: Block,
    /// Seconds of a step that guesses blocks.
    steps: Newest,
    /// Seconds of one that links tokens.
    links: Newest,
}

/// A block of a sequence.
struct Asked {
    at: usize,
    /// The token before the one that is decided next.
    before: u32,
    /// Rows that say something, of those that are wanted.
    rows: usize,
    /// The first of them among the results of the step.
    first: usize,
    guess: Vec<u32>,
}

impl Asked {
    /// The row of the step's results that says the next token.
    fn row(&self) -> usize {
        self.first + self.guess.len()
    }
}

/// What a step of blocks has given: logits and states, row by row.
struct Given {
    logits: Vec<f32>,
    cols: usize,
    states: Vec<f32>,
}

impl Blocks {
    /// One that guesses blocks of this form.
    pub fn new(form: Block) -> Self {
        Self { form, steps: Newest::default(), links: Newest::default() }
    }

    /// Tokens that a block guesses.
    pub fn most(&self) -> usize {
        self.form.rows - self.form.first
    }

    /// Rows of a block.
    pub fn rows(&self) -> usize {
        self.form.rows
    }

    /// Seconds that a block takes, however many of its tokens are wanted; nothing is known at first.
    pub fn block_seconds(&self) -> f64 {
        self.steps.median().unwrap_or(0.0)
    }

    /// Seconds that each token of it takes beyond that.
    pub fn token_seconds(&self) -> f64 {
        self.links.median().unwrap_or(0.0)
    }

    /// Guesses for some sequences, all of them in one step, as far as it is sure.
    pub fn ask(
        &mut self,
        questions: &[DraftRequest<'_>],
        (executor, pages): (&mut ModelExecutor, &Pages),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        let mut answers = DraftTokens { guesses: vec![Vec::new(); questions.len()], guessing: 0.0 };
        let (input, mut asked) = self.input(questions, pages);
        if asked.is_empty() {
            return Ok(answers);
        }
        executor.prepare(Want::Guess, &input)?;
        let start = Instant::now();
        let Some(cols) = executor.run(Want::Guess, &input)? else { return Ok(answers) };
        let logits = executor.backend.result().to_vec();
        let given = Given { logits, cols, states: executor.backend.extra_output(0).to_vec() };
        answers.guessing = start.elapsed().as_secs_f64();
        self.steps.push(answers.guessing, TIMES);
        while !asked.is_empty() {
            let said = match self.form.link {
                Some(link) => self.linked(link, &given, &asked, executor, &mut answers)?,
                None => asked
                    .iter()
                    .map(|one| likeliest(row_of(&given.logits, cols, one.row())))
                    .collect(),
            };
            let mut going_on = Vec::with_capacity(asked.len());
            for (mut one, (entry, chance)) in asked.into_iter().zip(said) {
                let token = executor.model.guessed_token(entry as usize);
                let token = questions[one.at].takes(token, chance, &is_end).then_some(token);
                one.before = token.unwrap_or(one.before);
                if answers.goes_on(one.at, &mut one.guess, token, one.rows) {
                    going_on.push(one);
                }
            }
            asked = going_on;
        }
        Ok(answers)
    }

    /// The step of those that can be guessed for: there is room for the block, or a shorter one.
    fn input(&self, questions: &[DraftRequest<'_>], pages: &Pages) -> (StepInput, Vec<Asked>) {
        let (mut input, mut asked) = (StepInput::default(), Vec::new());
        for (at, question) in questions.iter().enumerate() {
            let Some((&before, computed)) = question.tokens.split_last() else { continue };
            let place = computed.len();
            let rows = self.form.rows.min(question.held.room().saturating_sub(place));
            let said = rows.saturating_sub(self.form.first).min(question.most);
            if said == 0 {
                continue;
            }
            let (first_row, first) = (input.tokens.len(), input.outputs.len());
            input.tokens.push(before);
            input.tokens.extend((1..rows).map(|_| self.form.mask));
            input.positions.extend((place..place + rows).map(|p| p as u32));
            input.segments.push(question.held.segment(pages, first_row, rows, place));
            let outputs = first_row + self.form.first..first_row + self.form.first + said;
            input.outputs.extend(outputs.map(|row| row as u32));
            asked.push(Asked { at, before, rows: said, first, guess: Vec::new() });
        }
        (input, asked)
    }

    /// For each block its next token with its chance, by the token before it.
    fn linked(
        &mut self,
        link: Link,
        given: &Given,
        asked: &[Asked],
        executor: &mut ModelExecutor,
        answers: &mut DraftTokens,
    ) -> Result<Vec<(u32, f32)>, EngineError> {
        let mut input = StepInput::default();
        for (row, one) in asked.iter().enumerate() {
            input.tokens.push(one.before);
            input.positions.push(row as u32);
            input.given.extend_from_slice(row_of(&given.states, link.state, one.row()));
        }
        input.segments = vec![puna_graph::Segment { rows: asked.len(), ..Default::default() }];
        executor.prepare(Want::Link, &input)?;
        let start = Instant::now();
        let cols = executor.run(Want::Link, &input)?.unwrap_or(0);
        let seconds = start.elapsed().as_secs_f64();
        self.links.push(seconds, TIMES);
        answers.guessing += seconds;
        let (added, sure) = (executor.backend.result(), executor.backend.extra_output(0));
        let decide = |(row, one): (usize, &Asked)| {
            let mut logits = row_of(&given.logits, given.cols, one.row()).to_vec();
            if let Some(choices) = link.choices {
                keep_likeliest(&mut logits, choices);
            }
            let added = row_of(added, cols, row);
            for (entry, logit) in logits.iter_mut().enumerate() {
                // What is added to a smaller vocabulary may be for all of the model's.
                let at = if cols == given.cols {
                    entry
                } else {
                    executor.model.guessed_token(entry) as usize
                };
                *logit += added.get(at).copied().unwrap_or(0.0);
            }
            let (entry, chance) = likeliest(&logits);
            let chance = if link.says_how_sure { 1.0 / (1.0 + (-sure[row]).exp()) } else { chance };
            (entry, chance)
        };
        Ok(asked.iter().enumerate().map(decide).collect())
    }
}

fn row_of(all: &[f32], cols: usize, row: usize) -> &[f32] {
    &all[row * cols..][..cols]
}

/// Leaves the largest `most` logits and makes the others impossible.
fn keep_likeliest(logits: &mut [f32], most: usize) {
    if most >= logits.len() {
        return;
    }
    let mut sorted = logits.to_vec();
    let (.., least, _) = sorted.select_nth_unstable_by(most.max(1) - 1, |a, b| b.total_cmp(a));
    let least = *least;
    logits.iter_mut().filter(|logit| **logit < least).for_each(|logit| *logit = f32::NEG_INFINITY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_likeliest_can_be_chosen() {
        let mut logits = [1.0, 5.0, -2.0, 4.0, 5.0];
        keep_likeliest(&mut logits, 3);
        assert_eq!(logits, [f32::NEG_INFINITY, 5.0, f32::NEG_INFINITY, 4.0, 5.0]);
        keep_likeliest(&mut logits, 9);
        assert_eq!(logits[3], 4.0);
    }
}
