//! Every zoo entry of a known architecture gives the reference's logits: fed at once, in chunks,
//! one by one, and in a batch with other sequences; at the portable level and at every level that
//! this machine has.

mod kit;

use std::any::Any;
use std::panic::catch_unwind;
use std::path::Path;

use kit::{Entry, feed, feed_where_pages_come_back, is_partial, mismatch, zoo};
use serde_json::Value;

fn check(level: &str, ways: &[&str]) {
    let entries = Entry::chosen();
    assert!(is_partial() || entries.len() >= 30, "only {} zoo entries found", entries.len());
    let mut failures = Vec::new();
    for entry in &entries {
        for how in ways.iter().filter(|how| !entry.is_whole() || ["whole", "batch"].contains(*how))
        {
            // A panic counts as one failure of many.
            let result =
                catch_unwind(|| mismatch(entry, &feed(entry, level, how), level == "portable"));
            if let Some(text) = result.unwrap_or_else(|panic| Some(panic_message(&*panic))) {
                failures.push(format!("{} {how} at {level}: {text}", entry.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let panic_message = panic.downcast_ref::<String>().cloned();
    panic_message.or(panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

#[test]
fn the_portable_level_meets_the_exact_tolerance_for_any_chunking_of_tokens() {
    check("portable", &["whole", "sevens", "one", "batch"]);
}

/// Pages behind windows are reused during a sequence without loss.
#[test]
fn pages_behind_windows_are_reused_without_loss() {
    let mut failures = Vec::new();
    let mut seen = Vec::new();
    for entry in Entry::chosen().iter().filter(|entry| !entry.is_embedding()) {
        for level in puna_cpu::kernels::levels().iter().chain(puna_cpu::kernels::emulated()) {
            let Some(rows) = feed_where_pages_come_back(entry, level.name) else { continue };
            seen.push(entry.name.clone());
            if let Some(text) = mismatch(entry, &rows, level.name == "portable") {
                failures.push(format!("{} at {}: {text}", entry.name, level.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    seen.dedup();
    assert!(
        is_partial() || seen.len() >= 10,
        "only {seen:?} have windows that are shorter than their text"
    );
}

#[test]
fn files_in_ollamas_layout_give_the_same_logits() {
    let folder = zoo().join("../compat");
    let mut done = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let architecture = json["expect"]["architecture"].as_str().unwrap();
        if !puna_models::known_architectures().contains(&architecture) {
            continue;
        }
        let Some(entry) = published(&folder, &json) else { continue };
        let rows = feed(&entry, "portable", "whole");
        assert_eq!(mismatch(&entry, &rows, true), None, "{}", path.display());
        done += 1;
    }
    assert!(done >= 14, "only {done} complete models in published forms");
}

/// A complete model in a published layout, with its own reference or that of an equivalent entry.
fn published(folder: &Path, json: &Value) -> Option<Entry> {
    let file = folder.join(json["file"].as_str()?);
    if let Some(twin) = json.get("twin").and_then(Value::as_str).filter(|twin| !twin.contains('/'))
    {
        let mut entry = Entry { file, ..Entry::load(twin) };
        if let Some(tolerance) = json.get("tolerance") {
            entry.json["tolerance"] = tolerance.clone();
        }
        return Some(entry);
    }
    let reference = json.get("reference").filter(|r| r["kind"] == "logits")?;
    let mut entry = Entry::new(json["file"].as_str()?, reference.clone());
    let all: Vec<f64> = entry.want.iter().flatten().copied().collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let std = (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
    entry.json["logits_std"] = std.into();
    Some(Entry { file, ..entry })
}

#[test]
fn every_other_level_meets_the_tolerance_for_rounded_activations() {
    // The first level is `portable`, which an earlier test covers with a smaller tolerance. With
    // `--features puna-cpu/emulated` the list includes levels that the machine emulates.
    for level in
        puna_cpu::kernels::levels().iter().skip(1).chain(puna_cpu::kernels::emulated()).copied()
    {
        check(level.name, &["whole", "sevens", "one", "batch"]);
    }
}

#[test]
fn embeddinggemma_in_ollamas_layout_gives_the_same_embedding() {
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
    let worst =
        want.iter().enumerate().map(|(i, want)| (mean(i) - want).abs() / std).fold(0.0, f64::max);
    let tolerance = json["reference"]["tolerance"].as_f64().unwrap();
    assert!(rows[0].len() == want.len() && worst <= tolerance, "{worst:.1e} of {tolerance:.0e}");
}
