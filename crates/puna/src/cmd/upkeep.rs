//! `puna verify` and `puna prune`: looking after the store.

use anyhow::Result;
use puna_api::native::{PruneRequest, PruneResponse, VerifyRequest};

use crate::cli::{PruneArgs, VerifyArgs};
use crate::progress::Display;
use crate::service::Service;
use crate::{format, out};

/// An error where anything is damaged in the end.
pub fn verify(args: &VerifyArgs) -> Result<()> {
    let service = Service::connect_or_own()?;
    let model = args.model.clone().unwrap_or_default();
    let request = VerifyRequest { model, repair: args.repair, insecure: args.insecure, stream: None };
    let mut display = Display::new();
    let verified = service.wait(async { display.follow(service.client().verify(&request).await?).await });
    display.done();
    verified
}

pub fn prune(args: &PruneArgs) -> Result<()> {
    let service = Service::connect_or_own()?;
    let request = PruneRequest { dry_run: args.dry_run, partial: args.partial };
    let pruned = service.wait(service.client().prune(&request))?;
    if args.json {
        return out::json(&pruned);
    }
    if !pruned.warning.is_empty() {
        anyhow::bail!("{}", pruned.warning);
    }
    out::text(&summary(&pruned, args))
}

fn summary(pruned: &PruneResponse, args: &PruneArgs) -> String {
    let rows: Vec<Vec<String>> = pruned
        .removed
        .iter()
        .map(|file| vec![file.file.clone(), file.kind.clone(), format::bytes(file.size)])
        .collect();
    let mut text =
        if rows.is_empty() { String::new() } else { format::table(&["FILE", "KIND", "SIZE"], &rows) };
    let done = if args.dry_run { "would be removed" } else { "removed" };
    let count = match rows.len() {
        1 => "1 file".to_owned(),
        n => format!("{n} files"),
    };
    text.push_str(&format!("{count} {done}, {}\n", format::bytes(pruned.bytes)));
    let young = match args.partial {
        true => "nobody uses them, but they were touched in the last minute",
        false => "nobody uses them, but they were touched in the last hour (see --partial)",
    };
    let kept = [(pruned.young, young), (pruned.held, "a pull, push or create that is running needs them")];
    for (count, why) in kept.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("{count} more stay: {why}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use puna_api::native::Leftover;

    use super::*;

    #[test]
    fn the_summary_says_what_went_and_what_stays() {
        let file = Leftover { file: "blobs/sha256-ab".into(), kind: "blob".into(), size: 3_000_000 };
        let pruned = PruneResponse {
            removed: vec![file],
            bytes: 3_000_000,
            young: 2,
            held: 1,
            warning: String::new(),
        };
        let args = |dry_run, partial| PruneArgs { dry_run, partial, json: false };
        let text = summary(&pruned, &args(true, false));
        assert!(
            text.contains("blobs/sha256-ab") && text.contains("1 file would be removed, 3 MB\n"),
            "{text}"
        );
        let young = "2 more stay: nobody uses them, but they were touched in the last hour (see --partial)\n";
        assert!(text.contains(young), "{text}");
        assert!(text.contains("1 more stay: a pull, push or create that is running needs them\n"), "{text}");
        assert!(summary(&pruned, &args(false, true)).contains("touched in the last minute\n"));
        assert_eq!(summary(&PruneResponse::default(), &args(false, false)), "0 files removed, 0 B\n");
    }
}
