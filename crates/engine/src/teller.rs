//! What a job tells its listener of its answer: tokens as text, and the end.

use puna_sampler::{StopEvent, StopMatcher, TokenLogprobs};
use puna_tokenizer::{StreamDecoder, Tokenizer};

use crate::job::{Event, Finish, Job, Piece, Sink, Summary};

/// A listener, and what of the text it was not told yet.
pub struct Teller {
    pub sink: Box<dyn Sink>,
    pub decoder: StreamDecoder,
    stop: StopMatcher,
}

/// What came of telling of a token.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// The answer goes on.
    More,
    /// It has ended, which was not told yet.
    Ends(Finish),
    /// The listener has enough of it.
    Enough,
    /// Nobody listens any more.
    Unheard,
}

impl Teller {
    /// Tells the listener of a job by this decoder.
    pub fn new(job: &Job, sink: Box<dyn Sink>, decoder: StreamDecoder) -> Self {
        Self { sink, decoder, stop: StopMatcher::new(job.stop.clone()) }
    }

    /// Tells of the next token of the answer, unless it is the end.
    pub fn token(&mut self, token: u32, logprobs: Option<TokenLogprobs>, tokenizer: &Tokenizer) -> Told {
        if tokenizer.is_eog(token) {
            return Told::Ends(Finish::End);
        }
        let text = self.decoder.push(token);
        let event = match self.sink.ignores_stops(&text) {
            true => StopEvent { emit: self.stop.finish() + &text, stopped: None },
            false => self.stop.push(&text),
        };
        if !self.sink.send(Event::Piece(Piece { text: event.emit, token, logprobs })) {
            return Told::Unheard;
        }
        match event.stopped {
            Some(index) => Told::Ends(Finish::Stop(index)),
            None if self.sink.has_enough() => Told::Enough,
            None => Told::More,
        }
    }

    /// Tells that it is over.
    pub fn finish(&mut self, summary: Summary) {
        if !matches!(summary.finish, Finish::Stop(_)) {
            // What the decoder still holds is half a character, and is dropped.
            let text = self.stop.finish();
            if !text.is_empty() {
                let token = summary.tokens.last().copied().unwrap_or(0);
                self.sink.send(Event::Piece(Piece { text, token, logprobs: None }));
            }
        }
        self.sink.send(Event::Done(summary));
    }

    /// Tells that it failed.
    pub fn fail(&mut self, reason: &str) {
        self.sink.send(Event::Failed(reason.to_owned()));
    }
}
