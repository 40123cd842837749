//! Block draft models: draft logits and transition logits match the reference.

use crate::kit::pair::{Pair, draft, reference, tokens_of, worst_of};
use puna_graph::{Backend, StepInput};
use puna_models::{DraftBlock, DraftMethod, StepKind};
use serde_json::Value;

const NAMES: [&str; 8] = [
    "dflash",
    "dflash-window",
    "dflash-causal",
    "dflash-window-causal",
    "dflash-mrope",
    "dspark",
    "dspark-bonus",
    "dflash2",
];

fn block_of(pair: &Pair) -> DraftBlock {
    match pair.model.draft_method().unwrap() {
        DraftMethod::Block(block) => block.clone(),
        DraftMethod::Chain { .. } => panic!("it guesses blocks"),
    }
}

/// Drafts a block for each sequence behind its computed tokens; returns logits and state of each
/// row of the last block.
fn guess(
    pair: &mut Pair,
    mask: u32,
    asked: &[(usize, usize, u32, usize)],
) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let mut input = StepInput::default();
    for &(sequence, computed, newest, rows) in asked {
        let first_row = input.tokens.len();
        input.tokens.push(newest);
        input.tokens.extend((1..rows).map(|_| mask));
        input.positions.extend((computed..computed + rows).map(|p| p as u32));
        input.segments.push(Pair::segment(sequence, first_row, computed, rows));
        input.outputs.extend((first_row..first_row + rows).map(|row| row as u32));
    }
    let logits = pair.run(StepKind::Draft, &input);
    let states = pair.backend.extra_output(0).to_vec();
    let last = asked.last().unwrap().3;
    let states = states.chunks_exact((states.len() / logits.len()).max(1)).map(<[f32]>::to_vec);
    let of_last = logits.len() - last;
    (logits[of_last..].to_vec(), states.skip(of_last).collect())
}

/// Transition logits behind these tokens, and the confidence if the head has one.
fn transition(pair: &mut Pair, before: &[u32], states: &[Vec<f32>]) -> (Vec<Vec<f32>>, Vec<f32>) {
    let rows = before.len();
    let input = StepInput {
        tokens: before.to_vec(),
        positions: vec![0; rows],
        segments: vec![Pair::segment(0, 0, 0, rows)],
        outputs: (0..rows as u32).collect(),
        inputs: vec![states.concat()],
        ..StepInput::default()
    };
    let added = pair.run(StepKind::TransitionLogits, &input);
    (added, pair.backend.extra_output(0).to_vec())
}

/// Largest difference from the reference, divided by the standard deviation of its logits.
fn worst(name: &str, level: &str) -> f64 {
    let (json, model) = reference(name);
    let mut pair = Pair::new(&model, &draft(name), level);
    let draft_block = block_of(&pair);
    let tokens = tokens_of(&json["tokens"]);
    assert_eq!(
        (draft_block.rows as u64, u64::from(draft_block.mask)),
        (json["block"].as_u64().unwrap(), json["mask"].as_u64().unwrap())
    );
    let std = json["logits_std"].as_f64().unwrap();
    let mut worst = 0.0f64;
    for check in json["checks"].as_array().unwrap() {
        let computed = check["tokens"].as_u64().unwrap() as usize - 1;
        let (half, newest) = (computed / 2, tokens[computed]);
        if half > 0 {
            pair.compute(0, 0, &tokens[..half]);
            // A draft step in between must leave no trace.
            guess(&mut pair, draft_block.mask, &[(0, half, tokens[half], draft_block.rows)]);
        }
        pair.compute(1, 0, &tokens[3..7]);
        pair.compute(0, half, &tokens[half..computed]);
        for block in check["blocks"].as_array().unwrap() {
            let rows = block["rows"].as_array().unwrap();
            let asked = [(1, 4, tokens[7], 3), (0, computed, newest, rows.len())];
            let (logits, states) = guess(&mut pair, draft_block.mask, &asked);
            let plain = block.get("base").map_or(rows, |base| base.as_array().unwrap());
            for (got, want) in logits.iter().zip(plain) {
                worst = worst.max(worst_of(got, want, &pair.model, std));
            }
            worst = worst.max(match (&draft_block.transition, block.get("lattice")) {
                (None, _) => 0.0,
                (Some(_), None) => {
                    worst_of_chain(&mut pair, block, (&logits, &states), newest, std)
                }
                (Some(_), Some(lattice)) => {
                    worst_of_lattice(&mut pair, lattice, (&logits, &states), newest, std)
                }
            });
        }
    }
    worst
}

/// Largest error of a chain: logits plus the transition logits of the likeliest token before them.
fn worst_of_chain(
    pair: &mut Pair,
    block: &Value,
    (logits, states): (&[Vec<f32>], &[Vec<f32>]),
    newest: u32,
    std: f64,
) -> f64 {
    let draft_block = block_of(pair);
    let guesses = tokens_of(&block["guess"]);
    let reference_confidence = block["confidence"].as_array().unwrap();
    let (mut before, mut worst) = (newest, 0.0f64);
    for (row, &token) in (draft_block.first_output_row..logits.len()).zip(&guesses) {
        let (added, confidence) = transition(pair, &[before], &states[row..=row]);
        let sum: Vec<f32> = logits[row].iter().zip(&added[0]).map(|(a, b)| a + b).collect();
        worst = worst.max(worst_of(&sum, &block["rows"][row], &pair.model, std));
        let likeliest = (0..sum.len()).max_by(|&a, &b| sum[a].total_cmp(&sum[b])).unwrap();
        assert_eq!(pair.model.draft_token_id(likeliest), token);
        let confidence = 1.0 / (1.0 + f64::from(-confidence[0]).exp());
        worst = worst.max((confidence - reference_confidence[row].as_f64().unwrap()).abs());
        before = token;
    }
    worst
}

/// Largest error of a lattice: scores of the likeliest tokens behind each of the likeliest tokens
/// before.
fn worst_of_lattice(
    pair: &mut Pair,
    lattice: &Value,
    (logits, states): (&[Vec<f32>], &[Vec<f32>]),
    newest: u32,
    std: f64,
) -> f64 {
    let choices = block_of(pair).transition.unwrap().top_k.unwrap();
    let (mut before, mut worst) = (vec![newest; choices], 0.0f64);
    for row in 1..logits.len() {
        let candidates = tokens_of(&lattice[row][0]);
        let mut own: Vec<usize> = (0..logits[row].len()).collect();
        own.sort_by(|&a, &b| logits[row][b].total_cmp(&logits[row][a]));
        own.truncate(choices);
        assert!(
            candidates.iter().all(|&c| own.contains(&(c as usize))),
            "row {row}: {candidates:?} and {own:?}"
        );
        let (added, _) = transition(pair, &before, &vec![states[row].clone(); choices]);
        for (p, added) in added.iter().enumerate() {
            for (c, &token) in candidates.iter().enumerate() {
                let want = lattice[row][1][p][c].as_f64().unwrap();
                let got = logits[row][token as usize] + added[token as usize];
                worst = worst.max((f64::from(got) - want).abs() / std);
            }
        }
        before = candidates;
    }
    worst
}

#[test]
fn block_drafts_match_the_reference_at_every_level() {
    for name in NAMES {
        for level in puna_cpu::kernels::levels().iter().map(|level| level.name) {
            let worst = worst(name, level);
            eprintln!("{name} at {level}: {worst:.1e}");
            // GELU is a half-precision table in the reference.
            assert!(worst < 2e-2, "{name} at {level}: {worst:.1e}");
        }
    }
}
