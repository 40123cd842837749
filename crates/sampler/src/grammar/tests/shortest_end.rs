//! Answers that end before their limit cuts them.

use super::*;

/// Draws one of the allowed tokens.
type Chooser<'a> = &'a mut dyn FnMut(&[u32], &Vocabulary) -> u32;

/// Vocabulary: every byte, longer tokens as in models, and the end token.
struct Vocabulary {
    words: Vec<Vec<u8>>,
    end: u32,
}

impl Vocabulary {
    fn new() -> Self {
        let longer = "{\" \": \",  {\" [\" \"} }} ]] ],[ \"] [[ \":\" \":\\\" null true false 00 12 123 0000 .5 e5 -1 :0 abc hello \
                      the \\n \\u00 \"a \"name \"name\": {\"a\":0} ,\"";
        let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        words.extend(
            longer.split(' ').filter(|word| word.len() > 1).map(|word| word.as_bytes().to_vec()),
        );
        words.extend(
            [", ", "\": ", "  ", "\n  ", " a", " hello"].map(|word| word.as_bytes().to_vec()),
        );
        words.extend(["0, ", "1]", "\u{e4}\u{f6}"].map(|word| word.as_bytes().to_vec()));
        let end = words.len() as u32;
        Self { words, end }
    }

    fn grammars(&self) -> GrammarCompiler {
        let texts = self.words.iter().map(|bytes| GrammarToken { bytes, is_text: true });
        let end = GrammarToken { bytes: b"<end>", is_text: false };
        GrammarCompiler::new(texts.chain([end]), &[self.end]).unwrap()
    }
}

/// Draws an answer within a limit, like the engine. `None` if the answer was cut.
fn draw(
    grammar: &Grammar,
    limit: usize,
    vocabulary: &Vocabulary,
    choose: Chooser<'_>,
) -> (String, Option<usize>) {
    let mut grammar = grammar.clone();
    let (mut bytes, mut logits) = (Vec::new(), vec![0.0; vocabulary.words.len() + 1]);
    for drawn in 0..limit {
        logits.fill(0.0);
        grammar
            .mask(&mut logits)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&bytes)));
        let allowed: Vec<u32> = (0..)
            .zip(&logits)
            .filter(|(_, logit)| **logit == 0.0)
            .map(|(token, _)| token)
            .collect();
        let mut token = choose(&allowed, vocabulary);
        if (grammar.must_end() || !grammar.can_end_within(token, limit - drawn))
            && let Some(end) = grammar.next_end_token()
        {
            token = end;
            assert!(
                allowed.contains(&token),
                "the end is not allowed: {}",
                String::from_utf8_lossy(&bytes)
            );
        }
        if token == vocabulary.end {
            return (String::from_utf8(bytes).unwrap(), Some(drawn + 1));
        }
        grammar.accept(token).unwrap();
        bytes.extend(&vocabulary.words[token as usize]);
    }
    (String::from_utf8_lossy(&bytes).into_owned(), None)
}

fn random(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

/// Prefers tokens that make an answer longer.
fn longest(allowed: &[u32], vocabulary: &Vocabulary) -> u32 {
    let worth = |token: &u32| {
        let Some(word) = vocabulary.words.get(*token as usize) else { return (-100, 0) };
        let count = |of: &[u8]| word.iter().filter(|byte| of.contains(byte)).count() as i64;
        (4 * count(b"{[") + 3 * count(b",") - 2 * count(b"}]") - count(b"\""), -(word.len() as i64))
    };
    allowed.iter().copied().max_by_key(worth).unwrap()
}

/// Several dozen typical schemas, and some hostile ones.
fn schemas() -> Vec<Value> {
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required});
    let many: serde_json::Map<String, Value> = (0..30)
        .map(|n| (format!("field_{n}"), json!({"type": ["string", "integer", "null"]})))
        .collect();
    let names: Vec<String> = many.keys().cloned().collect();
    let node = json!({"type": "object", "properties": {"child": {"$ref": "#/$defs/node"}, "value": {"type": "integer"}}, "required": ["value"], "additionalProperties": false});
    let person = object(
        json!({"name": {"type": "string"}, "age": {"type": "integer"}}),
        json!(["name", "age"]),
    );
    vec![
        person.clone(),
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({"type": "string"}),
        json!({"type": "boolean"}),
        json!({"type": "null"}),
        json!({"type": "array", "items": {"type": "integer"}}),
        json!({"type": "array", "items": person, "minItems": 3}),
        json!({"type": "array", "items": {"type": "array", "items": {"type": "number"}, "minItems": 2}, "minItems": 2, "maxItems": 9}),
        json!({"type": "array", "prefixItems": [{"type": "string"}, {"const": 7}], "items": false, "minItems": 2}),
        json!({"type": "string", "minLength": 7}),
        json!({"type": "string", "minLength": 3, "maxLength": 12}),
        json!({"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
        json!({"type": "string", "pattern": "^(a|b)*abb$"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "format": "email"}),
        json!({"type": "string", "format": "ipv4"}),
        json!({"enum": ["red", "green", "blue", 12, null]}),
        json!({"const": {"a": [1, 2, {"b": "c"}]}}),
        json!({"type": "integer", "minimum": 100, "maximum": 9999}),
        json!({"type": "integer", "multipleOf": 7}),
        json!({"type": "number", "minimum": 0.25, "maximum": 10}),
        json!({"type": "number", "exclusiveMinimum": 0}),
        object(
            json!({"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "integer"}}),
            json!([]),
        ),
        object(
            json!({"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "integer"}}),
            json!(["c"]),
        ),
        object(
            json!({"long": {"enum": ["a rather long value that nobody would cut", "no"]}}),
            json!(["long"]),
        ),
        object(Value::Object(many.clone()), json!([])),
        object(Value::Object(many), json!(names)),
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "patternProperties": {"^x_[a-z]+$": {"type": "boolean"}}, "additionalProperties": false}),
        json!({"type": "object"}),
        json!({"type": "array"}),
        json!({}),
        json!({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}),
        json!({"anyOf": [{"type": "null"}, object(json!({"deep": person, "list": {"type": "array", "items": {"type": "string"}, "minItems": 4}}), json!(["deep", "list"]))]}),
        json!({"oneOf": [object(json!({"kind": {"const": "cat"}, "lives": {"type": "integer"}}), json!(["kind", "lives"])), object(json!({"kind": {"const": "dog"}}), json!(["kind"]))]}),
        json!({"$defs": {"node": node}, "$ref": "#/$defs/node"}),
        json!({"$defs": {"tree": {"type": "object", "properties": {"left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}, "right": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}, "required": ["left", "right"], "additionalProperties": false}}, "$ref": "#/$defs/tree"}),
        json!({"$defs": {"json": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/json"}}]}}, "$ref": "#/$defs/json"}),
        object(
            json!({"text": {"type": "string", "maxLength": 5}, "tags": {"type": "array", "items": {"enum": ["x", "yy"]}, "minItems": 1, "maxItems": 4}}),
            json!(["text", "tags"]),
        ),
        object(
            json!({"\u{e4}\"\\": {"type": "string", "pattern": "^\u{e4}+$"}}),
            json!(["\u{e4}\"\\"]),
        ),
        json!({"allOf": [object(json!({"a": {"type": "integer"}}), json!(["a"])), object(json!({"b": {"type": "string", "minLength": 2}}), json!(["b"]))]}),
    ]
}

#[test]
fn answers_are_complete_within_any_limit() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    for (number, schema) in schemas().into_iter().enumerate() {
        let constraint = Constraint::schema(schema.clone());
        let mut grammar =
            grammars.compile_with_end(&constraint).unwrap_or_else(|e| panic!("{schema}: {e}"));
        let min = grammar.shortest_end().unwrap_or_else(|| panic!("no end is known: {schema}"));
        let plain = grammars.compile(&constraint).unwrap();
        for limit in min..=min + 40 {
            let mut seed = (number * 1000 + limit) as u64;
            let mut uniform =
                |allowed: &[u32], _: &Vocabulary| allowed[random(&mut seed, allowed.len())];
            let mut first = |allowed: &[u32], _: &Vocabulary| allowed[0];
            let choosers: [Chooser<'_>; 3] = [&mut uniform, &mut longest, &mut first];
            for (chooser, choose) in choosers.into_iter().enumerate() {
                let (text, tokens) = draw(&grammar, limit, &vocabulary, choose);
                assert!(
                    tokens.is_some_and(|tokens| tokens <= limit),
                    "{limit} of {schema}, {chooser}: {text}"
                );
                serde_json::from_str::<Value>(&text)
                    .unwrap_or_else(|e| panic!("{schema}: {text}: {e}"));
                let mut check = plain.clone();
                let fits = text.bytes().all(|byte| check.accept(byte.into()).is_ok())
                    && check.is_complete();
                assert!(fits, "{schema}: {text}");
            }
        }
    }
}

#[test]
fn the_shortest_end_is_the_minimum() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let min = |schema: Value, text: &str| {
        let mut grammar = grammars.compile_with_end(&Constraint::schema(schema)).unwrap();
        for byte in text.bytes() {
            grammar.accept(byte.into()).unwrap();
        }
        let mut written = String::new();
        while let Some(token) = grammar.next_end_token().filter(|token| *token != vocabulary.end) {
            written.push_str(std::str::from_utf8(&vocabulary.words[token as usize]).unwrap());
            grammar.accept(token).unwrap();
        }
        assert!(grammar.is_complete(), "{written}");
        written
    };
    let pair = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": ["long one", "x"]}, "c": {"type": "array", "items": {"type": "boolean"}, "minItems": 2}}, "required": ["b", "c"]});
    assert_eq!(min(pair.clone(), ""), "{\"b\":\"x\",\"c\":[true,true]}");
    assert_eq!(min(pair.clone(), "{\"a\": \"t"), "\",\"b\":\"x\",\"c\":[true,true]}");
    assert_eq!(min(pair.clone(), "{\"b\":\"l"), "ong one\",\"c\":[true,true]}");
    assert_eq!(min(pair, "{\"b\":\"x\",\n \"c\":[false, true,"), "true]}");
    assert_eq!(min(json!({"type": "integer", "minimum": 500}), "7"), "00");
    assert_eq!(min(json!({"type": "number"}), "-1."), "0");
    let any = json!({"type": "array"});
    assert_eq!(min(any.clone(), "[[{\"a\": [{\"b\":"), "0}]}]]");
    assert_eq!(min(any, "[\"\\u00e"), "a\"]");
}

#[test]
fn numbers_have_a_bounded_number_of_digits() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let taken = |schema: Value, text: &str| {
        let mut grammar = grammars.compile_with_end(&Constraint::schema(schema)).unwrap();
        let mut logits = vec![0.0; vocabulary.words.len() + 1];
        text.bytes()
            .take_while(|byte| {
                logits.fill(0.0);
                grammar.mask(&mut logits).unwrap();
                logits[usize::from(*byte)] == 0.0 && grammar.accept(u32::from(*byte)).is_ok()
            })
            .count()
    };
    let digits = "1234567890123456789012345678901234567890";
    assert_eq!(taken(json!({"type": "integer"}), digits), 16);
    assert_eq!(taken(json!({"type": "integer"}), &format!("-{digits}")), 17);
    assert_eq!(taken(json!({"type": "number"}), &format!("3.{digits}")), 18);
    assert_eq!(taken(json!({"type": "number"}), "1e4000"), 4);
    assert_eq!(taken(json!({"type": "integer", "minimum": 5}), digits), 16);
    assert_eq!(
        taken(json!({"type": "number", "minimum": 0, "maximum": 1}), &format!("0.{digits}")),
        18
    );
    assert_eq!(taken(json!({"type": "array"}), &format!("[{digits}")), 17);
    // The schema's own bound may have more digits.
    let wide = json!({"type": "integer", "minimum": 0, "maximum": 9_000_000_000_000_000_000_u64});
    assert_eq!(taken(wide, digits), 19);
    // A number that is not a multiple yet continues.
    let multiple = taken(json!({"type": "integer", "multipleOf": 7}), digits);
    assert!((16..30).contains(&multiple), "{multiple}");
    // Digits in strings are not limited.
    assert_eq!(taken(json!({"type": "string"}), &format!("\"{digits}")), 41);
    // Longer tokens count by their digits.
    let mut grammar =
        grammars.compile_with_end(&Constraint::schema(json!({"type": "integer"}))).unwrap();
    let mut longest = |allowed: &[u32], vocabulary: &Vocabulary| {
        let digits = |token: &&u32| {
            vocabulary
                .words
                .get(**token as usize)
                .map_or(0, |word| word.iter().filter(|b| b.is_ascii_digit()).count())
        };
        *allowed.iter().max_by_key(digits).unwrap()
    };
    let (text, _) = draw(&grammar, 100, &vocabulary, &mut longest);
    assert_eq!(text.trim_start_matches('-').len(), 16, "{text}");
    assert!(grammar.shortest_end().is_some());
}

#[test]
fn hostile_schemas_take_bounded_time_to_end() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let nested = (0..11).fold(
        json!({"type": "integer"}),
        |inner, _| json!({"type": "object", "properties": {"a": inner, "b": inner}, "required": ["a"]}),
    );
    let wide: serde_json::Map<String, Value> = (0..200)
        .map(|n| {
            (
                format!("p{n}"),
                json!({"type": "string", "pattern": format!("^[a-z]{{{}}}$", n % 50)}),
            )
        })
        .collect();
    let names: Vec<String> = wide.keys().cloned().collect();
    let cases = [
        (json!({"type": "string", "minLength": 100_000}), false),
        (json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}), false),
        (json!({"type": "string", "pattern": "(a|e).{20}zz$"}), true),
        (json!({"type": "string", "pattern": "^(?:a{1,50}b{1,50}){1,50}$"}), true),
        (json!({"type": "object", "properties": Value::Object(wide), "required": names}), true),
        (nested, true),
    ];
    for (schema, compiles) in cases {
        let name: String = schema.to_string().chars().take(80).collect();
        let begun = Instant::now();
        let grammar = grammars.compile_with_end(&Constraint::schema(schema));
        assert_eq!(grammar.is_ok(), compiles, "{name}: {:?}", grammar.err());
        let Ok(mut grammar) = grammar else { continue };
        let end = grammar.shortest_end();
        let mut seed = 1;
        let mut uniform =
            |allowed: &[u32], _: &Vocabulary| allowed[random(&mut seed, allowed.len())];
        let limit = end.unwrap_or_else(|| panic!("no end is known: {name}")) + 60;
        let (_, tokens) = draw(&grammar, limit, &vocabulary, &mut uniform);
        assert!(tokens.is_some(), "{name}");
        eprintln!("{name}: {end:?} in {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(120), "{name} took {:?}", begun.elapsed());
    }
}

#[test]
fn long_answers_have_a_known_end() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let cases = [
        (json!({"const": "x".repeat(5000)}), 5003),
        (json!({"enum": ["x".repeat(6000), "y".repeat(5000)]}), 5003),
        (json!({"type": "string", "minLength": 10_000}), 10_003),
        (json!({"type": "string", "minLength": 2000}), 2003),
        (json!({"type": "string", "pattern": "^[b-y]{6000}$"}), 6003),
        (json!({"type": "string", "pattern": "^[b-y]*z[0-9]{3000}$"}), 3004),
        (json!({"type": "array", "items": {"enum": ["xyz"]}, "minItems": 3000}), 18_002),
    ];
    for (i, (schema, bytes)) in cases.into_iter().enumerate() {
        let name: String = schema.to_string().chars().take(60).collect();
        let grammar = grammars.compile_with_end(&Constraint::Schema(schema.into()));
        let mut grammar = grammar.unwrap_or_else(|e| panic!("{name}: {e}"));
        let min = grammar.shortest_end().unwrap();
        assert!((bytes / 4..=bytes).contains(&min), "{name}: {min}");
        // In a text without a constraint of its own, each token changes the whole end.
        let is_quick = name.contains("x") || bytes < 4000;
        if is_quick {
            let limit = min + 50 * (i % 2);
            let mut seed = limit as u64;
            let mut uniform =
                |allowed: &[u32], _: &Vocabulary| allowed[random(&mut seed, allowed.len())];
            let (text, tokens) = draw(&grammar, limit, &vocabulary, &mut uniform);
            assert!(tokens.is_some_and(|tokens| tokens <= limit), "{limit} of {name}");
            serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

#[test]
fn shortest_answers_beyond_the_byte_limit_are_refused() {
    let grammars = Vocabulary::new().grammars();
    let refused =
        |schema: Value| grammars.compile_with_end(&Constraint::Schema(schema.into())).unwrap_err();
    let list = json!({"type": "array", "items": {"type": "string"}, "minItems": 100_000});
    assert!(
        matches!(refused(list), GrammarError::TooLong { bytes: 300_001, tokens } if tokens > 10_000)
    );
    for long in
        [json!({"const": "x".repeat(50_000)}), json!({"type": "string", "minLength": 100_000})]
    {
        let error = refused(long);
        assert!(matches!(error, GrammarError::EndNotFound), "{error}");
        assert!(error.to_string().contains("minLength"), "{error}");
    }
    // The parts have finite values, but not together.
    let endless = json!({"allOf": [
        {"type": "object"},
        {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}]},
    ]});
    assert!(refused(endless).to_string().contains("no finite value matches"));
}

#[test]
fn an_answer_is_completed_after_a_library_failure() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}, "required": ["a"]});
    let mut grammar = grammars.compile_with_end(&Constraint::Schema(schema.into())).unwrap();
    for byte in b"{\"a\":[\"x\",\"y" {
        grammar.accept(u32::from(*byte)).unwrap();
    }
    grammar.matcher.test_trigger_lexer_error().unwrap_err();
    let mut text = String::new();
    loop {
        let mut logits = vec![0.0; vocabulary.words.len() + 1];
        grammar.mask(&mut logits).unwrap();
        let token = logits.iter().position(|logit| *logit == 0.0).unwrap() as u32;
        assert!(grammar.must_end() && grammar.next_end_token() == Some(token));
        if token == vocabulary.end {
            break;
        }
        grammar.accept(token).unwrap();
        text.push_str(std::str::from_utf8(&vocabulary.words[token as usize]).unwrap());
    }
    assert!(grammar.is_complete());
    assert_eq!(text, "\"]}");
}

#[test]
fn the_chart_of_a_long_answer_is_bounded() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let properties: serde_json::Map<String, Value> =
        (0..60).map(|n| (format!("p{n}"), json!({"type": ["string", "integer"]}))).collect();
    let item = json!({"type": "object", "properties": properties});
    let schema = json!({"type": "array", "items": item});
    let mut grammar = grammars.compile_with_end(&Constraint::Schema(schema.into())).unwrap();
    let item: String = (0..60).map(|n| format!("\"p{n}\":{n},")).collect();
    let mut max = 0;
    for (number, text) in
        std::iter::repeat_n(format!("{{{}}},", item.trim_end_matches(',')), 40).enumerate()
    {
        for byte in if number == 0 { format!("[{text}") } else { text }.bytes() {
            grammar.accept(u32::from(byte)).unwrap();
        }
        max = max.max(grammar.end_tracker.as_ref().unwrap().entries());
    }
    assert!(!grammar.must_end() && grammar.shortest_end().is_some());
    assert!(max < 250_000, "{max}");
}

/// Checks the end after each byte that may follow a text, as if few tokens were left. Then follows
/// the end.
fn end_after_refused_tokens(grammar: &mut Grammar, text: &str, vocabulary: &Vocabulary) -> String {
    let mut text = text.to_owned();
    for byte in text.bytes() {
        assert!(grammar.can_end_within(byte.into(), 100_000));
        grammar.accept(byte.into()).unwrap();
    }
    assert!((0..256).all(|byte| !grammar.can_end_within(byte, 1)));
    while let Some(token) = grammar.next_end_token().filter(|token| *token != vocabulary.end) {
        text.push_str(std::str::from_utf8(&vocabulary.words[token as usize]).unwrap());
        grammar.accept(token).unwrap();
    }
    text
}

#[test]
fn a_refused_token_does_not_change_the_known_end() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let list = |items: Value| json!({"type": "array", "items": items});
    let cases = [
        (list(json!({"enum": ["a".repeat(5000), "bcd"]})), "[\"bcd\"]"),
        // The search after `d` leads back to the state before it.
        (list(json!({"type": "string", "pattern": "^(d{1500})*(b|a{5000})$"})), "[\"b\"]"),
    ];
    for (schema, whole) in cases {
        let name: String = schema.to_string().chars().take(60).collect();
        let mut grammar = grammars.compile_with_end(&Constraint::schema(schema)).unwrap();
        let text = end_after_refused_tokens(&mut grammar, "[\"", &vocabulary);
        assert!(text == whole, "{name}: {} bytes", text.len());
    }
    // The same if a new search finds the end, for a later item.
    let schema = list(json!({"enum": ["a".repeat(5000), "bcd"]}));
    let mut grammar = grammars.compile_with_end(&Constraint::schema(schema)).unwrap();
    for byte in b"[\"" {
        grammar.accept(u32::from(*byte)).unwrap();
    }
    assert!(!grammar.can_end_within(u32::from(b'a'), 10));
    for byte in b"bcd\",\"" {
        grammar.accept(u32::from(*byte)).unwrap();
    }
    assert!(grammar.shortest_end().is_some_and(|tokens| tokens < 10));
}

#[test]
fn an_end_search_stops_before_the_lexer_fails() {
    let vocabulary = Vocabulary::new();
    let grammars = vocabulary.grammars();
    let object = |pattern: &str| {
        json!({
            "type": "object",
            "properties": {"x": {"type": "integer"}, "t": {"type": "string", "pattern": pattern}},
            "required": ["x", "t"],
        })
    };
    let cases = [
        // Too many states in both cases, and too much work after `c`.
        ("^(a{24000}|b{30000})$", "a".repeat(24_000)),
        ("^(b|c[ac]*a[ac]{500}d{20000})$", "b".to_owned()),
    ];
    for (pattern, shortest) in cases {
        let mut grammar = grammars.compile_with_end(&Constraint::schema(object(pattern))).unwrap();
        let text = end_after_refused_tokens(&mut grammar, "{\"x\":1,\"t\":\"", &vocabulary);
        assert!(
            text == format!("{{\"x\":1,\"t\":\"{shortest}\"}}"),
            "{pattern}: {} bytes",
            text.len()
        );
        let eighths = grammar.end_tracker.as_ref().unwrap().used_eighths();
        assert!(eighths <= 7, "{pattern}: {eighths} eighths are used");
    }
}

#[test]
fn a_refused_end_is_searched_again_after_the_next_token() {
    let vocabulary = Vocabulary::new();
    let schema = json!({"type": "array", "items": {"type": "string"}});
    let mut grammar = vocabulary.grammars().compile_with_end(&Constraint::schema(schema)).unwrap();
    for byte in b"[\"" {
        grammar.accept(u32::from(*byte)).unwrap();
    }
    let end_tracker = grammar.end_tracker.as_mut().unwrap();
    assert!(end_tracker.end_tokens(|_| false).is_none());
    assert!(end_tracker.end_tokens(|_| panic!("it is looked at again")).is_none());
    assert!(
        !end_tracker.can_end_within(u32::from(b'a'), 2)
            && end_tracker.can_end_within(u32::from(b'a'), 10)
    );
    assert!(!grammar.must_end());
    grammar.accept(u32::from(b'a')).unwrap();
    assert_eq!(grammar.shortest_end(), Some(2));
    assert!(!grammar.can_end_within(u32::from(b'a'), 2));
}

#[test]
fn a_failure_at_the_first_token_is_not_replaced_by_the_end() {
    let vocabulary = Vocabulary::new();
    let schema = json!({"type": "array", "items": {"type": "string"}});
    let mut grammar = vocabulary.grammars().compile_with_end(&Constraint::schema(schema)).unwrap();
    grammar.matcher.test_trigger_lexer_error().unwrap_err();
    // Work of the first step, and work of later steps.
    assert!(grammar.compute_next_by_library().is_err() && !grammar.must_end());
    assert!(grammar.compute_next().is_ok() && grammar.must_end());
}
