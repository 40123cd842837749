//! `tests/data/cases/jinja.jsonl`: templates rendered by Jinja2 with the settings of transformers.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::JinjaTemplate;

#[derive(Deserialize)]
struct Row {
    kind: String,
    id: Option<String>,
    name: Option<String>,
    file: Option<String>,
    conversation: Option<String>,
    template: Option<String>,
    #[serde(default)]
    variables: Map<String, Json>,
    expect: Option<String>,
    expect_error: Option<String>,
}

/// Rows with a result that intentionally differs from the recorded one.
///
/// * functionary 3.1 writes HTML entities into its tool JSON because of a filter in that file.
///   llama.cpp writes plain text as well.
const INTENDED_DIFFERENCES: [&str; 2] = ["meetkai-functionary-medium-v3.1.jinja", "&#34;"];

fn rows() -> Vec<Row> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/jinja.jsonl");
    let text = std::fs::read_to_string(path).expect("the case file is part of the repository");
    text.lines().map(|line| serde_json::from_str(line).expect("a row is one JSON object")).collect()
}

fn check(source: &str, variables: &Map<String, Json>, row: &Row) -> Result<(), String> {
    let now = jiff::civil::datetime(2026, 8, 15, 12, 0, 0, 0);
    let result = JinjaTemplate::parse(source)
        .and_then(|t| t.render(variables.iter().map(|(k, v)| (k.as_str(), v)), now));
    match (result, &row.expect, &row.expect_error) {
        (Ok(text), Some(want), _) if text == *want => Ok(()),
        (Ok(text), Some(want), _) => {
            let at = text.bytes().zip(want.bytes()).take_while(|(a, b)| a == b).count();
            let cut = |s: &str| {
                String::from_utf8_lossy(
                    &s.as_bytes()[at.saturating_sub(40)..(at + 80).min(s.len())],
                )
                .into_owned()
            };
            Err(format!(
                "differs at byte {at}:\n  got      {:?}\n  expected {:?}",
                cut(&text),
                cut(want)
            ))
        }
        (Err(e), None, Some(want)) => {
            let words = want.split_once(": ").map_or(want.as_str(), |(_, words)| words);
            e.to_string()
                .contains(words)
                .then_some(())
                .ok_or_else(|| format!("error {e}\n  expected {words}"))
        }
        (Ok(text), ..) => {
            Err(format!("rendered {text:?}, expected the error {:?}", row.expect_error))
        }
        (Err(e), ..) => Err(format!("error {e}")),
    }
}

#[test]
fn every_own_template_of_the_jinja_file_renders_as_jinja2_does() {
    let rows: Vec<Row> = rows().into_iter().filter(|r| r.kind == "template").collect();
    assert_eq!(rows.len(), 56);
    let mut wrong = Vec::new();
    for row in &rows {
        let source = row.template.as_deref().expect("a template row carries its template");
        if let Err(why) = check(source, &row.variables, row) {
            wrong.push(format!("{}: {why}", row.id.as_deref().unwrap_or("?")));
        }
    }
    assert!(wrong.is_empty(), "{} of {} fail:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

#[test]
fn the_published_templates_render_as_jinja2_does() {
    let Some(folder) = template_folder() else {
        eprintln!(
            "SKIPPED: no folder `templates` with llama.cpp's models/templates in $PUNA_TEST_MODELS"
        );
        return;
    };
    let rows = rows();
    let conversations: HashMap<&str, &Map<String, Json>> = rows
        .iter()
        .filter(|r| r.kind == "conversation")
        .map(|r| (r.name.as_deref().expect("a conversation has a name"), &r.variables))
        .collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in rows.iter().filter(|r| r.kind == "template_file") {
        let name =
            row.file.as_deref().and_then(|f| f.rsplit('/').next()).expect("a row names its file");
        let source =
            std::fs::read_to_string(folder.join(name)).expect("the template file is there");
        let conversation = row.conversation.as_deref().expect("a row names its conversation");
        count += 1;
        if let Err(why) = check(&source, conversations[conversation], row) {
            let meant = name == INTENDED_DIFFERENCES[0] && why.contains(INTENDED_DIFFERENCES[1]);
            if !meant {
                wrong.push(format!("{name} × {conversation}: {why}"));
            }
        }
    }
    assert_eq!(count, 420);
    assert!(wrong.is_empty(), "{} of {count} rows fail:\n{}", wrong.len(), wrong.join("\n"));
}

/// `jinja-random.jsonl`: hashes of random conversations rendered with published templates.
#[test]
fn the_published_templates_render_random_conversations_as_jinja2_does() {
    let Some(folder) = template_folder() else {
        eprintln!(
            "SKIPPED: no folder `templates` with llama.cpp's models/templates in $PUNA_TEST_MODELS"
        );
        return;
    };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/jinja-random.jsonl");
    let text = std::fs::read_to_string(path).expect("the case file is part of the repository");
    let rows: Vec<Json> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (conversations, files): (Vec<&Json>, Vec<&Json>) =
        rows.iter().partition(|row| row["file"].is_null());
    let now = jiff::civil::datetime(2026, 8, 15, 12, 0, 0, 0);
    let (mut same, mut wrong) = (0, Vec::new());
    for row in files {
        let name = row["file"].as_str().expect("a file");
        // An intentional difference, see above.
        if name == INTENDED_DIFFERENCES[0] {
            continue;
        }
        let source =
            std::fs::read_to_string(folder.join(name)).expect("the template file is there");
        let hashes = row["hashes"].as_array().expect("hashes");
        for (at, (conversation, want)) in conversations.iter().zip(hashes).enumerate() {
            let variables = conversation["variables"].as_object().expect("variables");
            let rendered = JinjaTemplate::parse(&source)
                .and_then(|t| t.render(variables.iter().map(|(k, v)| (k.as_str(), v)), now));
            let got = rendered.as_ref().map_or("!".to_owned(), |text| fnv(text));
            match want.as_str() == Some(&*got) {
                true => same += 1,
                false => wrong.push(format!("{name} × conversation {at}: {rendered:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(same > 2000, "{same}");
}

fn fnv(text: &str) -> String {
    let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325, |state: u64, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    format!("{hash:016x}")
}

/// `templates` beside the test models: the folder `models/templates` of llama.cpp, under the names
/// of the cases.
fn template_folder() -> Option<PathBuf> {
    let models = std::env::var_os("PUNA_TEST_MODELS").map(PathBuf::from);
    let models = models
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache/models").into());
    Some(models.join("templates")).filter(|folder| folder.is_dir())
}
