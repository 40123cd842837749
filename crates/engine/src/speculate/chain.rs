//! Drafts of a companion draft model that drafts one token per step (MTP, EAGLE-3).
//!
//! The companion runs on the target's backend. Its input is the latest token and the hidden state
//! that the target's step returned for it. A companion with its own KV cache also computes the keys
//! and values of all tokens that the target computes.

use std::collections::HashMap;
use std::time::Instant;

use puna_graph::{Segment, StepInput};
use puna_models::{DraftCache, StepKind};

use super::draft_source::StepRows;
use super::model::{DraftRequest, DraftTokens, TIMING_WINDOW, most_probable};
use super::rolling_median::RollingMedian;
use crate::error::EngineError;
use crate::executor::ModelExecutor;
use crate::kv::{PagePool, SequencePages};
use crate::request::RequestId;

/// A loaded companion with its state of all sequences.
pub struct ChainDrafter {
    /// Features of a hidden state.
    width: usize,
    /// Cache that drafts attend to: the target's or the companion's own.
    attends_to: DraftCache,
    /// Hidden state of the latest computed token by sequence.
    states: HashMap<RequestId, TokenState>,
    /// Rows of the latest step that the companion has not added to its cache yet.
    pending: Vec<PendingRows>,
    /// Seconds of draft steps.
    times: RollingMedian,
}

/// Hidden state of a token.
struct TokenState {
    /// Number of tokens up to and including it.
    tokens: usize,
    features: Vec<f32>,
}

/// Rows of a sequence that the companion will add to its cache.
struct PendingRows {
    id: RequestId,
    /// Number of tokens before them.
    cached_tokens: usize,
    /// Hidden state of the token before each row.
    states: Vec<f32>,
}

/// A draft while its tokens are sampled.
struct DraftInProgress {
    /// Index of the request.
    index: usize,
    /// Input token of the next step.
    token: u32,
    features: Vec<f32>,
    draft: Vec<u32>,
    max_tokens: usize,
}

impl ChainDrafter {
    /// A companion that reads hidden states of `width` features.
    pub fn new(width: usize, attends_to: DraftCache) -> Self {
        Self {
            width,
            attends_to,
            states: HashMap::new(),
            pending: Vec::new(),
            times: RollingMedian::default(),
        }
    }

    /// Cache that drafts attend to: the target's or the companion's own.
    pub fn attends_to(&self) -> DraftCache {
        self.attends_to
    }

    /// Median seconds of a draft step; 0 before the first one.
    pub fn token_seconds(&self) -> f64 {
        self.times.median().unwrap_or(0.0)
    }

    /// Records the hidden states that a step returned for a sequence with `computed` computed
    /// tokens.
    pub fn record_step(
        &mut self,
        id: RequestId,
        computed: usize,
        extra_output: &[f32],
        step: StepRows,
    ) {
        let width = self.width;
        let all = match (self.attends_to, step.output) {
            (DraftCache::Own, _) => {
                &extra_output[step.first * width..][..(computed - step.cached_tokens) * width]
            }
            (DraftCache::Target, Some(output)) => &extra_output[output * width..][..width],
            (DraftCache::Target, None) => return,
        };
        let Some(newest) = all.len().checked_sub(width) else { return };
        let latest =
            self.states.entry(id).or_insert_with(|| TokenState { tokens: 0, features: Vec::new() });
        if self.attends_to == DraftCache::Own {
            // No state precedes the first token, and the state of a token from the prefix cache is
            // unknown.
            let has_previous = latest.tokens == step.cached_tokens && step.cached_tokens > 0;
            let mut states =
                if has_previous { std::mem::take(&mut latest.features) } else { vec![0.0; width] };
            states.extend_from_slice(&all[..newest]);
            self.pending.push(PendingRows { id, cached_tokens: step.cached_tokens, states });
        }
        latest.tokens = computed;
        latest.features.clear();
        latest.features.extend_from_slice(&all[newest..]);
    }

    /// Computes the companion's keys and values for the rows of the latest step, before other
    /// sequences can match the pages in the prefix tree. `sequence` returns tokens and pages of a
    /// request.
    pub fn update_cache<'a>(
        &mut self,
        sequence: impl Fn(RequestId) -> Option<(&'a [u32], &'a SequencePages)>,
        (executor, pages): (&mut ModelExecutor, &PagePool),
    ) -> Result<(), EngineError> {
        let (mut input, mut features) = (StepInput::default(), Vec::new());
        for PendingRows { id, cached_tokens, states } in self.pending.drain(..) {
            let Some((tokens, held)) = sequence(id) else { continue };
            let (first_row, rows) = (input.tokens.len(), states.len() / self.width);
            input.tokens.extend_from_slice(&tokens[cached_tokens..cached_tokens + rows]);
            input.positions.extend((cached_tokens..cached_tokens + rows).map(|p| p as u32));
            features.extend(states);
            input.segments.push(companion_segment(held, pages, first_row, rows, cached_tokens));
        }
        if !input.tokens.is_empty() {
            input.inputs.push(features);
            executor.run(StepKind::DraftPrefill, &input)?;
        }
        Ok(())
    }

    /// Drafts for several sequences; each step computes one token of each.
    pub fn draft(
        &mut self,
        requests: &[DraftRequest<'_>],
        (executor, pages): (&mut ModelExecutor, &PagePool),
        is_end: impl Fn(u32) -> bool,
    ) -> Result<DraftTokens, EngineError> {
        let mut result = DraftTokens { drafts: vec![Vec::new(); requests.len()], seconds: 0.0 };
        let mut in_progress: Vec<DraftInProgress> = requests
            .iter()
            .enumerate()
            .filter_map(|(index, request)| self.begin(index, request))
            .collect();
        while !in_progress.is_empty() {
            let input = self.input(&in_progress, requests, pages);
            executor.prepare(StepKind::Draft, &input)?;
            let start = Instant::now();
            let Some(cols) = executor.run(StepKind::Draft, &input)? else { break };
            let seconds = start.elapsed().as_secs_f64();
            self.times.push(seconds, TIMING_WINDOW);
            result.seconds += seconds;
            let states = executor.backend.extra_output(0).chunks_exact(self.width);
            let rows = executor.backend.result().chunks_exact(cols).zip(states);
            let mut continuing = Vec::with_capacity(in_progress.len());
            for (mut one, (row, state)) in in_progress.into_iter().zip(rows) {
                let request = &requests[one.index];
                let (entry, probability) = most_probable(row);
                let token = executor.model.draft_token_id(entry as usize);
                let token = request.accepts(token, probability, &is_end).then_some(token);
                if let Some(token) = token {
                    one.token = token;
                    one.features.copy_from_slice(state);
                }
                if result.continue_draft(one.index, &mut one.draft, token, one.max_tokens) {
                    continuing.push(one);
                }
            }
            in_progress = continuing;
        }
        Ok(result)
    }

    /// Begins a draft, if the hidden state that the newest token was sampled from is known and the
    /// pages have room for the keys and values of draft tokens.
    fn begin(&self, index: usize, request: &DraftRequest<'_>) -> Option<DraftInProgress> {
        let state = self.states.get(&request.id)?;
        let &token = request.tokens.last()?;
        let is_newest = state.tokens + 1 == request.tokens.len();
        let max_tokens = match self.attends_to {
            DraftCache::Target => request.max_tokens,
            DraftCache::Own => request
                .max_tokens
                .min((request.pages.capacity_tokens() + 1).saturating_sub(request.tokens.len())),
        };
        let in_progress = || DraftInProgress {
            index,
            token,
            features: state.features.clone(),
            draft: Vec::new(),
            max_tokens,
        };
        (is_newest && max_tokens > 0).then(in_progress)
    }

    /// Removes a sequence that has ended or is preempted.
    pub fn remove(&mut self, id: RequestId) {
        self.states.remove(&id);
        self.pending.retain(|pending| pending.id != id);
    }

    /// Input of a draft step. With the target's cache, a row has the position of the newest token,
    /// and its segment ends with the token before it, the last one in the cache. With an own cache,
    /// a row has its token's position.
    fn input(
        &self,
        in_progress: &[DraftInProgress],
        requests: &[DraftRequest<'_>],
        pages: &PagePool,
    ) -> StepInput {
        let (mut input, mut features) = (StepInput::default(), Vec::new());
        for (row, one) in in_progress.iter().enumerate() {
            let request = &requests[one.index];
            let newest = request.tokens.len() - 1;
            let (position, segment) = match self.attends_to {
                DraftCache::Target => (newest, request.pages.segment(pages, row, 1, newest - 1)),
                DraftCache::Own => {
                    let position = newest + one.draft.len();
                    (position, companion_segment(request.pages, pages, row, 1, position))
                }
            };
            input.tokens.push(one.token);
            input.positions.push(position as u32);
            features.extend_from_slice(&one.features);
            input.segments.push(segment);
            input.outputs.push(row as u32);
        }
        input.inputs.push(features);
        input
    }
}

/// Segment of a sequence in the companion's cache. Its first position is masked, since no hidden
/// state precedes it.
fn companion_segment(
    held: &SequencePages,
    pages: &PagePool,
    first_row: usize,
    rows: usize,
    cached_tokens: usize,
) -> Segment {
    Segment { encoder_tokens: 1, ..held.segment(pages, first_row, rows, cached_tokens) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(
        id: u64,
        tokens: &'a [u32],
        max_tokens: usize,
        pages: &'a SequencePages,
    ) -> DraftRequest<'a> {
        DraftRequest { id: RequestId(id), tokens, max_tokens, always: true, pages }
    }

    fn output(row: usize) -> StepRows {
        StepRows { cached_tokens: 0, first: 0, output: Some(row) }
    }

    #[test]
    fn a_draft_begins_only_with_the_state_that_the_newest_token_was_sampled_from() {
        let mut chain = ChainDrafter::new(2, DraftCache::Target);
        let held = SequencePages::default();
        let request = |id, tokens, max| request(id, tokens, max, &held);
        assert!(chain.begin(0, &request(1, &[5, 6], 3)).is_none(), "nothing is known");
        chain.record_step(RequestId(1), 1, &[1.0, 2.0, 3.0, 4.0], output(1));
        let in_progress = chain.begin(0, &request(1, &[5, 6], 3)).unwrap();
        assert_eq!((in_progress.token, &in_progress.features[..]), (6, &[3.0, 4.0][..]));
        assert!(chain.begin(0, &request(1, &[5, 6, 7], 3)).is_none(), "a token more");
        assert!(chain.begin(0, &request(1, &[5, 6], 0)).is_none(), "no tokens are requested");
        chain.record_step(RequestId(1), 2, &[1.0, 2.0], output(0));
        assert_eq!(chain.begin(0, &request(1, &[5, 6, 7], 3)).unwrap().features, [1.0, 2.0]);
        chain.remove(RequestId(1));
        assert!(chain.begin(0, &request(1, &[5, 6, 7], 3)).is_none(), "it has left");
    }

    #[test]
    fn keys_of_a_token_use_the_state_of_the_token_before() {
        let mut chain = ChainDrafter::new(1, DraftCache::Own);
        let computed =
            |chain: &mut ChainDrafter, cached_tokens, computed, extra_output: &[f32], first| {
                chain.record_step(
                    RequestId(1),
                    computed,
                    extra_output,
                    StepRows { cached_tokens, first, output: None },
                );
                let pending = chain.pending.pop().unwrap();
                (pending.cached_tokens, pending.states)
            };
        // The output also has a row of another sequence before, and a rejected row behind.
        let extra_output = [9.0, 1.0, 2.0, 3.0, 8.0];
        assert_eq!(computed(&mut chain, 0, 3, &extra_output, 1), (0, vec![0.0, 1.0, 2.0]));
        assert_eq!(computed(&mut chain, 3, 4, &[4.0], 0), (3, vec![3.0]));
        assert_eq!(computed(&mut chain, 4, 6, &[5.0, 6.0], 0), (4, vec![4.0, 5.0]));
        // The tokens between came from the prefix cache.
        assert_eq!(computed(&mut chain, 64, 66, &[5.0, 6.0], 0), (64, vec![0.0, 5.0]));
        chain.remove(RequestId(1));
        assert_eq!(computed(&mut chain, 66, 67, &[7.0], 0), (66, vec![0.0]));
    }

    #[test]
    fn drafts_with_own_keys_end_without_free_pages() {
        let held = SequencePages::default();
        let mut chain = ChainDrafter::new(1, DraftCache::Own);
        chain.record_step(
            RequestId(1),
            1,
            &[1.0],
            StepRows { cached_tokens: 0, first: 0, output: None },
        );
        assert!(chain.begin(0, &request(1, &[5, 6], 3, &held)).is_none());
    }
}
