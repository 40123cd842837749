//! Compares the samplers with cases recorded from llama.cpp, seeded draws included:
//! `tests/data/cases/samplers.jsonl`.
//!
//! Every case runs over a list of candidates. Cases with logits in id order also run over plain
//! logits, as [`Sampler`] does. Cases with the default order also run through [`Params`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use puna_gguf::Gguf;
use puna_tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;

use crate::candidates::{Candidate, Candidates};
use crate::chain::{Chain, ChainStage};
use crate::draw::{AdaptiveP, Mirostat, MirostatVersion};
use crate::dry::{Dry, SequenceBreakers};
use crate::infill::Infill;
use crate::penalties::{LogitBias, Penalties};
use crate::rng::Mt19937;
use crate::temperature::Temperature;
use crate::truncate::Xtc;
use crate::{Params, Sampler, Vocab};

fn cases() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/samplers.jsonl");
    let text = std::fs::read_to_string(path).expect("the cases are in the repository");
    let lines = text.lines().filter(|line| !line.is_empty());
    let cases: Vec<Value> =
        lines.map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect();
    assert_eq!(cases.len(), 347);
    cases
}

#[test]
fn every_case_passes_over_a_list_of_candidates() {
    for case in cases() {
        let mut stages = stages(&case);
        accept_history(&case, |token| stages.iter_mut().for_each(|l| l.accept(token)));
        let mut cands = Candidates::default();
        let mut step = |i: usize, stages: &mut Vec<ChainStage>| {
            cands.set(candidates(&case, i), case["input"]["sorted"] == true);
            let chosen = stages.iter_mut().fold(None, |_, stage| stage.apply(&mut cands));
            (cands.list().to_vec(), chosen)
        };
        check(&case, &mut stages, &mut step, |stages, token| {
            stages.iter_mut().for_each(|l| l.accept(token))
        });
    }
}

#[test]
fn every_case_in_id_order_passes_over_plain_logits() {
    let mut n = 0;
    for case in cases()
        .iter()
        .filter(|c| c["input"].get("tokens").is_none() && c["input"].get("sorted").is_none())
    {
        // `Chain::new` would shorten the chain and leave one candidate, which cases without draws
        // do not expect.
        let mut chain = Chain { stages: stages(case), cands: Candidates::default() };
        accept_history(case, |token| chain.accept(token));
        let mut step = |i: usize, chain: &mut Chain| {
            let mut logits: Vec<f32> = candidates(case, i).iter().map(|c| c.logit).collect();
            let chosen = chain.run(&mut logits);
            (chain.cands.list().to_vec(), chosen)
        };
        check(case, &mut chain, &mut step, Chain::accept);
        n += 1;
    }
    assert!(n > 250, "only {n} cases");
}

#[test]
fn sampler_from_params_draws_the_recorded_tokens() {
    let mut n = 0;
    for case in
        cases().iter().filter(|c| id(c).starts_with("chain_draws") && c.get("quirk").is_none())
    {
        let Some(params) = params(case) else { continue };
        let n_vocab = candidates(case, 0).len();
        let mut sampler = Sampler::new(&params, n_vocab);
        accept_history(case, |token| sampler.accept(token));
        let sequence = (0..case["draws"].as_u64().expect("a count") as usize).map(|i| {
            let mut logits: Vec<f32> = candidates(case, i).iter().map(|c| c.logit).collect();
            let token = sampler.sample(&mut logits);
            sampler.accept(token);
            token
        });
        assert_eq!(sequence.collect::<Vec<_>>(), ids(&case["expect"]["sequence"]), "{}", id(case));
        n += 1;
    }
    assert!(n >= 15, "only {n} cases");
}

/// Returns the candidates and the chosen position of step `i`.
type Step<'a, S> = &'a mut dyn FnMut(usize, &mut S) -> (Vec<Candidate>, Option<usize>);

#[test]
fn breaker_strings_expand_over_a_real_vocabulary_as_in_llama_cpp() {
    // The file that the cases name is not in the repository. This file has the same vocabulary.
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/zoo/llama-q8_0.gguf");
    let file = Gguf::open(path.as_ref()).expect("the file is in the repository");
    let vocab = RealVocab(Tokenizer::from_metadata(file.metadata()).expect("it has a tokenizer"));
    let mut n = 0;
    for case in cases().iter().filter(|c| id(c).starts_with("dry_text")) {
        let text = case["vocab"]["text"].as_str().expect("a text");
        assert_eq!(vocab.tokenize(text), ids(&case["history"]), "{}: another vocabulary", id(case));
        let strings = case["params"]["breaker_strings"].as_array().expect("a list");
        let strings: Vec<_> =
            strings.iter().map(|s| s.as_str().expect("a string").to_owned()).collect();
        let expanded = case["vocab"]["expanded"]
            .as_array()
            .expect("a list")
            .iter()
            .map(ids)
            .collect::<Vec<_>>();
        let want = SequenceBreakers::from_sequences(&expanded);
        assert_eq!(
            SequenceBreakers::from_strings(&strings, &vocab),
            want,
            "{}: {strings:?}",
            id(case)
        );
        n += 1;
    }
    assert_eq!(n, 13);
}

/// Runs a case and compares all expected values.
fn check<S: SamplerState>(case: &Value, state: &mut S, step: Step<'_, S>, accept: fn(&mut S, u32)) {
    let expect = &case["expect"];
    let informative = case.get("quirk").is_some();
    let Some(draws) = case["draws"].as_u64() else {
        let (list, _) = step(0, state);
        if !informative {
            check_list(case, list);
        }
        return;
    };
    let (mut sequence, mut states) = (Vec::new(), Vec::new());
    for i in 0..draws as usize {
        let (list, chosen) = step(i, state);
        let token = list[chosen.unwrap_or_else(|| panic!("{}: nothing drawn", id(case)))].id;
        accept(state, token);
        sequence.push(token);
        states.extend(state.states());
    }
    if informative {
        return;
    }
    assert_eq!(sequence, ids(&expect["sequence"]), "{}", id(case));
    if let Some(want) = expect.get("state") {
        let flat = |v: &Value| {
            v.as_array().map_or_else(|| vec![float(v)], |pair| pair.iter().map(float).collect())
        };
        let want: Vec<f32> = want.as_array().expect("a list").iter().flat_map(flat).collect();
        assert_close(&states, &want, 1e-4, id(case));
    }
}

/// Internal state of a stateful sampler.
trait SamplerState {
    fn states(&self) -> Vec<f32>;
}

impl SamplerState for Vec<ChainStage> {
    fn states(&self) -> Vec<f32> {
        match self.last() {
            Some(ChainStage::Mirostat(m)) => vec![m.state()],
            Some(ChainStage::AdaptiveP(a)) => a.state().to_vec(),
            _ => vec![],
        }
    }
}

impl SamplerState for Chain {
    fn states(&self) -> Vec<f32> {
        self.stages.states()
    }
}

fn check_list(case: &Value, list: Vec<Candidate>) {
    let (expect, id) = (&case["expect"], id(case));
    let order: Vec<u32> = list.iter().map(|c| c.id).collect();
    if let (Some(want), None) = (expect.get("order"), expect.get("canonical")) {
        assert_eq!(order, ids(want), "{id}: order");
    }
    let mut by_id = list;
    by_id.sort_by_key(|c| c.id);
    let tokens: Vec<u32> = by_id.iter().map(|c| c.id).collect();
    let mut logits: Vec<f32> = by_id.iter().map(|c| c.logit).collect();
    let mut want: Vec<f32> =
        expect["logits"].as_array().expect("a list").iter().map(float).collect();
    match expect.get("canonical") {
        Some(canonical) => {
            assert_eq!(tokens, ids(canonical), "{id}: tokens");
            logits.sort_by(f32::total_cmp);
            want.sort_by(f32::total_cmp);
        }
        None => assert_eq!(tokens, ids(&expect["tokens"]), "{id}: tokens"),
    }
    let tolerance =
        if id.starts_with("temperature") || id.starts_with("chain") { 1e-4 } else { 1e-5 };
    assert_close(&logits, &want, tolerance, id);
    if let Some(probs) = expect.get("probs") {
        let want: Vec<f32> = probs.as_array().expect("a list").iter().map(float).collect();
        assert_close(&by_id.iter().map(|c| c.p).collect::<Vec<_>>(), &want, 1e-4, id);
    }
}

fn assert_close(got: &[f32], want: &[f32], tolerance: f32, id: &str) {
    assert_eq!(got.len(), want.len(), "{id}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let close = g == w || (g - w).abs() <= tolerance * w.abs().max(1e-3);
        assert!(close, "{id}: number {i} is {g}, expected {w}\n{got:?}\n{want:?}");
    }
}

fn id(case: &Value) -> &str {
    case["id"].as_str().expect("an id")
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().expect("a list").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

/// Reads a number. `null` stands for −∞.
fn float(v: &Value) -> f32 {
    v.as_f64().map_or(f32::NEG_INFINITY, |v| v as f32)
}

fn candidates(case: &Value, step: usize) -> Vec<Candidate> {
    let input = &case["input"];
    let logits = input.get("logits").unwrap_or_else(|| &input["steps"][step]);
    let logits = logits.as_array().expect("a list").iter().map(float);
    let tokens = input.get("tokens").map(ids);
    let id = |i: usize| tokens.as_ref().map_or(i as u32, |t| t[i]);
    logits.enumerate().map(|(i, logit)| Candidate { id: id(i), logit, p: 0.0 }).collect()
}

fn accept_history(case: &Value, accept: impl FnMut(u32)) {
    case.get("history").map(ids).unwrap_or_default().into_iter().for_each(accept);
}

fn stages(case: &Value) -> Vec<ChainStage> {
    let seed = case["seed"].as_u64().unwrap_or(0) as u32;
    match case.get("chain") {
        Some(chain) => {
            let members = chain.as_array().expect("a list").iter();
            members
                .filter_map(|m| stage(m["sampler"].as_str().expect("a name"), m, case, seed))
                .collect()
        }
        None => {
            let name = case["sampler"].as_str().expect("a name");
            stage(name, &case["params"], case, seed).into_iter().collect()
        }
    }
}

/// Stage of a recorded sampler. `None` if its parameters switch it off.
fn stage(name: &str, p: &Value, case: &Value, seed: u32) -> Option<ChainStage> {
    let f = |key: &str| float(&p[key]);
    let int = |key: &str| p[key].as_i64().expect("a number") as i32;
    let min_keep = p["min_keep"].as_u64().unwrap_or(0) as usize;
    let rng = Mt19937::new(seed);
    let or = |key: &str, default: f32| p.get(key).map_or(default, float);
    Some(match name {
        "logit_bias" => {
            // One case has the id −1, which no token has.
            let pair = |e: &Value| (e[0].as_i64().expect("an id") as u32, float(&e[1]));
            ChainStage::LogitBias(LogitBias::new(
                p["bias"].as_array().expect("a list").iter().map(pair).collect(),
            ))
        }
        "penalties" => ChainStage::Penalties(Penalties::new(
            int("last_n"),
            f("repeat"),
            f("freq"),
            f("present"),
        )?),
        "dry" => {
            let sequences = p.get("breakers").unwrap_or_else(|| &case["vocab"]["expanded"]);
            let sequences: Vec<_> = sequences.as_array().expect("a list").iter().map(ids).collect();
            let breakers = SequenceBreakers::from_sequences(&sequences);
            ChainStage::Dry(Dry::new(
                f("multiplier"),
                f("base"),
                int("allowed_length"),
                int("last_n"),
                breakers,
            )?)
        }
        "top_n_sigma" => ChainStage::TopNSigma(Some(f("n")).filter(|&n| n > 0.0)?),
        "top_k" => ChainStage::TopK(usize::try_from(int("k")).ok().filter(|&k| k > 0)?),
        "typ_p" => ChainStage::Typical { p: Some(f("p")).filter(|&p| p < 1.0)?, min_keep },
        "top_p" => ChainStage::TopP { p: Some(f("p")).filter(|&p| p < 1.0)?, min_keep },
        "min_p" => ChainStage::MinP { p: Some(f("p")).filter(|&p| p > 0.0)?, min_keep },
        "xtc" => ChainStage::Xtc(Xtc {
            probability: f("probability"),
            threshold: f("threshold"),
            min_keep,
            rng,
        }),
        "temperature" => ChainStage::Temperature(Temperature {
            value: f("temp"),
            range: or("range", 0.0),
            exponent: or("exponent", 1.0),
        }),
        "infill" => {
            ChainStage::Infill(Infill { vocab: Arc::new(CaseVocab::from_json(&case["vocab"])) })
        }
        "mirostat" => {
            let [n_vocab, m] = ["n_vocab", "m"].map(|key| int(key) as usize);
            ChainStage::Mirostat(Mirostat::new(
                MirostatVersion::One { n_vocab, m },
                f("tau"),
                f("eta"),
                seed,
            ))
        }
        "mirostat_v2" => {
            ChainStage::Mirostat(Mirostat::new(MirostatVersion::Two, f("tau"), f("eta"), seed))
        }
        "adaptive_p" => ChainStage::AdaptiveP(AdaptiveP::new(f("target"), f("decay"), seed)),
        "dist" => ChainStage::Dist(rng),
        "greedy" => ChainStage::Greedy,
        other => panic!("unknown sampler {other}"),
    })
}

/// Options equivalent to the chain of a case. `None` for DRY with sequence breakers, which need a
/// vocabulary, and for chains that do not end in a plain draw.
fn params(case: &Value) -> Option<Params> {
    let chain = case["chain"].as_array().expect("a list");
    let member = |name: &str| chain.iter().find(|m| m["sampler"] == name);
    member("dist")?;
    let f = |name: &str, key: &str| float(&member(name).expect("all members are present")[key]);
    let int = |name: &str, key: &str| f(name, key) as i32;
    let dry = member("dry")?;
    if float(&dry["multiplier"]) != 0.0 && !dry["breakers"].as_array().expect("a list").is_empty() {
        return None;
    }
    let pair = |e: &Value| (e[0].as_u64().expect("an id") as u32, float(&e[1]));
    Some(Params {
        seed: case["seed"].as_i64().expect("a seed"),
        logit_bias: member("logit_bias")?["bias"]
            .as_array()
            .expect("a list")
            .iter()
            .map(pair)
            .collect(),
        repeat_last_n: int("penalties", "last_n"),
        repeat_penalty: f("penalties", "repeat"),
        frequency_penalty: f("penalties", "freq"),
        presence_penalty: f("penalties", "present"),
        dry_multiplier: f("dry", "multiplier"),
        dry_base: f("dry", "base"),
        dry_allowed_length: int("dry", "allowed_length"),
        dry_penalty_last_n: int("dry", "last_n"),
        top_n_sigma: f("top_n_sigma", "n"),
        top_k: int("top_k", "k"),
        typical_p: f("typ_p", "p"),
        top_p: f("top_p", "p"),
        min_p: f("min_p", "p"),
        xtc_probability: f("xtc", "probability"),
        xtc_threshold: f("xtc", "threshold"),
        temperature: f("temperature", "temp"),
        dynatemp_range: f("temperature", "range"),
        dynatemp_exponent: f("temperature", "exponent"),
        min_keep: int("top_p", "min_keep"),
        ..Params::default()
    })
}

/// The part of a vocabulary that an infill case contains.
struct CaseVocab {
    text: HashMap<u32, String>,
    ends: Vec<u32>,
    eot: Option<u32>,
}

impl CaseVocab {
    fn from_json(vocab: &Value) -> Self {
        let piece = |e: &Value| {
            (e[0].as_u64().expect("an id") as u32, e[1].as_str().expect("a text").to_owned())
        };
        Self {
            text: vocab["pieces"].as_array().expect("a list").iter().map(piece).collect(),
            ends: ids(&vocab["eog"]),
            eot: vocab["eot"].as_u64().map(|id| id as u32),
        }
    }
}

impl Vocab for CaseVocab {
    fn n_tokens(&self) -> usize {
        self.text.len()
    }
    fn piece(&self, id: u32, _special: bool) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.text.get(&id).map_or(b"", |text| text.as_bytes()))
    }
    fn tokenize(&self, _text: &str) -> Vec<u32> {
        vec![]
    }
    fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }
    fn end_of_turn(&self) -> Option<u32> {
        self.eot
    }
}

/// A vocabulary of a real tokenizer.
struct RealVocab(Tokenizer);

impl Vocab for RealVocab {
    fn n_tokens(&self) -> usize {
        self.0.vocab_size()
    }
    fn piece(&self, id: u32, special: bool) -> Cow<'_, [u8]> {
        Cow::Borrowed(if special || !self.0.is_control(id) { self.0.piece(id) } else { b"" })
    }
    fn tokenize(&self, text: &str) -> Vec<u32> {
        self.0.encode(text, EncodeOptions { add_special: false, parse_special: false })
    }
    fn is_end(&self, id: u32) -> bool {
        self.0.is_eog(id)
    }
    fn end_of_turn(&self) -> Option<u32> {
        self.0.eot().or(self.0.eos())
    }
}
