//! Results of another run or another tool.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::measure::Measured;

/// Tokens per second by prompt, generated tokens, depth and sequences.
#[derive(Debug, PartialEq)]
pub struct Baseline(Vec<([u64; 4], f64)>);

/// Reads `puna bench --json` or `llama-bench -o json`.
pub fn read(path: &Path) -> Result<Baseline> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("cannot compare with {}", path.display()))
}

fn parse(text: &str) -> Result<Baseline> {
    let value: Value = serde_json::from_str(text).context("not JSON")?;
    // Puna's results have a key of their own, llama-bench prints a bare list.
    let own = value.get("results").and_then(Value::as_array);
    let Some(rows) = own.or(value.as_array()) else {
        bail!("neither results of `puna bench --json` nor of `llama-bench -o json`");
    };
    let number = |row: &Value, key: &str| row.get(key).and_then(Value::as_u64).unwrap_or(0);
    let read = |row: &Value| {
        let speed = row.get("tokens_per_second").or_else(|| row.get("avg_ts")).and_then(Value::as_f64)?;
        let depth = number(row, "depth").max(number(row, "n_depth"));
        Some(([number(row, "n_prompt"), number(row, "n_gen"), depth, number(row, "sequences").max(1)], speed))
    };
    let rows: Vec<_> = rows.iter().filter_map(read).collect();
    if rows.is_empty() {
        bail!("no result has a speed");
    }
    Ok(Baseline(rows))
}

impl Baseline {
    /// How much faster a result is than that of the same test.
    pub fn ratio(&self, measured: &Measured) -> Option<f64> {
        let test = &measured.test;
        let key = [test.prompt, test.generate, test.depth, test.sequences].map(|n| n as u64);
        let (_, speed) = self.0.iter().find(|(other, _)| *other == key)?;
        Some(measured.tokens_per_second() / speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_both_tools_are_read() {
        let llama = r#"[{"n_prompt":512,"n_gen":0,"n_depth":0,"avg_ts":106.5},{"n_prompt":0,"n_gen":128,"n_depth":2048,"avg_ts":10.4}]"#;
        assert_eq!(parse(llama).unwrap(), Baseline(vec![([512, 0, 0, 1], 106.5), ([0, 128, 2048, 1], 10.4)]));
        let own =
            r#"{"results":[{"n_prompt":0,"n_gen":64,"depth":7,"sequences":4,"tokens_per_second":35.8}]}"#;
        assert_eq!(parse(own).unwrap(), Baseline(vec![([0, 64, 7, 4], 35.8)]));
        assert!(parse("{}").is_err() && parse("[]").is_err() && parse("x").is_err());
    }
}
