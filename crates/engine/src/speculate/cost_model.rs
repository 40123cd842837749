//! How many guesses pay: what a step costs by its rows, against the tokens that it is likely to bring.
//!
//! The unit is the *plain step*: one row for each sequence. Costs of larger steps are ratios to it, medians of what was
//! measured, so that neither a growing context nor a busy neighbour spoils them. Whatever is expected, an account is
//! kept of what guessing has really brought: a small part of all time may be lost on it, no more, and without credit
//! there are no guesses. Times come from outside; nothing here reads a clock.

use std::collections::HashMap;
use std::time::Duration;

use super::rolling_median::Newest;

/// What guesses must promise, in plain steps a plain step, before they are made.
const WORTHWHILE: f64 = 1.03;
/// Part of a plain step that each step adds to the credit.
const INTEREST: f64 = 0.012;
/// Credit at the start, and at most, in plain steps.
const FIRST_CREDIT: f64 = 1.0;
const MOST_CREDIT: f64 = 3.0;
/// Credit that a trial wants: a step whose cost is not known, or not any more.
const TRIAL_CREDIT: f64 = 0.5;
/// Steps with guesses after which a plain one measures what they are compared with.
const REFRESH: u32 = 48;
/// Steps after which a cost may have changed.
const OLD: u64 = 192;
/// What a row more is believed to cost before it was measured, and the least that it can cost.
const ROW_BELIEVED: f64 = 0.08;
const ROW_LEAST: f64 = 0.02;
/// What a step may take longer where some sequence in it has no guess, and gains nothing.
const TAKEN_FROM_OTHERS: f64 = 1.10;
/// A measured ratio counts as this at most: more is somebody else's doing.
const RATIO_MOST: f64 = 4.0;
const PLAIN_TIMES: usize = 3;
const RATIOS: usize = 7;

/// What a step of some rows costs beside the plain one of as many sequences.
#[derive(Debug, Clone, Default)]
struct Cost {
    ratios: Newest,
    /// When it was measured last, in steps.
    seen: u64,
}

/// A sequence's guess: the chance of each of its tokens, in order, that it and all before it come true.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DraftProposal {
    pub chances: Vec<f64>,
    /// Time that making each of its tokens takes, in seconds.
    pub making: f64,
    /// Time before the first of them, in seconds.
    pub before: f64,
}

impl DraftProposal {
    /// As many tokens, each with the same chance if those before it came true.
    pub fn new(tokens: usize, chance: f64) -> Self {
        let mut reached = 1.0;
        let mut next = || {
            reached *= chance;
            reached
        };
        Self { chances: (0..tokens).map(|_| next()).collect(), making: 0.0, before: 0.0 }
    }
}

/// Bounds of a step.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Rows at most.
    pub rows: usize,
    /// How long the step should be at most where several sequences wait for it.
    pub target: Duration,
}

/// The account.
#[derive(Debug, Clone)]
pub struct CostModel {
    /// Times of plain steps of the present company.
    plain: Newest,
    /// Which sequences those are.
    company: u64,
    since_plain: u32,
    /// By sequences and rows.
    costs: HashMap<(usize, usize), Cost>,
    credit: f64,
    steps: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        let plain = Newest::default();
        Self {
            plain,
            company: 0,
            since_plain: 0,
            costs: HashMap::new(),
            credit: FIRST_CREDIT,
            steps: 0,
        }
    }
}

impl CostModel {
    /// Says which sequences make up the next steps. Times of others say nothing about theirs.
    pub fn meet(&mut self, company: u64) {
        if self.company != company {
            self.company = company;
            self.plain = Newest::default();
        }
    }

    /// How many tokens of each sequence's guess to check in the next step; an empty offer is a sequence without guess.
    pub fn decide(&self, offers: &[DraftProposal], bounds: Bounds) -> Vec<usize> {
        let nothing = vec![0; offers.len()];
        let Some(plain) = self.plain.median() else { return nothing };
        if self.since_plain >= REFRESH || self.credit <= 0.0 {
            return nothing;
        }
        let mut best = (WORTHWHILE, nothing);
        for choice in choices(offers, bounds.rows) {
            let gain = self.gain(&choice, offers, plain, bounds);
            if gain > best.0 {
                best = (gain, choice.taken);
            }
        }
        best.1
    }

    /// What a choice brings, in plain steps a plain step; 0 where it is not to be.
    fn gain(
        &self,
        choice: &VerificationPlan,
        offers: &[DraftProposal],
        plain: f64,
        bounds: Bounds,
    ) -> f64 {
        let n = offers.len();
        let rows = n + choice.taken.iter().sum::<usize>();
        let (cost, measured) = self.cost(n, rows);
        let selfish = choice.taken.contains(&0);
        let too_long = cost * plain > bounds.target.as_secs_f64().max(plain * TAKEN_FROM_OTHERS);
        if n > 1 && selfish && (cost > TAKEN_FROM_OTHERS || too_long) {
            return 0.0;
        }
        let value = (n as f64 + choice.expected) / n as f64;
        let made = choice.taken.iter().zip(offers).filter(|(taken, _)| **taken > 0);
        let making = made.map(|(taken, offer)| offer.before + *taken as f64 * offer.making);
        let making = making.sum::<f64>() / plain;
        if measured {
            return value / (cost + making);
        }
        // A trial: worth it if there is something to be learned, and to be had.
        if self.credit < TRIAL_CREDIT { 0.0 } else { value / (cost + making) }
    }

    /// What a step of `rows` rows costs in plain steps of `n` sequences, and whether that was measured lately.
    fn cost(&self, n: usize, rows: usize) -> (f64, bool) {
        let more = (rows - n) as f64;
        let known =
            self.costs.get(&(n, rows)).and_then(|cost| Some((cost.ratios.median()?, cost.seen)));
        match known {
            Some((ratio, seen)) if self.steps - seen < OLD => (ratio, true),
            // It may have become better: believe half of what was bad about it.
            Some((ratio, _)) => (1.0 + ((ratio - 1.0) / 2.0).max(more * ROW_LEAST), false),
            None => (1.0 + more * self.row_cost(n), false),
        }
    }

    /// What a row more costs, by the nearest that is known.
    fn row_cost(&self, n: usize) -> f64 {
        let of = |((sequences, rows), cost): (&(usize, usize), &Cost)| {
            let ratio = cost.ratios.median().filter(|_| *sequences == n)?;
            Some(((ratio - 1.0) / (rows - n) as f64).max(ROW_LEAST))
        };
        self.costs.iter().filter_map(of).reduce(f64::min).unwrap_or(ROW_BELIEVED)
    }

    /// Takes note of a step without guesses.
    pub fn plain(&mut self, seconds: f64) {
        self.steps += 1;
        self.since_plain = 0;
        self.plain.push(seconds, PLAIN_TIMES);
        self.earn(INTEREST);
    }

    /// Takes note of time spent on guesses of which none was good enough to be checked.
    pub fn lost(&mut self, seconds: f64) {
        if let Some(plain) = self.plain.median() {
            self.earn(-(seconds / plain).min(RATIO_MOST));
        }
    }

    /// Takes note of a step with guesses: of its `n` sequences, its rows, its time with that of making the guesses, and the
    /// guessed tokens that came true.
    pub fn checked(&mut self, n: usize, rows: usize, seconds: f64, making: f64, accepted: usize) {
        self.steps += 1;
        self.since_plain += 1;
        let Some(plain) = self.plain.median() else { return };
        let cost = self.costs.entry((n, rows)).or_default();
        cost.ratios.push((seconds / plain).min(RATIO_MOST), RATIOS);
        cost.seen = self.steps;
        let ratio = cost.ratios.median().unwrap_or(1.0) + (making / plain).min(RATIO_MOST);
        self.earn(INTEREST + (n + accepted) as f64 / n as f64 - ratio);
    }

    fn earn(&mut self, plain_steps: f64) {
        self.credit = (self.credit + plain_steps).min(MOST_CREDIT);
    }
}

/// Guessed tokens to check, a number a sequence.
struct VerificationPlan {
    taken: Vec<usize>,
    /// Tokens that are expected to come true.
    expected: f64,
}

/// As many guessed tokens as there are rows for, the likeliest first.
pub fn all_of(offers: &[DraftProposal], most_rows: usize) -> Vec<usize> {
    choices(offers, most_rows).pop().map_or_else(|| vec![0; offers.len()], |choice| choice.taken)
}

/// For every number of rows the choice with the best chances.
fn choices(offers: &[DraftProposal], most_rows: usize) -> Vec<VerificationPlan> {
    let mut taken = vec![0; offers.len()];
    let mut expected = 0.0;
    let mut all = Vec::new();
    for _ in offers.len()..most_rows {
        let next = |i: &usize| offers[*i].chances.get(taken[*i]).copied();
        let likeliest = (0..offers.len())
            .filter(|i| next(i).is_some())
            .max_by(|a, b| next(a).unwrap_or(0.0).total_cmp(&next(b).unwrap_or(0.0)));
        let Some(i) = likeliest else { break };
        expected += next(&i).unwrap_or(0.0);
        taken[i] += 1;
        all.push(VerificationPlan { taken: taken.clone(), expected });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Bounds = Bounds { rows: 4, target: Duration::from_millis(100) };

    /// A machine on which a row more costs some part of a plain step, and guesses that come true with some chance.
    struct World {
        economy: CostModel,
        row: f64,
        chance: f64,
        random: u64,
        guessed_steps: usize,
    }

    impl World {
        fn new(row: f64, chance: f64) -> Self {
            Self { economy: CostModel::default(), row, chance, random: 1, guessed_steps: 0 }
        }

        fn draw(&mut self) -> f64 {
            self.random = self
                .random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 40) as f64 / (1u64 << 24) as f64
        }

        /// Speed over that without guesses, for an answer of so many tokens. `noise` is how often a step takes thrice.
        fn answer(&mut self, tokens: usize, noise: f64) -> f64 {
            let (mut made, mut time) = (0, 0.0);
            self.economy.meet(1);
            while made < tokens {
                let taken = self.economy.decide(&[DraftProposal::new(3, self.chance)], WIDE)[0];
                let true_ = (0..taken).take_while(|_| self.draw() < self.chance).count();
                let cost = 1.0 + self.row * taken as f64;
                let seen = if self.draw() < noise { 3.0 * cost } else { cost };
                match taken {
                    0 => self.economy.plain(seen * 0.01),
                    _ => self.economy.checked(1, 1 + taken, seen * 0.01, 0.0, true_),
                }
                self.guessed_steps += usize::from(taken > 0);
                made += 1 + true_;
                time += cost;
            }
            made as f64 / time
        }
    }

    #[test]
    fn good_guesses_on_a_machine_with_cheap_rows_pay() {
        assert!(World::new(0.05, 0.95).answer(400, 0.0) > 2.8);
        assert!(World::new(0.1, 0.6).answer(400, 0.0) > 1.4);
    }

    #[test]
    fn guessing_never_costs_three_in_a_hundred() {
        for row in [0.0, 0.05, 0.2, 0.5, 1.0, 1.5] {
            for chance in [0.0, 0.1, 0.3, 0.6, 0.9, 1.0] {
                for noise in [0.0, 0.1] {
                    let speed = World::new(row, chance).answer(300, noise);
                    assert!(speed > 0.97, "rows at {row}, chance {chance}, noise {noise}: {speed}");
                }
            }
        }
    }

    #[test]
    fn guesses_that_turn_bad_are_given_up() {
        let mut world = World::new(0.3, 0.95);
        assert!(world.answer(300, 0.0) > 1.5);
        world.chance = 0.0;
        // The chance that is told stays good: only the account knows better.
        let (mut time, mut made) = (0.0, 0.0);
        for _ in 0..400 {
            let taken = world.economy.decide(&[DraftProposal::new(3, 0.95)], WIDE)[0];
            let cost = 1.0 + 0.3 * taken as f64;
            match taken {
                0 => world.economy.plain(cost * 0.01),
                _ => world.economy.checked(1, 1 + taken, cost * 0.01, 0.0, 0),
            }
            (time, made) = (time + cost, made + 1.0);
        }
        assert!(made / time > 0.97, "{}", made / time);
    }

    #[test]
    fn a_machine_that_becomes_better_is_noticed() {
        let mut world = World::new(1.5, 0.9);
        world.answer(500, 0.0);
        world.row = 0.05;
        world.answer(1500, 0.0);
        assert!(world.answer(300, 0.0) > 2.0);
    }

    #[test]
    fn one_slow_measurement_changes_nothing() {
        let mut world = World::new(0.05, 0.9);
        world.answer(300, 0.0);
        world.economy.checked(1, 4, 10.0, 0.0, 3);
        assert_eq!(world.economy.decide(&[DraftProposal::new(3, 0.9)], WIDE), [3]);
    }

    #[test]
    fn the_first_step_and_one_now_and_then_are_plain() {
        let mut economy = CostModel::default();
        economy.meet(7);
        let offer = [DraftProposal::new(3, 0.99)];
        assert_eq!(economy.decide(&offer, WIDE), [0], "nothing to compare with yet");
        economy.plain(0.01);
        for _ in 0..REFRESH {
            assert_eq!(economy.decide(&offer, WIDE), [3]);
            economy.checked(1, 4, 0.011, 0.0, 3);
        }
        assert_eq!(economy.decide(&offer, WIDE), [0]);
        economy.plain(0.01);
        economy.meet(8);
        assert_eq!(economy.decide(&offer, WIDE), [0], "other sequences have other times");
    }

    #[test]
    fn likelier_guesses_come_first_and_rows_are_bounded() {
        let taken = |offers: &[DraftProposal], rows| {
            choices(offers, rows).into_iter().map(|choice| choice.taken).collect::<Vec<_>>()
        };
        let offers = [DraftProposal::new(3, 0.5), DraftProposal::new(3, 0.9)];
        assert_eq!(taken(&offers, 5), [[0, 1], [0, 2], [0, 3]]);
        assert_eq!(taken(&offers, 8).last().unwrap(), &[3, 3]);
        assert!(taken(&offers, 2).is_empty());
    }

    #[test]
    fn a_sequence_without_a_guess_is_not_held_up_by_more_than_a_tenth() {
        let offers = [DraftProposal::new(3, 0.99), DraftProposal::default()];
        let with_rows_at = |row: f64| {
            let mut economy = CostModel::default();
            economy.meet(1);
            for rows in 3..=4 {
                economy.plain(0.01);
                economy.checked(2, rows, 0.01 * (1.0 + row * (rows - 2) as f64), 0.0, rows - 2);
            }
            economy.plain(0.01);
            economy.decide(&offers, WIDE)
        };
        assert_eq!(with_rows_at(0.02), [2, 0]);
        assert_eq!(with_rows_at(0.08), [1, 0]);
        assert_eq!(with_rows_at(0.20), [0, 0]);
    }

    #[test]
    fn time_for_making_guesses_counts() {
        let mut economy = CostModel::default();
        economy.meet(1);
        economy.plain(0.010);
        let offer = |making| [DraftProposal { making, ..DraftProposal::new(3, 0.6) }];
        assert!(economy.decide(&offer(0.001), WIDE)[0] > 0);
        assert_eq!(economy.decide(&offer(0.008), WIDE), [0]);
        let late = [DraftProposal { before: 0.05, ..DraftProposal::new(3, 0.9) }];
        assert_eq!(economy.decide(&late, WIDE), [0], "it has to read too much first");
    }
}
