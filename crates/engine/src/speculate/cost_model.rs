//! Cost model of speculative decoding: chooses how many draft tokens a step verifies.
//!
//! The unit of cost is the *plain step*: one row for each sequence of the batch. The cost of a
//! larger step is its ratio to the plain step, a median of measurements, so that neither a growing
//! context nor other load on the machine distorts it. A credit account bounds the loss where the
//! estimates are wrong: each step adds a little credit, each verification adds or takes what it
//! gained or lost, and without credit no drafts are verified. The caller measures all times; this
//! module reads no clock.

use std::collections::HashMap;
use std::time::Duration;

use super::rolling_median::RollingMedian;

/// Least expected speed relative to plain steps for which drafts are verified.
const MIN_SPEEDUP: f64 = 1.03;
/// Credit that each step adds, in plain steps.
const CREDIT_PER_STEP: f64 = 0.012;
/// Initial and largest credit, in plain steps.
const INITIAL_CREDIT: f64 = 1.0;
const MAX_CREDIT: f64 = 3.0;
/// Least credit for a trial: a step with unknown or stale cost.
const MIN_TRIAL_CREDIT: f64 = 0.5;
/// Number of steps with drafts after which a plain step is measured again.
const PLAIN_STEP_INTERVAL: u32 = 48;
/// Number of steps after which a measured cost is stale.
const STALE_AFTER_STEPS: u64 = 192;
/// Cost of a further row before any measurement, and its lower bound, in plain steps.
const DEFAULT_ROW_COST: f64 = 0.08;
const MIN_ROW_COST: f64 = 0.02;
/// Largest cost of a step in which some sequence has no draft and gains nothing.
const MAX_COST_WITHOUT_DRAFT: f64 = 1.10;
/// Bound of a measured ratio; larger ones come from other load.
const MAX_COST_RATIO: f64 = 4.0;
/// Number of latest measurements of plain steps and of cost ratios; their medians count.
const PLAIN_STEP_SAMPLES: usize = 3;
const COST_RATIO_SAMPLES: usize = 7;

/// Measured cost of a step relative to the plain step of as many sequences.
#[derive(Debug, Clone, Default)]
struct Cost {
    ratios: RollingMedian,
    /// Number of the step that measured it last.
    measured_at: u64,
}

/// Expected acceptance and cost of a sequence's draft.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftProposal {
    /// For each draft token the probability that it and all tokens before it are accepted.
    pub probabilities: Vec<f64>,
    /// Seconds to draft each token.
    pub token_seconds: f64,
    /// Seconds before the first token.
    pub setup_seconds: f64,
}

impl DraftProposal {
    /// A draft of `tokens` tokens, each accepted with probability `rate` if all before it are.
    pub fn new(tokens: usize, rate: f64) -> Self {
        let mut probability = 1.0;
        let mut next = || {
            probability *= rate;
            probability
        };
        Self {
            probabilities: (0..tokens).map(|_| next()).collect(),
            token_seconds: 0.0,
            setup_seconds: 0.0,
        }
    }
}

/// Limits of a step with drafts.
#[derive(Debug, Clone, Copy)]
pub struct DraftLimits {
    /// Largest number of rows.
    pub rows: usize,
    /// Longest step while several sequences wait for it.
    pub target: Duration,
}

/// Measured costs and the credit account.
#[derive(Debug, Clone)]
pub struct CostModel {
    /// Seconds of plain steps of the current batch.
    plain: RollingMedian,
    /// Hash of the batch's sequences.
    batch: u64,
    steps_since_plain: u32,
    /// Costs by number of sequences and rows.
    costs: HashMap<(usize, usize), Cost>,
    credit: f64,
    steps: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        let plain = RollingMedian::default();
        Self {
            plain,
            batch: 0,
            steps_since_plain: 0,
            costs: HashMap::new(),
            credit: INITIAL_CREDIT,
            steps: 0,
        }
    }
}

impl CostModel {
    /// Sets the batch of the next steps. Timings of other batches do not apply to it.
    pub fn set_batch(&mut self, batch: u64) {
        if self.batch != batch {
            self.batch = batch;
            self.plain = RollingMedian::default();
        }
    }

    /// Number of tokens of each sequence's draft to verify in the next step. An empty proposal is a
    /// sequence without draft.
    pub fn decide(&self, proposals: &[DraftProposal], bounds: DraftLimits) -> Vec<usize> {
        let nothing = vec![0; proposals.len()];
        let Some(plain) = self.plain.median() else { return nothing };
        if self.steps_since_plain >= PLAIN_STEP_INTERVAL || self.credit <= 0.0 {
            return nothing;
        }
        let mut best = (MIN_SPEEDUP, nothing);
        for plan in verification_plans(proposals, bounds.rows) {
            let speedup = self.speedup(&plan, proposals, plain, bounds);
            if speedup > best.0 {
                best = (speedup, plan.token_counts);
            }
        }
        best.1
    }

    /// Expected speed of a plan relative to plain steps; 0 if the plan is not allowed.
    fn speedup(
        &self,
        plan: &VerificationPlan,
        proposals: &[DraftProposal],
        plain: f64,
        bounds: DraftLimits,
    ) -> f64 {
        let n = proposals.len();
        let rows = n + plan.token_counts.iter().sum::<usize>();
        let (cost, measured) = self.cost(n, rows);
        let some_without_draft = plan.token_counts.contains(&0);
        let too_long =
            cost * plain > bounds.target.as_secs_f64().max(plain * MAX_COST_WITHOUT_DRAFT);
        if n > 1 && some_without_draft && (cost > MAX_COST_WITHOUT_DRAFT || too_long) {
            return 0.0;
        }
        let value = (n as f64 + plan.expected_tokens) / n as f64;
        let drafting = plan.token_counts.iter().zip(proposals).filter(|(count, _)| **count > 0);
        let drafting = drafting.map(|(count, proposal)| {
            proposal.setup_seconds + *count as f64 * proposal.token_seconds
        });
        let drafting = drafting.sum::<f64>() / plain;
        if measured {
            return value / (cost + drafting);
        }
        // A trial measures the cost, if there is credit for it.
        if self.credit < MIN_TRIAL_CREDIT { 0.0 } else { value / (cost + drafting) }
    }

    /// Cost of a step of `rows` rows in plain steps of `n` sequences, and whether it was measured
    /// recently.
    fn cost(&self, n: usize, rows: usize) -> (f64, bool) {
        let more = (rows - n) as f64;
        let known = self
            .costs
            .get(&(n, rows))
            .and_then(|cost| Some((cost.ratios.median()?, cost.measured_at)));
        match known {
            Some((ratio, measured)) if self.steps - measured < STALE_AFTER_STEPS => (ratio, true),
            // The cost may have improved: assume half of the measured excess.
            Some((ratio, _)) => (1.0 + ((ratio - 1.0) / 2.0).max(more * MIN_ROW_COST), false),
            None => (1.0 + more * self.row_cost(n), false),
        }
    }

    /// Least measured cost of a further row.
    fn row_cost(&self, n: usize) -> f64 {
        let of = |((sequences, rows), cost): (&(usize, usize), &Cost)| {
            let ratio = cost.ratios.median().filter(|_| *sequences == n)?;
            Some(((ratio - 1.0) / (rows - n) as f64).max(MIN_ROW_COST))
        };
        self.costs.iter().filter_map(of).reduce(f64::min).unwrap_or(DEFAULT_ROW_COST)
    }

    /// Records a step without drafts.
    pub fn record_plain_step(&mut self, seconds: f64) {
        self.steps += 1;
        self.steps_since_plain = 0;
        self.plain.push(seconds, PLAIN_STEP_SAMPLES);
        self.add_credit(CREDIT_PER_STEP);
    }

    /// Records time spent on drafts that no step verified.
    pub fn record_unused_draft(&mut self, seconds: f64) {
        if let Some(plain) = self.plain.median() {
            self.add_credit(-(seconds / plain).min(MAX_COST_RATIO));
        }
    }

    /// Records a step with drafts: number of sequences and rows, seconds of the step and of
    /// drafting, and accepted draft tokens.
    pub fn record_verification(
        &mut self,
        n: usize,
        rows: usize,
        seconds: f64,
        draft_seconds: f64,
        accepted: usize,
    ) {
        self.steps += 1;
        self.steps_since_plain += 1;
        let Some(plain) = self.plain.median() else { return };
        let cost = self.costs.entry((n, rows)).or_default();
        cost.ratios.push((seconds / plain).min(MAX_COST_RATIO), COST_RATIO_SAMPLES);
        cost.measured_at = self.steps;
        let ratio =
            cost.ratios.median().unwrap_or(1.0) + (draft_seconds / plain).min(MAX_COST_RATIO);
        self.add_credit(CREDIT_PER_STEP + (n + accepted) as f64 / n as f64 - ratio);
    }

    fn add_credit(&mut self, plain_steps: f64) {
        self.credit = (self.credit + plain_steps).min(MAX_CREDIT);
    }
}

/// Number of draft tokens to verify for each sequence.
struct VerificationPlan {
    token_counts: Vec<usize>,
    /// Expected number of accepted draft tokens.
    expected_tokens: f64,
}

/// The plan with as many draft tokens as rows allow, the most probable first.
pub fn take_all(proposals: &[DraftProposal], max_rows: usize) -> Vec<usize> {
    verification_plans(proposals, max_rows)
        .pop()
        .map_or_else(|| vec![0; proposals.len()], |plan| plan.token_counts)
}

/// For each number of rows the plan with the highest expected number of accepted tokens.
fn verification_plans(proposals: &[DraftProposal], max_rows: usize) -> Vec<VerificationPlan> {
    let mut token_counts = vec![0; proposals.len()];
    let mut expected_tokens = 0.0;
    let mut all = Vec::new();
    for _ in proposals.len()..max_rows {
        let next = |i: &usize| proposals[*i].probabilities.get(token_counts[*i]).copied();
        let most_probable = (0..proposals.len())
            .filter(|i| next(i).is_some())
            .max_by(|a, b| next(a).unwrap_or(0.0).total_cmp(&next(b).unwrap_or(0.0)));
        let Some(i) = most_probable else { break };
        expected_tokens += next(&i).unwrap_or(0.0);
        token_counts[i] += 1;
        all.push(VerificationPlan { token_counts: token_counts.clone(), expected_tokens });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: DraftLimits = DraftLimits { rows: 4, target: Duration::from_millis(100) };

    /// Simulated machine: cost of a further row in plain steps, and acceptance rate of drafts.
    struct Machine {
        model: CostModel,
        row: f64,
        rate: f64,
        random: u64,
        draft_steps: usize,
    }

    impl Machine {
        fn new(row: f64, rate: f64) -> Self {
            Self { model: CostModel::default(), row, rate, random: 1, draft_steps: 0 }
        }

        fn draw(&mut self) -> f64 {
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 40) as f64 / (1u64 << 24) as f64
        }

        /// Speed relative to decoding without drafts, for an answer of `tokens` tokens. `noise` is
        /// the share of steps that take three times as long.
        fn answer(&mut self, tokens: usize, noise: f64) -> f64 {
            let (mut made, mut time) = (0, 0.0);
            self.model.set_batch(1);
            while made < tokens {
                let taken = self.model.decide(&[DraftProposal::new(3, self.rate)], WIDE)[0];
                let accepted = (0..taken).take_while(|_| self.draw() < self.rate).count();
                let cost = 1.0 + self.row * taken as f64;
                let measured = if self.draw() < noise { 3.0 * cost } else { cost };
                match taken {
                    0 => self.model.record_plain_step(measured * 0.01),
                    _ => {
                        self.model.record_verification(1, 1 + taken, measured * 0.01, 0.0, accepted)
                    }
                }
                self.draft_steps += usize::from(taken > 0);
                made += 1 + accepted;
                time += cost;
            }
            made as f64 / time
        }
    }

    #[test]
    fn accepted_drafts_on_a_machine_with_cheap_rows_pay() {
        assert!(Machine::new(0.05, 0.95).answer(400, 0.0) > 2.8);
        assert!(Machine::new(0.1, 0.6).answer(400, 0.0) > 1.4);
    }

    #[test]
    fn speculation_costs_less_than_three_percent() {
        for row in [0.0, 0.05, 0.2, 0.5, 1.0, 1.5] {
            for rate in [0.0, 0.1, 0.3, 0.6, 0.9, 1.0] {
                for noise in [0.0, 0.1] {
                    let speed = Machine::new(row, rate).answer(300, noise);
                    assert!(speed > 0.97, "rows at {row}, rate {rate}, noise {noise}: {speed}");
                }
            }
        }
    }

    #[test]
    fn drafts_that_become_worse_are_given_up() {
        let mut machine = Machine::new(0.3, 0.95);
        assert!(machine.answer(300, 0.0) > 1.5);
        machine.rate = 0.0;
        // The proposed rate stays high: only the credit account shows the loss.
        let (mut time, mut made) = (0.0, 0.0);
        for _ in 0..400 {
            let taken = machine.model.decide(&[DraftProposal::new(3, 0.95)], WIDE)[0];
            let cost = 1.0 + 0.3 * taken as f64;
            match taken {
                0 => machine.model.record_plain_step(cost * 0.01),
                _ => machine.model.record_verification(1, 1 + taken, cost * 0.01, 0.0, 0),
            }
            (time, made) = (time + cost, made + 1.0);
        }
        assert!(made / time > 0.97, "{}", made / time);
    }

    #[test]
    fn a_machine_that_becomes_better_is_noticed() {
        let mut machine = Machine::new(1.5, 0.9);
        machine.answer(500, 0.0);
        machine.row = 0.05;
        machine.answer(1500, 0.0);
        assert!(machine.answer(300, 0.0) > 2.0);
    }

    #[test]
    fn one_slow_measurement_changes_nothing() {
        let mut machine = Machine::new(0.05, 0.9);
        machine.answer(300, 0.0);
        machine.model.record_verification(1, 4, 10.0, 0.0, 3);
        assert_eq!(machine.model.decide(&[DraftProposal::new(3, 0.9)], WIDE), [3]);
    }

    #[test]
    fn the_first_step_and_occasional_steps_have_no_draft() {
        let mut model = CostModel::default();
        model.set_batch(7);
        let proposal = [DraftProposal::new(3, 0.99)];
        assert_eq!(model.decide(&proposal, WIDE), [0], "nothing to compare with yet");
        model.record_plain_step(0.01);
        for _ in 0..PLAIN_STEP_INTERVAL {
            assert_eq!(model.decide(&proposal, WIDE), [3]);
            model.record_verification(1, 4, 0.011, 0.0, 3);
        }
        assert_eq!(model.decide(&proposal, WIDE), [0]);
        model.record_plain_step(0.01);
        model.set_batch(8);
        assert_eq!(model.decide(&proposal, WIDE), [0], "other sequences have other times");
    }

    #[test]
    fn more_probable_tokens_come_first_and_rows_are_bounded() {
        let taken = |proposals: &[DraftProposal], rows| {
            verification_plans(proposals, rows)
                .into_iter()
                .map(|plan| plan.token_counts)
                .collect::<Vec<_>>()
        };
        let proposals = [DraftProposal::new(3, 0.5), DraftProposal::new(3, 0.9)];
        assert_eq!(taken(&proposals, 5), [[0, 1], [0, 2], [0, 3]]);
        assert_eq!(taken(&proposals, 8).last().unwrap(), &[3, 3]);
        assert!(taken(&proposals, 2).is_empty());
    }

    #[test]
    fn a_sequence_without_draft_is_delayed_by_at_most_ten_percent() {
        let proposals = [DraftProposal::new(3, 0.99), DraftProposal::default()];
        let with_rows_at = |row: f64| {
            let mut model = CostModel::default();
            model.set_batch(1);
            for rows in 3..=4 {
                model.record_plain_step(0.01);
                model.record_verification(
                    2,
                    rows,
                    0.01 * (1.0 + row * (rows - 2) as f64),
                    0.0,
                    rows - 2,
                );
            }
            model.record_plain_step(0.01);
            model.decide(&proposals, WIDE)
        };
        assert_eq!(with_rows_at(0.02), [2, 0]);
        assert_eq!(with_rows_at(0.08), [1, 0]);
        assert_eq!(with_rows_at(0.20), [0, 0]);
    }

    #[test]
    fn drafting_time_counts() {
        let mut model = CostModel::default();
        model.set_batch(1);
        model.record_plain_step(0.010);
        let proposal =
            |token_seconds| [DraftProposal { token_seconds, ..DraftProposal::new(3, 0.6) }];
        assert!(model.decide(&proposal(0.001), WIDE)[0] > 0);
        assert_eq!(model.decide(&proposal(0.008), WIDE), [0]);
        let late = [DraftProposal { setup_seconds: 0.05, ..DraftProposal::new(3, 0.9) }];
        assert_eq!(model.decide(&late, WIDE), [0], "it has to read too much first");
    }
}
