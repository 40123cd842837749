//! Embedding requests: texts of all requests share steps, and their hidden states are pooled by the model's pooling type.
//! Rerankers return one value per label instead of an embedding.

use std::collections::VecDeque;

use puna_graph::{Segment, StepInput};
use puna_models::{Pooling, StepKind};

use crate::engine_loop::{EngineLoop, TemporaryPages};
use crate::error::EngineError;
use crate::sequence::RequestId;

/// Callback with the embeddings of a request.
pub type Done = Box<dyn FnOnce(Result<Vec<Vec<f32>>, EngineError>) + Send>;

/// Callback with the scores of a rerank request.
pub type Scored = Box<dyn FnOnce(Result<Vec<f32>, EngineError>) + Send>;

/// An embedding request.
pub struct EmbedRequest {
    pub id: RequestId,
    pub inputs: Vec<Vec<u32>>,
    pub vectors: Vec<Vec<f32>>,
    pub done: Done,
    /// State of the next text, if it takes several steps and has begun.
    pub long: Option<LongText>,
}

impl EmbedRequest {
    /// Tokens of the next text.
    fn next_text(&self) -> Option<&[u32]> {
        self.inputs.get(self.vectors.len()).map(Vec::as_slice)
    }
}

/// Result of a step: the request of each text, and the texts' vectors; a part of a long text has none.
type Embedded = (Vec<RequestId>, Result<Vec<Vec<f32>>, EngineError>);

/// Texts of one step.
struct TextBatch {
    input: StepInput,
    /// Request of each text.
    owners: Vec<RequestId>,
    /// Pages of each text.
    borrowed: Vec<TemporaryPages>,
}

/// Text of a causal model that takes several steps.
pub struct LongText {
    /// Pages for the whole text.
    pages: TemporaryPages,
    /// Number of computed tokens.
    computed: usize,
    /// Pooled hidden states.
    pool: Pooler,
}

impl EngineLoop {
    /// Runs one step with as many texts of the waiting requests as fit, in the order of the queue, or with a part of a long text.
    pub fn embed_step(&mut self) {
        self.embedding_blocked_on_pages = false;
        let Some(first) = self.embeds.front() else { return };
        let (owners, embedded) = match first.next_text() {
            None => (vec![first.id], Ok(Vec::new())),
            Some(tokens) if self.is_long(tokens) => self.embed_part(),
            Some(_) => self.embed_some(),
        };
        match embedded {
            Ok(vectors) => self.distribute_vectors(&owners, vectors),
            // Other sequences have the pages: no sequence is admitted until the texts have theirs.
            Err(EngineError::PromptTooLong { .. })
                if self.is_running() || self.embeds_hold_pages() =>
            {
                self.embedding_blocked_on_pages = true;
                self.embeds.rotate_left(1);
            }
            Err(error) => {
                for mut request in self.take_embeds(&owners) {
                    self.drop_embed(&mut request);
                    (request.done)(Err(error.clone()));
                }
            }
        }
    }

    /// Adds the vectors of a step to their requests. Complete requests finish; the others move to the end of the queue.
    fn distribute_vectors(&mut self, owners: &[RequestId], vectors: Vec<Vec<f32>>) {
        let mut vectors = owners.iter().zip(vectors).peekable();
        for mut request in self.take_embeds(owners) {
            while let Some((_, vector)) = vectors.next_if(|(owner, _)| **owner == request.id) {
                request.vectors.push(vector);
            }
            if request.next_text().is_some() {
                self.embeds.push_back(request);
            } else {
                (request.done)(Ok(request.vectors));
            }
        }
    }

    /// Removes requests from the queue, in its order.
    fn take_embeds(&mut self, owners: &[RequestId]) -> VecDeque<EmbedRequest> {
        let taken;
        (taken, self.embeds) = std::mem::take(&mut self.embeds)
            .into_iter()
            .partition(|request| owners.contains(&request.id));
        taken
    }

    /// Releases the pages of a cancelled request.
    pub fn drop_embed(&mut self, request: &mut EmbedRequest) {
        if let Some(long) = request.long.take() {
            self.release_temporary_pages(long.pages);
        }
    }

    /// Whether a begun long text holds pages.
    pub fn embeds_hold_pages(&self) -> bool {
        self.embeds.iter().any(|request| request.long.is_some())
    }

    /// Whether a text takes several steps. Encoders compute whole texts.
    fn is_long(&self, tokens: &[u32]) -> bool {
        self.executor.info.causal && tokens.len() > self.num_batch()
    }

    /// Embeds as many texts as fit a step.
    fn embed_some(&mut self) -> Embedded {
        let embeds = std::mem::take(&mut self.embeds);
        let TextBatch { input, owners, borrowed } = self.collect_batch(&embeds);
        self.embeds = embeds;
        if !owners.is_empty() {
            return (owners, self.embed_texts(&input, borrowed));
        }
        let (tokens, n_ctx) =
            (self.embeds[0].next_text().map_or(0, <[u32]>::len), self.executor.info.n_ctx);
        (vec![self.embeds[0].id], Err(EngineError::PromptTooLong { tokens, n_ctx }))
    }

    /// Collects as many texts as fit a step and the free pages.
    fn collect_batch(&mut self, requests: &VecDeque<EmbedRequest>) -> TextBatch {
        let causal = self.executor.info.causal;
        let (mut input, mut owners, mut borrowed) = (StepInput::default(), Vec::new(), Vec::new());
        for request in requests {
            for tokens in &request.inputs[request.vectors.len()..] {
                let first_row = input.tokens.len();
                let fits = first_row == 0 || first_row + tokens.len() <= self.num_batch();
                if !fits || self.is_long(tokens) {
                    break;
                }
                let pages = if causal {
                    self.take_temporary_pages(tokens.len())
                } else {
                    Some(TemporaryPages::default())
                };
                // Without free pages the batch is complete.
                let Some(pages) = pages else { return TextBatch { input, owners, borrowed } };
                input.tokens.extend_from_slice(tokens);
                input.positions.extend(0..tokens.len() as u32);
                // A classifier reads the first token, or in a causal model the last one.
                input.outputs.push((first_row + if causal { tokens.len() - 1 } else { 0 }) as u32);
                input.segments.push(pages.segment(self.windows(), first_row, tokens.len(), 0));
                borrowed.push(pages);
                owners.push(request.id);
            }
        }
        TextBatch { input, owners, borrowed }
    }

    /// Computes the vectors of a batch, and releases its pages.
    fn embed_texts(
        &mut self,
        input: &StepInput,
        borrowed: Vec<TemporaryPages>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let pooling = self.executor.info.pooling;
        let want = if pooling == Pooling::Rank { StepKind::Score } else { StepKind::Hidden };
        let ran = self.executor.run(want, input);
        borrowed.into_iter().for_each(|pages| self.release_temporary_pages(pages));
        let cols = ran?.ok_or(EngineError::CannotEmbed)?;
        let result = self.executor.backend.result();
        if pooling == Pooling::Rank {
            return Ok(result
                .chunks_exact(cols)
                .map(|labels| self.executor.scores(labels.to_vec()))
                .collect());
        }
        let pooled = |s: &Segment| {
            let mut pool = Pooler::new(pooling);
            pool.add(&result[s.first_row * cols..(s.first_row + s.rows) * cols], cols);
            pool.vector()
        };
        Ok(input.segments.iter().map(pooled).collect())
    }

    /// Computes the next chunk of the first request's long text.
    fn embed_part(&mut self) -> Embedded {
        let mut embeds = std::mem::take(&mut self.embeds);
        let request = &mut embeds[0];
        let embedded = self.embed_chunk(&request.inputs[request.vectors.len()], &mut request.long);
        let owners = vec![request.id];
        self.embeds = embeds;
        (owners, embedded.map(|vector| vector.into_iter().collect()))
    }

    /// Computes the next chunk of a long text, and returns the vector after the last chunk.
    fn embed_chunk(
        &mut self,
        tokens: &[u32],
        long: &mut Option<LongText>,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        if long.is_none() {
            let too_long = EngineError::PromptTooLong {
                tokens: tokens.len(),
                n_ctx: self.executor.info.n_ctx,
            };
            let pages = self.take_temporary_pages(tokens.len()).ok_or(too_long)?;
            *long = Some(LongText {
                pages,
                computed: 0,
                pool: Pooler::new(self.executor.info.pooling),
            });
        }
        let (num_batch, pooling) = (self.num_batch(), self.executor.info.pooling);
        let Some(text) = long else { return Ok(None) };
        let past = text.computed;
        let chunk = &tokens[past..tokens.len().min(past + num_batch)];
        let input = StepInput {
            tokens: chunk.to_vec(),
            positions: (past..past + chunk.len()).map(|p| p as u32).collect(),
            segments: vec![text.pages.segment(self.windows(), 0, chunk.len(), past)],
            outputs: vec![chunk.len() as u32 - 1],
            ..StepInput::default()
        };
        let want = if pooling == Pooling::Rank { StepKind::Score } else { StepKind::Hidden };
        let cols = self.executor.run(want, &input)?.ok_or(EngineError::CannotEmbed)?;
        text.pool.add(self.executor.backend.result(), cols);
        text.computed += chunk.len();
        if text.computed < tokens.len() {
            return Ok(None);
        }
        Ok(long.take().map(|text| {
            self.release_temporary_pages(text.pages);
            match pooling {
                Pooling::Rank => self.executor.scores(text.pool.vector()),
                _ => text.pool.vector(),
            }
        }))
    }
}

/// Pools the hidden states of a text in chunks. Decoders without a pooling type use the last state.
struct Pooler {
    pooling: Pooling,
    /// First or last state, or the sum of all states.
    vector: Vec<f32>,
    rows: usize,
}

impl Pooler {
    fn new(pooling: Pooling) -> Self {
        Self { pooling, vector: Vec::new(), rows: 0 }
    }

    /// Adds states of `cols` values each.
    fn add(&mut self, states: &[f32], cols: usize) {
        for row in states.chunks_exact(cols) {
            match self.pooling {
                Pooling::Mean if self.rows > 0 => {
                    self.vector.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
                }
                Pooling::Cls if self.rows > 0 => {}
                _ => row.clone_into(&mut self.vector),
            }
            self.rows += 1;
        }
    }

    fn vector(mut self) -> Vec<f32> {
        if self.pooling == Pooling::Mean {
            self.vector.iter_mut().for_each(|sum| *sum /= self.rows as f32);
        }
        self.vector
    }
}
