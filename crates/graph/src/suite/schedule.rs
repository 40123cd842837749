//! The steps of a case: which rows of which sequences each step computes.

use std::ops::Range;

use crate::backend::RowWindow;

/// One event of a [`Schedule`].
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A step: for each of its sequences the number of the sequence and the number of its rows.
    Step(Vec<(usize, usize)>),
    /// Sequence `to` continues from a copy of the pages and states of sequence `from`.
    Fork {
        /// The sequence that is copied.
        from: usize,
        /// A sequence without tokens.
        to: usize,
    },
}

/// Steps of a case, with the token ids of their rows.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    events: Vec<Event>,
    /// Number of different token ids; `None` gives each row an id of its own.
    vocabulary: Option<usize>,
    /// Number of first tokens of each sequence that belong to an encoder's input.
    encoder_tokens: usize,
    /// Indices of the tokens of a medium in each sequence. A step has all of them or none.
    media_span: Range<usize>,
    /// Windows of rows of each sequence.
    row_windows: Vec<RowWindow>,
    /// Position of the first token of each sequence, for operations without a cache.
    first_position: usize,
}

/// The rows of one sequence in one step.
#[derive(Debug, Clone)]
pub(super) struct Span {
    /// Number of the sequence.
    pub sequence: usize,
    /// Number of tokens before the step.
    pub cached_tokens: usize,
    /// Token ids of the sequence, up to the last row of the step.
    pub tokens: Vec<usize>,
    /// Number of first tokens that belong to an encoder's input.
    pub encoder_tokens: usize,
    /// Indices of the tokens of a medium.
    pub media_span: Range<usize>,
    /// Windows of rows.
    pub row_windows: Vec<RowWindow>,
    /// Position of the first token of the sequence.
    pub first_position: usize,
}

impl Span {
    /// Indices in the sequence of the rows of the step.
    pub fn indices(&self) -> Range<usize> {
        self.cached_tokens..self.tokens.len()
    }

    /// Token ids of the rows of the step.
    pub fn rows(&self) -> &[usize] {
        &self.tokens[self.cached_tokens..]
    }
}

/// An event with token ids.
pub(super) enum Action {
    /// A step: its sequences in the order of their rows.
    Step(Vec<Span>),
    /// See [`Event::Fork`]; `tokens` is the number of tokens of the sequence.
    Fork { from: usize, to: usize, tokens: usize },
}

impl Schedule {
    /// These events, with a token id of its own for each row.
    pub fn new(events: Vec<Event>) -> Self {
        let (media_span, row_windows) = (0..0, Vec::new());
        let (vocabulary, encoder_tokens, first_position) = (None, 0, 0);
        Self { events, vocabulary, encoder_tokens, media_span, row_windows, first_position }
    }

    /// One step of `rows` rows. From four rows on they belong to two sequences.
    pub fn one_step(rows: usize) -> Self {
        match rows {
            0..4 => Self::steps(&[&[(0, rows)]]),
            _ => Self::steps(&[&[(0, rows / 3), (1, rows - rows / 3)]]),
        }
    }

    /// Steps without forks.
    pub fn steps(steps: &[&[(usize, usize)]]) -> Self {
        Self::new(steps.iter().map(|step| Event::Step(step.to_vec())).collect())
    }

    /// The same steps of sequences whose first token has this position.
    pub fn with_first_position(self, first_position: usize) -> Self {
        Self { first_position, ..self }
    }

    /// The same steps of sequences that begin with this number of tokens of an encoder's input.
    pub fn with_encoder_tokens(self, encoder_tokens: usize) -> Self {
        Self { encoder_tokens, ..self }
    }

    /// The same steps of sequences with a medium at these tokens.
    pub fn with_media_span(self, media_span: Range<usize>) -> Self {
        Self { media_span, ..self }
    }

    /// The same steps of sequences with these windows of rows.
    pub fn with_row_windows(self, row_windows: Vec<RowWindow>) -> Self {
        Self { row_windows, ..self }
    }

    /// The same steps with token ids below `vocabulary`, in no order.
    pub fn with_vocabulary(self, vocabulary: usize) -> Self {
        Self { vocabulary: Some(vocabulary), ..self }
    }

    /// Number of different token ids.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary.unwrap_or_else(|| self.row_count())
    }

    /// Number of rows of all steps.
    fn row_count(&self) -> usize {
        let rows = |event: &Event| match event {
            Event::Step(parts) => parts.iter().map(|part| part.1).sum(),
            Event::Fork { .. } => 0,
        };
        self.events.iter().map(rows).sum()
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        let last = |event: &Event| match event {
            Event::Step(parts) => parts.iter().map(|part| part.0).max().unwrap_or(0),
            Event::Fork { from, to } => *from.max(to),
        };
        self.events.iter().map(last).max().unwrap_or(0) + 1
    }

    /// Largest number of tokens of a sequence.
    pub fn longest(&self) -> usize {
        let mut lengths = vec![0; self.sequences()];
        for event in &self.events {
            match *event {
                Event::Step(ref parts) => {
                    parts.iter().for_each(|&(sequence, rows)| lengths[sequence] += rows);
                }
                Event::Fork { from, to } => lengths[to] = lengths[from],
            }
        }
        lengths.into_iter().max().unwrap_or(0)
    }

    /// The events with token ids.
    pub fn actions(&self) -> Vec<Action> {
        let mut sequences: Vec<Vec<usize>> = vec![Vec::new(); self.sequences()];
        let mut row = 0;
        let mut token = || {
            row += 1;
            self.vocabulary.map_or(row - 1, |n| row * row * 31 % 7919 % n)
        };
        let mut span = |sequences: &mut [Vec<usize>], (sequence, rows): (usize, usize)| {
            let tokens = &mut sequences[sequence];
            let cached_tokens = tokens.len();
            tokens.extend((0..rows).map(|_| token()));
            Span {
                sequence,
                cached_tokens,
                tokens: tokens.clone(),
                encoder_tokens: self.encoder_tokens,
                media_span: self.media_span.clone(),
                row_windows: self.row_windows.clone(),
                first_position: self.first_position,
            }
        };
        let action = |event: &Event| match *event {
            Event::Step(ref parts) => {
                Action::Step(parts.iter().map(|&part| span(&mut sequences, part)).collect())
            }
            Event::Fork { from, to } => {
                sequences[to] = sequences[from].clone();
                Action::Fork { from, to, tokens: sequences[from].len() }
            }
        };
        self.events.iter().map(action).collect()
    }
}
