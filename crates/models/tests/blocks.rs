//! Draft models that guess a block of tokens at once: their logits, and what makes a token depend on the one before it, are the
//! reference's.

use crate::kit::pair::{Pair, draft, reference, tokens_of, worst_of};
use puna_graph::{Backend, StepInput};
use puna_models::{Block, Guesses, Want};
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

fn block_of(pair: &Pair) -> Block {
    match pair.model.guesses().unwrap() {
        Guesses::Block(block) => block.clone(),
        Guesses::Chain { .. } => panic!("it guesses blocks"),
    }
}

/// A block of guesses behind so many computed tokens for each sequence: what each row of the last one gives, and its state.
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
    let logits = pair.run(Want::Guess, &input);
    let states = pair.backend.extra_output(0).to_vec();
    let last = asked.last().unwrap().3;
    let states = states.chunks_exact((states.len() / logits.len()).max(1)).map(<[f32]>::to_vec);
    let of_last = logits.len() - last;
    (logits[of_last..].to_vec(), states.skip(of_last).collect())
}

/// What is added to a row's logits behind these tokens, and how sure it is, where it says that.
fn link(pair: &mut Pair, before: &[u32], states: &[Vec<f32>]) -> (Vec<Vec<f32>>, Vec<f32>) {
    let rows = before.len();
    let input = StepInput {
        tokens: before.to_vec(),
        positions: vec![0; rows],
        segments: vec![Pair::segment(0, 0, 0, rows)],
        outputs: (0..rows as u32).collect(),
        given: states.concat(),
        ..StepInput::default()
    };
    let added = pair.run(Want::Link, &input);
    (added, pair.backend.extra_output(0).to_vec())
}

/// The largest difference from the reference, over the standard deviation of its logits.
fn worst(name: &str, level: &str) -> f64 {
    let (json, model) = reference(name);
    let mut pair = Pair::new(&model, &draft(name), level);
    let form = block_of(&pair);
    let tokens = tokens_of(&json["tokens"]);
    assert_eq!(
        (form.rows as u64, u64::from(form.mask)),
        (json["block"].as_u64().unwrap(), json["mask"].as_u64().unwrap())
    );
    let std = json["logits_std"].as_f64().unwrap();
    let mut worst = 0.0f64;
    for check in json["checks"].as_array().unwrap() {
        let computed = check["tokens"].as_u64().unwrap() as usize - 1;
        let (half, newest) = (computed / 2, tokens[computed]);
        if half > 0 {
            pair.compute(0, 0, &tokens[..half]);
            // What is guessed in between leaves nothing behind.
            guess(&mut pair, form.mask, &[(0, half, tokens[half], form.rows)]);
        }
        pair.compute(1, 0, &tokens[3..7]);
        pair.compute(0, half, &tokens[half..computed]);
        for block in check["blocks"].as_array().unwrap() {
            let rows = block["rows"].as_array().unwrap();
            let asked = [(1, 4, tokens[7], 3), (0, computed, newest, rows.len())];
            let (logits, states) = guess(&mut pair, form.mask, &asked);
            let plain = block.get("base").map_or(rows, |base| base.as_array().unwrap());
            for (got, want) in logits.iter().zip(plain) {
                worst = worst.max(worst_of(got, want, &pair.model, std));
            }
            worst = worst.max(match (&form.link, block.get("lattice")) {
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

/// The same of rows to which what the likeliest token before them makes likely was added.
fn worst_of_chain(
    pair: &mut Pair,
    block: &Value,
    (logits, states): (&[Vec<f32>], &[Vec<f32>]),
    newest: u32,
    std: f64,
) -> f64 {
    let form = block_of(pair);
    let guesses = tokens_of(&block["guess"]);
    let sure = block["confidence"].as_array().unwrap();
    let (mut before, mut worst) = (newest, 0.0f64);
    for (row, &token) in (form.first..logits.len()).zip(&guesses) {
        let (added, how_sure) = link(pair, &[before], &states[row..=row]);
        let sum: Vec<f32> = logits[row].iter().zip(&added[0]).map(|(a, b)| a + b).collect();
        worst = worst.max(worst_of(&sum, &block["rows"][row], &pair.model, std));
        let likeliest = (0..sum.len()).max_by(|&a, &b| sum[a].total_cmp(&sum[b])).unwrap();
        assert_eq!(pair.model.guessed_token(likeliest), token);
        let how_sure = 1.0 / (1.0 + f64::from(-how_sure[0]).exp());
        worst = worst.max((how_sure - sure[row].as_f64().unwrap()).abs());
        before = token;
    }
    worst
}

/// The same of the scores of the likeliest tokens behind each of those before them.
fn worst_of_lattice(
    pair: &mut Pair,
    lattice: &Value,
    (logits, states): (&[Vec<f32>], &[Vec<f32>]),
    newest: u32,
    std: f64,
) -> f64 {
    let choices = block_of(pair).link.unwrap().choices.unwrap();
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
        let (added, _) = link(pair, &before, &vec![states[row].clone(); choices]);
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
fn blocks_are_the_references_at_every_level() {
    for name in NAMES {
        for level in puna_cpu::kernels::levels().iter().map(|level| level.name) {
            let worst = worst(name, level);
            eprintln!("{name} at {level}: {worst:.1e}");
            // The models' GELU is a table of half precision in the reference.
            assert!(worst < 2e-2, "{name} at {level}: {worst:.1e}");
        }
    }
}
