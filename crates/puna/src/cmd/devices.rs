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
    let memory = puna_server::memory();
    let (total, free) = (known(memory.total), known(memory.available));
    let reason = format!("{} threads, kernels {}", description.threads, description.kernels);
    if args.json {
        return out::json(&json!({"devices": [{
            "id": description.name, "kind": "cpu", "name": description.device,
            "memory_total": total, "memory_free": free, "usable": true, "reason": reason,
        }]}));
    }
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".into(), format::bytes);
    let row = vec![
        description.name,
        "cpu".into(),
        description.device,
        size(total),
        size(free),
        "yes".into(),
        reason,
    ];
    out::text(&format::table(
        &["ID", "KIND", "NAME", "MEMORY", "FREE", "USABLE", "REMARKS"],
        &[row],
    ))
}

/// Bytes, unless the system does not tell.
fn known(bytes: u64) -> Option<u64> {
    Some(bytes).filter(|bytes| *bytes < u64::MAX)
}
