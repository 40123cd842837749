//! Reads results of other runs or other tools for comparison.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::measure::{Test, median};

/// Results of one file.
#[derive(Debug, PartialEq)]
pub struct Baseline {
    /// File name without its extension.
    pub name: String,
    rows: Vec<Row>,
}

#[derive(Debug, PartialEq)]
struct Row {
    test: Test,
    /// Tokens per second.
    speed: f64,
    /// File name of the model, if the result states it.
    model: Option<String>,
}

/// Reads the output of `puna bench --json`, `llama-bench -o json` (or `jsonl`), or
/// `llama-batched-bench --output-format jsonl`.
pub fn read(path: &Path) -> Result<Baseline> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = parse(&text).with_context(|| format!("cannot compare with {}", path.display()))?;
    Ok(Baseline { name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), rows })
}

fn parse(text: &str) -> Result<Vec<Row>> {
    let documents: Vec<Value> = match serde_json::from_str(text) {
        Ok(value) => vec![value],
        // The file has one result per line, possibly between lines of other text.
        Err(error) => {
            let lines = text.lines().filter(|line| line.trim_start().starts_with('{'));
            let values: Vec<Value> =
                lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
            if values.is_empty() {
                return Err(error).context("not JSON");
            }
            values
        }
    };
    let mut rows = Vec::new();
    for document in &documents {
        // Puna's results are under a key of their own. llama-bench prints a list or one result per
        // line.
        let model = document.pointer("/model/path").and_then(Value::as_str).map(file_name);
        let own = document.get("results").and_then(Value::as_array);
        match own.or(document.as_array()) {
            Some(list) => rows.extend(list.iter().filter_map(|value| row(value, model.as_deref()))),
            None => rows.extend(row(document, None)),
        }
    }
    // Results without a positive finite speed cannot be compared.
    rows.retain(|row: &Row| row.speed.is_finite() && row.speed > 0.0);
    if rows.is_empty() {
        bail!(
            "no results of `puna bench --json`, `llama-bench -o json` or `llama-batched-bench --output-format jsonl`"
        );
    }
    Ok(rows)
}

fn row(value: &Value, model: Option<&str>) -> Option<Row> {
    let number = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0) as usize;
    if let Some(speed) = value.get("speed_tg").and_then(Value::as_f64) {
        // llama-batched-bench: `pl` sequences each generate tokens after a prompt.
        let test = Test {
            generate: number("tg"),
            depth: number("pp"),
            sequences: number("pl"),
            ..Test::default()
        };
        return Some(Row { test, speed, model: None });
    }
    let samples = value.get("samples_ts").and_then(Value::as_array);
    let samples: Vec<f64> = samples.into_iter().flatten().filter_map(Value::as_f64).collect();
    let mean = || value.get("tokens_per_second").or_else(|| value.get("avg_ts"))?.as_f64();
    let speed = if samples.is_empty() { mean()? } else { median(&samples) };
    let test = Test {
        prompt: number("n_prompt"),
        generate: number("n_gen"),
        depth: number("depth").max(number("n_depth")),
        sequences: number("sequences").max(1),
        embed: value.get("embed").and_then(Value::as_bool).unwrap_or(false),
        busy: number("busy"),
    };
    let told = value.get("model_filename").and_then(Value::as_str).map(file_name);
    Some(Row { test, speed, model: told.or_else(|| model.map(str::to_owned)) })
}

fn file_name(path: &str) -> String {
    path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned()
}

impl Baseline {
    /// Whether all results are of the same model.
    fn one_model(&self) -> bool {
        let first = self.rows.first().and_then(|row| row.model.as_ref());
        self.rows.iter().all(|row| row.model.as_ref() == first)
    }

    /// The model of all results, if it is a single one and differs from `model`.
    pub fn only_other_model(&self, model: &str) -> Option<&str> {
        let told = self.rows.first()?.model.as_deref()?;
        (self.one_model() && told != file_name(model)).then_some(told)
    }

    /// Tokens per second of the same test. In a file with several models, only results of `model`
    /// count. With a single model, its name does not matter.
    pub fn speed(&self, test: &Test, model: &str) -> Option<f64> {
        let model = file_name(model);
        let one_model = self.one_model();
        let same =
            |row: &&Row| row.test == *test && (one_model || row.model.as_ref() == Some(&model));
        // Alternating runs repeat a test; the median counts.
        let speeds: Vec<f64> = self.rows.iter().filter(same).map(|row| row.speed).collect();
        if speeds.is_empty() { None } else { Some(median(&speeds)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(text: &str) -> Baseline {
        Baseline { name: "peer".into(), rows: parse(text).unwrap() }
    }

    #[test]
    fn results_of_all_tools_are_read() {
        let tg = Test { generate: 128, depth: 2048, sequences: 1, ..Test::default() };
        let llama = baseline(
            r#"[{"n_prompt":512,"n_gen":0,"n_depth":0,"avg_ts":106.5,"samples_ts":[100.0,107.0,108.0]},
                {"n_prompt":0,"n_gen":128,"n_depth":2048,"avg_ts":10.4}]"#,
        );
        let pp = Test { prompt: 512, sequences: 1, ..Test::default() };
        assert_eq!((llama.speed(&pp, "m"), llama.speed(&tg, "m")), (Some(107.0), Some(10.4)));
        assert_eq!(llama.speed(&Test { depth: 0, ..tg }, "m"), None);
        let own = baseline(
            r#"{"results":[{"n_prompt":0,"n_gen":64,"depth":7,"sequences":4,"busy":2,"tokens_per_second":35.8}]}"#,
        );
        let test = Test { generate: 64, depth: 7, sequences: 4, busy: 2, ..Test::default() };
        assert_eq!(own.speed(&test, "m"), Some(35.8));
        let batched = baseline(
            "main: n_kv_max = 2048\n{\"pp\":16,\"tg\":32,\"pl\":8,\"speed_pp\":99.0,\"speed_tg\":42.5}\n\n{\"pp\":16,\"tg\":32,\"pl\":16,\"speed_tg\":60.0}",
        );
        let test = Test { generate: 32, depth: 16, sequences: 8, ..Test::default() };
        assert_eq!(batched.speed(&test, "m"), Some(42.5));
        assert!(parse(r#"[{"n_prompt":8,"avg_ts":-5},{"n_prompt":8,"avg_ts":0}]"#).is_err());
        assert!(parse("{}").is_err() && parse("[]").is_err() && parse("x").is_err());
    }

    #[test]
    fn results_of_another_model_are_detected() {
        let told =
            baseline(r#"[{"model_filename":"/m/a.gguf","n_prompt":512,"n_gen":0,"avg_ts":1.0}]"#);
        assert_eq!(told.only_other_model("/elsewhere/b.gguf"), Some("a.gguf"));
        assert_eq!(told.only_other_model("/elsewhere/a.gguf"), None);
        let silent = baseline(r#"[{"n_prompt":512,"n_gen":0,"avg_ts":1.0}]"#);
        assert_eq!(silent.only_other_model("b.gguf"), None);
    }

    #[test]
    fn results_of_other_models_are_ignored_and_repeated_ones_give_the_median() {
        let two = baseline(
            r#"[{"model_filename":"/a/x.gguf","n_prompt":8,"avg_ts":1.0},
                {"model_filename":"/b/y.gguf","n_prompt":8,"avg_ts":5.0},
                {"model_filename":"/b/y.gguf","n_prompt":8,"avg_ts":2.0},
                {"model_filename":"/b/y.gguf","n_prompt":8,"avg_ts":3.0}]"#,
        );
        let test = Test { prompt: 8, sequences: 1, ..Test::default() };
        assert_eq!((two.speed(&test, "/c/y.gguf"), two.speed(&test, "z")), (Some(3.0), None));
    }
}
