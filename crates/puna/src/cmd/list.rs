//! `puna list` and `puna ps`: list the stored and the loaded models.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use anyhow::Result;
use puna_api::ollama::{
    Download, DownloadsResponse, ListResponse, ModelSummary, ProcessResponse, RunningModel,
};

use crate::cli::{ListArgs, StoredArgs};
use crate::format::escape_control;
use crate::service::Service;
use crate::{format, out};

pub fn run(args: &StoredArgs) -> Result<()> {
    if args.partial {
        return list_partial(&args.list);
    }
    let args = &args.list;
    let mut list = Service::stored_models()?;
    let prefix = args.prefix.as_deref().unwrap_or_default().to_lowercase();
    list.models.retain(|model| model.name.to_lowercase().starts_with(&prefix));
    for warning in &list.warnings {
        out::note(format_args!("Warning: {warning}"));
    }
    if args.json { out::json(&list) } else { out::text(&table(&list)) }
}

/// Table of stored models.
pub fn table(list: &ListResponse) -> String {
    let now = SystemTime::now();
    let mut rows_of: HashMap<&str, usize> = HashMap::new();
    list.models.iter().for_each(|model| *rows_of.entry(&model.name).or_default() += 1);
    let rows: Vec<Vec<String>> = list
        .models
        .iter()
        .map(|model| {
            let id = model.digest.get(..12).unwrap_or(&model.digest).to_owned();
            let modified = format::time(format::parse_time(&model.modified_at), now, "Never");
            let size =
                if model.remote_model.is_empty() { format::bytes(model.size) } else { "-".into() };
            vec![display_name(model, rows_of[model.name.as_str()] > 1), id, size, modified]
        })
        .collect();
    format::table(&["NAME", "ID", "SIZE", "MODIFIED"], &rows)
}

/// Name of a model, with the row's runner if the name has several.
fn display_name(model: &ModelSummary, has_several: bool) -> String {
    match model.details.runner.as_str() {
        runner if has_several && !runner.is_empty() => format!("{}@{runner}", model.name),
        _ => model.name.clone(),
    }
}

/// Lists the unfinished pulls.
fn list_partial(args: &ListArgs) -> Result<()> {
    let service = Service::connect_or_run_in_process()?;
    let mut list = service.wait(service.client().downloads())?;
    let prefix = args.prefix.as_deref().unwrap_or_default().to_lowercase();
    list.downloads.retain(|download| download.model.to_lowercase().starts_with(&prefix));
    if args.json { out::json(&list) } else { out::text(&downloads_table(&list)) }
}

fn downloads_table(list: &DownloadsResponse) -> String {
    let now = SystemTime::now();
    let row = |download: &Download| {
        let Download { total, completed, .. } = *download;
        let percent = (completed.min(total) as f64 / total.max(1) as f64 * 100.0).floor();
        let state = if download.running { "running" } else { "stopped" };
        let began = format::time(format::parse_time(&download.began_at), now, "Never");
        let size = format!("{} of {}", format::bytes(completed), format::bytes(total));
        vec![download.model.clone(), format!("{percent}%"), size, state.into(), began]
    };
    let rows: Vec<_> = list.downloads.iter().map(row).collect();
    format::table(&["NAME", "DONE", "SIZE", "STATE", "BEGAN"], &rows)
}

pub fn ps(args: &ListArgs) -> Result<()> {
    // Without a server no model is loaded, and a server in this process would have none either.
    let service = Service::connect()?;
    let mut list = service.wait(service.client().ps())?;
    let prefix = args.prefix.as_deref().unwrap_or_default();
    list.models.retain(|model| model.name.starts_with(prefix));
    if args.json { out::json(&list) } else { out::text(&running_table(&list)) }
}

fn running_table(list: &ProcessResponse) -> String {
    let now = SystemTime::now();
    let rows: Vec<Vec<String>> = list
        .models
        .iter()
        .map(|model| {
            let id = model.digest.get(..12).unwrap_or(&model.digest).to_owned();
            let expires = format::parse_time(&model.expires_at);
            let until = match expires {
                Some(at) if at < now => "Stopping...".to_owned(),
                at => format::time(at, now, "Never"),
            };
            let size = format::bytes(model.size);
            vec![
                model.name.clone(),
                id,
                size,
                processor(model),
                model.context_length.to_string(),
                until,
            ]
        })
        .collect();
    let table = format::table(&["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"], &rows);
    table + &sandbox_lines(list)
}

/// A line for each different sandbox of the runners, such as `sandbox: landlock, seccomp`. Runners
/// of one machine usually have the same.
fn sandbox_lines(list: &ProcessResponse) -> String {
    let sandboxes: BTreeSet<&str> =
        list.models.iter().filter_map(|model| model.sandbox.as_deref()).collect();
    sandboxes.iter().map(|sandbox| format!("sandbox: {}\n", escape_control(sandbox))).collect()
}

fn processor(model: &RunningModel) -> String {
    let (size, vram) = (model.size, model.size_vram);
    match () {
        () if vram == 0 => "100% CPU".into(),
        () if vram > size => "Unknown".into(),
        () if vram == size => "100% GPU".into(),
        () => {
            let cpu = ((size - vram) as f64 / size as f64 * 100.0).round();
            format!("{cpu}%/{}% CPU/GPU", 100.0 - cpu)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandboxes_of_the_runners_are_below_the_table() {
        let model = |sandbox: Option<&str>| RunningModel {
            sandbox: sandbox.map(str::to_owned),
            ..RunningModel::default()
        };
        let one = Some("landlock, seccomp");
        let models = vec![model(one), model(None), model(one), model(Some("none"))];
        let text = running_table(&ProcessResponse { models });
        assert!(text.ends_with("\nsandbox: landlock, seccomp\nsandbox: none\n"), "{text}");
        let models = vec![model(Some("\x1b]0;x\x07\u{2066}"))];
        let text = running_table(&ProcessResponse { models });
        assert!(text.ends_with("\nsandbox: \\u{1b}]0;x\\u{7}\\u{2066}\n"), "{text}");
        let models = vec![model(None)];
        assert!(!running_table(&ProcessResponse { models }).contains("sandbox"));
    }

    #[test]
    fn the_processor_column_shows_the_model_location() {
        let of = |size, size_vram| {
            processor(&RunningModel { size, size_vram, ..RunningModel::default() })
        };
        assert_eq!(of(100, 0), "100% CPU");
        assert_eq!(of(100, 100), "100% GPU");
        assert_eq!(of(100, 30), "70%/30% CPU/GPU");
        assert_eq!(of(100, 101), "Unknown");
    }

    #[test]
    fn unfinished_pulls_show_their_progress() {
        let download = Download {
            model: "big:1b".into(),
            total: 2_000_000_000,
            completed: 1_999_999_999,
            running: false,
            began_at: (jiff::Timestamp::now() - jiff::SignedDuration::from_secs(125)).to_string(),
        };
        let table = downloads_table(&DownloadsResponse { downloads: vec![download] });
        let row = table.lines().nth(1).unwrap();
        // An unfinished pull must not show 100%.
        assert!(
            row.contains("99%") && row.contains("stopped") && row.contains("2 minutes ago"),
            "{table}"
        );
    }

    #[test]
    fn running_models_are_listed_as_by_ollama() {
        let expires_at =
            (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(299)).to_string();
        let model = RunningModel {
            name: "smol:latest".into(),
            size: 160_000_000,
            digest: "d4aa029c41020000".into(),
            expires_at,
            context_length: 2048,
            ..RunningModel::default()
        };
        assert_eq!(
            running_table(&ProcessResponse { models: vec![model] }),
            "NAME           ID              SIZE      PROCESSOR    CONTEXT    UNTIL              \n\
             smol:latest    d4aa029c4102    160 MB    100% CPU     2048       4 minutes from now    \n"
        );
    }
}
