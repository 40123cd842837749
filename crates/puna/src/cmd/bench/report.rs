//! Prints results as text and as JSON.

use puna_cpu::probe::MachinePeaks;
use puna_graph::Description;
use serde_json::{Value, json};

use super::busy::fair_share;
use super::measure::{TestResult, median};
use super::memory::Resident;
use crate::format;

/// All results of a run.
pub struct Report<'a> {
    pub model: &'a str,
    /// Description of the model in JSON.
    pub facts: Value,
    pub machine: Description,
    pub limits: MachinePeaks,
    /// Processors that this process may use.
    pub cores: usize,
    pub results: Vec<ComparedResult>,
    /// Outer `None`: not requested. Inner `None`: not available on this system.
    pub memory: Option<Option<Resident>>,
    /// Seconds from the start of a process to its first output.
    pub starts: Vec<f64>,
}

/// A result with the same test of other files.
pub struct ComparedResult {
    pub measured: TestResult,
    /// Name and tokens per second of each file to compare with; `None` if it lacks the test.
    pub others: Vec<(String, Option<f64>)>,
}

impl ComparedResult {
    /// Speed relative to the fastest other result.
    pub fn ratio(&self) -> Option<f64> {
        let best = self.others.iter().filter_map(|(_, speed)| *speed).reduce(f64::max)?;
        Some(self.measured.tokens_per_second() / best)
    }
}

/// Fractions of the machine's limits that a result reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LimitShares {
    pub read: f64,
    pub int8: f64,
    pub bf16: f64,
}

impl LimitShares {
    pub fn of(measured: &TestResult, limits: MachinePeaks) -> Self {
        let tokens = measured.tokens_per_second() / 1e9;
        let macs = measured.macs_per_token * tokens;
        Self {
            read: measured.bytes_per_token * tokens / limits.read_gbs,
            int8: macs / limits.int8_gmacs,
            bf16: macs / limits.bf16_gmacs,
        }
    }

    /// The binding limit, and the speed as a fraction of this limit. For arithmetic, the best unit
    /// counts.
    pub fn binding_limit(self) -> (&'static str, f64) {
        let compute = self.int8.min(self.bf16);
        if self.read >= compute { ("bandwidth", self.read) } else { ("compute", compute) }
    }
}

impl Report<'_> {
    /// Fraction of the undisturbed speed that remained next to a busy process, and the fair
    /// fraction.
    fn busy_share(&self, measured: &TestResult) -> Option<(f64, f64)> {
        let kept = measured.tokens_per_second() / measured.undisturbed?;
        Some((kept, fair_share(self.machine.threads, measured.test.busy, self.cores)))
    }

    pub fn json(&self) -> Value {
        let mut value = json!({
            "date": jiff::Timestamp::now().to_string(),
            "machine": {
                "cpu": self.machine.device, "threads": self.machine.threads, "cores": self.cores,
                "kernels": self.machine.kernels, "read_gbs": self.limits.read_gbs,
                "int8_gmacs": self.limits.int8_gmacs, "bf16_gmacs": self.limits.bf16_gmacs,
            },
            "model": self.facts,
            "results": self.results.iter().map(|result| self.result_json(result)).collect::<Vec<_>>(),
        });
        if let Some(memory) = self.memory {
            value["memory"] = memory.map_or(
                Value::Null,
                |m| json!({"resident": m.total, "file": m.file, "cache": m.cache, "beyond": m.other_bytes()}),
            );
        }
        if !self.starts.is_empty() {
            value["start"] = json!({"seconds": median(&self.starts), "runs": self.starts});
        }
        value
    }

    fn result_json(&self, result: &ComparedResult) -> Value {
        let measured = &result.measured;
        let test = &measured.test;
        let shares = LimitShares::of(measured, self.limits);
        let (limit, share) = shares.binding_limit();
        let mut value = json!({
            "test": test.name(), "n_prompt": test.prompt, "n_gen": test.generate, "depth": test.depth,
            "sequences": test.sequences, "embed": test.embed, "busy": test.busy,
            "tokens_per_second": measured.tokens_per_second(), "runs": measured.runs,
            "limit": limit, "limit_share": share,
            "shares": {"read": shares.read, "int8": shares.int8, "bf16": shares.bf16},
            "bytes_per_token": measured.bytes_per_token, "macs_per_token": measured.macs_per_token,
        });
        if test.embed {
            value["texts_per_second"] =
                json!(measured.tokens_per_second() * measured.texts_per_token);
        }
        if let Some((kept, fair)) = self.busy_share(measured) {
            value["kept"] = json!(kept);
            value["fair_share"] = json!(fair);
        }
        if !measured.ops.is_empty() {
            let op = |op: &super::measure::OpShare| json!({"op": op.op, "share": op.share, "gbs": op.gbs, "gmacs": op.gmacs});
            value["ops"] = measured.ops.iter().map(op).collect();
        }
        if let Some(ratio) = result.ratio() {
            value["ratio"] = json!(ratio);
            value["others"] =
                result.others.iter().map(|(name, speed)| (name.clone(), json!(speed))).collect();
        }
        value
    }

    pub fn text(&self) -> String {
        let mut out = format!(
            "{}\nreads {:.1} GB/s; multiply-adds: {:.0} G/s in 8 bits, {:.0} G/s in bf16\n\n",
            machine(&self.machine),
            self.limits.read_gbs,
            self.limits.int8_gmacs,
            self.limits.bf16_gmacs
        );
        if !self.results.is_empty() {
            out.push_str(&self.speeds());
        }
        if let Some(memory) = self.memory {
            out.push_str(&match memory {
                Some(m) => format!(
                    "\nresident beyond the file ({}) and the cache ({}): {}\n",
                    format::bytes(m.file),
                    format::bytes(m.cache),
                    format::bytes(m.other_bytes())
                ),
                None => "\nresident memory: not available on this system\n".into(),
            });
        }
        if !self.starts.is_empty() {
            let seconds = median(&self.starts);
            out.push_str(&format!("\nprocess start to first output: {:.0} ms\n", seconds * 1e3));
        }
        for result in self.results.iter().filter(|r| !r.measured.ops.is_empty()) {
            out.push_str(&format!("\n{}\n{}", result.measured.test.name(), ops(&result.measured)));
        }
        out
    }

    fn speeds(&self) -> String {
        let any = |has: fn(&ComparedResult) -> bool| self.results.iter().any(has);
        let others: &[(String, Option<f64>)] = self.results.first().map_or(&[], |r| &r.others);
        let (embeds, busy) =
            (any(|r| r.measured.test.embed), any(|r| r.measured.undisturbed.is_some()));
        let mut headings = vec!["TEST", "DEPTH", "SEQUENCES", "TOKENS/S", "LIMIT", "SHARE"];
        headings.extend(embeds.then_some("TEXTS/S"));
        headings.extend(busy.then_some("BUSY").into_iter().chain(busy.then_some("KEPT (FAIR)")));
        // A single other file needs no name.
        let names: Vec<String> = match others {
            [_] => vec!["RATIO".into()],
            many => many.iter().map(|(name, _)| format!("OF {name}")).collect(),
        };
        headings.extend(names.iter().map(String::as_str));
        let dash = || "-".to_owned();
        let row = |result: &ComparedResult| {
            let measured = &result.measured;
            let (test, speed) = (&measured.test, measured.tokens_per_second());
            let (limit, share) = LimitShares::of(measured, self.limits).binding_limit();
            let mut row = vec![
                test.kind(),
                test.depth.to_string(),
                test.sequences.to_string(),
                format!("{speed:.2} ± {:.2}", measured.spread()),
                limit.into(),
                percent(share),
            ];
            row.extend(embeds.then(|| format!("{:.1}", speed * measured.texts_per_token)));
            if busy {
                row.push(if test.busy > 0 { format!("{} threads", test.busy) } else { dash() });
                let kept = self.busy_share(measured);
                row.push(kept.map_or_else(dash, |(kept, fair)| {
                    format!("{} ({})", percent(kept), percent(fair))
                }));
            }
            let ratio = |(_, other): &(String, Option<f64>)| {
                other.map_or_else(dash, |o| format!("{:.2}×", speed / o))
            };
            row.extend(result.others.iter().map(ratio));
            row
        };
        format::table(&headings, &self.results.iter().map(row).collect::<Vec<_>>())
    }
}

/// Describes the processor, its kernels and the threads.
pub fn machine(machine: &Description) -> String {
    format!("{}, {} threads, kernels {}", machine.device, machine.threads, machine.kernels)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn ops(measured: &TestResult) -> String {
    let row = |op: &super::measure::OpShare| {
        let numbers = [
            format!("{:.1} %", op.share * 100.0),
            format!("{:.1}", op.gbs),
            format!("{:.1}", op.gmacs),
        ];
        [op.op.to_string()].into_iter().chain(numbers).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = measured.ops.iter().map(row).collect();
    format::table(&["OPERATION", "TIME", "GB/S", "G MULTIPLY-ADDS/S"], &rows)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cmd::bench::measure::Test;

    pub fn report() -> Report<'static> {
        let limits = MachinePeaks { read_gbs: 20.0, int8_gmacs: 400.0, bf16_gmacs: 200.0 };
        let result = |test, speed: f64, bytes, macs, other| ComparedResult {
            measured: TestResult {
                test,
                runs: vec![speed],
                bytes_per_token: bytes,
                macs_per_token: macs,
                ..TestResult::default()
            },
            others: vec![("a".into(), Some(other)), ("b".into(), None)],
        };
        let pp = Test { prompt: 512, sequences: 1, ..Test::default() };
        let tg = Test { generate: 32, sequences: 1, ..Test::default() };
        let mut results = vec![result(pp, 200.0, 2e6, 1e9, 100.0), result(tg, 10.0, 1e9, 1e9, 8.0)];
        let quiet = results[1].measured.tokens_per_second();
        let mut busy = result(Test { busy: 2, ..tg }, 4.0, 1e9, 1e9, 1.0);
        busy.measured.undisturbed = Some(quiet);
        results.push(busy);
        let machine = Description {
            name: "cpu".into(),
            device: "a <fast> one".into(),
            kernels: "avx2".into(),
            threads: 2,
        };
        let memory = Some(Some(Resident { total: 1_100_000, file: 1_000_000, cache: 20_000 }));
        let starts = vec![0.25, 0.5, 0.3];
        Report {
            model: "m & n",
            facts: Value::Null,
            machine,
            limits,
            cores: 2,
            results,
            memory,
            starts,
        }
    }

    #[test]
    fn results_show_limits_and_comparisons() {
        let report = report();
        let json = report.json();
        let (pp, tg, busy) = (&json["results"][0], &json["results"][1], &json["results"][2]);
        assert_eq!(
            (&pp["limit"], &pp["limit_share"], &pp["ratio"]),
            (&json!("compute"), &json!(0.5), &json!(2.0))
        );
        assert_eq!(
            (&tg["limit"], &tg["limit_share"], &tg["ratio"]),
            (&json!("bandwidth"), &json!(0.5), &json!(1.25))
        );
        assert_eq!((&pp["shares"]["bf16"], &tg["others"]["b"]), (&json!(1.0), &Value::Null));
        assert_eq!(
            (&busy["kept"], &busy["fair_share"], &busy["ratio"]),
            (&json!(0.4), &json!(0.5), &json!(4.0))
        );
        assert_eq!(
            (&json["memory"]["beyond"], &json["start"]["seconds"]),
            (&json!(80_000), &json!(0.3))
        );
        let text = report.text();
        for part in [
            "40 % (50 %)",
            "OF a",
            "2.00×",
            "50 %",
            "beyond the file (1 MB) and the cache (20 KB): 80 KB",
            "300 ms",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
