use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use serde_json::json;

use super::gbnf::{self, Expr};
use super::*;

/// Every byte is a token, then some longer ones, a mark that is no text, and two ends.
const LONGER: [&str; 6] = ["{\"", "\":", "true", " \n", "\u{e4}b", "}}"];
const MARK: u32 = 256 + LONGER.len() as u32;
const ENDS: [u32; 2] = [MARK + 1, MARK + 2];
const TOKENS: usize = ENDS[1] as usize + 1;

fn grammars() -> Grammars {
    let bytes: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let texts = bytes.iter().map(Vec::as_slice).chain(LONGER.map(str::as_bytes));
    let texts = texts.map(|bytes| Spelling { bytes, is_text: true });
    let others = ["<mark>", "<end>", "<eot>"].map(|name| Spelling { bytes: name.as_bytes(), is_text: false });
    Grammars::new(texts.chain(others), &ENDS).unwrap()
}

fn compile(constraint: &Constraint) -> Result<Grammar, GrammarError> {
    grammars().compile(constraint)
}

fn schema(schema: Value) -> Grammar {
    compile(&Constraint::Schema(schema)).unwrap()
}

fn allowed(grammar: &mut Grammar) -> BTreeSet<u32> {
    let mut logits = vec![0.0; TOKENS + 3];
    grammar.mask(&mut logits).unwrap();
    (0..).zip(&logits).filter(|(_, l)| **l == 0.0).map(|(id, _)| id).collect()
}

/// How many bytes of a text a grammar takes, and whether the text may end there.
fn take(grammar: &mut Grammar, text: &str) -> (usize, bool) {
    for (at, byte) in text.bytes().enumerate() {
        if !allowed(grammar).contains(&u32::from(byte)) {
            return (at, false);
        }
        grammar.accept(u32::from(byte)).unwrap();
    }
    let ends = ENDS.iter().all(|end| allowed(grammar).contains(end));
    assert_eq!(grammar.is_complete(), ends, "{text}");
    (text.len(), ends)
}

fn takes(grammar: &Grammar, text: &str) -> bool {
    take(&mut grammar.clone(), text) == (text.len(), true)
}

#[track_caller]
fn check(grammar: &Grammar, yes: &[&str], no: &[&str]) {
    for text in yes {
        assert!(takes(grammar, text), "{text:?} was refused at {:?}", take(&mut grammar.clone(), text));
    }
    for text in no {
        assert!(!takes(grammar, text), "{text:?} was taken");
    }
}

#[test]
fn any_json_object_is_one_and_nothing_else() {
    let grammar = compile(&Constraint::Json).unwrap();
    check(
        &grammar,
        &[
            "{}",
            "{\"a\":1}",
            "{ \"ä\": [true, null, -1.5e3, \"\\n\\u00e4\"], \"b\": {\"c\": {}}}",
            "{\n  \"a\": 1\n}",
        ],
        &[
            "",
            "[]",
            "1",
            "{",
            "{\"a\":}",
            "{\"a\":1,}",
            "{'a':1}",
            "{}{}",
            "x",
            "{\"a\":01}",
            "{\"a\":\"\n\"}",
        ],
    );
    let mut endless = grammar.clone();
    let (taken, _) = take(&mut endless, &format!("{{{}", "\n".repeat(100)));
    assert!(taken < 30, "white space without end: {taken}");
}

#[test]
fn a_text_ends_only_where_the_grammar_does_and_with_any_of_the_ends() {
    let mut grammar = compile(&Constraint::Regex("yes|yesterday".into())).unwrap();
    assert!(ENDS.iter().all(|end| !allowed(&mut grammar).contains(end)));
    assert_eq!(take(&mut grammar, "yes"), (3, true));
    assert!(allowed(&mut grammar).contains(&u32::from(b't')));
    grammar.accept(ENDS[1]).unwrap();
    // What comes behind the end does not matter any more.
    assert_eq!(allowed(&mut grammar), ENDS.into());
    let mut done = compile(&Constraint::Regex("no".into())).unwrap();
    assert_eq!(take(&mut done, "no"), (2, true));
    assert_eq!(allowed(&mut done), ENDS.into());
}

#[test]
fn longer_tokens_fit_as_a_whole_or_not_at_all_and_marks_never_do() {
    let mut grammar =
        schema(json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}));
    let first = allowed(&mut grammar);
    assert_eq!(first, [u32::from(b'{'), 256].into(), "only the brace, alone or with the quote");
    grammar.accept(256).unwrap();
    assert_eq!(take(&mut grammar, "a"), (1, false));
    grammar.accept(257).unwrap();
    grammar.accept(258).unwrap();
    assert_eq!(take(&mut grammar, "}"), (1, true));
    let mut text = compile(&Constraint::Regex("(?s:.)*".into())).unwrap();
    assert!(!allowed(&mut text).contains(&MARK));
}

#[test]
fn schemas_are_enforced() {
    let person = schema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "mood": {"enum": ["very good", "bad", null]},
        },
        "required": ["name", "age"],
    }));
    check(
        &person,
        &[
            "{\"name\":\"Ann\",\"age\":31}",
            "{\"name\": \"Ann\", \"age\": 0, \"mood\": \"very good\"}",
            "{\"name\":\"A\",\"age\":150,\"mood\":null}",
        ],
        &[
            "{\"name\":\"Ann\"}",
            "{\"name\":\"\",\"age\":1}",
            "{\"name\":\"A\",\"age\":151}",
            "{\"name\":\"A\",\"age\":-1}",
            "{\"name\":\"A\",\"age\":1.5}",
            "{\"name\":\"A\",\"age\":1,\"mood\":\"fair\"}",
            "{\"name\":\"A\",\"age\":1,\"size\":2}",
        ],
    );
    let tree = schema(json!({
        "$defs": {"node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
        }},
        "$ref": "#/$defs/node",
    }));
    check(
        &tree,
        &["{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"],
        &["{\"v\":1}", "{\"v\":1,\"next\":{}}", "{\"v\":1,\"next\":null,\"x\":1}"],
    );
}

#[test]
fn formats_patterns_bounds_and_unions_are_enforced() {
    let cases: [(Value, &[&str], &[&str]); 8] = [
        (json!({"type": "string", "format": "date"}), &["\"2026-02-28\""], &["\"2026-13-01\"", "\"soon\""]),
        (json!({"type": "string", "pattern": "^[a-z]{2}-\\d+$"}), &["\"ab-12\""], &["\"ab-\"", "\"xab-1\""]),
        (
            json!({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2}),
            &["[1]", "[1.5,2]"],
            &["[]", "[1,2,3]"],
        ),
        (
            json!({"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]}),
            &["true", "\"ab\""],
            &["1", "\"abc\""],
        ),
        (json!({"const": {"a": [1]}}), &["{\"a\":[1]}"], &["{\"a\":[2]}"]),
        (json!({"type": "number", "multipleOf": 0.5}), &["1.5"], &["1.3"]),
        (json!({"type": ["integer", "null"]}), &["7", "null"], &["\"7\"", "1.5"]),
        (
            json!({"allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]}),
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1}"],
        ),
    ];
    for (given, yes, no) in cases {
        check(&schema(given), yes, no);
    }
}

#[test]
fn parts_of_one_object_do_not_shut_each_other_out() {
    let part =
        |name: &str| json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]});
    let cases: [(Value, &[&str], &[&str]); 3] = [
        (
            json!({"$defs": {"A": part("a")}, "allOf": [{"$ref": "#/$defs/A"}, part("b")]}),
            &["{\"a\":1,\"b\":2}"],
            &["{\"a\":1}"],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "string", "enum": ["x"]}}, "required": ["kind"], "anyOf": [part("x"), part("y")]}),
            &["{\"kind\":\"x\",\"x\":1}", "{\"kind\":\"x\",\"y\":1}"],
            &["{\"kind\":\"x\"}"],
        ),
        // Alone, a definition and the branches of a choice are closed.
        (
            json!({"$defs": {"A": part("a")}, "anyOf": [{"$ref": "#/$defs/A"}, part("b")]}),
            &["{\"a\":1}", "{\"b\":1}"],
            &["{\"a\":1,\"c\":1}", "{\"b\":1,\"c\":1}"],
        ),
    ];
    for (given, yes, no) in cases {
        check(&schema(given), yes, no);
    }
}

#[test]
fn what_cannot_be_enforced_is_refused_by_name() {
    let refused = [
        (json!({"type": "object", "not": {"required": ["a"]}}), "not"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "object", "if": {}, "then": {}}), "if"),
        (json!({"type": "integer", "minimum": 1e19}), "minimum"),
        (json!({"properties": {"id": {"enum": [9_007_199_254_740_993u64]}}}), "enum at #/properties/id"),
        (json!({"const": {"a": [i64::MIN]}}), "-9223372036854775808"),
        (json!({"type": "nonsense"}), "nonsense"),
        (json!({"$ref": "https://example.com/a.json"}), "example.com"),
        (json!({"$ref": "#/$defs/nothing"}), "nothing"),
        (json!({"type": "object", "x-guidance": {"lenient": true}}), "x-guidance"),
        (json!(["a"]), "object"),
        (json!(true), "object"),
        (json!({"type": "string", "pattern": "("}), ""),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), ""),
        (json!({"enum": []}), ""),
    ];
    for (given, word) in refused {
        match compile(&Constraint::Schema(given.clone())) {
            Err(error @ GrammarError::Schema(_)) => {
                let text = error.to_string();
                assert!(text.starts_with("invalid JSON schema in format: "), "{text}");
                assert!(text.contains(word) && !text.contains('\n'), "{given}: {text}");
            }
            other => panic!("{given}: {other:?}"),
        }
    }
}

#[test]
fn formats_that_nobody_knows_are_remarks() {
    let others = [
        "password",
        "binary",
        "byte",
        "path",
        "file-path",
        "decimal",
        "ipv4network",
        "json-string",
        "regex",
        "uuid4",
        "color",
        "phone",
        "int64",
    ];
    for name in others {
        check(
            &schema(json!({"type": "string", "format": name, "maxLength": 2})),
            &["\"ab\""],
            &["\"abc\"", "1"],
        );
        let inside = json!({
            "properties": {"format": {"type": "array", "items": {"anyOf": [{"type": "string", "format": name}]}}},
            "required": ["format"],
        });
        check(&schema(inside), &["{\"format\":[\"a\"]}"], &["{\"format\":[1]}", "{}"]);
    }
    let date = json!({"properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]});
    check(&schema(date), &["{\"a\":\"2026-02-28\"}"], &["{\"a\":\"soon\"}"]);
}

#[test]
fn bounds_of_the_types_of_other_languages_are_kept() {
    let cases: [(Value, &[&str], &[&str]); 9] = [
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            &["0", "-1", "9223372036854775807", "-9223372036854774784"],
            &["9223372036854775808", "-9223372036854775809", "1.5"],
        ),
        (
            json!({"type": "integer", "minimum": i64::MIN}),
            &["-5", "123456789012345678901"],
            &["-9223372036854775809"],
        ),
        (
            json!({"type": ["integer", "null"], "minimum": 0, "maximum": u64::MAX}),
            &["0", "null", "9223372036854775807"],
            &["-1", "18446744073709551616"],
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": -1e30, "exclusiveMaximum": 1e30}),
            &["-7", "7"],
            &["x"],
        ),
        (json!({"type": "number", "maximum": f64::MAX, "minimum": f64::MIN}), &["1e300", "-2.5"], &["\"1\""]),
        (json!({"type": "number", "minimum": 0, "maximum": f64::MAX}), &["0", "3.25"], &["-1"]),
        (json!({"type": "number", "maximum": f32::MAX}), &["-1", "3.25", "1000000000000"], &["x"]),
        (
            json!({"type": "integer", "minimum": 2_000_000_000_000_000_000u64}),
            &["2000000000000000000"],
            &["1", "-1"],
        ),
        (json!({"type": "number", "maximum": -2e18}), &["-2000000000000000001"], &["1", "-1"]),
    ];
    for (given, yes, no) in cases {
        let grammar = compile(&Constraint::Schema(given.clone())).unwrap_or_else(|e| panic!("{given}: {e}"));
        check(&grammar, yes, no);
    }
}

#[test]
fn one_of_is_read_as_any_of_where_its_branches_overlap() {
    let overlapping = schema(json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}));
    check(&overlapping, &["1", "1.5"], &["\"1\""]);
    let animal = |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind, "type": "string"}}, "required": ["kind"]});
    let told_apart = schema(json!({
        "$defs": {"Cat": animal("cat"), "Dog": animal("dog")},
        "discriminator": {"propertyName": "kind"},
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    }));
    check(&told_apart, &["{\"kind\":\"cat\"}", "{\"kind\":\"dog\"}"], &["{\"kind\":\"cow\"}"]);
}

#[test]
fn dialects_that_nobody_knows_are_read_as_the_newest() {
    for dialect in [
        "http://json-schema.org/schema#",
        "https://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://example.com/my-dialect",
    ] {
        let inner = json!({"$schema": dialect, "type": "integer"});
        let given = json!({"$schema": dialect, "properties": {"a": inner}, "required": ["a"]});
        check(&schema(given), &["{\"a\":1}"], &["{\"a\":true}"]);
    }
}

#[test]
fn objects_may_be_nested_as_deep_as_requests() {
    let nested = |n: usize| {
        let outer = |inner, _| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]});
        (0..n).fold(json!({"type": "integer"}), outer)
    };
    for n in [39, 41, 50] {
        let text = format!("{}1{}", "{\"a\":".repeat(n), "}".repeat(n));
        check(&schema(nested(n)), &[&text], &["1"]);
        assert!(
            compile(&Constraint::Lark(format!("start: a\na: {}", lark_json(&nested(n)).unwrap()))).is_ok(),
            "{n}"
        );
    }
}

#[test]
fn reasons_name_what_is_wrong_without_the_insides() {
    let schema = |schema| Constraint::Schema(schema);
    let cases: [(Constraint, &[&str]); 8] = [
        (Constraint::Regex("(?=a)b".into()), &["\"(?=a)b\"", "look-ahead", "not supported"]),
        (Constraint::Regex("a(".into()), &["\"a(\"", "unclosed group"]),
        (Constraint::Regex("[^\\s\\S]".into()), &["no text that it allows"]),
        (Constraint::Gbnf("root ::= root".into()), &["no text that it allows"]),
        (schema(json!({"$ref": "#"})), &["no text that it allows"]),
        (
            schema(json!({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}})),
            &["pattern", "\"(?=a)b\"", "look-ahead"],
        ),
        (Constraint::Lark("start: foo".into()), &["at 1(", "foo"]),
        (Constraint::Lark("start: /(?=a)b/".into()), &["at 1(8): ", "\"(?=a)b\"", "look-ahead"]),
    ];
    for (constraint, words) in cases {
        let text = compile(&constraint).unwrap_err().to_string();
        for word in words {
            assert!(text.contains(word), "{constraint:?}: {text}");
        }
        let own = matches!(constraint, Constraint::Lark(_));
        for inside in ["NoExtensionBias", "\n", "coerce_one_of"].iter().chain((!own).then_some(&"at 1(")) {
            assert!(!text.contains(inside), "{constraint:?}: {text}");
        }
    }
}

#[test]
fn a_form_that_becomes_too_much_work_says_so() {
    // Which one does depends on the vocabulary; this is what the library says.
    let error = Grammar::stuck(&"lexer error: too many expressions constructed");
    assert_eq!(error, GrammarError::TooHard("too many expressions constructed".into()));
    assert!(error.to_string().contains("make it simpler"), "{error}");
    assert!(matches!(Grammar::stuck(&"Parser Error: token \"x\""), GrammarError::Stuck(_)));
}

#[test]
fn expressions_and_grammars_that_are_none_are_refused() {
    let refused = [
        Constraint::Regex("(".into()),
        Constraint::Regex(String::new()),
        Constraint::Regex("a(?=b)".into()),
        Constraint::Lark("start: foo".into()),
        Constraint::Lark(String::new()),
        Constraint::Lark("start: start".into()),
        Constraint::Gbnf("root ::= root".into()),
        Constraint::Gbnf(String::new()),
        Constraint::Gbnf("x".repeat(CONSTRAINT_BYTES_MAX + 1)),
    ];
    for constraint in refused {
        let refused = compile(&constraint);
        assert!(refused.is_err(), "{constraint:?}");
    }
    assert!(matches!(Grammars::new(std::iter::empty(), &[]), Err(GrammarError::NoEnd)));
}

#[test]
fn gbnf_mistakes_are_named_with_their_place() {
    let cases = [
        ("", "there is no rule named root"),
        ("root = \"a\"", "expecting ::= at line 1, column 6"),
        ("::= \"a\"", "expecting name at line 1, column 1"),
        ("root ::= a", "Undefined rule identifier 'a'"),
        ("root ::= \"a", "unexpected end of input"),
        ("root ::= [a", "unexpected end of input"),
        ("root ::= \"\\q\"", "unknown escape \\q at line 1, column 13"),
        ("root ::= *", "expecting preceding item to * at line 1, column 10"),
        ("root ::= (\"a\"", "expecting ')' at the end of the grammar"),
        ("root ::= \"a\" )", "expecting newline or end at line 1, column 14"),
        (
            "root ::= \"a\"{2001}",
            "number of repetitions exceeds sane defaults (at most 2000, rising) at line 1, column 13",
        ),
        ("# a\nroot ::= \"a\"{x}", "expecting integer at line 2, column 14"),
        (
            "root ::= !<a>",
            "a token that may not come must be given by its number, as !<[id]>, at line 1, column 11",
        ),
        ("root ::= \"a\"*****", "more than 4 repetitions of each other at line 1, column 17"),
        ("root ::= <a", "expecting a token such as <name> or <[id]> at line 1, column 10"),
    ];
    for (text, want) in cases {
        assert_eq!(gbnf::parse(text).unwrap_err(), want, "{text}");
    }
}

/// Where a GBNF expression can end that begins at a place of a text: the definition, without any thought for speed.
fn ends(rules: &[Expr], expr: &Expr, text: &[char], at: usize, depth: usize) -> BTreeSet<usize> {
    if depth > 200 {
        return BTreeSet::new();
    }
    let one = |fits: bool| if fits { BTreeSet::from([at + 1]) } else { BTreeSet::new() };
    let go = |expr: &Expr, from: &BTreeSet<usize>| -> BTreeSet<usize> {
        from.iter().flat_map(|&at| ends(rules, expr, text, at, depth + 1)).collect()
    };
    match expr {
        Expr::Text(word) => {
            let word: Vec<char> = word.chars().collect();
            if text[at..].starts_with(&word) { BTreeSet::from([at + word.len()]) } else { BTreeSet::new() }
        }
        Expr::Class { ranges, negated } => {
            one(text.get(at).is_some_and(|c| ranges.iter().any(|(a, b)| (a..=b).contains(&c)) != *negated))
        }
        Expr::Any => one(at < text.len()),
        Expr::Rule(index) => ends(rules, &rules[*index], text, at, depth + 1),
        Expr::Token(_) => BTreeSet::new(),
        Expr::Sequence(list) => list.iter().fold(BTreeSet::from([at]), |from, expr| go(expr, &from)),
        Expr::Choice(list) => list.iter().flat_map(|expr| go(expr, &[at].into())).collect(),
        Expr::Repeat { what, least, most } => {
            let mut from = BTreeSet::from([at]);
            let mut all = if *least == 0 { from.clone() } else { BTreeSet::new() };
            for count in 1..=most.unwrap_or(text.len() as u32 + least) {
                from = go(what, &from);
                if count >= *least {
                    let before = all.len();
                    all.extend(&from);
                    if all.len() == before {
                        break;
                    }
                }
            }
            all
        }
    }
}

#[test]
fn translated_grammars_take_what_gbnf_takes() {
    let cases: [(&str, &[&str]); 9] = [
        ("root ::= \"yes\" | \"no\"", &["yes", "no", "ye", "yesno", ""]),
        ("root ::= ", &["", "a"]),
        ("root ::= [0-9]+ (\".\" [0-9]{2,3})? # a price", &["1", "12.50", "12.5", "12.5000", ".50", "12."]),
        ("root ::= \"a\"* [ab]* \"c\"", &["c", "aac", "abbac", "aab", "abcc"]),
        (
            "root ::= item{2}\nitem ::= \"- \" [^\\r\\n\\x22]+ \"\\n\"",
            &["- a\n- b\n", "- a\n", "- \"\n- b\n"],
        ),
        (
            "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= num | \"(\" expr \")\"\nnum ::= [0-9]+",
            &["1", "1+2", "(1+2)*3", "((1))", "1+", "(1", "()", "1 + 2", "12+(3-4)/5"],
        ),
        (
            "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n\
             object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n\
             array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n\
             string ::= \"\\\"\" ([^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}))* \"\\\"\" ws\n\
             number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws\n\
             ws ::= | \" \" | \"\\n\" [ \\t]{0,20}",
            &[
                "{}",
                "{\"a\":1}",
                "{ \"a\": [1, 2.5e-3, \"\u{e4}\\n\"] , \"b\":{}}",
                "{\"a\":01}",
                "{\"a\"}",
                "[1]",
                "{\"a\":[1,]}",
                "{\"a\":\"x}",
                "{\"a\":nul}",
            ],
        ),
        (
            "root ::= block\nblock ::= \"[\" (\n  block |\n  word  # inside\n)* \"]\"\nword ::= [a-z]+ \" \"?",
            &["[]", "[a b]", "[a[b]c]", "[[[]]]", "[", "[A]", "[a][b]"],
        ),
        (
            "root ::= \"\\u00e4\" [\u{4e00}-\u{9fff}]+ .",
            &["\u{e4}\u{4e2d}!", "\u{e4}!", "\u{e4}\u{4e2d}\u{4e2d}", "a\u{4e2d}!"],
        ),
    ];
    for (source, texts) in cases {
        let grammar = compile(&Constraint::Gbnf(source.into())).unwrap_or_else(|e| panic!("{source}: {e}"));
        let parsed = gbnf::parse(source).unwrap();
        let mut verdicts = HashMap::new();
        for text in texts {
            let chars: Vec<char> = text.chars().collect();
            let root = &parsed.rules[parsed.root];
            let wanted = ends(&parsed.rules, root, &chars, 0, 0).contains(&chars.len());
            assert_eq!(takes(&grammar, text), wanted, "{source}\n{text:?}");
            *verdicts.entry(wanted).or_insert(0) += 1;
        }
        assert_eq!(verdicts.len(), 2, "{source}: a case that cannot fail");
    }
}

#[test]
fn gbnf_names_tokens() {
    let mut grammar =
        compile(&Constraint::Gbnf("root ::= <mark> \"a\" !<[97]> root | \"x\"".into())).unwrap();
    assert!(allowed(&mut grammar).contains(&MARK));
    grammar.accept(MARK).unwrap();
    assert_eq!(allowed(&mut grammar), [u32::from(b'a')].into());
    grammar.accept(u32::from(b'a')).unwrap();
    let next = allowed(&mut grammar);
    assert!(!next.contains(&97) && next.contains(&98) && next.contains(&257));
    assert!(compile(&Constraint::Gbnf("root ::= <nothing>".into())).is_err());
}

#[test]
fn hostile_constraints_end_soon() {
    let doubling = |n: usize| {
        let rules: String = (1..n).map(|i| format!("a{i} ::= a{0} a{0}\n", i - 1)).collect();
        format!("root ::= a{}\na0 ::= \"a\"\n{rules}", n - 1)
    };
    let nested = |open: &str, close: &str, n: usize| format!("{}a{}", open.repeat(n), close.repeat(n));
    let deep = (0..100).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]}),
    );
    let wide: serde_json::Map<_, _> =
        (0..5000).map(|i| (format!("k{i}"), json!({"type": "string"}))).collect();
    let cases = [
        Constraint::Regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}".into()),
        Constraint::Regex(nested("(", ")", 50_000)),
        Constraint::Regex("(a|b|ab)*(c|ca|bc)*".repeat(200)),
        Constraint::Regex(format!("{}[a-z]{{500}}", "(?:[a-z]*a)?".repeat(50))),
        Constraint::Gbnf(doubling(40)),
        Constraint::Gbnf(format!("root ::= {}", nested("(", ")", 100_000))),
        Constraint::Gbnf(format!("root ::= \"a\"{}", "{2000}".repeat(20))),
        Constraint::Gbnf(format!("root ::= \"a\"{}", "*".repeat(200_000))),
        Constraint::Gbnf(format!("root ::= {}\"a\"{}", "(".repeat(100), ")****".repeat(100))),
        Constraint::Gbnf(format!("a ::= \"{}\"\nroot ::= {}", "!".repeat(9_000), "a ".repeat(110_000))),
        Constraint::Gbnf(format!(
            "a ::= \"{}\"\nroot ::= \"b\" root | {}",
            "!".repeat(9_000),
            "a ".repeat(110_000)
        )),
        Constraint::Gbnf(format!(
            "x ::= \"{}\"\n{}root ::= r0",
            "!".repeat(9_000),
            (0..16_000).map(|i| format!("r{i} ::= x\n")).collect::<String>()
        )),
        Constraint::Gbnf("root ::= root root | \"a\"".into()),
        Constraint::Gbnf(
            (0..12_000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect::<String>()
                + "r12000 ::= \"a\"\nroot ::= r0",
        ),
        Constraint::Gbnf(
            (0..11_000).map(|i| format!("r{i} ::= \"a\" r{}?\n", (i + 1) % 11_000)).collect::<String>()
                + "root ::= r0",
        ),
        Constraint::Lark(
            (0..14_000).map(|i| format!("r{i}: r{}|\"a\"\n", (i + 1) % 14_000)).collect::<String>()
                + "start: r0",
        ),
        Constraint::Lark(
            (0..14_000).map(|i| format!("R{i}: R{}|\"a\"\n", i + 1)).collect::<String>()
                + "R14000: \"b\"\nstart: R0",
        ),
        Constraint::Lark(format!("start: {}", nested("(", ")", 50_000).replace('a', "\"a\""))),
        Constraint::Lark((0..30).fold("start: a0\na30: \"a\"\n".into(), |all: String, i| {
            all + &format!("a{i}: a{0} a{0}\n", i + 1)
        })),
        Constraint::Schema(deep),
        Constraint::Schema(json!({"type": "object", "properties": wide})),
        Constraint::Schema(json!({"type": "string", "pattern": "(a{1,1000}){1,1000}"})),
        Constraint::Schema(json!({"type": "string", "minLength": 1_000_000_000u64})),
        Constraint::Schema(json!({"type": "array", "minItems": 1_000_000_000u64})),
        Constraint::Schema(json!({"$ref": "#"})),
        Constraint::Schema(
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
        Constraint::Schema(json!({"type": "number", "minimum": 1e308, "multipleOf": 1e-300})),
    ];
    let grammars = grammars();
    for constraint in cases {
        let name: String = format!("{constraint:?}").chars().take(60).collect();
        let start = Instant::now();
        let found = grammars.compile(&constraint);
        assert!(!matches!(found, Err(GrammarError::TooLarge(_))), "{name}");
        if let Ok(mut grammar) = found {
            for byte in *b"aa" {
                let _ = grammar.mask(&mut [0.0; TOKENS]).and_then(|()| grammar.accept(u32::from(byte)));
            }
        }
        eprintln!("{name}: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(20), "{name} took {:?}", start.elapsed());
    }
}

#[test]
fn copies_go_their_own_ways() {
    let mut one = compile(&Constraint::Regex("ab|cd".into())).unwrap();
    let mut other = one.clone();
    assert_eq!(take(&mut one, "a"), (1, false));
    assert_eq!(take(&mut other, "cd"), (2, true));
    assert_eq!(take(&mut one, "b"), (1, true));
}

#[test]
fn a_token_that_does_not_fit_is_an_error_and_no_panic() {
    let mut grammar = compile(&Constraint::Regex("ab".into())).unwrap();
    assert!(matches!(grammar.accept(u32::from(b'x')), Err(GrammarError::Stuck(_))));
    assert!(grammar.mask(&mut [0.0; TOKENS]).is_err() && !grammar.is_complete());
    let mut far = compile(&Constraint::Regex("ab".into())).unwrap();
    assert!(far.accept(u32::MAX).is_err());
}
