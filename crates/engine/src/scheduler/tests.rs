//! Tests of the plans alone: no model runs. `execute` stands for a step that computes the planned
//! rows and samples the next token of each sequence without uncomputed tokens.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::speculate::{Draft, DraftKind};

const LIMITS: SchedulerLimits = SchedulerLimits {
    num_batch: 128,
    max_sequences: Some(4),
    output_rows: 4,
    prompt_logits_rows: 32,
    max_bit_exact_rows: 1,
    media_width: 0,
};

fn scheduler(pages: usize, limits: SchedulerLimits) -> Scheduler {
    Scheduler::new(PagePool::new(pages), limits)
}

/// A new sequence of a client; its tokens begin at `first`.
fn sequence(id: u64, client: u64, first: u32, tokens: u32) -> SequenceState {
    SequenceState {
        id: RequestId(id),
        client,
        tokens: (first..first + tokens).collect(),
        context: 4096,
        is_ready: true,
        ..SequenceState::default()
    }
}

fn rows(plan: &StepPlan) -> Vec<(u64, usize)> {
    plan.rows.iter().map(|row| (row.id.0, row.rows)).collect()
}

fn ids(all: &[RequestId]) -> Vec<u64> {
    all.iter().map(|id| id.0).collect()
}

fn execute(scheduler: &mut Scheduler, plan: &StepPlan) {
    for row in &plan.rows {
        let s = scheduler.running.iter_mut().find(|s| s.id == row.id).unwrap();
        assert!(s.pages.capacity_tokens() >= s.computed + row.rows, "the rows have pages");
        s.computed += row.rows;
        if !plan.encodes && s.computed == s.tokens.len() {
            s.generated += 1;
            s.tokens.push(1_000_000 + s.id.0 as u32 * 1000 + s.generated as u32);
        }
    }
    scheduler.publish_pages();
}

/// Plans and executes a step.
fn step(scheduler: &mut Scheduler) -> Vec<(u64, usize)> {
    let plan = scheduler.schedule();
    execute(scheduler, &plan);
    rows(&plan)
}

#[test]
fn a_prompt_is_computed_in_chunks_and_its_last_token_in_a_step_of_its_own() {
    let mut scheduler = scheduler(8, LIMITS);
    scheduler.add(sequence(1, 0, 0, 100));
    let chunks: Vec<_> = (0..4).map(|_| step(&mut scheduler)).collect();
    assert_eq!(chunks, [[(1, 64)], [(1, 35)], [(1, 1)], [(1, 1)]]);
}

#[test]
fn chunks_follow_the_prefill_rate_up_to_the_batch_size() {
    let chunk = |rate: f64, decodes: bool| {
        let mut scheduler = scheduler(64, LIMITS);
        if decodes {
            scheduler.add(sequence(1, 0, 5000, 2));
            step(&mut scheduler);
            step(&mut scheduler);
        }
        scheduler.record_prefill(FIRST_CHUNK_ROWS, FIRST_CHUNK_ROWS as f64 / rate);
        scheduler.add(sequence(2, 0, 0, 1000));
        step(&mut scheduler).iter().find(|(id, _)| *id == 2).unwrap().1
    };
    const FIRST_CHUNK_ROWS: usize = 64;
    // Steps without decoding sequences take up to 700 ms, others 100 ms.
    assert_eq!(chunk(100.0, false), 70);
    assert_eq!(chunk(1000.0, false), 128);
    assert_eq!(chunk(1000.0, true), 100);
    assert_eq!(chunk(10_000.0, true), 127);
    assert_eq!(chunk(1.0, true), 16);
}

#[test]
fn every_decoding_sequence_has_one_row_and_prompts_have_the_rest() {
    let mut scheduler = scheduler(64, LIMITS);
    (1..=3).for_each(|id| scheduler.add(sequence(id, id, id as u32 * 1000, 2)));
    step(&mut scheduler);
    step(&mut scheduler);
    scheduler.add(sequence(4, 4, 9000, 500));
    assert_eq!(step(&mut scheduler), [(1, 1), (2, 1), (3, 1), (4, 16)]);
}

#[test]
fn more_decoding_sequences_than_output_rows_alternate() {
    let limits = SchedulerLimits { output_rows: 2, ..LIMITS };
    let mut scheduler = scheduler(64, limits);
    (1..=3).for_each(|id| scheduler.add(sequence(id, id, id as u32 * 1000, 1)));
    let mut counts = [0; 4];
    for _ in 0..12 {
        let rows = step(&mut scheduler);
        assert!(!rows.is_empty() && rows.len() <= 2, "{rows:?}");
        rows.iter().for_each(|(id, _)| counts[*id as usize] += 1);
    }
    assert!(counts[1..].iter().all(|count| (7..=9).contains(count)), "{counts:?}");
}

#[test]
fn clients_share_prompt_rows_however_many_requests_they_send() {
    let limits = SchedulerLimits { max_sequences: None, num_batch: 64, ..LIMITS };
    let mut scheduler = scheduler(512, limits);
    (1..=4).for_each(|id| scheduler.add(sequence(id, 1, id as u32 * 10_000, 2000)));
    scheduler.add(sequence(5, 2, 90_000, 2000));
    let mut served = [0; 3];
    for _ in 0..40 {
        for (id, rows) in step(&mut scheduler) {
            served[if id == 5 { 2 } else { 1 }] += rows;
        }
    }
    assert_eq!(served[1], served[2], "{served:?}");
}

#[test]
fn a_new_client_starts_with_the_smallest_share_of_the_others() {
    let limits = SchedulerLimits { max_sequences: None, num_batch: 64, ..LIMITS };
    let mut scheduler = scheduler(512, limits);
    scheduler.add(sequence(1, 1, 0, 4000));
    (0..20).for_each(|_| drop(step(&mut scheduler)));
    scheduler.add(sequence(2, 2, 10_000, 4000));
    let first: Vec<u64> = (0..6).map(|_| step(&mut scheduler)[0].0).collect();
    assert_eq!(first.iter().filter(|id| **id == 1).count(), 3, "{first:?}");
}

#[test]
fn requests_of_the_client_with_the_fewest_running_ones_are_admitted_first() {
    let limits = SchedulerLimits { max_sequences: Some(2), ..LIMITS };
    let mut scheduler = scheduler(64, limits);
    for (id, client) in [(1, 1), (2, 1), (3, 2)] {
        scheduler.add(sequence(id, client, id as u32 * 1000, 8));
    }
    let plan = scheduler.schedule();
    assert_eq!(plan.admitted.iter().map(|start| start.id.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(scheduler.counts(), [2, 1]);
}

#[test]
fn a_prompt_in_flight_is_computed_once() {
    let mut scheduler = scheduler(64, LIMITS);
    scheduler.add(sequence(1, 0, 0, 200));
    scheduler.add(sequence(2, 0, 0, 200));
    let plan = scheduler.schedule();
    assert_eq!((plan.admitted.len(), scheduler.counts()), (1, [1, 1]));
    execute(&mut scheduler, &plan);
    let started = loop {
        let plan = scheduler.schedule();
        execute(&mut scheduler, &plan);
        if let Some(start) = plan.admitted.first() {
            break Start { id: start.id, cached: start.cached };
        }
    };
    assert_eq!(started, Start { id: RequestId(2), cached: 199 });
    // The page that is not full is copied.
    assert_eq!(scheduler.pages.take_copies().len(), 1);
}

#[test]
fn a_prompt_of_another_client_does_not_wait_for_one_in_flight() {
    let mut scheduler = scheduler(64, LIMITS);
    scheduler.add(sequence(1, 1, 0, 200));
    scheduler.add(sequence(2, 2, 0, 200));
    assert_eq!(scheduler.schedule().admitted.len(), 2);
}

#[test]
fn a_sequence_waits_until_pages_for_all_are_free_but_a_sequence_alone_starts() {
    let mut scheduler = scheduler(4, LIMITS);
    scheduler.add(sequence(1, 0, 0, 150));
    scheduler.add(sequence(2, 0, 1000, 100));
    step(&mut scheduler);
    assert_eq!(scheduler.counts(), [1, 1], "three of four pages are reserved");
    scheduler.remove(RequestId(1)).unwrap();
    step(&mut scheduler);
    assert_eq!(scheduler.counts(), [1, 0]);
}

#[test]
fn the_newest_sequence_is_preempted_and_continues_from_the_prefix_tree() {
    let mut scheduler = scheduler(4, LIMITS);
    scheduler.add(sequence(1, 0, 0, 126));
    scheduler.add(sequence(2, 0, 1000, 62));
    let preempted = loop {
        let plan = scheduler.schedule();
        execute(&mut scheduler, &plan);
        if !plan.preempted.is_empty() {
            break plan;
        }
        assert!(scheduler.running[0].generated < 100);
    };
    assert_eq!((ids(&preempted.preempted), rows(&preempted)), (vec![2], vec![(1, 1)]));
    assert_eq!((scheduler.counts(), scheduler.preemptions()), ([1, 1], 1));
    let generated = scheduler.waiting(RequestId(2)).unwrap().generated;
    scheduler.remove(RequestId(1)).unwrap();
    let plan = scheduler.schedule();
    assert_eq!(plan.admitted[0].id, RequestId(2));
    assert!(plan.admitted[0].cached >= PAGE_TOKENS, "{plan:?}");
    assert_eq!(scheduler.running[0].generated, generated, "no token is lost");
}

/// A scheduler in which 8 sequences of client 1 and one of client 2, number 9, decode.
fn two_decoding_clients(seconds: impl Fn(usize) -> f64) -> Scheduler {
    let limits = SchedulerLimits { max_sequences: None, output_rows: 64, ..LIMITS };
    let mut scheduler = scheduler(512, limits);
    [1, 5, 9].iter().cycle().take(90).for_each(|&n| scheduler.record_decode(n, seconds(n)));
    (1..=9).for_each(|id| scheduler.add(sequence(id, 1 + id / 9, id as u32 * 1000, 1)));
    step(&mut scheduler);
    scheduler
}

#[test]
fn a_client_with_many_sequences_leaves_another_its_share_of_the_time() {
    // Each row takes as long as a step of one row: the clients get one row each.
    let mut scheduler = two_decoding_clients(|rows| rows as f64);
    let mut counts = [0; 10];
    for _ in 0..16 {
        let rows = step(&mut scheduler);
        assert_eq!(rows.len(), 2, "{rows:?}");
        rows.iter().for_each(|(id, _)| counts[*id as usize] += 1);
    }
    assert_eq!(counts, [0, 2, 2, 2, 2, 2, 2, 2, 2, 16]);
}

#[test]
fn rows_that_cost_little_are_not_limited() {
    let mut scheduler = two_decoding_clients(|rows| 1.0 + 0.1 * rows as f64);
    assert_eq!(step(&mut scheduler).len(), 9);
}

#[test]
fn some_steps_have_few_rows_so_that_the_time_of_a_row_is_known() {
    let mut scheduler = two_decoding_clients(|_| 1.0);
    let counts: Vec<_> = (0..32)
        .map(|_| {
            let rows = step(&mut scheduler).len();
            scheduler.record_decode(rows, rows as f64);
            rows
        })
        .collect();
    assert!(counts.contains(&9) && counts.contains(&2), "{counts:?}");
    assert!(
        counts[24..].iter().all(|rows| *rows < 9),
        "the rows turned out to cost time: {counts:?}"
    );
}

#[test]
fn a_client_alone_has_all_its_rows() {
    let mut scheduler = two_decoding_clients(|rows| rows as f64);
    scheduler.remove(RequestId(9));
    assert_eq!(step(&mut scheduler).len(), 8);
}

/// A scheduler in which one sequence of client 1 and `others` sequences of client 3 decode, and
/// client `prompting` has a long prompt, with the number of prompt rows of each of `steps` steps.
fn prompt_rows(
    others: u64,
    prompting: u64,
    (decode_seconds, prefill_rate): (f64, f64),
    steps: usize,
) -> Vec<usize> {
    let limits = SchedulerLimits { num_batch: 512, output_rows: 64, max_sequences: None, ..LIMITS };
    let mut scheduler = scheduler(512, limits);
    scheduler.add(sequence(1, 1, 0, 1));
    (0..others).for_each(|n| scheduler.add(sequence(9 + n, 3, 100 + n as u32, 1)));
    step(&mut scheduler);
    scheduler.record_prefill(64, 64.0 / prefill_rate);
    scheduler.record_decode(1, decode_seconds);
    scheduler.add(sequence(2, prompting, 1000, 2000));
    let mut rows = || step(&mut scheduler).iter().find(|(id, _)| *id == 2).map_or(0, |row| row.1);
    (0..steps).map(|_| rows()).collect()
}

#[test]
fn prompts_leave_clients_that_decode_their_share_of_the_time() {
    let first = |others, prompting, speed| prompt_rows(others, prompting, speed, 1)[0];
    assert_eq!(first(0, 1, (0.040, 1000.0)), 100, "the same client");
    // Client 3 decodes and has the prompt. With two rows, decoding takes 44 ms of 80 ms.
    assert_eq!(first(1, 3, (0.040, 1000.0)), 36);
    assert_eq!(first(1, 3, (0.500, 1000.0)), 100, "the longest step");
    // A new client has the time of a step in advance, and then half of the time.
    let rows = prompt_rows(0, 2, (0.040, 1000.0), 20);
    assert_eq!(rows[0], 100);
    let all: usize = rows.iter().sum();
    assert!((860..=940).contains(&all), "{all}");
}

#[test]
fn prompts_save_their_share_for_a_chunk_of_an_efficient_length() {
    // Decoding takes 11 ms of 20 ms, and a chunk of 25 rows 25 ms.
    let rows = prompt_rows(1, 3, (0.010, 1000.0), 100);
    let chunks: Vec<usize> = rows.into_iter().filter(|rows| *rows > 0).collect();
    assert!(chunks.iter().all(|rows| (25..=34).contains(rows)), "{chunks:?}");
    assert!((860..=940).contains(&chunks.iter().sum::<usize>()), "{chunks:?}");
    // Prompts save the time of four steps at most, and take the shortest chunk then.
    let rows = prompt_rows(1, 3, (0.001, 1000.0), 100);
    assert!(rows.iter().all(|rows| [0, 16].contains(rows)), "{rows:?}");
    assert!((80..=112).contains(&rows.iter().sum::<usize>()), "{rows:?}");
    // A chunk of 64 rows is efficient even if it takes 0.5 ms.
    let rows = prompt_rows(1, 3, (0.0005, 128_000.0), 10);
    assert!(rows.iter().all(|rows| *rows == 0 || (64..=128).contains(rows)), "{rows:?}");
    // With 20 sequences of client 3, decoding takes 14.5 ms of 10 ms: its own prompts have a
    // quarter of 5 ms, the prompts of another client 5 ms.
    let rows = |prompting| prompt_rows(20, prompting, (0.005, 1000.0), 200).iter().sum::<usize>();
    assert!((225..=275).contains(&rows(3)), "{}", rows(3));
    assert!((1050..=1150).contains(&rows(2)), "{}", rows(2));
}

/// Runs until all sequences have generated `tokens` tokens. Returns them in the order of their
/// ends.
fn finish_all(scheduler: &mut Scheduler, tokens: usize) -> Vec<u64> {
    let mut ended = Vec::new();
    for _ in 0..100_000 {
        let plan = scheduler.schedule();
        execute(scheduler, &plan);
        let done: Vec<_> =
            scheduler.running.iter().filter(|s| s.generated >= tokens).map(|s| s.id).collect();
        for id in done {
            scheduler.remove(id).unwrap();
            ended.push(id.0);
        }
        if scheduler.counts() == [0, 0] {
            return ended;
        }
    }
    panic!("no progress: {:?} {ended:?}", scheduler.counts());
}

#[test]
fn a_client_that_holds_all_pages_gives_way_to_another() {
    let limits = SchedulerLimits { max_sequences: None, ..LIMITS };
    let mut scheduler = scheduler(16, limits);
    (1..=8).for_each(|id| scheduler.add(sequence(id, 1, id as u32 * 1000, 60)));
    (0..80).for_each(|_| drop(step(&mut scheduler)));
    assert_eq!(scheduler.counts(), [8, 0]);
    scheduler.add(sequence(9, 2, 50_000, 200));
    let plan = scheduler.schedule();
    assert_eq!(plan.admitted.iter().map(|start| start.id.0).collect::<Vec<_>>(), [9]);
    assert_eq!(ids(&plan.preempted), [8, 7], "the newest ones, and no more than necessary");
    execute(&mut scheduler, &plan);
    let ended = finish_all(&mut scheduler, 300);
    assert_eq!(ended.len(), 9);
    assert_ne!(ended.last(), Some(&9), "{ended:?}");
}

#[test]
fn a_client_that_holds_all_places_gives_way_to_another() {
    let mut scheduler = scheduler(64, LIMITS);
    (1..=4).for_each(|id| scheduler.add(sequence(id, 1, id as u32 * 1000, 8)));
    step(&mut scheduler);
    (5..=8).for_each(|id| scheduler.add(sequence(id, 2, id as u32 * 1000, 8)));
    let plan = scheduler.schedule();
    assert_eq!(ids(&plan.preempted), [4, 3]);
    assert_eq!(plan.admitted.iter().map(|start| start.id.0).collect::<Vec<_>>(), [5, 6]);
    execute(&mut scheduler, &plan);
    for _ in 0..20 {
        assert!(scheduler.schedule().preempted.is_empty(), "none in turn");
    }
    assert_eq!(finish_all(&mut scheduler, 10).len(), 8);
}

#[test]
fn a_client_with_one_sequence_keeps_it() {
    let mut scheduler = scheduler(8, LIMITS);
    scheduler.add(sequence(1, 1, 0, 400));
    step(&mut scheduler);
    scheduler.add(sequence(2, 2, 1000, 100));
    let plan = scheduler.schedule();
    assert_eq!((plan.preempted.len(), scheduler.counts()), (0, [1, 1]));
}

#[test]
fn a_growing_sequence_preempts_the_client_with_the_most_pages() {
    let mut scheduler = scheduler(12, SchedulerLimits { max_sequences: None, ..LIMITS });
    (1..=3).for_each(|id| scheduler.add(sequence(id, 1, id as u32 * 1000, 150)));
    (0..20).for_each(|_| drop(step(&mut scheduler)));
    scheduler.add(sequence(4, 2, 9000, 100));
    let preempted = loop {
        let plan = scheduler.schedule();
        execute(&mut scheduler, &plan);
        if !plan.preempted.is_empty() {
            break ids(&plan.preempted);
        }
    };
    assert_eq!(preempted, [3], "not the newest one, which is the only one of its client");
    assert_eq!(finish_all(&mut scheduler, 200).len(), 4);
}

#[test]
fn a_full_context_ends_a_sequence_or_is_shifted() {
    let mut scheduler = scheduler(64, LIMITS);
    scheduler.add(SequenceState { context: 10, ..sequence(1, 0, 0, 10) });
    let shifts = SequenceState { context: 10, kept_by_shift: Some(2), ..sequence(2, 0, 100, 10) };
    scheduler.add(shifts);
    let plan = loop {
        let plan = scheduler.schedule();
        if !plan.full.is_empty() {
            break plan;
        }
        execute(&mut scheduler, &plan);
    };
    let full = &plan.full[0];
    assert_eq!((full.id, full.tokens.len(), full.generated), (RequestId(1), 11, 1));
    let shift = &plan.shifted[0];
    assert_eq!((shift.id, shift.tokens.len(), shift.dropped), (RequestId(2), 11, 4));
    assert_eq!(scheduler.running[0].tokens[..3], [100, 101, 106]);
}

#[test]
fn sequences_whose_receiver_is_slow_take_no_rows() {
    let mut scheduler = scheduler(64, LIMITS);
    scheduler.add(sequence(1, 0, 0, 20));
    scheduler.add(sequence(2, 0, 1000, 20));
    step(&mut scheduler);
    scheduler.running[0].is_ready = false;
    assert!(step(&mut scheduler).iter().all(|(id, _)| *id == 2));
    scheduler.running[1].is_ready = false;
    assert!(scheduler.schedule().rows.is_empty());
}

#[test]
fn sequences_without_a_token_to_compute_take_no_rows() {
    let mut scheduler = scheduler(64, SchedulerLimits { output_rows: 1, ..LIMITS });
    for id in 1..=3 {
        // All tokens are computed: the sample waits for its mask.
        scheduler.add(sequence(id, 0, id as u32 * 1000, 20));
    }
    scheduler.schedule();
    for s in &mut scheduler.running {
        assert!(s.pages.grow(&mut scheduler.pages, 20));
        s.computed = 20;
    }
    assert!(scheduler.schedule().rows.is_empty());
}

#[test]
fn prompts_that_are_scored_take_as_many_rows_as_logits_can_be_read() {
    let mut scheduler = scheduler(64, LIMITS);
    scheduler.add(SequenceState { to_score: 100, ..sequence(1, 0, 0, 100) });
    let plan = scheduler.schedule();
    assert_eq!(rows(&plan), [(1, 32)]);
    let (input, parts) = scheduler.step_input(&plan, HashMap::new());
    assert_eq!(input.outputs, (0..32).collect::<Vec<u32>>());
    assert_eq!((parts[0].prompt_logits.clone(), parts[0].outputs.clone()), (0..32, 32..32));
}

#[test]
fn steps_of_the_encoder_alternate_with_steps_of_the_decoder() {
    let mut scheduler = scheduler(64, LIMITS);
    let encoded = |id: u64, tokens: u32| {
        let mut s = sequence(id, 0, id as u32 * 1000, tokens);
        s.cache_scope.key.encoder_input = s.tokens.clone().into();
        s.tokens.push(7);
        s
    };
    (1..=3).for_each(|id| scheduler.add(encoded(id, 60)));
    let kinds: Vec<_> = (0..6)
        .map(|_| {
            let plan = scheduler.schedule();
            execute(&mut scheduler, &plan);
            (plan.encodes, rows(&plan))
        })
        .collect();
    let expected = [
        (true, vec![(1, 60)]),
        (false, vec![(1, 1)]),
        (true, vec![(2, 60)]),
        (false, vec![(1, 1), (2, 1)]),
        (true, vec![(3, 60)]),
        (false, vec![(1, 1), (2, 1), (3, 1)]),
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn drafts_are_shortened_to_the_free_pages_and_preempt_nothing() {
    let mut scheduler = scheduler(2, LIMITS);
    scheduler.add(sequence(1, 0, 0, 60));
    (0..3).for_each(|_| drop(step(&mut scheduler)));
    let plan = scheduler.schedule();
    let computed = scheduler.running[0].computed;
    let fit = scheduler.reserve_draft(RequestId(1), 500);
    assert_eq!(fit, 2 * PAGE_TOKENS - computed - 1);
    let draft = Draft { tokens: vec![9; fit], kind: DraftKind::Long };
    let (input, parts) = scheduler.step_input(&plan, HashMap::from([(RequestId(1), draft)]));
    assert_eq!(input.tokens.len(), fit + 1);
    assert_eq!(input.positions[..2], [computed as u32, computed as u32 + 1]);
    assert_eq!(parts[0].outputs, 0..fit + 1, "every draft token is verified");
}

#[test]
fn texts_outside_of_the_tree_hold_pages_and_block_admission_while_they_wait() {
    let mut scheduler = scheduler(4, LIMITS);
    let taken = scheduler.take_temporary_pages(3 * PAGE_TOKENS).unwrap();
    assert!(scheduler.take_temporary_pages(2 * PAGE_TOKENS).is_none());
    assert!(scheduler.has_temporary_pages());
    scheduler.add(sequence(1, 0, 0, 100));
    assert!(step(&mut scheduler).is_empty(), "one page is free");
    scheduler.block_admission(true);
    scheduler.release_temporary_pages(taken);
    assert!(!scheduler.has_temporary_pages());
    assert!(!step(&mut scheduler).is_empty(), "a sequence alone starts");
    scheduler.add(sequence(2, 0, 1000, 10));
    step(&mut scheduler);
    assert_eq!(scheduler.counts(), [1, 1], "admission is blocked");
    scheduler.block_admission(false);
    step(&mut scheduler);
    assert_eq!(scheduler.counts(), [2, 0]);
}

#[test]
fn a_removed_sequence_leaves_its_pages_to_others() {
    let mut scheduler = scheduler(8, LIMITS);
    scheduler.add(sequence(1, 0, 0, 130));
    (0..4).for_each(|_| drop(step(&mut scheduler)));
    assert_eq!(scheduler.remove(RequestId(1)).unwrap().id, RequestId(1));
    assert!(scheduler.remove(RequestId(1)).is_none());
    assert_eq!(scheduler.pages.pinned(), 0);
    scheduler.add(sequence(2, 0, 0, 130));
    assert_eq!(scheduler.schedule().admitted[0].cached, 129);
}

proptest! {
    /// Whatever arrives and leaves, steps stay within their limits, pages are never lost, and every
    /// sequence gets its tokens.
    #[test]
    fn every_sequence_progresses(
        pages in 3usize..12,
        lengths in proptest::collection::vec((1u32..180, 0u64..3), 1..8),
        cancelled in proptest::collection::vec(0usize..400, 0..3),
    ) {
        let mut scheduler = scheduler(pages, LIMITS);
        for (id, (tokens, client)) in lengths.iter().enumerate() {
            // Half of the prompts begin alike.
            let first = if id % 2 == 0 { 0 } else { id as u32 * 1000 };
            let context = pages * PAGE_TOKENS;
            scheduler.add(SequenceState { context, ..sequence(id as u64, *client, first, *tokens) });
        }
        let mut left = lengths.len();
        for round in 0..2000 {
            let plan = scheduler.schedule();
            let total: usize = plan.rows.iter().map(|row| row.rows).sum();
            prop_assert!(total <= LIMITS.num_batch);
            prop_assert!(scheduler.counts()[0] <= 4);
            prop_assert!(left == 0 || total > 0 || !plan.full.is_empty(), "round {round} stands still");
            left -= plan.full.len();
            execute(&mut scheduler, &plan);
            let done = |s: &&SequenceState| s.generated >= 20;
            if let Some(id) = scheduler.running.iter().find(done).map(|s| s.id) {
                scheduler.remove(id);
                left -= 1;
            }
            if cancelled.contains(&round) && let Some(id) = scheduler.running.first().map(|s| s.id) {
                scheduler.remove(id);
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        prop_assert_eq!((left, scheduler.counts()), (0, [0, 0]));
        prop_assert_eq!(scheduler.pages.pinned(), 0);
    }
}
