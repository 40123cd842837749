//! Embeddings: texts share steps, token vectors are pooled as the file says.

use puna_graph::{Segment, StepInput};
use puna_models::{Pooling, Want};

use crate::driver::Driver;
use crate::error::EngineError;
use crate::sequence::JobId;

/// Takes the vectors of an embedding job.
pub type Done = Box<dyn FnOnce(Result<Vec<Vec<f32>>, EngineError>) + Send>;

/// Texts to embed.
pub struct EmbedJob {
    pub id: JobId,
    pub inputs: Vec<Vec<u32>>,
    pub vectors: Vec<Vec<f32>>,
    pub done: Done,
}

impl Driver {
    /// Embeds as many texts of the first waiting job as fit a step.
    pub fn embed_step(&mut self) -> Result<(), EngineError> {
        let Some(mut job) = self.embeds.pop_front() else { return Ok(()) };
        if job.vectors.len() < job.inputs.len() {
            match self.embed_some(&job.inputs[job.vectors.len()..]) {
                Ok(vectors) => job.vectors.extend(vectors),
                // Running sequences have the pages: wait until one of them ends.
                Err(EngineError::PromptTooLong { .. }) if self.is_running() => {}
                Err(error) => {
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

    /// Embeds the first texts of a list: at least one, and as many as fit a step.
    fn embed_some(&mut self, inputs: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EngineError> {
        let causal = self.stepper.info.causal;
        if causal && inputs[0].len() > self.num_batch() {
            return Ok(vec![self.embed_in_chunks(&inputs[0])?]);
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
            input.outputs.push(first_row as u32);
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
            Pooling::Rank => result.chunks_exact(cols).map(<[f32]>::to_vec).collect(),
            _ => {
                let rows = |s: &Segment| &result[s.first_row * cols..(s.first_row + s.rows) * cols];
                input.segments.iter().map(|s| pool(pooling, rows(s), cols)).collect()
            }
        })
    }

    /// One long text of a causal model, chunk by chunk.
    fn embed_in_chunks(&mut self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        let n_ctx = self.stepper.info.n_ctx;
        let too_long = EngineError::PromptTooLong { tokens: tokens.len(), n_ctx };
        let pages = self.borrow_pages(tokens.len()).ok_or(too_long)?;
        let mut states = Vec::new();
        let mut cols = 0;
        for (i, chunk) in tokens.chunks(self.num_batch()).enumerate() {
            let past = i * self.num_batch();
            let input = StepInput {
                tokens: chunk.to_vec(),
                positions: (past..past + chunk.len()).map(|p| p as u32).collect(),
                segments: vec![Segment { first_row: 0, rows: chunk.len(), past, pages: pages.clone() }],
                outputs: vec![0],
            };
            match self.stepper.run(Want::Hidden, &input) {
                Ok(Some(n)) => cols = n,
                other => {
                    self.return_pages(pages);
                    return Err(other.err().unwrap_or(EngineError::CannotEmbed));
                }
            }
            states.extend_from_slice(self.stepper.backend.result());
        }
        self.return_pages(pages);
        Ok(pool(self.stepper.info.pooling, &states, cols))
    }
}

/// One vector of a text's token vectors (`cols` each). Decoders without a pooling of their own give the last one.
fn pool(pooling: Pooling, states: &[f32], cols: usize) -> Vec<f32> {
    let rows = states.len() / cols;
    match pooling {
        Pooling::Cls => states[..cols].to_vec(),
        Pooling::Mean => {
            let mut sum = vec![0.0; cols];
            for row in states.chunks_exact(cols) {
                sum.iter_mut().zip(row).for_each(|(s, x)| *s += x);
            }
            sum.iter_mut().for_each(|s| *s /= rows as f32);
            sum
        }
        Pooling::None | Pooling::Last | Pooling::Rank => states[(rows - 1) * cols..].to_vec(),
    }
}
