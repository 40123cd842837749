//! Output of a sequence: detokenizes tokens, matches stop strings, and sends text and the end to
//! the sink.

use puna_sampler::{StopEvent, StopMatcher, TokenLogprobs};
use puna_tokenizer::{StreamDecoder, Tokenizer};

use crate::request::{Event, FinishReason, GenerationStats, Piece, Request, Sink};

/// The sink of a sequence with its detokenizer and stop strings.
pub struct OutputStream {
    pub sink: Box<dyn Sink>,
    pub decoder: StreamDecoder,
    stop: StopMatcher,
}

/// Result of emitting one token.
#[derive(Debug, PartialEq, Eq)]
pub enum Emit {
    /// Generation continues.
    Continue,
    /// Generation is finished; the caller sends the statistics.
    Finished(FinishReason),
    /// The sink needs no further tokens ([`Sink::has_enough`]).
    Satisfied,
    /// The client has disconnected.
    Disconnected,
}

impl OutputStream {
    /// Makes the output stream of a request.
    pub fn new(request: &Request, sink: Box<dyn Sink>, decoder: StreamDecoder) -> Self {
        Self { sink, decoder, stop: StopMatcher::new(request.stop.clone()) }
    }

    /// Emits the next token, unless it ends the generation.
    pub fn emit_token(
        &mut self,
        token: u32,
        logprobs: Option<TokenLogprobs>,
        tokenizer: &Tokenizer,
    ) -> Emit {
        if tokenizer.is_eog(token) {
            return Emit::Finished(FinishReason::End);
        }
        let text = self.decoder.push(token);
        let event = match self.sink.ignores_stops(&text) {
            true => StopEvent { emit: self.stop.finish() + &text, stopped: None },
            false => self.stop.push(&text),
        };
        if !self.sink.send(Event::Piece(Piece { text: event.emit, token, logprobs })) {
            return Emit::Disconnected;
        }
        match event.stopped {
            Some(index) => Emit::Finished(FinishReason::Stop(index)),
            None if self.sink.has_enough() => Emit::Satisfied,
            None => Emit::Continue,
        }
    }

    /// Sends the text that was held back for stop strings, then the statistics.
    pub fn finish(&mut self, stats: GenerationStats) {
        if !matches!(stats.finish, FinishReason::Stop(_)) {
            // Incomplete UTF-8 in the decoder is dropped.
            let text = self.stop.finish();
            if !text.is_empty() {
                let token = stats.tokens.last().copied().unwrap_or(0);
                self.sink.send(Event::Piece(Piece { text, token, logprobs: None }));
            }
        }
        self.sink.send(Event::Done(stats));
    }

    /// Sends an error.
    pub fn fail(&mut self, reason: &str) {
        self.sink.send(Event::Failed(reason.to_owned()));
    }
}
