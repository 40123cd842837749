//! `puna mirror retain`: applies the rules of `mirror.retention`.

use anyhow::{Result, bail};
use puna_server::mirror::{Removal, RetentionReport, retain};
use serde_json::json;

use crate::cli::{RetainArgs, SettingArgs};
use crate::{format, out};

/// Fails if something cannot be removed.
pub fn run(args: RetainArgs) -> Result<()> {
    let settings = SettingArgs { host: None, set: args.set };
    let config = super::config::load(&settings, Vec::new())?;
    if config.mirror.retention.is_empty() {
        bail!(
            "no retention rules are set: set mirror.retention, such as --set mirror.retention=library=pulled:30d"
        );
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let retained = runtime.block_on(retain(&config, args.dry_run))?;
    if args.json {
        out::json(&json!({
            "dry_run": args.dry_run,
            "removed": retained.removals.iter().map(document).collect::<Vec<_>>(),
            "bytes": retained.bytes(),
            "own": retained.kept_local_models,
            "failed": retained.failed,
        }))?;
    } else {
        out::text(&summary(&retained, args.dry_run))?;
    }
    match retained.failed.first() {
        None => Ok(()),
        Some(first) => {
            bail!("cannot remove {}: {first}", count(retained.failed.len(), "manifest"))
        }
    }
}

fn document(removal: &Removal) -> serde_json::Value {
    json!({
        "repository": removal.name.as_str(),
        "tag": removal.tag,
        "digest": removal.digest.to_string(),
        "reason": removal.reason,
        "bytes": removal.bytes,
    })
}

fn summary(retained: &RetentionReport, dry_run: bool) -> String {
    let row = |removal: &Removal| {
        let name = match &removal.tag {
            Some(tag) => format!("{}:{tag}", removal.name),
            None => removal.name.to_string(),
        };
        let digest = removal.digest.short().to_string();
        vec![name, digest, format::bytes(removal.bytes), removal.reason.clone()]
    };
    let rows: Vec<Vec<String>> = retained.removals.iter().map(row).collect();
    let mut text = match rows.is_empty() {
        true => String::new(),
        false => format::table(&["NAME", "DIGEST", "FREES", "REASON"], &rows),
    };
    let done = if dry_run { "would be removed" } else { "removed" };
    let freed = format::bytes(retained.bytes());
    text.push_str(&format!("{} {done}, {freed} of unshared data\n", count(rows.len(), "manifest")));
    if retained.kept_local_models > 0 {
        let kept = count(retained.kept_local_models, "local model");
        text.push_str(&format!(
            "kept {kept} that no mirror fetched or received; only rules with the word own apply\n"
        ));
    }
    text
}

fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_lists_removals_and_what_more_flags_would_remove() {
        assert_eq!(
            summary(&RetentionReport::default(), false),
            "0 manifests removed, 0 B of unshared data\n"
        );
        let kept = RetentionReport { kept_local_models: 1, ..RetentionReport::default() };
        assert!(summary(&kept, true).ends_with(
            "\nkept 1 local model that no mirror fetched or received; only rules with the word own apply\n"
        ));
    }
}
