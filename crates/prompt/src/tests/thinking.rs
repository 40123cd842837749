//! `tests/data/cases/parsers.jsonl`, the rows of the generic thinking parser and of what is inferred from a template.

use serde_json::Value as Json;

use crate::{GoTemplate, ThinkTags, ThinkingSplitter};

fn rows(parser: &str) -> Vec<Json> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/parsers.jsonl");
    let text = std::fs::read_to_string(path).expect("the case file is part of the repository");
    let rows = text.lines().map(|line| serde_json::from_str::<Json>(line).expect("a row is one JSON object"));
    rows.filter(|row| row["parser"] == parser).collect()
}

fn splitter(row: &Json) -> ThinkingSplitter {
    let tag = |key: &str| row[key].as_str().expect("a tag").to_string();
    let tags = ThinkTags { open: tag("open"), close: tag("close") };
    let prompt =
        if row["prompt_ends_with_open_tag"] == true { format!("Q\n{}\n", tags.open) } else { "Q".into() };
    ThinkingSplitter::new(tags, &prompt)
}

#[test]
fn every_thinking_case_splits_step_by_step_as_ollama_does() {
    let rows = rows("@thinking");
    assert_eq!(rows.len(), 8);
    for row in rows {
        let mut splitter = splitter(&row);
        let chunks = row["chunks"].as_array().expect("chunks");
        let steps: Vec<Json> = chunks
            .iter()
            .map(|chunk| {
                let split = splitter.push(chunk.as_str().expect("a chunk is text"));
                serde_json::json!([split.content, split.thinking])
            })
            .collect();
        assert_eq!(Json::Array(steps), row["expect"]["steps"], "{}", row["id"]);
    }
}

#[test]
fn cutting_the_stream_elsewhere_changes_nothing() {
    for row in rows("@thinking") {
        let chunks = row["chunks"].as_array().expect("chunks");
        let whole: String = chunks.iter().filter_map(Json::as_str).collect();
        let split_at = |size: usize| {
            let mut splitter = splitter(&row);
            let (mut thinking, mut content) = (String::new(), String::new());
            let chars: Vec<char> = whole.chars().collect();
            for piece in chars.chunks(size) {
                let split = splitter.push(&piece.iter().collect::<String>());
                thinking += &split.thinking;
                content += &split.content;
            }
            let rest = splitter.finish();
            (thinking + &rest.thinking, content + &rest.content)
        };
        let reference = split_at(whole.len());
        for size in 1..8 {
            assert_eq!(split_at(size), reference, "{} in pieces of {size}", row["id"]);
        }
    }
}

#[test]
fn text_held_back_as_a_possible_tag_comes_out_at_the_end() {
    let tags = ThinkTags { open: "<think>".into(), close: "</think>".into() };
    let mut splitter = ThinkingSplitter::new(tags, "<think>");
    assert!(splitter.is_thinking());
    assert_eq!(splitter.push("so </thi").thinking, "so ");
    assert_eq!(splitter.finish().thinking, "</thi");
}

#[test]
fn tags_and_variables_are_inferred_from_go_templates_as_ollama_does() {
    let rows = rows("@infer");
    assert_eq!(rows.len(), 12);
    for row in rows {
        let template = GoTemplate::parse(row["template"].as_str().expect("a template")).expect("it parses");
        let (open, close) = template.think_tags();
        let got = serde_json::json!({
            "tool_tag": template.tool_tag(), "think_open": open, "think_close": close,
            "vars": template.variables().collect::<Vec<_>>(),
        });
        assert_eq!(got, row["expect"], "{}", row["id"]);
    }
}
