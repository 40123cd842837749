//! `puna devices`: what can compute here.

use anyhow::Result;
use puna_graph::Backend;
use serde_json::json;

use crate::cli::JsonArgs;
use crate::{format, out};

pub fn run(args: &JsonArgs) -> Result<()> {
    let backend = puna_cpu::CpuBackend::new(&puna_cpu::Config {
        threads: None,
        kernels: crate::env::kernels()?,
        ..puna_cpu::Config::default()
    })?;
    let description = backend.describe();
    let (total, free) = memory();
    let reason = format!("{} threads, kernels {}", description.threads, description.kernels);
    if args.json {
        return out::json(&json!({"devices": [{
            "id": description.name, "kind": "cpu", "name": description.device,
            "memory_total": total, "memory_free": free, "usable": true, "reason": reason,
        }]}));
    }
    let memory = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), format::bytes);
    let row = vec![
        description.name,
        "cpu".into(),
        description.device,
        memory(total),
        memory(free),
        "yes".into(),
        reason,
    ];
    out::text(&format::table(&["ID", "KIND", "NAME", "MEMORY", "FREE", "USABLE", "REMARKS"], &[row]))
}

/// Memory of the machine and what is free of it, where the system tells.
fn memory() -> (Option<u64>, Option<u64>) {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    (field("MemTotal"), field("MemAvailable"))
}
