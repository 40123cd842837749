//! The loop's side of speculation: which sequences get how many guesses in a step, and what came of them.

use std::time::Duration;

use puna_tokenizer::Tokenizer;

use super::cost_model::{Bounds, CostModel, DraftProposal, all_of};
use super::model::DraftRequest;
use super::record::Record;
use super::source::{Computed, Source};
use super::{Guess, Kind, Speculated};
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::pages::Pages;
use crate::sequence::{JobId, Sequence};

/// By how much likelier the draft model's guesses must be than those from the text, which cost nothing.
const BETTER: f64 = 0.15;

/// Bounds that the loop sets.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Tokens of a context.
    pub n_ctx: usize,
    /// Rows of a step.
    pub rows: usize,
    /// How long a step should be at most where several wait for it.
    pub target: Duration,
}

/// A step without prompts, after it ran.
#[derive(Debug, Clone, Copy)]
pub struct StepTiming {
    pub sequences: usize,
    pub rows: usize,
    pub seconds: f64,
    pub accepted: usize,
}

/// Guesses for all sequences.
pub struct Speculator {
    cost_model: CostModel,
    record: Record,
    source: Option<Source>,
    /// Rows of a step whose results do not depend on each other's company.
    max_bit_exact_rows: usize,
    /// Seconds that the draft model took for the guesses of this step.
    guessing: f64,
    pub counts: Speculated,
}

/// Where a sequence's guess is to come from.
enum Plan {
    Nothing,
    Known(Guess),
    Ask,
}

impl Speculator {
    pub fn new(max_bit_exact_rows: usize, source: Option<Source>) -> Self {
        let (cost_model, record, counts) =
            (CostModel::default(), Record::of_loop(), Speculated::default());
        Self { cost_model, record, source, max_bit_exact_rows, guessing: 0.0, counts }
    }

    /// Guesses for a step of these sequences, all of which only lack their newest token, and have room for it. `model` runs them, and
    /// has their pages.
    ///
    /// # Errors
    /// The draft model cannot be computed.
    pub fn guess(
        &mut self,
        company: &mut [&mut Sequence],
        tokenizer: &Tokenizer,
        limits: Limits,
        model: (&mut ModelExecutor, &mut Pages),
    ) -> Result<Vec<(JobId, Guess)>, EngineError> {
        self.guessing = 0.0;
        let n = company.len();
        let rows = limits.rows.min(self.max_bit_exact_rows);
        if n >= rows {
            return Ok(Vec::new());
        }
        let mut offers = Vec::with_capacity(n);
        let mut plans = Vec::with_capacity(n);
        for s in company.iter_mut() {
            let most = s.guesses_at_most(limits.n_ctx).min(rows - n);
            let (plan, offer) = self.plan(s, most, tokenizer);
            plans.push(plan);
            offers.push(offer);
        }
        self.cost_model.meet(
            company.iter().fold(n as u64, |all, s| all.wrapping_mul(31).wrapping_add(s.id.0)),
        );
        let bounds = Bounds { rows, target: limits.target };
        let taken = match company.iter().all(|s| s.guesser.speculation.always) {
            true => all_of(&offers, rows),
            false => self.cost_model.decide(&offers, bounds),
        };
        self.ask(company, &mut plans, &taken, (tokenizer, limits.n_ctx), model)?;
        let mut chosen = Vec::new();
        for ((s, plan), taken) in company.iter_mut().zip(plans).zip(taken) {
            match plan {
                Plan::Known(mut guess) if taken > 0 => {
                    guess.tokens.truncate(taken);
                    chosen.push((s.id, guess));
                }
                Plan::Known(guess) => s.guesser.keep(guess, &s.tokens),
                Plan::Nothing | Plan::Ask => {}
            }
        }
        Ok(chosen)
    }

    /// Where a sequence's guess may come from, and what it may be worth.
    fn plan(
        &mut self,
        s: &mut Sequence,
        most: usize,
        tokenizer: &Tokenizer,
    ) -> (Plan, DraftProposal) {
        s.guesser.settle(&s.tokens, &mut self.record);
        let found = s.guesser.look_up(&s.tokens, most, |token| tokenizer.is_eog(token));
        let chance = |kind| s.guesser.record.chance(kind, &self.record);
        let known = found.as_ref().map_or(0.0, |guess| chance(guess.kind));
        let asks = s.guesser.speculation.draft && most > 0;
        match (found, self.source.as_ref().filter(|_| asks)) {
            (found, Some(source)) if found.is_none() || chance(Kind::Model) > known + BETTER => {
                let offer = DraftProposal::new(most.min(source.most()), chance(Kind::Model));
                let (making, before) =
                    (source.token_seconds(), source.first_seconds(s.id, &s.tokens));
                (Plan::Ask, DraftProposal { making, before, ..offer })
            }
            (Some(guess), _) => {
                let offer = DraftProposal::new(guess.tokens.len(), known);
                (Plan::Known(guess), offer)
            }
            (None, _) => (Plan::Nothing, DraftProposal::default()),
        }
    }

    /// Asks the draft model for the sequences that are to have its guesses.
    fn ask(
        &mut self,
        company: &mut [&mut Sequence],
        plans: &mut [Plan],
        taken: &[usize],
        (tokenizer, n_ctx): (&Tokenizer, usize),
        (executor, pages): (&mut ModelExecutor, &mut Pages),
    ) -> Result<(), EngineError> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let asks = |i: &usize| matches!(plans[*i], Plan::Ask) && taken[*i] > 0;
        let who: Vec<usize> = (0..plans.len()).filter(asks).collect();
        if who.is_empty() {
            return Ok(());
        }
        for &i in &who {
            let s = &mut company[i];
            // Where there are no more pages, less is guessed.
            let wanted = (s.computed + source.ahead()).min(s.context(n_ctx));
            s.held.grow(pages, wanted);
        }
        let question = |&i: &usize| {
            let s = &company[i];
            let always = s.guesser.speculation.always;
            DraftRequest { id: s.id, tokens: &s.tokens, most: taken[i], always, held: &s.held }
        };
        let questions: Vec<_> = who.iter().map(question).collect();
        let known = |token: u32| (token as usize) < tokenizer.vocab_size();
        let is_end = |token| tokenizer.is_eog(token) || !known(token);
        let answers = source.ask(&questions, (executor, &*pages), is_end)?;
        self.guessing = answers.guessing;
        for (i, tokens) in who.into_iter().zip(answers.guesses) {
            // A page that was taken for a guess alone is somebody else's again.
            let s = &mut company[i];
            s.held.shrink(pages, s.computed + 1);
            if !tokens.is_empty() {
                plans[i] = Plan::Known(Guess { tokens, kind: Kind::Model });
            }
        }
        Ok(())
    }

    /// Takes note of what a step made of a sequence's guess.
    pub fn checked(&mut self, s: &mut Sequence, kind: Kind, guessed: usize, accepted: usize) {
        self.counts.guessed(kind, guessed);
        self.counts.accepted(kind, accepted);
        s.guesser.checked(kind, guessed, accepted, &mut self.record);
    }

    /// Takes note of what a step has computed of a sequence, see [`Source::computed`].
    pub fn computed(&mut self, s: &Sequence, extra_output: &[f32], step: Computed) {
        if let Some(source) = &mut self.source {
            source.computed(s, extra_output, step);
        }
    }

    /// Does what the draft model does behind a step, see [`Source::follow`].
    pub fn follow(
        &mut self,
        sequences: &[Sequence],
        model: (&mut ModelExecutor, &Pages),
    ) -> Result<(), EngineError> {
        self.source.as_mut().map_or(Ok(()), |source| source.follow(sequences, model))
    }

    /// Takes note of a step's time.
    pub fn ran(&mut self, ran: StepTiming) {
        if ran.rows > ran.sequences {
            self.cost_model.checked(
                ran.sequences,
                ran.rows,
                ran.seconds,
                self.guessing,
                ran.accepted,
            );
        } else {
            self.cost_model.plain(ran.seconds);
            self.cost_model.lost(self.guessing);
        }
    }

    /// A sequence ends or gives up its pages.
    pub fn leave(&mut self, s: &Sequence) {
        if let Some(source) = &mut self.source {
            source.leave(s.id, &s.tokens);
        }
    }
}
