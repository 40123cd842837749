//! Strings without quotes.

use super::*;

fn text(text: &UnquotedString<'_>) -> Grammar {
    let (body, may_be_empty) = text.lark().unwrap();
    let start = if may_be_empty { "start: T?" } else { "start: T" };
    compile(&Constraint::Lark(format!("{start}\nT: {body}\n"))).unwrap()
}

#[test]
fn unquoted_strings_end_at_their_terminator() {
    let excluded = ["</parameter>", "</tool_call>", "]<]x[>["].map(str::to_owned);
    let null = ["[nN]ull"];
    let free = UnquotedString {
        excluded_patterns: &null,
        excluded_texts: &excluded,
        end: "\n</parameter>\n",
        ..UnquotedString::default()
    };
    let end = |text: &str| format!("{text}\n</parameter>\n");
    let good = [
        "",
        "a",
        "</",
        "<</p",
        "</parameter",
        "</<</tool_cal<",
        "<b> & </b>\n{\"c\"}",
        "nulls",
        "\u{e4}<\u{e4}",
        "]<]<]x[>",
    ];
    let good = good.map(end);
    let bad = [
        "null",
        "Null",
        "</parameter>",
        "<</parameter>",
        "</tool</tool_call>x",
        "]<]<]x[>[",
        "]<]x[>[ ",
    ]
    .map(end);
    check(&text(&free), &good.each_ref().map(String::as_str), &bad.each_ref().map(String::as_str));
    let open = UnquotedString { excluded_texts: &excluded, ..UnquotedString::default() };
    check(&text(&open), &["", "a<b"], &["a</parameter>"]);
    let all: Vec<String> =
        ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"]
            .map(str::to_owned)
            .into();
    let glm = UnquotedString {
        excluded_patterns: &null,
        excluded_texts: &all,
        end: "</arg_value>",
        ..UnquotedString::default()
    };
    check(
        &text(&glm),
        &["a < b</arg_value>", "<arg_</arg_value>"],
        &["<arg_key></arg_value>", "</tool_call></arg_value>"],
    );
}

#[test]
fn schemas_of_unquoted_strings_are_enforced() {
    let given = |schema: Value| [schema.as_object().unwrap().clone()];
    let cases: [(Value, &[&str], &[&str]); 6] = [
        (json!({"enum": ["a", "b/c", 1]}), &["a", "b/c"], &["1", "c", ""]),
        (json!({"const": "a"}), &["a"], &["b"]),
        (json!({"minLength": 2, "maxLength": 3}), &["\u{e4}\u{e4}", "abc"], &["a", "abcd"]),
        (json!({"pattern": "^\\d+/x$"}), &["12/x"], &["1x", "1/x ", "\u{664}/x"]),
        (json!({"pattern": "b"}), &["abc", "b"], &["ac"]),
        (json!({"maxLength": 0}), &[""], &["a"]),
    ];
    for (schema, yes, no) in cases {
        for end in ["", "$"] {
            let with = |texts: &[&str]| {
                texts.iter().map(|text| format!("{text}{end}")).collect::<Vec<_>>()
            };
            let (yes, no) = (with(yes), with(no));
            let (yes, no): (Vec<&str>, Vec<&str>) =
                (yes.iter().map(String::as_str).collect(), no.iter().map(String::as_str).collect());
            if end.is_empty() && yes == [""] {
                continue;
            }
            check(
                &text(&UnquotedString {
                    schemas: &given(schema.clone()),
                    end,
                    ..UnquotedString::default()
                }),
                &yes,
                &no,
            );
        }
    }
    assert!(
        UnquotedString { schemas: &given(json!({"minLength": "2"})), ..UnquotedString::default() }
            .lark()
            .is_err()
    );
}
