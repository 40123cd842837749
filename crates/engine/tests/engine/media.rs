//! Every entry of `tests/data/vision` gives the reference's logits: tokens and the reference's rows
//! of pictures go through the text model, whole and in pieces, alone and beside other sequences.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use puna_cpu::{Config, CpuBackend, kernels};
use puna_engine::{
    CacheNamespace, Companions, Engine, EngineOptions, Evaluator, Event, KvType, MediumLayout,
    NO_TOKEN, Outputs, PlacedMedium, Projector, PromptMedium, Request, SequenceInput, TowerPicture,
    picture_layout,
};
use serde_json::Value;

use super::{file, greedy};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/vision")
}

/// Values of a `.npy` file of f32.
fn array(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder().join(name)).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let values = bytes[10 + header..].chunks_exact(4);
    values.map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

/// The pixels of an entry's picture. Entries without a file have the pixels of an earlier one.
fn picture(pixels: &Value) -> Arc<TowerPicture> {
    let side = |at: usize| pixels["shape"][at].as_u64().unwrap() as usize;
    let planes = pixels["file"].as_str().map(array).unwrap_or_default();
    Arc::new(TowerPicture { width: side(3), height: side(2), planes })
}

/// A prompt with pictures, and its reference.
struct Case {
    tokens: Vec<u32>,
    /// The pictures with the reference's rows.
    media: Vec<PlacedMedium>,
    /// The same pictures for the tower.
    pictures: Vec<Arc<TowerPicture>>,
    /// Logits of the last tokens.
    logits: Vec<Vec<f64>>,
    /// Largest difference.
    tolerance: f64,
}

impl Case {
    fn read(case: &Value) -> Self {
        let (mut tokens, mut media) = (Vec::new(), Vec::new());
        let mut embeddings = case["embeddings"].as_array().unwrap().iter();
        for chunk in case["chunks"].as_array().unwrap() {
            if chunk["type"] == "text" {
                let ids = chunk["tokens"].as_array().unwrap().iter();
                tokens.extend(ids.map(|id| id.as_u64().unwrap() as u32));
                continue;
            }
            let rows = chunk["n_tokens"].as_u64().unwrap() as usize;
            // Rows of MiniCPM-V 4.6 have the positions of tokens.
            let columns = chunk["decoder_pos_txy"].as_array().and_then(|positions| {
                let at = |row: usize, axis: usize| positions[row][axis].as_u64().unwrap();
                let has_coordinates = at(rows - 1, 0) == at(0, 0);
                has_coordinates.then(|| (at(rows - 1, 1) - at(0, 1)) as usize + 1)
            });
            let sees_itself = chunk["non_causal"].as_bool().unwrap();
            let layout = MediumLayout { rows, columns, sees_itself };
            let rows = array(embeddings.next().unwrap()["file"].as_str().unwrap());
            let rows = Some(Arc::new(rows));
            media.push(PlacedMedium { first: tokens.len(), layout, rows, source: None });
            tokens.extend(vec![NO_TOKEN; layout.rows]);
        }
        let row = |row: &Value| -> Vec<f64> {
            row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let pictures = case["pixels"].as_array().unwrap().iter().map(picture);
        Self {
            tokens,
            media,
            pictures: pictures.collect(),
            logits: case["logits"].as_array().unwrap().iter().map(row).collect(),
            tolerance: case["logits_tolerance"].as_f64().unwrap()
                * case["logits_std"].as_f64().unwrap(),
        }
    }

    /// Ends of steps of at most `chunk` tokens. Rows that see each other are in one step.
    fn steps(&self, chunk: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let end = (at + chunk).min(self.tokens.len());
            let cut = self.media.iter().find(|medium| {
                let inside = medium.first + 1..medium.first + medium.layout.rows;
                medium.layout.sees_itself && inside.contains(&end)
            });
            at = cut.map_or(end, |medium| medium.first + medium.layout.rows);
            ends.push(at);
        }
        ends
    }

    /// Logits of the last tokens of sequence 1, in steps of at most `chunk` tokens beside sequence
    /// 0 with the tokens `beside`.
    fn run(&self, evaluator: &mut Evaluator, chunk: usize, beside: &[u32]) -> Vec<f32> {
        (0..2).for_each(|sequence| evaluator.truncate(sequence, 0));
        for medium in &self.media {
            evaluator.add_medium(1, medium.clone()).unwrap();
        }
        let (mut at, mut all, mut beside) = (0, Vec::new(), beside.chunks(3));
        for end in self.steps(chunk) {
            let input = |sequence, tokens, outputs| SequenceInput { sequence, tokens, outputs };
            let other = beside.next().map(|tokens| input(0, tokens, Outputs::None));
            let own = input(1, &self.tokens[at..end], Outputs::All);
            let inputs: Vec<_> = other.into_iter().chain([own]).collect();
            all.extend_from_slice(evaluator.logits(&inputs).unwrap());
            at = end;
        }
        let last = self.logits.len() * self.logits[0].len();
        all.split_off(all.len() - last)
    }
}

fn entries() -> Vec<(String, Vec<Case>)> {
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let entries = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let mut entries: Vec<_> = entries
        .map(|path| {
            let entry: Value =
                serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let cases = entry["cases"].as_array().unwrap().iter().map(Case::read).collect();
            (entry["text"].as_str().unwrap().to_owned(), cases)
        })
        .collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries
}

fn evaluator(name: &str, level: &str, num_ctx: usize) -> Evaluator {
    let config = Config { threads: Some(2), kernels: Some(level.into()), ..Config::default() };
    let options = EngineOptions {
        num_ctx: Some(num_ctx),
        max_sequences: Some(2),
        cache_k: KvType::F32,
        cache_v: KvType::F32,
        ..EngineOptions::default()
    };
    let view = file(&format!("tests/data/vision/{name}"));
    Evaluator::open(&view, Box::new(CpuBackend::new(&config).unwrap()), &options).unwrap()
}

#[test]
fn text_models_answer_about_the_rows_of_pictures() {
    let mut compared = 0;
    let levels = kernels::levels();
    for (name, cases) in entries() {
        for level in [levels[0].name, levels[levels.len() - 1].name] {
            let longest = cases.iter().map(|case| case.tokens.len()).max().unwrap_or(0);
            let mut evaluator = evaluator(&name, level, longest.next_multiple_of(1024));
            for (number, case) in cases.iter().enumerate() {
                let expected: Vec<f64> = case.logits.concat();
                for (chunk, beside) in [(usize::MAX, 0), (7, 0), (1, 0), (5, 20), (usize::MAX, 3)] {
                    let beside: Vec<u32> = (3..3 + beside).collect();
                    let logits = case.run(&mut evaluator, chunk.min(1000), &beside);
                    let differences = logits.iter().zip(&expected);
                    let worst = differences.map(|(a, b)| (f64::from(*a) - b).abs());
                    let worst = worst.fold(0.0, f64::max);
                    assert!(
                        worst <= case.tolerance,
                        "{name} {level} case {number}, steps of {chunk}, {} beside: {worst} > {}",
                        beside.len(),
                        case.tolerance
                    );
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 200, "{compared}");
}

/// An engine with the tower of an entry.
fn engine(name: &str) -> Engine {
    let backend = || {
        let config = Config { threads: Some(2), ..Config::default() };
        Box::new(CpuBackend::new(&config).unwrap())
    };
    let view = |kind: &str| file(&format!("tests/data/vision/{name}-{kind}.gguf"));
    let projector = Some(Projector::open(&view("mmproj"), backend()).unwrap());
    let options = EngineOptions {
        num_ctx: Some(1024),
        cache_k: KvType::F32,
        cache_v: KvType::F32,
        ..EngineOptions::default()
    };
    let companions = Companions { projector, ..Companions::default() };
    Engine::open_with_companions(view("text"), backend(), &options, companions).unwrap()
}

impl Case {
    /// A request for the first token of the answer.
    fn request(&self, engine: &Engine) -> Request {
        let tower = engine.tower().unwrap();
        let media = self.media.iter().zip(&self.pictures).map(|(placed, picture)| {
            let layout = picture_layout(tower, picture.width, picture.height).unwrap();
            assert_eq!(
                (layout.rows, layout.sees_itself),
                (placed.layout.rows, placed.layout.sees_itself)
            );
            let content = picture.planes.iter().fold(1u128, |hash, value| {
                hash.wrapping_mul(0x0100_0000_01b3).wrapping_add(u128::from(value.to_bits()))
            });
            PromptMedium { first: placed.first, layout, content, picture: Arc::clone(picture) }
        });
        Request {
            media: media.collect(),
            max_tokens: Some(1),
            logprobs: Some(0),
            ..Request::new(self.tokens.clone(), greedy())
        }
    }

    /// Log-probability of the likeliest first token of the answer.
    fn expected(&self) -> (u32, f64) {
        let last = self.logits.last().unwrap();
        let largest = last.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = last.iter().map(|logit| (logit - largest).exp()).sum();
        let best = last.iter().position(|logit| *logit == largest).unwrap();
        (best as u32, -sum.ln())
    }
}

/// The first token of an answer, its log-probability, and the number of cached prompt tokens.
fn answer(engine: &Engine, request: Request) -> (u32, f64, usize) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let sink = move |event: Event| sender.send(event).is_ok();
    engine.submit(request, Box::new(sink)).unwrap();
    let mut first = None;
    loop {
        match receiver.recv().unwrap() {
            Event::Piece(piece) => {
                let logprob = piece.logprobs.map_or(0.0, |all| f64::from(all.logprob));
                first.get_or_insert((piece.token, logprob));
            }
            Event::Done(stats) => {
                let (token, logprob) = first.unwrap();
                return (token, logprob, stats.cached_tokens);
            }
            Event::Failed(error) | Event::Refused(error) => panic!("{error}"),
            Event::Prefill { .. } | Event::Prompt(_) => {}
        }
    }
}

#[test]
fn engines_answer_about_pictures() {
    let mut compared = 0;
    for (text, cases) in entries() {
        let name = text.strip_suffix("-text.gguf").unwrap();
        let engine = engine(name);
        for (number, case) in cases.iter().enumerate() {
            // Entries with many tiles have some of their pixels.
            if case.pictures.iter().any(|picture| picture.planes.is_empty()) {
                continue;
            }
            let at = format!("{name}, case {number}");
            let (token, logprob) = case.expected();
            // Cases begin with the same tokens.
            let request = |client| Request {
                cache_namespace: CacheNamespace(2 * number as u128 + client),
                ..case.request(&engine)
            };
            let first = answer(&engine, request(0));
            assert_eq!((first.0, first.2), (token, 0), "{at}");
            assert!((first.1 - logprob).abs() <= 3.0 * case.tolerance, "{at}: {first:?} {logprob}");
            // The prompt is cached, all but its last token.
            let again = answer(&engine, request(0));
            assert_eq!((again.0, again.2), (token, case.tokens.len() - 1), "{at}");
            assert_eq!(again.1.to_bits(), first.1.to_bits(), "{at}");
            assert_eq!(answer(&engine, request(1)), first, "{at}, another client");
            compared += 1;
        }
    }
    assert!(compared >= 20, "{compared}");
}
