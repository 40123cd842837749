//! Every entry of `tests/data/vision` gives the reference's rows: its pictures go through
//! preprocessing and the tower on the CPU, at every level of this machine, alone and together.
//!
//! The references are those of transformers in f32.

use std::path::{Path, PathBuf};

use puna_cpu::{Config, CpuBackend};
use puna_graph::{Backend, Capacity, Plan};
use puna_models::{NormalizedPicture, PromptPart, TowerPicture, VisionTower};
use serde_json::Value;

use crate::preprocessing::parts;

/// An array of a `.npy` file with f32 values.
struct Array {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Array {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let text = std::str::from_utf8(&bytes[10..10 + header]).unwrap();
        assert!(text.contains("'<f4'") && text.contains("'fortran_order': False"), "{text}");
        let shape = text.split_once("'shape': (").unwrap().1.split_once(')').unwrap().0;
        let shape = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect();
        let values = bytes[10 + header..].chunks_exact(4);
        Self { shape, values: values.map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect() }
    }
}

impl From<TowerPicture> for Array {
    fn from(picture: TowerPicture) -> Self {
        let TowerPicture { width, height, planes } = picture;
        Self { shape: vec![height, width], values: planes }
    }
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/vision")
}

pub fn entries() -> Vec<(String, Value)> {
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let mut entries: Vec<_> = files
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
        })
        .collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries
}

/// Rows of pictures that go through the tower in one step.
fn rows(tower: &VisionTower, backend: &mut dyn Backend, pixels: &[&Array]) -> Vec<Vec<f32>> {
    let pictures: Vec<NormalizedPicture<'_>> = pixels
        .iter()
        .map(|array| {
            let [.., height, width] = array.shape[..] else { panic!("{:?}", array.shape) };
            NormalizedPicture { width, height, planes: &array.values }
        })
        .collect();
    let input = tower.input(&pictures).unwrap();
    let capacity = Capacity::class(input.tokens.len(), input.outputs.len());
    let program = backend.compile(Plan::new(tower.graph().clone(), capacity)).unwrap();
    backend.run(program, &input);
    if let Some(second) = tower.second_graph() {
        let input = tower.second_input(&pictures, backend.result()).unwrap();
        let capacity = Capacity::class(input.tokens.len(), input.outputs.len());
        let program = backend.compile(Plan::new(second.clone(), capacity)).unwrap();
        backend.run(program, &input);
    }
    tower.rows(&pictures, backend.result()).unwrap()
}

#[test]
fn pictures_of_another_size_are_refused() {
    let tower = |name: &str| {
        let gguf = puna_gguf::Gguf::open(&folder().join(format!("{name}-mmproj.gguf"))).unwrap();
        VisionTower::load(&puna_gguf::View::new(std::sync::Arc::new(gguf)).unwrap()).unwrap()
    };
    let planes = vec![0.0; 3 * 192 * 96];
    let error = |name: &str, width, height| {
        let picture = NormalizedPicture { width, height, planes: &planes[..3 * width * height] };
        tower(name).input(&[picture]).err().map(|error| error.to_string())
    };
    assert_eq!(error("gemma3", 96, 96), None);
    assert!(error("gemma3", 192, 96).unwrap().ends_with("the model needs 96×96"));
    assert!(error("qwen2vl", 96, 40).unwrap().ends_with("multiples of 16"));
    assert!(error("qwen2vl", 0, 16).is_some());
    let short = NormalizedPicture { width: 96, height: 96, planes: &planes[..9] };
    assert!(tower("gemma3").input(&[short]).unwrap_err().to_string().ends_with("9 values"));
    assert_eq!(tower("pixtral").token_count(104, 64), Ok(111));
}

/// Largest difference over the standard deviation of the reference.
fn difference(rows: &[f32], reference: &Array) -> f32 {
    assert_eq!(rows.len(), reference.values.len());
    let n = reference.values.len() as f32;
    let mean = reference.values.iter().sum::<f32>() / n;
    let variance = reference.values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
    let pairs = rows.iter().zip(&reference.values);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / variance.sqrt()
}

#[test]
fn towers_give_the_rows_of_the_reference() {
    let (mut failures, mut compared) = (Vec::new(), 0);
    let entries = entries();
    for (name, entry) in &entries {
        let gguf =
            puna_gguf::Gguf::open(&folder().join(entry["mmproj"].as_str().unwrap())).unwrap();
        let view = puna_gguf::View::new(std::sync::Arc::new(gguf)).unwrap();
        let tower = VisionTower::load(&view).unwrap_or_else(|error| panic!("{name}: {error}"));
        for level in puna_cpu::kernels::levels() {
            let kernels = Some(level.name.into());
            let config = Config { threads: Some(2), kernels, ..Config::default() };
            let mut backend = CpuBackend::new(&config).unwrap();
            backend.load_weights(tower.weights().to_vec(), tower.ropes().to_vec()).unwrap();
            for (number, case) in entry["cases"].as_array().unwrap().iter().enumerate() {
                let lists = ["pixels", "embeddings"].map(|list| case[list].as_array().unwrap());
                assert_eq!(lists[0].len(), lists[1].len(), "{name}");
                let file = |one: &Value| Some(Array::read(&folder().join(one["file"].as_str()?)));
                let expected: Vec<Array> = lists[1].iter().filter_map(file).collect();
                let made = parts(&tower, case).into_iter().filter_map(|part| match part {
                    PromptPart::Picture(picture) => Some(Array::from(picture)),
                    _ => None,
                });
                let pixels: Vec<Array> = made.collect();
                assert_eq!(expected.len(), pixels.len(), "{name}");
                compared += pixels.len();
                let tolerance = case["embeddings_tolerance"].as_f64().unwrap() as f32;
                let alone = pixels.iter().flat_map(|one| rows(&tower, &mut backend, &[one]));
                let alone: Vec<_> = alone.collect();
                let together = rows(&tower, &mut backend, &pixels.iter().collect::<Vec<_>>());
                for (how, all) in [("alone", alone), ("together", together)] {
                    for (at, (rows, expected)) in all.iter().zip(&expected).enumerate() {
                        assert_eq!(rows.len(), expected.values.len(), "{name} {number}");
                        let off = difference(rows, expected);
                        if off.is_nan() || off > tolerance {
                            failures.push(format!(
                                "{name} case {number} picture {at} {how} at {}: {off} > {tolerance}",
                                level.name
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let levels = puna_cpu::kernels::levels().len();
    assert!(entries.len() >= 23 && compared >= 70 * levels, "only {compared} pictures compared");
}
