//! Every zoo entry of a known architecture gives the reference's logits: fed whole, in chunks, one by one, and beside
//! other sequences; at the portable level and at every level this machine has.

mod kit;

use kit::{Entry, complaint, feed, zoo};

fn check(level: &str, ways: &[&str]) {
    let entries = Entry::all();
    assert!(entries.len() >= 30, "only {} zoo entries found", entries.len());
    let mut failures = Vec::new();
    for entry in &entries {
        for how in ways.iter().filter(|how| !entry.is_embedding() || ["whole", "batch"].contains(*how)) {
            let rows = feed(entry, level, how);
            if let Some(text) = complaint(entry, &rows, level == "portable") {
                failures.push(format!("{} {how} at {level}: {text}", entry.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn the_portable_level_meets_the_exact_tolerance_however_tokens_are_fed() {
    check("portable", &["whole", "sevens", "one", "batch"]);
}

#[test]
fn files_in_the_form_that_ollama_published_give_the_same_logits() {
    for (form, name) in [
        ("full-gemma3", "gemma3"),
        ("full-glmocr", "glm4"),
        ("full-gptoss", "gpt-oss"),
        ("full-gptoss-mxfp4", "gpt-oss-mxfp4"),
        ("full-llama4", "llama4"),
        ("full-mistral3", "ministral3"),
        ("full-olmo3", "olmo3"),
    ] {
        let file = zoo().join(format!("../compat/{form}.gguf"));
        let entry = Entry { file, ..Entry::load(name) };
        let rows = feed(&entry, "portable", "whole");
        assert_eq!(complaint(&entry, &rows, true), None, "{form}");
    }
}

#[test]
fn every_other_level_meets_the_tolerance_for_rounded_activations() {
    // With `--features puna-cpu/emulated` also levels that the machine lacks and can stand in for.
    for level in puna_cpu::kernels::levels().iter().chain(puna_cpu::kernels::emulated()).copied() {
        check(level.name, &["whole", "sevens", "one", "batch"]);
    }
}

#[test]
fn embeddinggemma_in_the_form_that_ollama_published_gives_the_same_vector() {
    let path = |end: &str| zoo().join(format!("../compat/full-embeddinggemma.{end}"));
    let text = std::fs::read_to_string(path("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let numbers = |key: &str| -> Vec<f64> {
        json["reference"][key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let tokens: Vec<u32> = numbers("tokens").iter().map(|&t| t as u32).collect();
    let entry = Entry { file: path("gguf"), tokens, ..Entry::load("gemma-embedding") };
    let rows = feed(&entry, "portable", "whole");
    let want = numbers("embedding");
    let mean = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64;
    let std = (want.iter().map(|x| x * x).sum::<f64>() / want.len() as f64).sqrt();
    let worst = want.iter().enumerate().map(|(i, want)| (mean(i) - want).abs() / std).fold(0.0, f64::max);
    let tolerance = json["reference"]["tolerance"].as_f64().unwrap();
    assert!(rows[0].len() == want.len() && worst <= tolerance, "{worst:.1e} of {tolerance:.0e}");
}
