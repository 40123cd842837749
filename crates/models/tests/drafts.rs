//! Chain draft models: their draft tokens match the reference, and companions of other models are
//! rejected.

use std::sync::Arc;

use crate::kit::pair::{Pair, changed, draft, reference, refused, tokens_of, worst_of};
use puna_gguf::{Gguf, View, Writer};
use puna_graph::{Backend, Segment, StepInput};
use puna_models::{DraftCache, DraftMethod, LoadOptions, Model, ModelError, StepKind};

/// A target with its draft model, and the state of each sequence's latest computed token.
struct Chain {
    pair: Pair,
    states: [Vec<f32>; 2],
}

impl Chain {
    /// Dimensions of a state, and whether the draft model has a cache of its own.
    fn chain(&self) -> (usize, bool) {
        match self.pair.model.draft_method().unwrap() {
            DraftMethod::Chain { state_dim, cache } => (*state_dim, *cache == DraftCache::Own),
            DraftMethod::Block(_) => panic!("it guesses token by token"),
        }
    }

    /// Computes tokens of a sequence behind `cached_tokens` others; drafting starts from the state
    /// of the last one.
    fn feed(&mut self, sequence: usize, cached_tokens: usize, tokens: &[u32]) {
        let (width, sees_own) = self.chain();
        let input = self.pair.compute(sequence, cached_tokens, tokens);
        let states = self.pair.backend.extra_output(0).to_vec();
        assert_eq!(states.len(), if sees_own { width * tokens.len() } else { width });
        let newest = states[states.len() - width..].to_vec();
        let before = std::mem::replace(&mut self.states[sequence], newest);
        if sees_own {
            let before = if cached_tokens == 0 { vec![0.0; width] } else { before };
            let given = [&before[..], &states[..states.len() - width]].concat();
            let segments = vec![Segment { encoder_tokens: 1, ..input.segments[0].clone() }];
            let input = StepInput { inputs: vec![given], segments, outputs: Vec::new(), ..input };
            self.pair.run(StepKind::DraftPrefill, &input);
        }
    }

    /// One draft step for sequences with these numbers of computed tokens, the `nth` of each;
    /// returns the logits.
    fn guess(&mut self, asked: &[(usize, usize, u32)], nth: usize) -> Vec<Vec<f32>> {
        let (width, sees_own) = self.chain();
        let (mut input, mut states) = (StepInput::default(), Vec::new());
        for (row, &(sequence, computed, token)) in asked.iter().enumerate() {
            let (place, encoder_tokens) =
                if sees_own { (computed + nth, 1) } else { (computed - 1, 0) };
            input.tokens.push(token);
            input.positions.push((if sees_own { place } else { computed }) as u32);
            states.extend_from_slice(&self.states[sequence]);
            input
                .segments
                .push(Segment { encoder_tokens, ..Pair::segment(sequence, row, place, 1) });
            input.outputs.push(row as u32);
        }
        input.inputs.push(states);
        let logits = self.pair.run(StepKind::Draft, &input);
        for ((sequence, ..), state) in
            asked.iter().zip(self.pair.backend.extra_output(0).chunks_exact(width))
        {
            self.states[*sequence] = state.to_vec();
        }
        logits
    }
}

/// Largest difference of the draft logits from the reference, divided by their standard deviation.
fn worst(name: &str, level: &str) -> f64 {
    let (json, model) = reference(name);
    let mut chain =
        Chain { pair: Pair::new(&model, &draft(name), level), states: Default::default() };
    let tokens = tokens_of(&json["tokens"]);
    let std = json["logits_std"].as_f64().unwrap();
    let mut worst = 0.0f64;
    for check in json["checks"].as_array().unwrap() {
        let computed = check["tokens"].as_u64().unwrap() as usize - 1;
        // In two steps, and in a batch with a sequence of another length.
        let half = computed / 2;
        if half > 0 {
            chain.feed(0, 0, &tokens[..half]);
        }
        chain.feed(1, 0, &tokens[3..7]);
        chain.feed(0, half, &tokens[half..computed]);
        for (nth, guess) in check["guesses"].as_array().unwrap().iter().enumerate() {
            let token = guess["token"].as_u64().unwrap() as u32;
            let rows = chain.guess(&[(1, 4, tokens[7]), (0, computed, token)], nth);
            worst = worst.max(worst_of(&rows[1], &guess["logits"], &chain.pair.model, std));
        }
    }
    worst
}

#[test]
fn chain_drafts_match_the_reference_at_every_level() {
    for name in ["gemma4-assistant", "gemma4-assistant-moe", "eagle3", "eagle3-shared"] {
        for level in puna_cpu::kernels::levels().iter().map(|level| level.name) {
            let worst = worst(name, level);
            eprintln!("{name} at {level}: {worst:.1e}");
            // GELU is a half-precision table in the reference.
            let limit = if level == "portable" { 2e-2 } else { 8e-2 };
            assert!(worst < limit, "{name} at {level}: {worst:.1e}");
        }
    }
}

#[test]
fn a_draft_model_of_another_target_is_rejected_with_numbers() {
    let own = draft("gemma4-assistant");
    let assert_contains = |model: &str| match refused(model, &own) {
        ModelError::Companion { draft: "gemma4-assistant", difference, .. } => difference,
        other => panic!("{model}: {other}"),
    };
    let width = assert_contains("gemma2");
    assert!(width.contains("32 features") && width.contains("48"), "{width}");
    let vocabulary = assert_contains("gemma3");
    assert!(vocabulary.contains("384 entries") && vocabulary.contains("336"), "{vocabulary}");
    let key = "gemma4-assistant.attention.head_count_kv";
    let draft = changed("gemma4-assistant", &|meta| meta.set(key, 2u32), &|_| false);
    let heads = refused("gemma4", &draft).to_string();
    assert!(heads.contains("2 KV heads of 8") && heads.contains("1 KV heads of 8"), "{heads}");
    let key = "gemma4-assistant.attention.sliding_window";
    let draft = changed("gemma4-assistant", &|meta| meta.set(key, 30u32), &|_| false);
    let window = refused("gemma4", &draft).to_string();
    assert!(window.contains("needs 29 positions") && window.contains("has 9"), "{window}");
}

#[test]
fn a_companion_without_target_names_the_remedy() {
    let alone = |architecture: &str| {
        let mut file = Writer::new();
        file.set("general.architecture", architecture);
        let view =
            View::new(Arc::new(Gguf::from_bytes(file.to_vec([]).unwrap()).unwrap())).unwrap();
        Model::load(&view, LoadOptions::default()).err().unwrap().to_string()
    };
    let assistant = alone("gemma4-assistant");
    assert!(assistant.contains("a Gemma 4") && assistant.contains("--speculate"), "{assistant}");
    for draft in ["eagle3", "dflash"] {
        let error = alone(draft);
        assert!(
            error.contains("is a draft model") && error.contains("DRAFT ./FILE.gguf"),
            "{error}"
        );
    }
}
