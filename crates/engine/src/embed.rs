//! Embeddings: texts share steps, token vectors are pooled as the file says. Scores of rerankers are such vectors, of one
//! value a label.

use puna_graph::{Segment, StepInput};
use puna_models::{Pooling, Want};

use crate::driver::Driver;
use crate::error::EngineError;
use crate::sequence::JobId;

/// Takes the vectors of an embedding job.
pub type Done = Box<dyn FnOnce(Result<Vec<Vec<f32>>, EngineError>) + Send>;

/// Takes the scores of a ranking job.
pub type Scored = Box<dyn FnOnce(Result<Vec<f32>, EngineError>) + Send>;

/// Texts to embed.
pub struct EmbedJob {
    pub id: JobId,
    pub inputs: Vec<Vec<u32>>,
    pub vectors: Vec<Vec<f32>>,
    pub done: Done,
    /// The text after those with vectors, if it is longer than a step and has begun.
    pub long: Option<LongText>,
}

/// A text of a causal model that takes several steps.
pub struct LongText {
    /// Pages for all of it.
    pages: Vec<u32>,
    /// Tokens so far.
    computed: usize,
    /// What pooling needs of their vectors.
    pool: Pool,
}

impl Driver {
    /// One step of the first waiting job: as many of its texts as fit, or a part of one that is longer.
    pub fn embed_step(&mut self) -> Result<(), EngineError> {
        self.embed_waits = false;
        let Some(mut job) = self.embeds.pop_front() else { return Ok(()) };
        if job.vectors.len() < job.inputs.len() {
            match self.embed_some(&mut job) {
                Ok(vectors) => job.vectors.extend(vectors),
                // Others have the pages: wait until one of them ends, before anybody new begins.
                Err(EngineError::PromptTooLong { .. }) if self.is_running() || self.embeds_hold_pages() => {
                    self.embed_waits = true;
                }
                Err(error) => {
                    self.drop_embed(&mut job);
                    (job.done)(Err(error));
                    return Ok(());
                }
            }
        }
        if job.vectors.len() < job.inputs.len() {
            // Others get their turn between steps.
            self.embeds.push_back(job);
        } else {
            (job.done)(Ok(job.vectors));
        }
        Ok(())
    }

    /// Gives back what a job that is not going to end holds.
    pub fn drop_embed(&mut self, job: &mut EmbedJob) {
        if let Some(long) = job.long.take() {
            self.return_pages(long.pages);
        }
    }

    /// Whether a long text that has begun has pages.
    pub fn embeds_hold_pages(&self) -> bool {
        self.embeds.iter().any(|job| job.long.is_some())
    }

    /// Embeds the next texts of a job, as many as fit a step; of one that does not fit, the next part. Returns the vectors
    /// that came of it.
    fn embed_some(&mut self, job: &mut EmbedJob) -> Result<Vec<Vec<f32>>, EngineError> {
        let causal = self.stepper.info.causal;
        let inputs = &job.inputs[job.vectors.len()..];
        if causal && inputs[0].len() > self.num_batch() {
            return Ok(self.embed_part(&inputs[0], &mut job.long)?.into_iter().collect());
        }
        let mut rows = 0;
        let fits = |tokens: &&Vec<u32>| {
            rows += tokens.len();
            rows <= self.num_batch()
        };
        let count = inputs.iter().take_while(fits).count().max(1);
        let pooling = self.stepper.info.pooling;
        let mut input = StepInput::default();
        let mut borrowed = Vec::new();
        for tokens in &inputs[..count] {
            let pages = if causal { self.borrow_pages(tokens.len()) } else { Some(Vec::new()) };
            // With no pages left, the texts so far make the step.
            let Some(pages) = pages else { break };
            let first_row = input.tokens.len();
            input.tokens.extend_from_slice(tokens);
            input.positions.extend(0..tokens.len() as u32);
            // Of a text that is scored: its first token sees all of it, or in a causal model its last.
            input.outputs.push((first_row + if causal { tokens.len() - 1 } else { 0 }) as u32);
            input.segments.push(Segment { first_row, rows: tokens.len(), past: 0, pages: pages.clone() });
            borrowed.extend(pages);
        }
        if input.segments.is_empty() {
            return Err(EngineError::PromptTooLong {
                tokens: inputs[0].len(),
                n_ctx: self.stepper.info.n_ctx,
            });
        }
        let want = if pooling == Pooling::Rank { Want::Score } else { Want::Hidden };
        let ran = self.stepper.run(want, &input);
        self.return_pages(borrowed);
        let cols = ran?.ok_or(EngineError::CannotEmbed)?;
        let result = self.stepper.backend.result();
        Ok(match pooling {
            Pooling::Rank => {
                result.chunks_exact(cols).map(|labels| self.stepper.scores(labels.to_vec())).collect()
            }
            _ => {
                let rows = |s: &Segment| &result[s.first_row * cols..(s.first_row + s.rows) * cols];
                let pooled = |s: &Segment| {
                    let mut pool = Pool::new(pooling);
                    pool.add(rows(s), cols);
                    pool.vector()
                };
                input.segments.iter().map(pooled).collect()
            }
        })
    }

    /// The next chunk of a text of a causal model; its vector after the last one.
    fn embed_part(
        &mut self,
        tokens: &[u32],
        long: &mut Option<LongText>,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        if long.is_none() {
            let too_long =
                EngineError::PromptTooLong { tokens: tokens.len(), n_ctx: self.stepper.info.n_ctx };
            let pages = self.borrow_pages(tokens.len()).ok_or(too_long)?;
            *long = Some(LongText { pages, computed: 0, pool: Pool::new(self.stepper.info.pooling) });
        }
        let (num_batch, pooling) = (self.num_batch(), self.stepper.info.pooling);
        let Some(text) = long else { return Ok(None) };
        let past = text.computed;
        let chunk = &tokens[past..tokens.len().min(past + num_batch)];
        let input = StepInput {
            tokens: chunk.to_vec(),
            positions: (past..past + chunk.len()).map(|p| p as u32).collect(),
            segments: vec![Segment { first_row: 0, rows: chunk.len(), past, pages: text.pages.clone() }],
            outputs: vec![chunk.len() as u32 - 1],
        };
        let want = if pooling == Pooling::Rank { Want::Score } else { Want::Hidden };
        let cols = self.stepper.run(want, &input)?.ok_or(EngineError::CannotEmbed)?;
        text.pool.add(self.stepper.backend.result(), cols);
        text.computed += chunk.len();
        if text.computed < tokens.len() {
            return Ok(None);
        }
        Ok(long.take().map(|text| {
            self.return_pages(text.pages);
            match pooling {
                Pooling::Rank => self.stepper.scores(text.pool.vector()),
                _ => text.pool.vector(),
            }
        }))
    }
}

/// Makes one vector of a text's token vectors as they come. Decoders without a pooling of their own give the last one.
struct Pool {
    pooling: Pooling,
    /// The first or the last vector, or the sum of all.
    vector: Vec<f32>,
    rows: usize,
}

impl Pool {
    fn new(pooling: Pooling) -> Self {
        Self { pooling, vector: Vec::new(), rows: 0 }
    }

    /// Takes the next vectors, `cols` values each.
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
