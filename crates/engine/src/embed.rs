//! Embeddings: texts share steps, token vectors are pooled as the file says. Scores of rerankers are such vectors, of one
//! value a label.

use std::collections::VecDeque;

use puna_graph::{Segment, StepInput};
use puna_models::{Pooling, Want};

use crate::engine_loop::{EngineLoop, TemporaryPages};
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

impl EmbedJob {
    /// The text whose vector comes next.
    fn next(&self) -> Option<&[u32]> {
        self.inputs.get(self.vectors.len()).map(Vec::as_slice)
    }
}

/// What came of a step: the jobs whose texts took part in it, by text, and the texts' vectors, of a part of one none yet.
type Embedded = (Vec<JobId>, Result<Vec<Vec<f32>>, EngineError>);

/// Texts that make a step.
struct Pack {
    input: StepInput,
    /// Whose each of them is.
    owners: Vec<JobId>,
    /// What each of them has.
    borrowed: Vec<TemporaryPages>,
}

/// A text of a causal model that takes several steps.
pub struct LongText {
    /// Pages for all of it.
    pages: TemporaryPages,
    /// Tokens so far.
    computed: usize,
    /// What pooling needs of their vectors.
    pool: Pool,
}

impl EngineLoop {
    /// One step: texts of the waiting jobs, as many as fit, the first job's first; or a part of one that is longer.
    pub fn embed_step(&mut self) {
        self.embedding_blocked_on_pages = false;
        let Some(first) = self.embeds.front() else { return };
        let (owners, embedded) = match first.next() {
            None => (vec![first.id], Ok(Vec::new())),
            Some(tokens) if self.is_long(tokens) => self.embed_part(),
            Some(_) => self.embed_some(),
        };
        match embedded {
            Ok(vectors) => self.hand_out_vectors(&owners, vectors),
            // Others have the pages: wait until one of them ends, before anybody new begins.
            Err(EngineError::PromptTooLong { .. })
                if self.is_running() || self.embeds_hold_pages() =>
            {
                self.embedding_blocked_on_pages = true;
                self.embeds.rotate_left(1);
            }
            Err(error) => {
                for mut job in self.take_embeds(&owners) {
                    self.drop_embed(&mut job);
                    (job.done)(Err(error.clone()));
                }
            }
        }
    }

    /// Adds the vectors of a step to their jobs. Those that are complete end; the others come behind those that had no part.
    fn hand_out_vectors(&mut self, owners: &[JobId], vectors: Vec<Vec<f32>>) {
        let mut vectors = owners.iter().zip(vectors).peekable();
        for mut job in self.take_embeds(owners) {
            while let Some((_, vector)) = vectors.next_if(|(owner, _)| **owner == job.id) {
                job.vectors.push(vector);
            }
            if job.next().is_some() {
                self.embeds.push_back(job);
            } else {
                (job.done)(Ok(job.vectors));
            }
        }
    }

    /// Takes some jobs out of the queue, in its order.
    fn take_embeds(&mut self, owners: &[JobId]) -> VecDeque<EmbedJob> {
        let taken;
        (taken, self.embeds) =
            std::mem::take(&mut self.embeds).into_iter().partition(|job| owners.contains(&job.id));
        taken
    }

    /// Gives back what a job that is not going to end holds.
    pub fn drop_embed(&mut self, job: &mut EmbedJob) {
        if let Some(long) = job.long.take() {
            self.release_temporary_pages(long.pages);
        }
    }

    /// Whether a long text that has begun has pages.
    pub fn embeds_hold_pages(&self) -> bool {
        self.embeds.iter().any(|job| job.long.is_some())
    }

    /// Whether a text takes several steps. An encoder sees one as a whole.
    fn is_long(&self, tokens: &[u32]) -> bool {
        self.executor.info.causal && tokens.len() > self.num_batch()
    }

    /// Embeds the next texts of the jobs, as many as fit a step.
    fn embed_some(&mut self) -> Embedded {
        let embeds = std::mem::take(&mut self.embeds);
        let Pack { input, owners, borrowed } = self.pack(&embeds);
        self.embeds = embeds;
        if !owners.is_empty() {
            return (owners, self.embed_texts(&input, borrowed));
        }
        let (tokens, n_ctx) =
            (self.embeds[0].next().map_or(0, <[u32]>::len), self.executor.info.n_ctx);
        (vec![self.embeds[0].id], Err(EngineError::PromptTooLong { tokens, n_ctx }))
    }

    /// The next texts of jobs, as many as a step and the pages hold.
    fn pack(&mut self, jobs: &VecDeque<EmbedJob>) -> Pack {
        let causal = self.executor.info.causal;
        let (mut input, mut owners, mut borrowed) = (StepInput::default(), Vec::new(), Vec::new());
        for job in jobs {
            for tokens in &job.inputs[job.vectors.len()..] {
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
                // With no pages left, the texts so far make the step.
                let Some(pages) = pages else { return Pack { input, owners, borrowed } };
                input.tokens.extend_from_slice(tokens);
                input.positions.extend(0..tokens.len() as u32);
                // Of a text that is scored: its first token sees all of it, or in a causal model its last.
                input.outputs.push((first_row + if causal { tokens.len() - 1 } else { 0 }) as u32);
                input.segments.push(pages.segment(self.windows(), first_row, tokens.len(), 0));
                borrowed.push(pages);
                owners.push(job.id);
            }
        }
        Pack { input, owners, borrowed }
    }

    /// The vectors of the texts of a step, whose pages come back.
    fn embed_texts(
        &mut self,
        input: &StepInput,
        borrowed: Vec<TemporaryPages>,
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        let pooling = self.executor.info.pooling;
        let want = if pooling == Pooling::Rank { Want::Score } else { Want::Hidden };
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
            let mut pool = Pool::new(pooling);
            pool.add(&result[s.first_row * cols..(s.first_row + s.rows) * cols], cols);
            pool.vector()
        };
        Ok(input.segments.iter().map(pooled).collect())
    }

    /// The next chunk of the first job's text, in a causal model.
    fn embed_part(&mut self) -> Embedded {
        let mut embeds = std::mem::take(&mut self.embeds);
        let job = &mut embeds[0];
        let embedded = self.embed_chunk(&job.inputs[job.vectors.len()], &mut job.long);
        let owners = vec![job.id];
        self.embeds = embeds;
        (owners, embedded.map(|vector| vector.into_iter().collect()))
    }

    /// The next chunk of a text of a causal model; its vector after the last one.
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
            *long =
                Some(LongText { pages, computed: 0, pool: Pool::new(self.executor.info.pooling) });
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
        let want = if pooling == Pooling::Rank { Want::Score } else { Want::Hidden };
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
