//! The form of a sequence's answer: a grammar that follows it from where the answer begins.
//!
//! Which tokens may come next is found by another thread while the model computes the next step ([`Masks`]). Where that takes
//! longer, the sequence stays out of steps until it is known ([`Constrained::is_known_by`]), and nobody else waits.
//! A model that thinks first does so freely: the sequence's listener knows where the answer begins ([`Stage`]), and the
//! token that would begin it is drawn anew among those that the grammar allows.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use puna_sampler::{Constraint, Grammar, GrammarError, Grammars, Sampler, Spelling};
use puna_tokenizer::Tokenizer;

use crate::job::Stage;
use crate::sequence::NOT_A_NUMBER;

/// How many tokens that are thought and answer in one are passed over before the thought is broken off.
const MIXED_MAX: usize = 64;
/// A grammar that once took so long to find what may follow waits in a line of its own from then on.
const SLOW: Duration = Duration::from_millis(20);

/// Makes grammars for a model, and finds masks beside its steps.
pub struct Masks {
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    quick: Line,
    slow: Line,
}

/// A thread and the tasks that wait for it; the thread starts with the first.
#[derive(Default)]
struct Line(Mutex<Option<Sender<Task>>>);

/// A grammar, the token that it is to take, and where it goes then.
struct Task {
    grammar: Box<Grammar>,
    token: u32,
    back: Sender<Advanced>,
}

/// A grammar that has taken a token.
struct Advanced {
    grammar: Box<Grammar>,
    took: Duration,
}

impl Masks {
    pub fn new() -> Self {
        Self { grammars: OnceLock::new(), quick: Line::default(), slow: Line::default() }
    }

    /// The grammar of a constraint; `whole` for an answer that must not be cut.
    pub fn grammar(
        &self,
        constraint: &Constraint,
        tokenizer: &Tokenizer,
        whole: bool,
    ) -> Result<Grammar, GrammarError> {
        let made = self.grammars.get_or_init(|| {
            let spellings = (0..tokenizer.vocab_size() as u32).map(|id| spelling(tokenizer, id));
            Grammars::new(spellings, tokenizer.eog())
        });
        let grammars = made.as_ref().map_err(Clone::clone)?;
        if whole { grammars.compile_whole(constraint) } else { grammars.compile(constraint) }
    }
}

impl Line {
    /// Lets a grammar take a token and find what may follow it.
    fn advance(&self, grammar: Box<Grammar>, token: u32) -> Place {
        let (back, place) = channel();
        let mut task = Task { grammar, token, back };
        let mut tasks = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
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
            let start = Instant::now();
            // Its error comes out where the mask is wanted. Nobody may be waiting for it any more.
            let _ = grammar.accept(token);
            grammar.prepare();
            let _ = back.send(Advanced { grammar, took: start.elapsed() });
        }
    };
    std::thread::Builder::new().name("puna-masks".into()).spawn(work).ok().map(|_| tasks)
}

fn spelling(tokenizer: &Tokenizer, id: u32) -> Spelling<'_> {
    let is_text = !tokenizer.is_control(id) && !tokenizer.is_eog(id);
    Spelling { bytes: if is_text { tokenizer.piece(id) } else { tokenizer.text(id) }, is_text }
}

/// The tokens that an answer can still have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Room {
    /// How many they are, the one that is about to be drawn among them; `None` without a limit.
    pub left: Option<usize>,
    /// The answer repeats itself, and is to be ended.
    pub is_repeating: bool,
}

/// A sequence's grammar.
pub struct Constrained {
    place: Place,
    /// Tokens of the shortest answer, where it is known.
    shortest: Option<usize>,
    masks: Arc<Masks>,
    /// The answer has begun.
    open: bool,
    /// Finding what may follow has taken long.
    slow: bool,
    /// Logits that a draw before the answer may change; kept, since they are large.
    scratch: Vec<f32>,
}

/// Why no token was drawn.
#[derive(Debug)]
pub enum SampleDeferred {
    /// The form that was asked for cannot be followed.
    Form(String),
    /// The model neither goes on with its thought nor ends it, however often it is asked.
    Thinks,
    /// Anything else.
    Other(String),
}

impl From<GrammarError> for SampleDeferred {
    fn from(error: GrammarError) -> Self {
        Self::Form(error.to_string())
    }
}

impl From<&str> for SampleDeferred {
    fn from(reason: &str) -> Self {
        Self::Other(reason.to_owned())
    }
}

/// Where the grammar is.
enum Place {
    Here(Box<Grammar>),
    Away(Receiver<Advanced>),
    Lost,
}

impl Constrained {
    pub fn new(mut grammar: Grammar, masks: Arc<Masks>) -> Self {
        let shortest = grammar.shortest_end();
        let place = Place::Here(Box::new(grammar));
        Self { place, shortest, masks, open: false, slow: false, scratch: Vec::new() }
    }

    /// Tokens of the shortest answer, its end token among them, where it is known.
    pub fn shortest(&self) -> Option<usize> {
        self.shortest
    }

    /// Begins the answer.
    pub fn open(&mut self) {
        (self.open, self.scratch) = (true, Vec::new());
    }

    /// Whether the answer has begun.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether what may come next is known, or is by a certain time, which is waited for. Until then no token can be drawn.
    pub fn is_known_by(&mut self, end: Instant) -> bool {
        let Place::Away(back) = &self.place else { return true };
        match back.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(advanced) => self.take_back(advanced),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => self.place = Place::Lost,
        }
        true
    }

    fn take_back(&mut self, Advanced { grammar, took }: Advanced) {
        self.slow |= took > SLOW;
        self.place = Place::Here(grammar);
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
        room: Room,
        stage: impl Fn(u32) -> Stage,
    ) -> Result<u32, SampleDeferred> {
        if !self.open
            && let Some(token) = draw_before(logits, &mut self.scratch, sampler, stage)?
        {
            return Ok(token);
        }
        self.draw_answer(logits, sampler, room)
    }

    /// Draws a token of the answer, which has begun at the latest now. One behind which too few tokens would be left to end
    /// the answer gives way to the shortest end, which no bias forbids. So do all where following the answer any further
    /// would take too much memory or work.
    ///
    /// # Errors
    /// Why there is none.
    pub fn draw_answer(
        &mut self,
        logits: &mut [f32],
        sampler: &mut Sampler,
        room: Room,
    ) -> Result<u32, SampleDeferred> {
        self.open();
        if !logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
            return Err(NOT_A_NUMBER.into());
        }
        let grammar = self.grammar()?;
        if (room.is_repeating || grammar.must_end())
            && let Some(token) = grammar.next_of_end()
        {
            return Ok(token);
        }
        grammar.mask(logits)?;
        // Biases and tokens that are never drawn come after the mask.
        let drawn = sampler.try_sample(logits);
        let Some(left) = room.left else { return Ok(drawn.ok_or(GrammarError::NoToken)?) };
        let must_end = match drawn {
            Some(token) => !grammar.has_room_for(token, left),
            None => grammar.shortest_end().is_some_and(|shortest| shortest >= left),
        };
        let ending = if must_end { grammar.next_of_end() } else { None };
        Ok(ending.or(drawn).ok_or(GrammarError::NoToken)?)
    }

    /// Takes note of a drawn token.
    pub fn accept(&mut self, token: u32) {
        if !self.open {
            return;
        }
        self.place = match std::mem::replace(&mut self.place, Place::Lost) {
            Place::Here(grammar) if self.slow => self.masks.slow.advance(grammar, token),
            Place::Here(grammar) => self.masks.quick.advance(grammar, token),
            away => away,
        };
    }

    fn grammar(&mut self) -> Result<&mut Grammar, SampleDeferred> {
        if let Place::Away(back) = &self.place {
            match back.recv() {
                Ok(advanced) => self.take_back(advanced),
                Err(_) => self.place = Place::Lost,
            }
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
) -> Result<Option<u32>, SampleDeferred> {
    let mut passed = Vec::new();
    while passed.len() < MIXED_MAX {
        let mut drawer = sampler.clone();
        scratch.clear();
        scratch.extend_from_slice(logits);
        let Some(token) = drawer.try_sample(scratch) else {
            if passed.is_empty() {
                return Err(NOT_A_NUMBER.into());
            }
            break;
        };
        match stage(token) {
            Stage::Before | Stage::Enough => {
                *sampler = drawer;
                return Ok(Some(token));
            }
            Stage::Answer => return Ok(None),
            Stage::Mixed => {
                let logit = &mut logits[token as usize];
                passed.push((token, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        }
    }
    passed.into_iter().for_each(|(token, logit)| logits[token as usize] = logit);
    Err(SampleDeferred::Thinks)
}

impl fmt::Debug for Constrained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constrained").field("open", &self.open).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar() -> Grammar {
        let spell = |bytes, is_text| Spelling { bytes, is_text };
        let tokens = [spell(&b"a"[..], true), spell(b"<end>", false)];
        let grammars = Grammars::new(tokens.into_iter(), &[1]).unwrap();
        grammars.compile(&Constraint::Regex("a*".into())).unwrap()
    }

    #[test]
    fn what_fits_is_waited_for_until_a_time_and_who_is_slow_waits_apart() {
        let mut form = Constrained::new(grammar(), Arc::new(Masks::new()));
        let soon = || Instant::now() + Duration::from_millis(1);
        assert!(form.is_known_by(soon()));
        for (took, slow) in [(Duration::ZERO, false), (2 * SLOW, true), (Duration::ZERO, true)] {
            let (back, place) = channel();
            form.place = Place::Away(place);
            assert!(!form.is_known_by(soon()));
            back.send(Advanced { grammar: Box::new(grammar()), took }).unwrap();
            assert!(form.is_known_by(soon()) && form.slow == slow);
        }
        // A slow one that thinks on holds up only its own line.
        form.open = true;
        form.accept(0);
        assert!(lock(&form.masks.slow).is_some() && lock(&form.masks.quick).is_none());
        form.grammar().unwrap();
    }

    fn lock(line: &Line) -> std::sync::MutexGuard<'_, Option<Sender<Task>>> {
        line.0.lock().unwrap()
    }
}
