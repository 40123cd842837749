//! `puna show`: prints details of a model.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use puna_api::ollama::{RunnerManifest, ShowRequest, ShowResponse};
use puna_store::ModelRef;
use serde_json::Value;

use crate::cli::ShowArgs;
use crate::format::{format_g, section};
use crate::local::{check_file, looks_like_path};
use crate::service::Service;
use crate::{out, usage};

pub fn run(args: &ShowArgs) -> Result<()> {
    let chosen = [args.license, args.modelfile, args.parameters, args.system, args.template];
    if chosen.iter().filter(|flag| **flag).count() > 1 {
        return Err(usage::error(
            "only one of '--license', '--modelfile', '--parameters', '--system', or '--template' can be specified",
        ));
    }
    let path = Path::new(&args.model);
    if looks_like_path(&args.model) && (path.exists() || ModelRef::parse(&args.model).is_err()) {
        check_file(path)?;
        bail!("{0} is a file: use `puna inspect {0}`", args.model);
    }
    let service = Service::connect_or_run_in_process()?;
    let request =
        ShowRequest { model: args.model.clone(), verbose: args.verbose, ..ShowRequest::default() };
    let info = service.wait(service.client().show(&request))?;
    match chosen.iter().position(|flag| *flag) {
        Some(0) => out::line(&info.license),
        Some(1) => out::line(&info.modelfile),
        Some(2) => out::line(&info.parameters),
        Some(3) => out::text(&info.system),
        Some(_) => out::text(&info.template),
        None => out::text(&describe(&info, args.verbose)),
    }
}

/// Sections of the default view.
pub fn describe(info: &ShowResponse, verbose: bool) -> String {
    let mut out = section("Model", &model_rows(info));
    let mut add = |title: &str, rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            out.push_str(&section(title, &rows));
        }
    };
    add("Runners", info.runners.iter().map(runner_row).collect());
    add("Capabilities", info.capabilities.iter().map(|name| vec![name.clone()]).collect());
    add("Projector", projector_rows(&info.projector_info));
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    add("Parameters", info.parameters.lines().map(words).filter(|row| !row.is_empty()).collect());
    if verbose {
        add(
            "Metadata",
            info.model_info
                .iter()
                .map(|(key, value)| vec![key.clone(), display_value(value)])
                .collect(),
        );
        let tensor = |t: &puna_api::ollama::TensorInfo| {
            let shape: Vec<String> = t.shape.iter().map(u64::to_string).collect();
            vec![t.name.clone(), t.kind.clone(), format!("[{}]", shape.join(" "))]
        };
        add("Tensors", info.tensors.iter().map(tensor).collect());
    }
    add("System", first_lines(&info.system));
    add("License", first_lines(&info.license));
    out
}

/// A row for one of the runner manifests of a name.
fn runner_row(manifest: &RunnerManifest) -> Vec<String> {
    let state = match manifest {
        RunnerManifest { chosen: true, .. } => "used",
        RunnerManifest { runnable: false, .. } => "not supported",
        RunnerManifest { stored: true, .. } => "stored",
        _ => "not stored",
    };
    let size = if manifest.stored { crate::format::bytes(manifest.size) } else { "-".into() };
    let id = manifest.digest.get(..12).unwrap_or(&manifest.digest).to_owned();
    vec![manifest.runner.clone(), manifest.format.clone(), id, size, state.to_owned()]
}

fn model_rows(info: &ShowResponse) -> Vec<Vec<String>> {
    let text =
        |key: &str| info.model_info.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let architecture = text("general.architecture");
    let number = |key: &str| {
        let value = info.model_info.get(&format!("{architecture}.{key}"))?;
        Some(general_number(value))
    };
    let parameters =
        Some(info.details.parameter_size.clone()).filter(|size| !size.is_empty()).or_else(|| {
            let count = info.model_info.get("general.parameter_count")?.as_u64()?;
            Some(puna_store::parameter_size(count))
        });
    let family =
        if architecture.is_empty() { info.details.family.clone() } else { architecture.clone() };
    let quantization = info.details.quantization_level.clone();
    let rows = [
        ("Remote model", Some(info.remote_model.clone())),
        ("Remote URL", Some(info.remote_host.clone())),
        ("architecture", Some(family)),
        ("parameters", parameters),
        ("context length", number("context_length")),
        ("embedding length", number("embedding_length")),
        ("quantization", Some(quantization)),
        ("requires", Some(info.requires.clone())),
    ];
    let present =
        rows.into_iter().filter_map(|(name, value)| Some((name, value.filter(|v| !v.is_empty())?)));
    present.map(|(name, value)| vec![name.to_owned(), value]).collect()
}

/// Formats a number. Integers, such as the context length, are printed in full and not as `%g`
/// would.
fn general_number(value: &Value) -> String {
    value.as_u64().map_or_else(|| display_value(value), |n| n.to_string())
}

fn projector_rows(info: &BTreeMap<String, Value>) -> Vec<Vec<String>> {
    let text = |key: &str| {
        info.get(key)
            .map(|value| value.as_str().map_or_else(|| general_number(value), str::to_owned))
    };
    let Some(architecture) = text("general.architecture") else { return Vec::new() };
    let sized = |key: &str| {
        text(&format!("{architecture}.vision.{key}"))
            .or_else(|| text(&format!("{architecture}.audio.{key}")))
    };
    let parameters =
        info.get("general.parameter_count").and_then(Value::as_u64).map(puna_store::parameter_size);
    let rows = [
        ("architecture", Some(architecture.clone())),
        ("parameters", parameters),
        ("embedding length", sized("embedding_length")),
        ("dimensions", sized("projection_dim")),
    ];
    rows.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?])).collect()
}

/// Formats a metadata value; arrays are cut to about ten columns.
fn display_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), format_g),
        Value::Array(items) => {
            let (mut text, mut count) = (String::from("["), 0);
            for item in items {
                if text.len() > 10 {
                    break;
                }
                if count > 0 {
                    text.push(' ');
                }
                text.push_str(&display_value(item));
                count += 1;
            }
            if count < items.len() {
                text.push_str(&format!(" ...+{} more", items.len() - count));
            }
            text + "]"
        }
        Value::Null => "[]".into(),
        Value::Bool(b) => b.to_string(),
        Value::Object(_) => "object".into(),
    }
}

/// The first two non-empty lines, wrapped, and a mark if more lines follow.
fn first_lines(text: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut rows: Vec<Vec<String>> =
        lines.by_ref().take(2).flat_map(wrapped).map(|line| vec![line]).collect();
    if lines.next().is_some() {
        rows.push(vec!["...".into()]);
    }
    rows
}

/// Wraps a line at 100 columns; continuation lines are indented by two blanks.
fn wrapped(line: &str) -> Vec<String> {
    let mut rows = vec![String::new()];
    for word in line.split_whitespace() {
        let row = rows.last_mut().expect("never empty");
        if !row.trim().is_empty() && row.chars().count() + 1 + word.chars().count() > 100 {
            rows.push(format!("  {word}"));
        } else {
            if !row.trim().is_empty() {
                row.push(' ');
            }
            row.push_str(word);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_default_view_matches_ollama() {
        let info: ShowResponse = serde_json::from_value(json!({
            "parameters": "stop                           \"<end_of_turn>\"\ntemperature                    1",
            "details": {"parameter_size": "268.10M", "quantization_level": "Q4_K_M", "family": "gemma3"},
            "model_info": {"general.architecture": "gemma3", "gemma3.context_length": 32768, "gemma3.embedding_length": 640},
            "capabilities": ["completion"],
        }))
        .unwrap();
        let want = "  Model\n    architecture        gemma3     \n    parameters          268.10M    \n    context length      32768      \n    \
                    embedding length    640        \n    quantization        Q4_K_M     \n\n  Capabilities\n    completion    \n\n  \
                    Parameters\n    stop           \"<end_of_turn>\"    \n    temperature    1                  \n\n";
        assert_eq!(describe(&info, false), want);
    }

    #[test]
    fn texts_are_cut_after_two_lines_and_wrapped() {
        assert_eq!(first_lines("a\n\n b \n"), [["a"], ["b"]]);
        assert_eq!(first_lines("a\nb\nc"), [["a"], ["b"], ["..."]]);
        let rows = first_lines(&"word ".repeat(30));
        assert_eq!((rows.len(), rows[1][0].starts_with("  word")), (2, true));
    }

    #[test]
    fn long_values_are_abbreviated() {
        assert_eq!(display_value(&json!(8e9)), "8e+09");
        assert_eq!(
            display_value(&json!(["<pad>", "<eos>", "<bos>", "x"])),
            "[<pad> <eos> ...+2 more]"
        );
        assert_eq!(display_value(&json!([1, 2])), "[1 2]");
    }
}
