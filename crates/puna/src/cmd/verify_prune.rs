//! `puna verify` and `puna prune`: check and clean the store.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::Result;
use puna_api::ollama::{Leftover, PruneRequest, PruneResponse, VerifyRequest};

use crate::cli::{PruneArgs, VerifyArgs};
use crate::progress::ProgressDisplay;
use crate::service::Service;
use crate::{format, out};

/// Fails if a model is still damaged at the end.
pub fn verify(args: &VerifyArgs) -> Result<()> {
    let service = Service::connect_or_run_in_process()?;
    let model = args.model.clone().unwrap_or_default();
    let request =
        VerifyRequest { model, repair: args.repair, insecure: args.insecure, stream: None };
    let mut display = ProgressDisplay::new();
    let verified =
        service.wait(async { display.follow(service.client().verify(&request).await?).await });
    display.done();
    verified
}

/// Lists unused files, asks for confirmation on a terminal, and removes them. Fails if the store
/// has content that cannot be parsed.
pub fn prune(args: &PruneArgs) -> Result<()> {
    let service = Service::connect_or_run_in_process()?;
    let request = PruneRequest {
        dry_run: args.dry_run,
        partial: args.partial,
        undo: args.undo,
        empty_trash: args.empty_trash,
    };
    let send = |request: &PruneRequest| -> Result<PruneResponse> {
        let answer = service.wait(service.client().prune(request))?;
        match answer.warning.is_empty() || args.json {
            true => Ok(answer),
            false => anyhow::bail!("{}", answer.warning),
        }
    };
    let stdin = std::io::stdin();
    let asks = stdin.is_terminal() && !(args.dry_run || args.undo || args.yes || args.json);
    if asks {
        let planned = send(&PruneRequest { dry_run: true, ..request.clone() })?;
        if planned.bytes == 0 && planned.removed.is_empty() {
            return out::text(&summary(&planned, args));
        }
        out::text(&file_rows(&planned, args))?;
        if !confirm(&planned, &mut stdin.lock(), &mut std::io::stderr())? {
            return out::text("nothing removed\n");
        }
    }
    let done = send(&request)?;
    if args.json {
        out::json(&done)?;
        anyhow::ensure!(done.warning.is_empty(), "{}", done.warning);
        return Ok(());
    }
    let text = if asks { totals(&done, args) } else { summary(&done, args) };
    out::text(&text)
}

/// Asks for confirmation to remove the listed files.
fn confirm(
    planned: &PruneResponse,
    terminal: &mut impl BufRead,
    screen: &mut impl Write,
) -> Result<bool> {
    write!(screen, "Remove {}? [y/N] ", format::bytes(planned.bytes))?;
    screen.flush()?;
    let mut answer = String::new();
    terminal.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Number and size of the files that are removed or restored.
fn summary(done: &PruneResponse, args: &PruneArgs) -> String {
    file_rows(done, args) + &totals(done, args)
}

/// A row for each file that is removed or restored.
fn file_rows(done: &PruneResponse, args: &PruneArgs) -> String {
    if args.undo {
        let back = if args.dry_run { "would be restored" } else { "restored" };
        let restored = done.restored.iter().map(|path| format!("{back}: {path}\n"));
        let taken = done
            .taken
            .iter()
            .map(|path| format!("not restored, because it exists again: {path}\n"));
        return restored.chain(taken).collect();
    }
    let row = |file: &Leftover| {
        vec![file.file.clone(), file.kind.clone(), format::bytes(file.size), file.reason.clone()]
    };
    let rows: Vec<Vec<String>> = done.removed.iter().map(row).collect();
    if rows.is_empty() {
        String::new()
    } else {
        format::table(&["FILE", "KIND", "SIZE", "WHY"], &rows)
    }
}

fn totals(done: &PruneResponse, args: &PruneArgs) -> String {
    let would =
        |done: &'static str, planned: &'static str| if args.dry_run { planned } else { done };
    let count = |count: usize| match count {
        1 => "1 file".to_owned(),
        n => format!("{n} files"),
    };
    let bytes = format::bytes(done.bytes);
    if args.undo {
        let done_to = would("restored", "would be restored");
        return format!("{} {done_to}, {bytes}\n", count(done.restored.len()));
    }
    if args.empty_trash {
        return format!("{bytes} {}\n", would("freed", "would be freed"));
    }
    let mut text = format!(
        "{} {}, {bytes}\n",
        count(done.removed.len()),
        would("removed", "would be removed")
    );
    let young = match args.partial {
        true => "unused, but modified in the last minute",
        false => {
            "unused, but too recent: less than an hour for blobs, two weeks for downloads (see --partial)"
        }
    };
    let kept = [(done.young, young), (done.held, "a running pull, push or create may need them")];
    for (count, why) in kept.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("{count} more not removed: {why}\n"));
    }
    if done.trash > 0 && !args.dry_run {
        text.push_str(&format!(
            "{} in the trash for a day: `puna prune --undo` restores, `puna prune --empty-trash` frees\n",
            format::bytes(done.trash)
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_lists_removed_and_remaining_files() {
        let file = Leftover {
            file: "blobs/sha256-ab".into(),
            kind: "blob".into(),
            size: 3_000_000,
            reason: "no model uses it".into(),
        };
        let pruned = PruneResponse {
            removed: vec![file],
            bytes: 3_000_000,
            young: 2,
            held: 1,
            trash: 3_000_000,
            ..PruneResponse::default()
        };
        let args = |dry_run, partial| PruneArgs {
            dry_run,
            partial,
            yes: false,
            undo: false,
            empty_trash: false,
            json: false,
        };
        let text = summary(&pruned, &args(true, false));
        assert!(
            text.contains("blobs/sha256-ab") && text.contains("1 file would be removed, 3 MB\n"),
            "{text}"
        );
        let young = "2 more not removed: unused, but too recent: less than an hour for blobs, two weeks for downloads (see --partial)\n";
        assert!(text.contains(young), "{text}");
        assert!(
            text.contains("1 more not removed: a running pull, push or create may need them\n"),
            "{text}"
        );
        assert!(text.contains("no model uses it") && !text.contains("--undo"), "{text}");
        assert!(summary(&pruned, &args(false, false)).contains("3 MB in the trash for a day"));
        assert!(summary(&pruned, &args(false, true)).contains("modified in the last minute\n"));
        assert_eq!(
            summary(&PruneResponse::default(), &args(false, false)),
            "0 files removed, 0 B\n"
        );
        let restored = PruneResponse {
            restored: vec!["blobs/sha256-ab".into()],
            taken: vec!["manifests/h/n/m/t".into()],
            bytes: 5,
            ..PruneResponse::default()
        };
        let undo = PruneArgs { undo: true, ..args(false, false) };
        let text = summary(&restored, &undo);
        assert!(text.starts_with("restored: blobs/sha256-ab\nnot restored, because"), "{text}");
        assert!(text.ends_with("1 file restored, 5 B\n"), "{text}");
        let empty = PruneArgs { empty_trash: true, ..args(true, false) };
        assert_eq!(summary(&restored, &empty), "5 B would be freed\n");
    }

    #[test]
    fn nothing_is_removed_without_confirmation() {
        let planned = PruneResponse { bytes: 3_000_000, ..PruneResponse::default() };
        for (answer, agreed) in
            [("y\n", true), ("yes\n", true), ("", false), ("\n", false), ("n\n", false)]
        {
            let mut screen = Vec::new();
            assert_eq!(
                confirm(&planned, &mut answer.as_bytes(), &mut screen).unwrap(),
                agreed,
                "{answer:?}"
            );
            assert_eq!(String::from_utf8(screen).unwrap(), "Remove 3 MB? [y/N] ");
        }
    }
}
