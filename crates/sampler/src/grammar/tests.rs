mod finite;
mod gbnf;
mod limits;
mod phases;
mod schemas;
mod shortest_end;
mod unquoted_strings;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

/// Tokens: every byte, some longer ones, a control token, and two end tokens.
const LONGER: [&str; 6] = ["{\"", "\":", "true", " \n", "\u{e4}b", "}}"];
const MARK: u32 = 256 + LONGER.len() as u32;
const ENDS: [u32; 2] = [MARK + 1, MARK + 2];
const TOKENS: usize = ENDS[1] as usize + 1;

/// Whether the calling thread compiles a constraint.
fn is_compiling_thread() -> bool {
    std::thread::current().name() == Some(THREAD_NAME)
}

fn grammars() -> GrammarCompiler {
    let bytes: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
    let texts = bytes.iter().map(Vec::as_slice).chain(LONGER.map(str::as_bytes));
    let texts = texts.map(|bytes| GrammarToken { bytes, is_text: true });
    let others = ["<mark>", "<end>", "<eot>"]
        .map(|name| GrammarToken { bytes: name.as_bytes(), is_text: false });
    GrammarCompiler::new(texts.chain(others), &ENDS).unwrap()
}

fn compile(constraint: &Constraint) -> Result<Grammar, GrammarError> {
    grammars().compile(constraint)
}

fn schema(schema: Value) -> Grammar {
    compile(&Constraint::schema(schema)).unwrap()
}

fn allowed(grammar: &mut Grammar) -> BTreeSet<u32> {
    let mut logits = vec![0.0; TOKENS + 3];
    grammar.mask(&mut logits).unwrap();
    (0..).zip(&logits).filter(|(_, l)| **l == 0.0).map(|(id, _)| id).collect()
}

/// Number of bytes of a text that a grammar accepts, and whether the text may end there.
fn accept_text(grammar: &mut Grammar, text: &str) -> (usize, bool) {
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

fn accepts(grammar: &Grammar, text: &str) -> bool {
    accept_text(&mut grammar.clone(), text) == (text.len(), true)
}

#[track_caller]
fn check(grammar: &Grammar, yes: &[&str], no: &[&str]) {
    for text in yes {
        assert!(
            accepts(grammar, text),
            "{text:?} was refused at {:?}",
            accept_text(&mut grammar.clone(), text)
        );
    }
    for text in no {
        assert!(!accepts(grammar, text), "{text:?} was taken");
    }
}

#[test]
fn json_constraint_accepts_objects_only() {
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
    let (taken, _) = accept_text(&mut endless, &format!("{{{}", "\n".repeat(100)));
    assert!(taken < 30, "white space without end: {taken}");
}

#[test]
fn a_text_ends_only_at_the_grammars_end_with_any_end_token() {
    let mut grammar = compile(&Constraint::Regex("yes|yesterday".into())).unwrap();
    assert!(ENDS.iter().all(|end| !allowed(&mut grammar).contains(end)));
    assert_eq!(accept_text(&mut grammar, "yes"), (3, true));
    assert!(allowed(&mut grammar).contains(&u32::from(b't')));
    grammar.accept(ENDS[1]).unwrap();
    // Tokens after the end are ignored.
    assert_eq!(allowed(&mut grammar), ENDS.into());
    let mut done = compile(&Constraint::Regex("no".into())).unwrap();
    assert_eq!(accept_text(&mut done, "no"), (2, true));
    assert_eq!(allowed(&mut done), ENDS.into());
}

#[test]
fn multi_byte_tokens_must_fit_entirely_and_control_tokens_never_fit() {
    let mut grammar = schema(
        json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}),
    );
    let first = allowed(&mut grammar);
    assert_eq!(first, [u32::from(b'{'), 256].into(), "only the brace, alone or with the quote");
    grammar.accept(256).unwrap();
    assert_eq!(accept_text(&mut grammar, "a"), (1, false));
    grammar.accept(257).unwrap();
    grammar.accept(258).unwrap();
    assert_eq!(accept_text(&mut grammar, "}"), (1, true));
    let mut text = compile(&Constraint::Regex("(?s:.)*".into())).unwrap();
    assert!(!allowed(&mut text).contains(&MARK));
}

#[test]
fn error_messages_name_the_cause_without_library_internals() {
    let schema = |schema| Constraint::schema(schema);
    let cases: [(Constraint, &[&str]); 8] = [
        (Constraint::Regex("(?=a)b".into()), &["\"(?=a)b\"", "look-ahead", "not supported"]),
        (Constraint::Regex("a(".into()), &["\"a(\"", "unclosed group"]),
        (Constraint::Regex("[^\\s\\S]".into()), &["it matches no finite text"]),
        (Constraint::Gbnf("root ::= root".into()), &["it matches no finite text"]),
        (schema(json!({"$ref": "#"})), &["no finite value matches #"]),
        (
            schema(json!({"properties": {"a": {"type": "string", "pattern": "a("}}})),
            &["pattern", "\"a(\"", "unclosed group"],
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
        for inside in
            ["NoExtensionBias", "\n", "coerce_one_of"].iter().chain((!own).then_some(&"at 1("))
        {
            assert!(!text.contains(inside), "{constraint:?}: {text}");
        }
    }
}

#[test]
fn library_limits_become_too_complex_errors() {
    // Which limit applies depends on the vocabulary. These are the library's messages.
    let error = Grammar::library_error(&"lexer error: too many expressions constructed");
    assert_eq!(error, GrammarError::TooComplex("too large expressions".into()));
    assert!(error.to_string().contains("use smaller repetitions"), "{error}");
    let error = Grammar::library_error(
        &"Parser Error: Current row has 5999 items; max is 2000; consider a left-recursive grammar",
    );
    assert!(
        matches!(error, GrammarError::TooComplex(_)) && !error.to_string().contains("row"),
        "{error}"
    );
    assert!(matches!(
        Grammar::library_error(&"Parser Error: token \"x\""),
        GrammarError::CannotContinue(_)
    ));
}

#[test]
fn invalid_expressions_and_grammars_are_refused() {
    let refused = [
        Constraint::Regex("(".into()),
        Constraint::Regex(String::new()),
        Constraint::Regex("a(?=b)".into()),
        Constraint::Lark("start: foo".into()),
        Constraint::Lark(String::new()),
        Constraint::Lark("start: start".into()),
        Constraint::Gbnf("root ::= root".into()),
        Constraint::Gbnf(String::new()),
        Constraint::Gbnf("x".repeat(MAX_CONSTRAINT_BYTES + 1)),
    ];
    for constraint in refused {
        let refused = compile(&constraint);
        assert!(refused.is_err(), "{constraint:?}");
    }
    assert!(matches!(GrammarCompiler::new(std::iter::empty(), &[]), Err(GrammarError::NoEndToken)));
}

#[test]
fn hostile_constraints_take_bounded_time() {
    let doubling = |n: usize| {
        let rules: String = (1..n).map(|i| format!("a{i} ::= a{0} a{0}\n", i - 1)).collect();
        format!("root ::= a{}\na0 ::= \"a\"\n{rules}", n - 1)
    };
    let nested =
        |open: &str, close: &str, n: usize| format!("{}a{}", open.repeat(n), close.repeat(n));
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
        Constraint::Gbnf(format!(
            "a ::= \"{}\"\nroot ::= {}",
            "!".repeat(9_000),
            "a ".repeat(110_000)
        )),
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
            (0..11_000)
                .map(|i| format!("r{i} ::= \"a\" r{}?\n", (i + 1) % 11_000))
                .collect::<String>()
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
        Constraint::schema(deep),
        Constraint::schema(json!({"type": "object", "properties": wide})),
        Constraint::schema(json!({"type": "string", "pattern": "(a{1,1000}){1,1000}"})),
        Constraint::schema(json!({"type": "string", "minLength": 1_000_000_000u64})),
        Constraint::schema(json!({"type": "array", "minItems": 1_000_000_000u64})),
        Constraint::schema(json!({"$ref": "#"})),
        Constraint::schema(
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
        Constraint::schema(json!({"type": "number", "minimum": 1e308, "multipleOf": 1e-300})),
    ];
    let grammars = grammars();
    for constraint in cases {
        let name: String = format!("{constraint:?}").chars().take(60).collect();
        let start = Instant::now();
        let found = grammars.compile(&constraint);
        assert!(!matches!(found, Err(GrammarError::TooLarge(_))), "{name}");
        if let Ok(mut grammar) = found {
            for byte in *b"aa" {
                let _ =
                    grammar.mask(&mut [0.0; TOKENS]).and_then(|()| grammar.accept(u32::from(byte)));
            }
        }
        eprintln!("{name}: {:?}", start.elapsed());
        assert!(start.elapsed() < Duration::from_secs(120), "{name} took {:?}", start.elapsed());
    }
}

#[test]
fn a_required_text_without_tokens_is_reported_at_its_position() {
    let tokens = ["a", "b", "<end>"]
        .map(|name| GrammarToken { bytes: name.as_bytes(), is_text: name.len() == 1 });
    let grammars = GrammarCompiler::new(tokens.into_iter(), &[2]).unwrap();
    let mut grammar = grammars.compile(&Constraint::Regex("ab\u{2603}".into())).unwrap();
    for token in [0, 1] {
        grammar.mask(&mut [0.0; 3]).unwrap();
        grammar.accept(token).unwrap();
    }
    assert_eq!(grammar.mask(&mut [0.0; 3]), Err(GrammarError::NoToken));
}

#[test]
fn a_grammar_with_endlessly_many_states_fails_within_bounded_memory() {
    let mut grammar = compile(&Constraint::Regex(".*(a|e).{20}zz".into())).unwrap();
    let mut bits = 88_172_645_463_325_252_u64;
    let refused = (0..2 * MAX_STATES).find_map(|_| {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        let byte = if bits >> 40 & 1 == 0 { b'a' } else { b'b' };
        grammar.mask(&mut [0.0; TOKENS]).and_then(|()| grammar.accept(byte.into())).err()
    });
    assert!(
        matches!(&refused, Some(GrammarError::TooComplex(what)) if what.contains("states")),
        "{refused:?}"
    );
}

#[test]
fn cloned_grammars_are_independent() {
    let mut one = compile(&Constraint::Regex("ab|cd".into())).unwrap();
    let mut other = one.clone();
    assert_eq!(accept_text(&mut one, "a"), (1, false));
    assert_eq!(accept_text(&mut other, "cd"), (2, true));
    assert_eq!(accept_text(&mut one, "b"), (1, true));
}

#[test]
fn a_refused_token_is_an_error() {
    let mut grammar = compile(&Constraint::Regex("ab".into())).unwrap();
    assert!(matches!(grammar.accept(u32::from(b'x')), Err(GrammarError::CannotContinue(_))));
    assert!(grammar.mask(&mut [0.0; TOKENS]).is_err() && !grammar.is_complete());
    let mut far = compile(&Constraint::Regex("ab".into())).unwrap();
    assert!(far.accept(u32::MAX).is_err());
}
