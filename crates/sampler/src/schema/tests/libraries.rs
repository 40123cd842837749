//! Schemas that libraries generate for Rust, Python and TypeScript types.

use super::*;

/// Files of schemas with library and type, and valid and invalid texts where known.
const FILES: [&str; 2] =
    [include_str!("data/typescript.json"), include_str!("data/python-and-rust.json")];

#[test]
fn schemas_of_libraries_are_accepted() {
    let grammars = grammars();
    let (mut count, mut failed) = (0, Vec::new());
    for file in FILES {
        for case in serde_json::from_str::<Vec<Value>>(file).unwrap() {
            count += 1;
            let name =
                format!("{} {}", case["from"].as_str().unwrap(), case["name"].as_str().unwrap());
            let schema = &case["schema"];
            let grammar = match grammars.compile(&Constraint::schema(schema.clone())) {
                Ok(grammar) => grammar,
                Err(error) => {
                    failed.push(format!("{name}: {error}: {schema}"));
                    continue;
                }
            };
            for (key, is_expected) in [("yes", true), ("no", false)] {
                for text in case[key].as_array().into_iter().flatten().filter_map(Value::as_str) {
                    if accepts(&grammar, text) != is_expected {
                        failed.push(format!("{name}: {text} is {key}: {schema}"));
                    }
                }
            }
            let strict = json_schema(schema).check_strict();
            if strict.is_ok() != unenforced(schema).is_empty() {
                failed.push(format!("{name}: strict {strict:?} with {:?}", unenforced(schema)));
            }
        }
    }
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
    assert!(count > 500, "{count}");
}
