//! Small templates rendered by Jinja2 (`tests/data/make_jinja_vectors.py`).

use serde_json::Value as Json;

use crate::JinjaTemplate;

/// Templates with a result that intentionally differs from Jinja2's, and the reason.
const INTENDED_DIFFERENCES: &[(&str, &str)] = &[
    ("{{ n|items }}", "a generator fails when it is made, not when it is walked"),
    ("{{ l|map }}{{ l|map(attribute='x')|list }}", "likewise"),
    (
        "{{ l|reverse|list }} {{ 'abc'|reverse }} {{ l|reverse }}",
        "iterators show no type of CPython's",
    ),
    ("{{ range }}", "nor do functions"),
    ("{{ n.real }} {{ f.is_integer() }}", "numbers have no attributes"),
    ("{{ x is divisibleby }}", "another text for a missing argument"),
    ("{{ raise_exception() }}", "likewise"),
    ("{{ '%z' % 1 }}", "no position in the text"),
    ("{{ 1 2 }}", "tokens are shown, not their types"),
    ("{% set %}", "another text"),
];

#[test]
fn small_jinja_templates_render_as_in_jinja2() {
    let text = include_str!("../../tests/data/jinja-vectors.jsonl");
    let mut rows = text
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).expect("a row is one JSON object"));
    let data = rows.next().expect("the first row holds the data")["data"].take();
    let data = data.as_object().expect("the data is an object");
    let now = jiff::civil::datetime(2026, 8, 15, 12, 0, 0, 0);
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in rows {
        count += 1;
        let source = row["template"].as_str().expect("a row has a template");
        if INTENDED_DIFFERENCES.iter().any(|(template, _)| *template == source) {
            continue;
        }
        let got = JinjaTemplate::parse(source)
            .and_then(|t| t.render(data.iter().map(|(k, v)| (k.as_str(), v)), now));
        let same = match (&got, row["out"].as_str(), row["error"].as_str()) {
            (Ok(text), Some(want), _) => *text == without_addresses(want),
            (Err(e), _, Some(want)) => e.to_string().contains(want),
            _ => false,
        };
        if !same {
            let want = row["out"].as_str().or(row["error"].as_str());
            wrong.push(format!(
                "{source:?}\n   got {:?}\n  want {want:?}",
                got.map_err(|e| e.to_string())
            ));
        }
    }
    assert!(count > 250, "{count}");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Removes addresses from `<… object at 0x7f…>`, since they are not written here.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split(" at 0x");
    let mut out = parts.next().unwrap_or("").to_string();
    for part in parts {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    }
    out
}
