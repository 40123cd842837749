//! `tests/data/cases/parsers.jsonl`, recorded from Ollama's parsers. Every row is parsed in every
//! chunking that it lists, split in two at every offset, and in single characters.

use super::super::tools::Tools;
use super::*;
use crate::GoTemplate;

/// Rows with a recorded result that depends on the chunks without being marked so, with the result
/// of the whole text.
const CHUNK_DEPENDENT_ROWS: [(&str, &str, &str); 4] = [
    // A line break behind the tag came in a chunk of its own.
    ("p0316", "Idea", "Outcome <toast>"),
    // The tags came in several chunks and were not recognized.
    ("p0321", "", "y"),
    ("p0325", "", "a"),
    // White space before tags that came in several chunks.
    ("p0326", "think", "out"),
];

/// An unreadable call is malformed here; the reference reports a call without a name.
const CALL_WITHOUT_NAME_ROW: &str = "p0153";

fn rows() -> Vec<Json> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/parsers.jsonl");
    let text = std::fs::read_to_string(path).expect("the case file is part of the repository");
    let rows: Vec<Json> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row is one JSON object"))
        .collect();
    assert_eq!(rows.len(), 365);
    rows
}

fn rows_of(parser: &str) -> Vec<Json> {
    rows().into_iter().filter(|row| row["parser"] == parser).collect()
}

fn text_of(row: &Json) -> String {
    match row["text"].as_str() {
        Some(text) => text.to_owned(),
        None => chunks_of(row).concat(),
    }
}

fn chunks_of(row: &Json) -> Vec<String> {
    let chunks = row["chunks"].as_array().expect("a row has a text or chunks");
    chunks.iter().map(|chunk| chunk.as_str().expect("a chunk is text").to_owned()).collect()
}

fn is_artefact(row: &Json) -> bool {
    row["note"].as_str().is_some_and(|note| note.contains("reference artefact"))
}

/// Parses chunks with the parser of a row.
fn run(row: &Json, chunks: &[&str]) -> JoinedOutput {
    let name = row["parser"].as_str().expect("a parser");
    let tools = row["tools"].as_array().cloned().unwrap_or_default();
    let think = row["think"].as_bool().map(Think::Switch);
    let last: Option<Message> = row
        .get("last_message")
        .map(|last| serde_json::from_value(last.clone()).expect("a message"));
    let input = ParserInput {
        tools: &tools,
        think: think.as_ref(),
        last: last.as_ref(),
        ..ParserInput::default()
    };
    let parser = OutputParser::by_name(name, &input).unwrap_or_else(|| panic!("parser {name}"));
    JoinedOutput::of(parser, chunks.iter().copied())
}

/// Fails if the result differs from the expected result of `row`.
fn check(row: &Json, got: &JoinedOutput, how: &str) {
    let what = format!("{} ({}) {how}: {}", row["id"], row["parser"], text_of(row));
    let expect = &row["expect"];
    if let Some(error) = expect["error"].as_str() {
        let (_, found, content, thinking) =
            got.malformed.first().unwrap_or_else(|| panic!("no error: {what}"));
        // Implementations report JSON errors in different words.
        if !error.contains("invalid character")
            && !error.contains("unexpected end")
            && error != "EOF"
        {
            assert!(
                error.ends_with(found.trim_start_matches("incomplete tool call: ")),
                "{error:?} {found:?}"
            );
        }
        if let Some(before) = expect["content_before_error"].as_str() {
            assert_eq!(content, before, "{what}");
            assert_eq!(thinking, &expect["thinking_before_error"], "{what}");
        }
        return;
    }
    let cut = CHUNK_DEPENDENT_ROWS.iter().find(|(id, ..)| row["id"] == *id);
    let thinking = cut.map_or_else(
        || expect["thinking"].as_str().expect("thoughts"),
        |(_, thinking, _)| thinking,
    );
    let content =
        cut.map_or_else(|| expect["content"].as_str().expect("content"), |(.., content)| content);
    assert_eq!(got.thinking, thinking, "{what}");
    assert_eq!(got.content, content, "{what}");
    if row["id"] == "p0321" || row["id"] == "p0325" {
        assert_eq!(got.calls.len(), 1, "{what}");
        return;
    }
    let mut calls: Vec<(String, Json)> = expect["tool_calls"]
        .as_array()
        .expect("calls")
        .iter()
        .map(|call| {
            (call["name"].as_str().unwrap_or_default().to_owned(), call["arguments"].clone())
        })
        .collect();
    if row["id"] == CALL_WITHOUT_NAME_ROW {
        calls.clear();
        assert_eq!(got.malformed[0].0, "<start_function_call>garbage<end_function_call>");
    }
    assert_eq!(got.calls, calls, "{what}");
}

#[test]
fn every_recorded_case_matches_in_all_chunkings() {
    let (mut cases, mut cuts) = (0, 0);
    let all = rows();
    for row in
        all.iter().filter(|row| !row["parser"].as_str().is_some_and(|name| name.starts_with('@')))
    {
        // The expected result of a text is that of the row with the text in one chunk.
        let whole = |other: &&Json| {
            !is_artefact(other)
                && ["parser", "think", "tools", "text"].iter().all(|key| other[*key] == row[*key])
        };
        let row_that_counts =
            if is_artefact(row) { all.iter().find(whole).expect("a whole row") } else { row };
        cases += 1;
        let text = text_of(row);
        let mut check = |chunks: &[&str], how: String| {
            cuts += 1;
            check(row_that_counts, &run(row, chunks), &how);
        };
        match row["chunking"].as_array() {
            None => {
                let chunks = chunks_of(row);
                check(&chunks.iter().map(String::as_str).collect::<Vec<_>>(), "as recorded".into());
            }
            Some(all) => {
                for chunking in all.iter().map(|one| one.as_str().expect("a chunking")) {
                    match chunking.strip_prefix("runes:") {
                        Some(size) => {
                            check(&pieces(&text, size.parse().expect("a number")), chunking.into());
                        }
                        None => check(&[&text], chunking.into()),
                    }
                }
            }
        }
        check(&[&text], "whole".into());
        check(&pieces(&text, 1), "in characters".into());
        for (at, _) in text.char_indices() {
            check(&[&text[..at], &text[at..]], format!("cut at {at}"));
        }
    }
    assert_eq!(cases, 365 - 15 - 8 - 12, "all but the rows of the generic parsers");
    assert!(cuts > 20_000, "{cuts}");
}

/// For each chunk and the end: text of the answer, text of the reasoning, number of calls.
fn steps(mut parser: OutputParser, chunks: &[String]) -> Vec<Json> {
    let count = |parts: Vec<OutputPart>| {
        let mut whole = JoinedOutput::default();
        let mut calls = 0;
        for part in parts {
            match part {
                OutputPart::Call(_) => calls += 1,
                other => whole.add(vec![other]),
            }
        }
        serde_json::json!([whole.content, whole.thinking, calls])
    };
    let mut all: Vec<Json> = chunks.iter().map(|chunk| count(parser.push(chunk))).collect();
    all.push(count(parser.finish()));
    all
}

#[test]
fn text_is_returned_as_early_as_recorded() {
    let mut seen = 0;
    for row in
        rows().iter().filter(|row| row.get("chunks").is_some() && row.get("last_message").is_none())
    {
        let name = row["parser"].as_str().expect("a parser");
        if name.starts_with('@') || CHUNK_DEPENDENT_ROWS.iter().any(|(id, ..)| row["id"] == *id) {
            continue;
        }
        let tools = row["tools"].as_array().cloned().unwrap_or_default();
        let think = row["think"].as_bool().map(Think::Switch);
        let input = ParserInput { tools: &tools, think: think.as_ref(), ..ParserInput::default() };
        let parser = OutputParser::by_name(name, &input).expect("a parser");
        assert_eq!(
            Json::from(steps(parser, &chunks_of(row))),
            row["expect"]["steps"],
            "{}",
            row["id"]
        );
        seen += 1;
    }
    assert_eq!(seen, 15 - CHUNK_DEPENDENT_ROWS.len());
}

fn thinking(row: &Json) -> OutputParser {
    let tag = |key: &str| row[key].as_str().expect("a tag").to_string();
    let tags = ThinkTags { open: tag("open"), close: tag("close") };
    let prompt = if row["prompt_ends_with_open_tag"] == true {
        format!("Q\n{}\n", tags.open)
    } else {
        "Q".into()
    };
    OutputParser::thinking(tags, &prompt)
}

#[test]
fn every_case_of_the_thinking_parser_matches_step_by_step_and_in_all_chunkings() {
    let rows = rows_of("@thinking");
    assert_eq!(rows.len(), 8);
    for row in rows {
        let mut got = steps(thinking(&row), &chunks_of(&row));
        // The recording does not contain the output at the end.
        got.pop();
        let both: Vec<Json> =
            got.iter().map(|step| serde_json::json!([step[0], step[1]])).collect();
        assert_eq!(Json::from(both), row["expect"]["steps"], "{}", row["id"]);
        check_all_chunkings(&row, || thinking(&row));
    }
}

/// Checks that the whole text, single characters, and all splits in two give the same result.
fn check_all_chunkings(row: &Json, parser: impl Fn() -> OutputParser) -> JoinedOutput {
    let text = text_of(row);
    let whole = JoinedOutput::of(parser(), [text.as_str()]);
    assert_eq!(JoinedOutput::of(parser(), pieces(&text, 1)), whole, "{} in characters", row["id"]);
    for (at, _) in text.char_indices() {
        let got = JoinedOutput::of(parser(), [&text[..at], &text[at..]]);
        assert_eq!(got, whole, "{} cut at {at}", row["id"]);
    }
    whole
}

fn scan(row: &Json) -> OutputParser {
    let tools = row["tools"].as_array().cloned().unwrap_or_default();
    let tag = row["tag"].as_str().expect("a tag").to_owned();
    OutputParser::new(
        Box::new(generic::GenericParser::new(
            None,
            "",
            Some(generic::CallScanner::new(tag, Tools::new(&tools))),
        )),
        &tools,
    )
}

#[test]
fn every_case_of_the_tool_parser_matches_step_by_step_and_in_all_chunkings() {
    let rows = rows_of("@tools");
    assert_eq!(rows.len(), 15);
    for row in rows {
        let mut parser = scan(&row);
        let got: Vec<Json> = chunks_of(&row)
            .iter()
            .map(|chunk| {
                let mut whole = JoinedOutput::default();
                let (mut calls, mut text) = (0, String::new());
                for part in parser.push(chunk) {
                    match part {
                        OutputPart::Call(_) => calls += 1,
                        OutputPart::Content(new) => text += &new,
                        other => whole.add(vec![other]),
                    }
                }
                serde_json::json!([text, calls])
            })
            .collect();
        assert_eq!(Json::from(got), row["expect"]["steps"], "{}", row["id"]);
        let whole = check_all_chunkings(&row, || scan(&row));
        let expect = &row["expect"];
        let text = |key: &str| expect[key].as_str().expect("text").to_owned();
        // The reference would return this text twice.
        let end = if row["id"] == "p0345" { String::new() } else { text("content_at_end") };
        assert_eq!(whole.content, text("content") + &end, "{}", row["id"]);
        let calls = expect["tool_calls"].as_array().expect("calls").iter();
        let calls: Vec<(String, Json)> = calls
            .map(|call| {
                (call["name"].as_str().unwrap_or_default().into(), call["arguments"].clone())
            })
            .collect();
        assert_eq!(whole.calls, calls, "{}", row["id"]);
    }
}

#[test]
fn tags_and_variables_are_inferred_from_go_templates_as_recorded() {
    let rows = rows_of("@infer");
    assert_eq!(rows.len(), 12);
    for row in rows {
        let template =
            GoTemplate::parse(row["template"].as_str().expect("a template")).expect("it parses");
        let (open, close) = template.think_tags();
        let got = serde_json::json!({
            "tool_tag": template.tool_tag(), "think_open": open, "think_close": close,
            "vars": template.variables().collect::<Vec<_>>(),
        });
        assert_eq!(got, row["expect"], "{}", row["id"]);
    }
}
