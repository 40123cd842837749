//! Embedding requests: texts of all requests share steps, and their hidden states are pooled by the
//! model's pooling type. Rerankers return one value per label instead of an embedding.

use std::collections::VecDeque;

use puna_graph::{Segment, StepInput};
use puna_models::{Pooling, StepKind};

use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::fair_shares::FairShares;
use crate::request::RequestId;
use crate::scheduler::{Scheduler, TemporaryPages};

/// Callback with the embeddings of a request.
pub type EmbedCallback = Box<dyn FnOnce(Result<Vec<Vec<f32>>, EngineError>) + Send>;

/// Callback with the scores of a rerank request.
pub type RerankCallback = Box<dyn FnOnce(Result<Vec<f32>, EngineError>) + Send>;

/// An embedding request.
pub struct EmbedRequest {
    id: RequestId,
    client: u64,
    inputs: Vec<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
    done: EmbedCallback,
    /// State of the next text, if it takes several steps and has begun.
    long: Option<LongText>,
}

impl EmbedRequest {
    /// Makes a request of a client for one vector for each input.
    pub fn new(id: RequestId, client: u64, inputs: Vec<Vec<u32>>, done: EmbedCallback) -> Self {
        Self { id, client, inputs, vectors: Vec::new(), done, long: None }
    }

    /// Tokens of the next text.
    fn next_text(&self) -> Option<&[u32]> {
        self.inputs.get(self.vectors.len()).map(Vec::as_slice)
    }
}

/// Text of a causal model that takes several steps.
struct LongText {
    /// Pages for the whole text.
    pages: TemporaryPages,
    /// Number of computed tokens.
    computed: usize,
    /// Pooled hidden states.
    pool: Pooler,
}

/// Result of a step: the request of each text, and the texts' vectors; a part of a long text has
/// none.
type EmbedStepResult = (Vec<RequestId>, Result<Vec<Vec<f32>>, EngineError>);

/// Texts of one step.
#[derive(Default)]
struct TextBatch {
    input: StepInput,
    /// Request of each text.
    owners: Vec<RequestId>,
    /// Pages of each text of a causal model.
    pages: Vec<TemporaryPages>,
}

/// The embedding requests of an engine, least-served client first.
#[derive(Default)]
pub struct EmbedQueue {
    requests: VecDeque<EmbedRequest>,
    /// Tokens computed for each client that has requests.
    client_shares: FairShares,
}

impl EmbedQueue {
    /// Adds a request. A new client starts with the smallest share of the others.
    pub fn push(&mut self, request: EmbedRequest) {
        let requests = &self.requests;
        self.client_shares.retain(|client| requests.iter().any(|r| r.client == client));
        self.client_shares.add(request.client, requests.iter().map(|r| r.client));
        self.requests.push_back(request);
    }

    /// Clients that have requests.
    pub fn clients(&self) -> impl Iterator<Item = u64> {
        self.requests.iter().map(|request| request.client)
    }

    /// Sorts the requests, least-served client first. The order within a client stays.
    fn sort_by_share(&mut self) {
        let shares = &self.client_shares;
        self.requests.make_contiguous().sort_by_key(|request| shares.served(request.client));
    }

    /// Counts tokens for the share of a request's client.
    fn count_served(&mut self, id: RequestId, tokens: usize) {
        let Some(request) = self.requests.iter().find(|r| r.id == id) else { return };
        self.client_shares.count(request.client, tokens);
    }

    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Removes a request, and releases its pages.
    pub fn cancel(&mut self, id: RequestId, scheduler: &mut Scheduler) {
        for mut request in self.take(&[id]) {
            release_long_text(&mut request, scheduler);
        }
    }

    /// Ends all requests, since the engine stops.
    pub fn stop(&mut self) {
        for request in self.requests.drain(..) {
            (request.done)(Err(EngineError::Stopped));
        }
    }

    /// Runs one step with as many texts as fit, least-served client first, or with a part of a long
    /// text. Returns `false` if there is none, or if the next text waits for pages.
    pub fn step(&mut self, scheduler: &mut Scheduler, executor: &mut ModelExecutor) -> bool {
        scheduler.block_admission(false);
        self.sort_by_share();
        let Some(first) = self.requests.front_mut() else { return false };
        let (owners, embedded) = match first.next_text() {
            None => (vec![first.id], Ok(Vec::new())),
            Some(tokens) if is_long(tokens, scheduler, executor) => {
                let vector = embed_chunk(first, scheduler, executor);
                let id = first.id;
                self.count_served(id, scheduler.embed_rows());
                (vec![id], vector.map(|vector| vector.into_iter().collect()))
            }
            Some(_) => self.embed_batch(scheduler, executor),
        };
        match embedded {
            Ok(vectors) => self.distribute_vectors(&owners, vectors),
            // Other sequences have the pages: no sequence is admitted until the texts have theirs.
            Err(EngineError::PromptTooLong { .. })
                if !scheduler.running().is_empty() || scheduler.has_temporary_pages() =>
            {
                scheduler.block_admission(true);
                self.count_served(owners[0], 1);
                self.requests.rotate_left(1);
                return false;
            }
            Err(error) => {
                for mut request in self.take(&owners) {
                    release_long_text(&mut request, scheduler);
                    (request.done)(Err(error.clone()));
                }
            }
        }
        true
    }

    /// Adds the vectors of a step to their requests. Complete requests finish; the others move to
    /// the end of the queue.
    fn distribute_vectors(&mut self, owners: &[RequestId], vectors: Vec<Vec<f32>>) {
        let mut vectors = owners.iter().zip(vectors).peekable();
        for mut request in self.take(owners) {
            while let Some((_, vector)) = vectors.next_if(|(owner, _)| **owner == request.id) {
                request.vectors.push(vector);
            }
            if request.next_text().is_some() {
                self.requests.push_back(request);
            } else {
                (request.done)(Ok(request.vectors));
            }
        }
    }

    /// Removes requests from the queue, in its order.
    fn take(&mut self, owners: &[RequestId]) -> VecDeque<EmbedRequest> {
        let taken;
        (taken, self.requests) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition(|request| owners.contains(&request.id));
        taken
    }

    /// Embeds as many texts as fit a step.
    fn embed_batch(
        &mut self,
        scheduler: &mut Scheduler,
        executor: &mut ModelExecutor,
    ) -> EmbedStepResult {
        let batch = self.collect_batch(scheduler, executor);
        if batch.owners.is_empty() {
            let first = &self.requests[0];
            let tokens = first.next_text().map_or(0, <[u32]>::len);
            let error = EngineError::PromptTooLong { tokens, n_ctx: executor.info.n_ctx };
            return (vec![first.id], Err(error));
        }
        for (segment, id) in batch.input.segments.iter().zip(&batch.owners) {
            self.count_served(*id, segment.rows);
        }
        let vectors = embed_texts(&batch.input, executor);
        batch.pages.into_iter().for_each(|pages| scheduler.release_temporary_pages(pages));
        (batch.owners, vectors)
    }

    /// Collects as many texts as fit a step and the free pages.
    fn collect_batch(&self, scheduler: &mut Scheduler, executor: &ModelExecutor) -> TextBatch {
        let causal = executor.info.causal;
        let max_rows = scheduler.embed_rows();
        let mut batch = TextBatch::default();
        for request in &self.requests {
            for tokens in &request.inputs[request.vectors.len()..] {
                let input = &mut batch.input;
                let (first_row, rows) = (input.tokens.len(), tokens.len());
                let fits = first_row == 0 || first_row + rows <= max_rows;
                if !fits || is_long(tokens, scheduler, executor) {
                    break;
                }
                if causal {
                    // Without free pages the batch is complete.
                    let Some(pages) = scheduler.take_temporary_pages(rows) else { return batch };
                    let windows = scheduler.pages.windows();
                    input.segments.push(pages.segment(windows, first_row, rows, 0));
                    batch.pages.push(pages);
                } else {
                    input.segments.push(Segment { first_row, rows, ..Segment::default() });
                }
                input.tokens.extend_from_slice(tokens);
                input.positions.extend(0..rows as u32);
                // A classifier reads the first token, or in a causal model the last one.
                input.outputs.push((first_row + if causal { rows - 1 } else { 0 }) as u32);
                batch.owners.push(request.id);
            }
        }
        batch
    }
}

/// Whether a text takes several steps. Encoders compute whole texts.
fn is_long(tokens: &[u32], scheduler: &Scheduler, executor: &ModelExecutor) -> bool {
    executor.info.causal && tokens.len() > scheduler.limits().num_batch
}

/// Releases the pages of a long text that has begun.
fn release_long_text(request: &mut EmbedRequest, scheduler: &mut Scheduler) {
    if let Some(long) = request.long.take() {
        scheduler.release_temporary_pages(long.pages);
    }
}

/// Kind of the steps of a model with this pooling type.
fn step_kind(pooling: Pooling) -> StepKind {
    if pooling == Pooling::Rank { StepKind::Score } else { StepKind::Hidden }
}

/// Computes the vectors of a batch.
fn embed_texts(
    input: &StepInput,
    executor: &mut ModelExecutor,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let pooling = executor.info.pooling;
    let cols = executor.run(step_kind(pooling), input)?.ok_or(EngineError::CannotEmbed)?;
    let result = executor.backend.result();
    if pooling == Pooling::Rank {
        let labels = result.chunks_exact(cols);
        return Ok(labels.map(|labels| executor.rerank_scores(labels.to_vec())).collect());
    }
    let pooled = |s: &Segment| {
        let mut pool = Pooler::new(pooling);
        pool.add(&result[s.first_row * cols..(s.first_row + s.rows) * cols], cols);
        pool.vector()
    };
    Ok(input.segments.iter().map(pooled).collect())
}

/// Computes the next chunk of a request's long text, and returns the vector after the last chunk.
fn embed_chunk(
    request: &mut EmbedRequest,
    scheduler: &mut Scheduler,
    executor: &mut ModelExecutor,
) -> Result<Option<Vec<f32>>, EngineError> {
    let (pooling, n_ctx) = (executor.info.pooling, executor.info.n_ctx);
    let tokens = &request.inputs[request.vectors.len()];
    let mut text = match request.long.take() {
        Some(text) => text,
        None => {
            let too_long = EngineError::PromptTooLong { tokens: tokens.len(), n_ctx };
            let pages = scheduler.take_temporary_pages(tokens.len()).ok_or(too_long)?;
            LongText { pages, computed: 0, pool: Pooler::new(pooling) }
        }
    };
    let cached_tokens = text.computed;
    let chunk = &tokens[cached_tokens..tokens.len().min(cached_tokens + scheduler.embed_rows())];
    let input = StepInput {
        tokens: chunk.to_vec(),
        positions: (cached_tokens..cached_tokens + chunk.len()).map(|p| p as u32).collect(),
        segments: vec![text.pages.segment(
            scheduler.pages.windows(),
            0,
            chunk.len(),
            cached_tokens,
        )],
        outputs: vec![chunk.len() as u32 - 1],
        ..StepInput::default()
    };
    let cols = match executor.run(step_kind(pooling), &input) {
        Ok(Some(cols)) => cols,
        failed => {
            scheduler.release_temporary_pages(text.pages);
            return Err(failed.err().unwrap_or(EngineError::CannotEmbed));
        }
    };
    text.pool.add(executor.backend.result(), cols);
    text.computed += chunk.len();
    if text.computed < tokens.len() {
        request.long = Some(text);
        return Ok(None);
    }
    scheduler.release_temporary_pages(text.pages);
    let vector = text.pool.vector();
    Ok(Some(if pooling == Pooling::Rank { executor.rerank_scores(vector) } else { vector }))
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
