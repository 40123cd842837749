//! Small templates rendered by Go (`tests/data/make_go_vectors.go`).

use serde_json::Value as Json;

use crate::GoTemplate;

/// Templates with a result that intentionally differs from Go's.
const INTENDED_DIFFERENCES: &[(&str, &str)] = &[(
    "{{ (1).x }}",
    "another node is named in the error, and the type of any value is the interface",
)];

#[test]
fn small_go_templates_render_as_in_go() {
    let text = include_str!("../../tests/data/go-vectors.jsonl");
    let mut rows = text
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).expect("a row is one JSON object"));
    let data = rows.next().expect("the first row holds the data")["data"].take();
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in rows {
        count += 1;
        let source = row["template"].as_str().expect("a row has a template");
        let got = answer(source, &data);
        let text = |key: &str| row[key].as_str().map(str::to_string);
        let mut want = (text("parse_error"), text("error"), text("out"));
        // A template without `.Response` gets one, which prints as a missing value.
        if let (Some(out), None) = (&mut want.2, &want.1) {
            out.push_str("<no value>");
        }
        if got != want && !INTENDED_DIFFERENCES.iter().any(|(t, _)| *t == source) {
            wrong.push(format!("{source:?}\n   got {got:?}\n  want {want:?}"));
        }
    }
    assert!(count > 250);
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Parse error, run-time error, output.
fn answer(source: &str, data: &Json) -> (Option<String>, Option<String>, Option<String>) {
    match GoTemplate::parse(source) {
        Err(e) => (Some(e.to_string()), None, None),
        Ok(template) => {
            let mut out = String::new();
            let error = template.render_json(data, &mut out).err().map(|e| e.to_string());
            (None, error, Some(out))
        }
    }
}
