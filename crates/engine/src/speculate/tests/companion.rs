//! Draft models that guess with parts of their model.

use puna_gguf::{Metadata, Writer};
use puna_graph::StepInput;
use puna_models::{Seen, Want};
use serde_json::Value;

use super::*;
use crate::held::Held;
use crate::pages::{Origin, Pages};
use crate::sequence::JobId;
use crate::speculate::chain::Chain;
use crate::speculate::model::Question;
use crate::speculate::source::Rows;
use crate::stepper::Stepper;

const GEMMA: &str = "tests/data/zoo/gemma4.gguf";
const ASSISTANT: &str = "tests/data/drafts/gemma4-assistant.gguf";
const EAGLE: &str = "tests/data/drafts/eagle3.gguf";
const EAGLE_SHARED: &str = "tests/data/drafts/eagle3-shared.gguf";

fn prompt(n_vocab: u32, length: u32, step: u32) -> Vec<u32> {
    (0..length).map(|i| 9 + i * step % (n_vocab - 9)).collect()
}

#[test]
fn no_draft_model_changes_an_answer_whatever_the_sampling_and_the_company() {
    for draft in [ASSISTANT, EAGLE, EAGLE_SHARED] {
        changes_no_answer(draft);
    }
}

fn changes_no_answer(draft: &str) {
    let options = EngineOptions { max_sequences: Some(3), num_batch: 16, ..EngineOptions::default() };
    let engine = open_with_draft(GEMMA, draft, &options).unwrap();
    let n = engine.info().n_vocab as u32;
    let mut all = Speculated::default();
    for sampling in [greedy(), Params { seed: 3, temperature: 0.6, ..Params::default() }] {
        // Longer than a page with the answer, and than the window; two that share pages, and one of a single token.
        let prompts = [prompt(n, 50, 3), prompt(n, 130, 7), prompt(n, 132, 7), prompt(n, 1, 1)];
        let jobs = prompts.map(|prompt| Job {
            max_tokens: Some(40),
            ..Job::new(prompt, endless(&engine, sampling.clone()))
        });
        let alone = jobs.each_ref().map(|job| run(&engine, job, Speculation::OFF).0);
        for speculation in [MODEL, ALWAYS, Speculation::AUTO] {
            let jobs = jobs.each_ref().map(|job| Job { speculation: Some(speculation), ..job.clone() });
            let together = jobs.each_ref().map(|job| start(&engine, job)).each_ref().map(hear);
            together.iter().for_each(|(_, c)| all.model.drafted += c.model.drafted);
            assert_eq!(together.map(|(heard, _)| heard), alone, "{draft}, {speculation:?}");
        }
    }
    assert!(all.model.drafted > 100, "{draft}: {all:?}");
}

/// A file with some of its tensors replaced, all of them f32.
fn changed(path: &str, tensor: &dyn Fn(&str, usize) -> Option<Vec<f32>>) -> View {
    let file = view(path);
    let source = file.gguf();
    let mut metadata = Metadata::new();
    source.metadata().iter().for_each(|(key, value)| metadata.set(key, value.clone()));
    let mut writer = Writer::with_metadata(metadata);
    let mut all = Vec::new();
    for info in source.tensors() {
        writer.tensor(&info.name, info.ty, &info.shape).unwrap();
        let count = info.shape.iter().product::<u64>() as usize;
        let bytes = |values: Vec<f32>| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let data = tensor(&info.name, count).map_or_else(|| source.data(info).to_vec(), bytes);
        all.push(data);
    }
    let data = writer.to_vec(all.iter().map(Vec::as_slice)).unwrap();
    View::new(Arc::new(Gguf::from_bytes(data).unwrap())).unwrap()
}

/// A model whose layers add nothing to the stream, so that what follows a token is decided by that token alone.
fn without_layers(name: &str, count: usize) -> Option<Vec<f32>> {
    let parts = ["attn_output", "ffn_down", "proj.weight", "post_norm"];
    (name.starts_with("blk.") && parts.iter().any(|part| name.contains(part))).then(|| vec![0.0; count])
}

/// An assistant of such a model that says the same: it knows the token, and its own embeddings stand for the model's in as many
/// features as it has.
fn knowing(name: &str, count: usize, table: &[f32], norm: &[f32]) -> Option<Vec<f32>> {
    const OWN: usize = 24;
    const WIDTH: usize = 32;
    match name {
        "nextn.pre_projection.weight" => {
            let one = |i: usize| if i / (2 * WIDTH) == i % (2 * WIDTH) { 1.0 } else { 0.0 };
            Some((0..count).map(one).collect())
        }
        "token_embd.weight" => Some(table.chunks_exact(WIDTH).flat_map(|row| &row[..OWN]).copied().collect()),
        "output_norm.weight" => Some(norm[..OWN].to_vec()),
        _ => without_layers(name, count),
    }
}

#[test]
fn an_assistant_that_is_right_is_right_all_the_time_and_goes_on_from_its_own_states() {
    // The last features of embeddings are nought, so that the assistant's fewer ones say all.
    let tensor = |view: &View, name: &str| -> Vec<f32> {
        let bytes = view.tensor(name).unwrap().bytes();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let source = view(GEMMA);
    let mut table = tensor(&source, "token_embd.weight");
    table.iter_mut().enumerate().filter(|(i, _)| i % 32 >= 24).for_each(|(_, x)| *x = 0.0);
    let norm = tensor(&source, "output_norm.weight");
    let model = changed(GEMMA, &|name, count| match name {
        "token_embd.weight" => Some(table.clone()),
        _ => without_layers(name, count),
    });
    let draft = changed(ASSISTANT, &|name, count| knowing(name, count, &table, &norm));
    let draft = DraftModel { view: draft, backend: backend() };
    let options = EngineOptions { num_ctx: Some(200), ..EngineOptions::default() };
    let engine = Engine::open_with_draft(model, backend(), &options, draft).unwrap();
    let n = engine.info().n_vocab as u32;
    // Over two page borders.
    let job = Job {
        max_tokens: Some(100),
        ..Job::new(prompt(n, 60, 5), endless(&engine, Params { repeat_penalty: 1.0, ..greedy() }))
    };
    let (plain, _) = run(&engine, &job, Speculation::OFF);
    let (guessed, counts) = run(&engine, &job, MODEL);
    assert_eq!(guessed, plain);
    assert!(counts.model.drafted > 60 && counts.model.accepted == counts.model.drafted, "{counts:?}");
    assert!(counts.steps < 40, "{counts:?}");
    // Beyond the context, and again with what is known of the text.
    let long = Job { max_tokens: Some(300), keep: 4, ..job };
    let (plain, _) = run(&engine, &long, Speculation::OFF);
    assert_eq!(run(&engine, &long, MODEL).0, plain);
}

#[test]
fn an_assistants_memory_is_planned_and_it_needs_no_cache() {
    let options = EngineOptions { num_ctx: Some(256), ..EngineOptions::default() };
    let engine = open_with_draft(GEMMA, ASSISTANT, &options).unwrap();
    let draft = DraftModel { view: view(ASSISTANT), backend: backend() };
    let planned = plan_memory_with_draft(&view(GEMMA), backend(), &options, draft).unwrap();
    assert_eq!(planned, engine.memory());
    let alone = plan_memory(&view(GEMMA), backend(), &options).unwrap();
    let weights: u64 = view(ASSISTANT).tensors().map(|tensor| tensor.size()).sum();
    assert_eq!((planned.weights, planned.cache), (alone.weights, alone.cache));
    // Its factors of angles are numbers of a table, not a tensor of a step; so are layers' scales.
    let apart = weights - planned.draft;
    assert!(planned.draft > 0 && apart < 100, "{} of {weights}", planned.draft);
    assert!(planned.scratch >= alone.scratch);
}

#[test]
fn an_assistant_of_another_model_or_vocabulary_is_refused() {
    let refused = |model: &str, draft: &str| {
        open_with_draft(model, draft, &EngineOptions::default()).err().unwrap().to_string()
    };
    let other = refused(CRIA, ASSISTANT);
    assert!(other.contains("cannot be the draft model of"), "{other}");
    let alone = crate::Engine::open(view(ASSISTANT), backend(), &EngineOptions::default()).err().unwrap();
    assert!(alone.to_string().contains("--speculate"), "{alone}");
    assert_eq!(crate::check_model(&view(ASSISTANT), &[]), Ok(()));
}

/// A sequence in a real cache, as the loop keeps it.
struct Kept {
    id: JobId,
    held: Held,
    tokens: Vec<u32>,
    computed: usize,
}

/// The next `counts` tokens of sequences in one step, which a draft model follows.
fn compute(
    (stepper, pages): (&mut Stepper, &mut Pages),
    chain: &mut Chain,
    sequences: &mut [Kept],
    counts: &[usize],
) {
    let mut input = StepInput::default();
    let mut firsts = Vec::new();
    for (s, &count) in sequences.iter_mut().zip(counts) {
        assert!(s.held.grow(pages, s.computed + count));
        let first = input.tokens.len();
        firsts.push(first);
        input.tokens.extend_from_slice(&s.tokens[s.computed..s.computed + count]);
        input.positions.extend((s.computed..s.computed + count).map(|p| p as u32));
        input.outputs.push((first + count - 1) as u32);
        input.segments.push(s.held.segment(pages, first, count, s.computed));
    }
    stepper.run(Want::Logits, &input).unwrap();
    for (row, ((s, &count), first)) in sequences.iter_mut().zip(counts).zip(firsts).enumerate() {
        let rows = Rows { past: s.computed, first, output: Some(row) };
        s.computed += count;
        chain.computed(s.id, s.computed, stepper.backend.handed_out(0), rows);
    }
    let found = |id: JobId| sequences.iter().find(|s| s.id == id).map(|s| (&s.tokens[..], &s.held));
    chain.follow(found, (stepper, pages)).unwrap();
}

#[test]
fn guesses_in_pages_beside_others_are_the_references() {
    for (name, sees) in
        [("gemma4-assistant", Seen::Model), ("eagle3", Seen::Own), ("eagle3-shared", Seen::Own)]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/data/drafts/{name}.json"));
        let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let token = |v: &Value| v.as_u64().unwrap() as u32;
        let tokens: Vec<u32> = json["tokens"].as_array().unwrap().iter().map(token).collect();
        let draft = view(&format!("tests/data/drafts/{name}.gguf"));
        let options =
            EngineOptions { num_ctx: Some(200), max_sequences: Some(2), ..EngineOptions::default() };
        let mut stepper = Stepper::accompanied(&view(GEMMA), backend(), &options, Some(&draft)).unwrap();
        let mut pages = Pages::of(&stepper.model, &options);
        for check in json["checks"].as_array().unwrap() {
            let known = check["tokens"].as_u64().unwrap() as usize;
            let guesses = check["guesses"].as_array().unwrap();
            let want: Vec<u32> = guesses[1..].iter().map(|guess| token(&guess["token"])).collect();
            let mut chain = Chain::new(draft_width(&stepper), sees);
            let sequence = |id, tokens: &[u32], pages: &mut Pages, stepper: &mut Stepper| {
                let (held, computed) =
                    Held::find(pages, &mut *stepper.backend, &Origin::default(), &[], [].into_iter());
                Kept { id: JobId(id), held, tokens: tokens.to_vec(), computed }
            };
            let other: Vec<u32> = (0..90).map(|i| 9 + i * 7 % 300).collect();
            let mut both = [
                sequence(1, &other, &mut pages, &mut stepper),
                sequence(2, &tokens[..known], &mut pages, &mut stepper),
            ];
            // Beside one that goes over the border of a page, in two steps.
            let half = (known - 1) / 2;
            compute((&mut stepper, &mut pages), &mut chain, &mut both, &[60, half.max(1)]);
            let left = known - 1 - both[1].computed;
            if left > 0 {
                compute((&mut stepper, &mut pages), &mut chain, &mut both, &[20, left]);
            }
            both.iter_mut().for_each(|s| assert!(s.held.grow(&mut pages, s.computed + 1)));
            let beside = &both[0];
            let questions = [
                Question {
                    id: beside.id,
                    tokens: &beside.tokens[..beside.computed + 1],
                    most: 3,
                    always: true,
                    held: &beside.held,
                },
                Question {
                    id: both[1].id,
                    tokens: &both[1].tokens,
                    most: 2,
                    always: true,
                    held: &both[1].held,
                },
            ];
            let answers = chain.ask(&questions, (&mut stepper, &pages), |_| false).unwrap();
            assert_eq!(answers.guesses[1], want, "{name} behind {known} tokens");
            assert_eq!(answers.guesses[0].len(), 3);
            both.into_iter().for_each(|s| s.held.release(&mut pages, &[]));
        }
    }
}

fn draft_width(stepper: &Stepper) -> usize {
    let puna_models::Guesses::Chain { state, .. } = stepper.model.guesses().unwrap();
    *state
}
