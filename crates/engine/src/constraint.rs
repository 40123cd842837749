//! The form of a sequence's answer: a grammar that follows it from where the answer begins.
//!
//! Which tokens may come next is found by another thread while the model computes the next step ([`Masks`]).
//! A model that thinks first does so freely: the sequence's listener knows where the answer begins ([`Stage`]), and the
//! token that would begin it is drawn anew among those that the grammar allows.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use puna_sampler::{Constraint, Grammar, GrammarError, Grammars, Sampler, Spelling};
use puna_tokenizer::Tokenizer;

use crate::job::Stage;
use crate::sequence::NOT_A_NUMBER;

/// How many tokens that are thought and answer in one are passed over before the model is given up.
const MIXED_MAX: usize = 64;

/// Makes grammars for a model, and finds masks beside its steps.
pub struct Masks {
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    tasks: Mutex<Option<Sender<Task>>>,
}

/// A grammar, the token that it is to take, and where it goes then.
struct Task {
    grammar: Box<Grammar>,
    token: u32,
    back: Sender<Box<Grammar>>,
}

impl Masks {
    pub fn new() -> Self {
        Self { grammars: OnceLock::new(), tasks: Mutex::new(None) }
    }

    /// The grammar of a constraint.
    pub fn grammar(&self, constraint: &Constraint, tokenizer: &Tokenizer) -> Result<Grammar, GrammarError> {
        let made = self.grammars.get_or_init(|| {
            let spellings = (0..tokenizer.vocab_size() as u32).map(|id| spelling(tokenizer, id));
            Grammars::new(spellings, tokenizer.eog())
        });
        made.as_ref().map_err(Clone::clone)?.compile(constraint)
    }

    /// Lets a grammar take a token and find what may follow it.
    fn advance(&self, grammar: Box<Grammar>, token: u32) -> Place {
        let (back, place) = channel();
        let mut task = Task { grammar, token, back };
        let mut tasks = self.tasks.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A thread that has ended gives the task back, and is followed by another.
        for _ in 0..2 {
            let Some(thread) = tasks.take().or_else(start) else { break };
            match thread.send(task) {
                Ok(()) => {
                    *tasks = Some(thread);
                    return Place::Away(place);
                }
                Err(error) => task = error.0,
            }
        }
        Place::Lost
    }
}

/// Starts the thread; it ends with the sender. Without a thread there are no grammars.
fn start() -> Option<Sender<Task>> {
    let (tasks, queue) = channel::<Task>();
    let work = move || {
        for Task { mut grammar, token, back } in queue {
            // Its error comes out where the mask is wanted. Nobody may be waiting for it any more.
            let _ = grammar.accept(token);
            grammar.prepare();
            let _ = back.send(grammar);
        }
    };
    std::thread::Builder::new().name("puna-masks".into()).spawn(work).ok().map(|_| tasks)
}

fn spelling(tokenizer: &Tokenizer, id: u32) -> Spelling<'_> {
    let is_text = !tokenizer.is_control(id) && !tokenizer.is_eog(id);
    Spelling { bytes: if is_text { tokenizer.piece(id) } else { tokenizer.text(id) }, is_text }
}

/// A sequence's grammar.
pub struct Constrained {
    place: Place,
    masks: Arc<Masks>,
    /// The answer has begun.
    open: bool,
    /// Logits that a draw before the answer may change; kept, since they are large.
    scratch: Vec<f32>,
}

/// Why no token was drawn.
pub enum Undrawn {
    /// The form that was asked for cannot be followed.
    Form(String),
    /// Anything else.
    Other(String),
}

impl From<GrammarError> for Undrawn {
    fn from(error: GrammarError) -> Self {
        match error {
            GrammarError::TooHard(_) => Self::Form(error.to_string()),
            _ => Self::Other(error.to_string()),
        }
    }
}

impl From<&str> for Undrawn {
    fn from(reason: &str) -> Self {
        Self::Other(reason.to_owned())
    }
}

/// Where the grammar is.
enum Place {
    Here(Box<Grammar>),
    Away(Receiver<Box<Grammar>>),
    Lost,
}

impl Constrained {
    pub fn new(grammar: Grammar, masks: Arc<Masks>) -> Self {
        Self { place: Place::Here(Box::new(grammar)), masks, open: false, scratch: Vec::new() }
    }

    /// Whether the answer has begun.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Draws a token: freely before the answer, and then among those that the grammar allows. `stage` tells what a token
    /// would be.
    ///
    /// # Errors
    /// Why there is none.
    pub fn draw(
        &mut self,
        logits: &mut [f32],
        sampler: &mut Sampler,
        stage: impl Fn(u32) -> Stage,
    ) -> Result<u32, Undrawn> {
        if !self.open {
            if let Some(token) = draw_before(logits, &mut self.scratch, sampler, stage)? {
                return Ok(token);
            }
            (self.open, self.scratch) = (true, Vec::new());
        }
        self.grammar()?.mask(logits)?;
        sampler.try_sample(logits).ok_or_else(|| "no token of the model fits the grammar here".into())
    }

    /// Takes note of a drawn token.
    pub fn accept(&mut self, token: u32) {
        if !self.open {
            return;
        }
        self.place = match std::mem::replace(&mut self.place, Place::Lost) {
            Place::Here(grammar) => self.masks.advance(grammar, token),
            away => away,
        };
    }

    fn grammar(&mut self) -> Result<&mut Grammar, Undrawn> {
        if let Place::Away(back) = &self.place {
            self.place = back.recv().map_or(Place::Lost, Place::Here);
        }
        match &mut self.place {
            Place::Here(grammar) => Ok(grammar),
            _ => Err("the thread that follows grammars has ended".into()),
        }
    }
}

/// Draws what comes before the answer; `None` where the answer begins, with nothing drawn.
fn draw_before(
    logits: &mut [f32],
    scratch: &mut Vec<f32>,
    sampler: &mut Sampler,
    stage: impl Fn(u32) -> Stage,
) -> Result<Option<u32>, Undrawn> {
    for _ in 0..MIXED_MAX {
        let mut drawer = sampler.clone();
        scratch.clear();
        scratch.extend_from_slice(logits);
        let drawn = drawer.try_sample(scratch);
        let token = drawn.ok_or(NOT_A_NUMBER)?;
        match stage(token) {
            Stage::Before | Stage::Enough => {
                *sampler = drawer;
                return Ok(Some(token));
            }
            Stage::Answer => return Ok(None),
            Stage::Mixed => logits[token as usize] = f32::NEG_INFINITY,
        }
    }
    Err("the model does not stop thinking before it answers".into())
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained").field("open", &self.open).finish_non_exhaustive()
    }
}
