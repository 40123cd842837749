//! `puna devices`: lists the devices that can compute.

use anyhow::Result;
use serde_json::json;

use crate::cli::JsonArgs;
use crate::{format, out};

pub fn run(args: &JsonArgs) -> Result<()> {
    let description = puna_cpu::describe(&puna_cpu::Config {
        threads: None,
        kernels: crate::env::kernels()?,
        ..puna_cpu::Config::default()
    })?;
    let memory = puna_server::memory();
    let (total, free) = (known_bytes(memory.total), known_bytes(memory.available));
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

/// Bytes; `None` for `u64::MAX`, which stands for an unknown size.
fn known_bytes(bytes: u64) -> Option<u64> {
    Some(bytes).filter(|bytes| *bytes < u64::MAX)
}
