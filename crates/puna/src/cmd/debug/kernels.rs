//! `puna debug kernels`: the kernel levels of this machine, and the level that each operation uses.

use anyhow::Result;
use puna_cpu::kernels::{best, level, levels};
use serde_json::json;

use crate::cli::JsonArgs;
use crate::out;

pub fn run(args: &JsonArgs) -> Result<()> {
    let chosen = match crate::env::kernels()? {
        Some(name) => level(&name)?,
        None => best(),
    };
    let names: Vec<_> = levels().iter().map(|level| level.name).collect();
    if args.json {
        let jobs = json!({"linear": chosen.name, "attention": chosen.name, "vectors": chosen.name});
        return out::json(&json!({"levels": names, "chosen": chosen.name, "jobs": jobs}));
    }
    let mark = |name: &str| if name == chosen.name { " (chosen)" } else { "" };
    out::text(&names.iter().map(|name| format!("{name}{}\n", mark(name))).collect::<String>())
}
