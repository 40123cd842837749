//! Tests that the calls that a grammar allows follow the schema. The tests sample texts from
//! grammars, parse them with the parser of the call format, and check the arguments.

use std::collections::BTreeMap;

use puna_prompt::{ParserInput, Template, TemplateFormat};
use puna_sampler::{Grammar, GrammarCompiler, GrammarToken};

use super::*;

const NAME: &str = "tide_table";

/// Call format with its template and parser.
struct Case {
    title: String,
    form: CallFormat,
    template: Template,
    parser: Option<&'static str>,
}

fn case(title: &str, template: Template, parser: Option<&'static str>) -> Option<Case> {
    let ends = [
        "<|im_end|>",
        "<end_of_turn>",
        "<turn|>",
        "</s>",
        "<|eot|>",
        "[e~[",
        "<|observation|>",
        "<|user|>",
        "<|role_end|>",
        "<｜end▁of▁sentence｜>",
        "<|end|>",
        "<|eot_id|>",
        "<|endoftext|>",
        "</assistant>",
        "<tool_response>",
        "<|tool_response>",
        "<start_function_response>",
    ];
    let ends = ends.map(str::to_owned);
    let form = CallFormat::probe(&template, parser, template.think_tags().as_ref(), &ends)?;
    let title = title.to_owned();
    matches!(form.arguments, ArgumentsFormat::List(_)).then_some(Case {
        title,
        form,
        template,
        parser,
    })
}

/// Returns all renderers with argument lists, and the templates in `$PUNA_TEST_MODELS`.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let renderers: [(&str, &'static str); 8] = [
        ("qwen3-coder", "qwen3-coder"),
        ("qwen3.5", "qwen3.5"),
        ("nemotron-3-nano", "nemotron-3-nano"),
        ("glm-4.7", "glm-4.7"),
        ("laguna", "laguna"),
        ("functiongemma", "functiongemma"),
        ("gemma4-small", "gemma4"),
        ("olmo3", "olmo3"),
    ];
    for (renderer, parser) in renderers {
        let template = Template::parse(TemplateFormat::BuiltIn, renderer).unwrap();
        all.push(case(renderer, template, Some(parser)).unwrap_or_else(|| panic!("{renderer}")));
    }
    let folder = std::env::var_os("PUNA_TEST_MODELS").map(std::path::PathBuf::from);
    let folder = folder
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache/models").into());
    let files = std::fs::read_dir(folder.join("templates")).into_iter().flatten().flatten();
    let files: BTreeMap<_, _> = files.map(|file| (file.file_name(), file.path())).collect();
    if files.is_empty() {
        eprintln!("SKIPPED: no templates in $PUNA_TEST_MODELS");
        return all;
    }
    let before = all.len();
    for (name, path) in files {
        let source = std::fs::read_to_string(path).unwrap();
        let template = Template::parse(TemplateFormat::Jinja, &source).ok();
        all.extend(template.and_then(|template| case(&name.to_string_lossy(), template, None)));
    }
    assert!(all.len() >= before + 20, "{}", all.len() - before);
    all
}

/// Creates a compiler with these tokens: all bytes, then the control tokens, then the end.
fn grammars(tags: &[(String, u32)]) -> GrammarCompiler {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let texts = bytes.iter().map(|bytes| GrammarToken { bytes, is_text: true });
    let tags = tags.iter().map(|(tag, _)| GrammarToken { bytes: tag.as_bytes(), is_text: false });
    let end = GrammarToken { bytes: b"<end>", is_text: false };
    let count = 256 + tags.len() as u32;
    GrammarCompiler::new(texts.chain(tags).chain([end]), &[count]).unwrap()
}

/// Samples texts from a grammar.
struct TextSampler<'a> {
    tags: &'a [(String, u32)],
    /// Texts that are tried before single bytes.
    likely: Vec<String>,
    seed: u64,
}

impl TextSampler<'_> {
    fn random_below(&mut self, end: usize) -> usize {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % end
    }

    fn allowed(&self, grammar: &mut Grammar) -> Vec<u32> {
        let mut logits = vec![0.0; 257 + self.tags.len()];
        grammar.mask(&mut logits).unwrap();
        (0..).zip(&logits).filter(|(_, logit)| **logit == 0.0).map(|(token, _)| token).collect()
    }

    /// Tokenizes a text, with its control tokens.
    fn tokens(&self, mut text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        while let Some(first) = text.chars().next() {
            match self.tags.iter().find(|(tag, _)| text.starts_with(tag.as_str())) {
                Some((tag, token)) => {
                    tokens.push(*token);
                    text = &text[tag.len()..];
                }
                None => {
                    let (c, rest) = text.split_at(first.len_utf8());
                    tokens.extend(c.bytes().map(u32::from));
                    text = rest;
                }
            }
        }
        tokens
    }

    fn takes(&self, grammar: &Grammar, tokens: &[u32]) -> Option<Grammar> {
        let mut grammar = grammar.clone();
        for token in tokens {
            if !self.allowed(&mut grammar).contains(token) {
                return None;
            }
            grammar.accept(*token).unwrap();
        }
        Some(grammar)
    }

    /// Samples a complete text; `None` if it does not end within 400 steps.
    fn text(&mut self, grammar: &Grammar) -> Option<String> {
        let (mut grammar, mut bytes) = (grammar.clone(), Vec::new());
        for step in 0..400 {
            if grammar.is_complete() {
                return Some(String::from_utf8(bytes).unwrap());
            }
            let allowed = self.allowed(&mut grammar);
            let mut next = None;
            // After 40 steps, texts that are likely to end it are tried more often.
            let tries = if step < 40 { 4 } else { 60 };
            for _ in 0..tries {
                let at = self.random_below(self.likely.len());
                let tokens = self.tokens(&self.likely[at]);
                if !allowed.contains(&tokens[0]) {
                    continue;
                }
                if let Some(after) = self.takes(&grammar, &tokens) {
                    next = Some((after, tokens));
                    break;
                }
            }
            let (after, tokens) = next.unwrap_or_else(|| {
                let ascii: Vec<u32> =
                    allowed.iter().copied().filter(|t| *t < 128 || *t > 255).collect();
                let from = if ascii.is_empty() { &allowed } else { &ascii };
                let token = from[self.random_below(from.len())];
                (self.takes(&grammar, &[token]).unwrap(), vec![token])
            });
            grammar = after;
            for token in tokens {
                match self.tags.iter().find(|(_, tag)| *tag == token) {
                    Some((tag, _)) => bytes.extend(tag.bytes()),
                    None => bytes.push(token as u8),
                }
            }
        }
        None
    }
}

fn fits(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(map) = schema else { return schema == &Value::Bool(true) };
    let list = |key: &str| map.get(key).and_then(Value::as_array).cloned();
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let is_type = |name: &str| match name {
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        _ => value.is_object(),
    };
    let types = match map.get("type") {
        Some(Value::String(name)) => is_type(name),
        Some(Value::Array(names)) => names.iter().any(|name| is_type(name.as_str().unwrap())),
        _ => true,
    };
    let reference = map
        .get("$ref")
        .is_none_or(|name| fits(value, root.pointer(&name.as_str().unwrap()[1..]).unwrap(), root));
    let any =
        |key| list(key).is_none_or(|all: Vec<Value>| all.iter().any(|one| fits(value, one, root)));
    let all = list("allOf").is_none_or(|all| all.iter().all(|one| fits(value, one, root)));
    let listed = list("enum").is_none_or(|all| all.contains(value));
    let constant = map.get("const").is_none_or(|one| one == value);
    let text = value.as_str().is_none_or(|text| {
        let length = text.chars().count() as f64;
        let code = |text: &str| text.len() == 4 && text.bytes().all(|b| b.is_ascii_uppercase());
        number("minLength").is_none_or(|n| length >= n)
            && number("maxLength").is_none_or(|n| length <= n)
            && map.get("pattern").is_none_or(|pattern| pattern == "^[A-Z]{4}$" && code(text))
    });
    let bounds = value.as_f64().is_none_or(|n| {
        number("minimum").is_none_or(|min| n >= min) && number("maximum").is_none_or(|max| n <= max)
    });
    let items = value.as_array().is_none_or(|all| {
        let count = all.len() as f64;
        number("minItems").is_none_or(|n| count >= n)
            && number("maxItems").is_none_or(|n| count <= n)
            && map.get("items").is_none_or(|items| all.iter().all(|one| fits(one, items, root)))
    });
    let object = value.as_object().is_none_or(|object| {
        let required = list("required").unwrap_or_default();
        let others = map.get("additionalProperties");
        let property =
            |(key, value): (&String, &Value)| match (schema["properties"].get(key), others) {
                (Some(schema), _) | (None, Some(schema)) => fits(value, schema, root),
                (None, None) => map.get("properties").is_none(),
            };
        required.iter().all(|key| object.contains_key(key.as_str().unwrap()))
            && object.iter().all(property)
    });
    types
        && reference
        && any("anyOf")
        && any("oneOf")
        && all
        && listed
        && constant
        && text
        && bounds
        && items
        && object
}

fn schemas() -> Vec<Value> {
    let text = json!({"type": "string"});
    vec![
        json!({"type": "object", "properties": {"a": text, "b": {"type": "integer"}, "c": {"type": "boolean"}}, "required": ["b"]}),
        json!({"type": "object", "properties": {"a": text, "b": text}, "required": ["a", "b"]}),
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "properties": {
            "unit": {"enum": ["m", "ft", "null", "fathom"]}, "code": {"type": "string", "pattern": "^[A-Z]{4}$"},
            "short": {"type": "string", "minLength": 1, "maxLength": 3}, "day": {"type": "integer", "minimum": 1, "maximum": 31},
        }, "required": ["unit", "code", "short", "day"]}),
        json!({"type": "object", "properties": {
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "id": {"type": ["string", "integer", "null"]},
            "flag": {"type": ["boolean", "null"]}, "fix": {"const": "x"}, "some": {"enum": ["a", 1, null]},
        }, "required": ["maybe", "id", "flag", "fix", "some"]}),
        json!({"type": "object", "$defs": {"place": {"type": "object", "properties": {"name": text, "at": {"type": "number"}}, "required": ["name"]}},
            "properties": {
                "place": {"$ref": "#/$defs/place"}, "all": {"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2},
                "days": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
                "any": {"type": "object"}, "mix": {"type": "array", "items": {"type": ["string", "null"], "maxLength": 40}},
                "either": {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/place"}]},
            }, "required": ["place", "days"]}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        json!({"anyOf": [
            {"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
            {"type": "object", "properties": {"kind": {"const": "b"}, "s": text}, "required": ["kind", "s"]},
        ]}),
    ]
}

/// Samples calls in a format, checks them, and returns the number of complete ones.
fn check(case: &Case, schema: &Value, tags: &[(String, u32)], seed: u64, draws: usize) -> usize {
    let title = &case.title;
    let tool = Tool(json!({"type": "function", "function": {"name": NAME, "parameters": schema}}));
    let tools = [tool.0.clone()];
    let input = ParserInput {
        tools: &tools,
        think: Some(&puna_prompt::Think::Switch(false)),
        ..ParserInput::default()
    };
    let parser = || match case.parser {
        Some(name) => OutputParser::by_name(name, &input).unwrap(),
        None => OutputParser::for_template(&case.template, None, &input),
    };
    let form = if parser().stage() != puna_prompt::OutputStage::Thinking {
        case.form.clone().without_reasoning_end(case.template.think_tags().as_ref())
    } else {
        case.form.clone()
    };
    check_names(&form, &[ForcedTool::new(&tool).unwrap()], || Some(parser())).unwrap();
    let constraint = constraint(&form, &[ForcedTool::new(&tool).unwrap()], false, tags)
        .unwrap_or_else(|e| panic!("{title}: {}", e.message));
    let grammar = grammars(tags)
        .compile_with_end(&constraint)
        .unwrap_or_else(|e| panic!("{title}: {schema}: {e}\n{constraint:?}"));
    let ArgumentsFormat::List(list_format) = &case.form.arguments else { panic!() };
    let ends = argument_list::argument_names(schema)
        .into_iter()
        .map(|name| list_format.frame(ValueKind::Text).after(&name));
    let mut likely: Vec<String> = ends.collect();
    likely.extend(
        ["a", " ", "\n", "7", "null", "true", "x y", "<", "\"", "[", "{", "]", "}", "ABCD", "m"]
            .map(str::to_owned),
    );
    likely.extend([
        list_format.link.clone(),
        list_format.close.clone(),
        list_format.forbidden[0..].concat(),
    ]);
    likely.extend(list_format.forbidden.clone());
    likely.retain(|text| !text.is_empty());
    let mut draw = TextSampler { tags, likely, seed };
    let mut ended = 0;
    for _ in 0..draws {
        let Some(text) = draw.text(&grammar) else { continue };
        let mut parser = parser();
        let mut parts = parser.push(&text);
        parts.extend(parser.finish());
        let calls: Vec<_> = parts
            .iter()
            .filter_map(|part| match part {
                OutputPart::Call(call) => Some(call),
                _ => None,
            })
            .collect();
        // The parser reports text that some templates write around a call as content.
        let is_around =
            |text: &str| list_format.close.ends_with(text) || form.before.contains(text);
        let alone = parts.iter().all(|part| match part {
            OutputPart::Content(text) => is_around(text),
            part => matches!(part, OutputPart::Call(_)),
        });
        assert!(calls.len() == 1 && alone && calls[0].name == NAME, "{title}: {text:?}: {parts:?}");
        let arguments = Value::Object(calls[0].arguments.clone());
        assert!(fits(&arguments, schema, schema), "{title}: {schema}\n{text:?}\n{arguments}");
        ended += 1;
    }
    ended
}

/// Samples calls in every second format, starting at `first`. All formats together take almost a
/// minute of processor time.
fn check_every_second_call_format(first: usize) {
    let mut drawn = 0;
    for (number, case) in cases().iter().enumerate().skip(first).step_by(2) {
        let mut ended = 0;
        for (i, schema) in schemas().iter().enumerate() {
            ended +=
                check(case, schema, &[], (number * 100 + i) as u64, if number < 8 { 3 } else { 1 });
        }
        assert!(ended >= 3, "{}: only {ended} calls came to an end", case.title);
        drawn += ended;
    }
    assert!(drawn > 50, "{drawn}");
}

#[test]
fn calls_in_even_call_formats_follow_the_schema() {
    check_every_second_call_format(0);
}

#[test]
fn calls_in_odd_call_formats_follow_the_schema() {
    check_every_second_call_format(1);
}

#[test]
fn tags_that_are_control_tokens_end_values() {
    for (number, case) in cases().iter().enumerate().take(8) {
        let ArgumentsFormat::List(list_format) = &case.form.arguments else { panic!() };
        let mut names = list_format.forbidden.clone();
        names.extend(["<tool_call>".to_owned(), "</tool_call>".to_owned()]);
        names.sort();
        names.dedup();
        let tags: Vec<(String, u32)> = names.into_iter().zip(256..).collect();
        let ended: usize = (0..)
            .zip(&schemas())
            .map(|(i, schema)| check(case, schema, &tags, number as u64 * 100 + i, 2))
            .sum();
        assert!(ended >= 5, "{}: {ended}", case.title);
    }
}

#[test]
fn missing_repeated_and_unknown_arguments_are_not_allowed() {
    let all = cases();
    let coder = &all[0];
    let glm = &all[3];
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"enum": ["x", "y"]}}, "required": ["a", "b"]});
    let tool = Tool(json!({"type": "function", "function": {"name": NAME, "parameters": schema}}));
    for case in [coder, glm] {
        let ArgumentsFormat::List(list_format) = &case.form.arguments else { panic!() };
        let grammar = grammars(&[])
            .compile(
                &constraint(&case.form, &[ForcedTool::new(&tool).unwrap()], false, &[]).unwrap(),
            )
            .unwrap();
        let draw = TextSampler { tags: &[], likely: Vec::new(), seed: 1 };
        use ValueKind::{Number, Text};
        let takes = |arguments: &[(&str, ValueKind, &str)]| {
            let text = format!("{}{NAME}{}", case.form.before, list_format.write(arguments));
            draw.takes(&grammar, &draw.tokens(&text))
                .is_some_and(|mut grammar| grammar.is_complete())
        };
        assert!(takes(&[("a", Text, "<b> & </b>\n{\"c\"}"), ("b", Number, "3")]), "{}", case.title);
        assert!(takes(&[("a", Text, ""), ("b", Number, "-12"), ("c", Text, "y")]));
        for refused in [
            &[("a", Text, "x")][..],
            &[("b", Number, "3")],
            &[],
            &[("a", Text, "x"), ("a", Text, "x"), ("b", Number, "3")],
            &[("a", Text, "x"), ("b", Number, "3"), ("b", Number, "3")],
            &[("a", Text, "x"), ("b", Number, "3"), ("d", Text, "y")],
            &[("a", Text, "x"), ("b", Number, "three")],
            &[("a", Text, "x"), ("b", Number, "3.5")],
            &[("a", Text, "x"), ("b", Number, "3"), ("c", Text, "z")],
            &[("a", Text, "null"), ("b", Number, "3")],
        ] {
            assert!(!takes(refused), "{}: {refused:?}", case.title);
        }
    }
}

#[test]
fn formats_of_unquoted_strings_are_enforced() {
    let draw = TextSampler { tags: &[], likely: Vec::new(), seed: 1 };
    let all = cases();
    let ArgumentsFormat::List(list_format) = &all[0].form.arguments else { panic!() };
    let cases: [(&str, &[&str], &[&str]); 10] = [
        ("date", &["2026-02-28"], &["2026-13-01", "soon"]),
        ("time", &["23:59:00Z", "01:00:00.5+02:00"], &["24:00:00Z", "1:00"]),
        ("date-time", &["2026-12-31T23:59:00Z"], &["2026-12-31"]),
        ("duration", &["P1Y2M", "PT5M", "P3W", "P1DT2H"], &["P", "1Y"]),
        ("email", &["a.b@c.de"], &["a@", "a b@c.de"]),
        ("hostname", &["a-b.example"], &["-a", "a..b"]),
        ("ipv4", &["192.168.0.255"], &["256.1.1.1", "1.1.1"]),
        ("ipv6", &["::1", "fe80::1:2", "1:2:3:4:5:6:7:8", "::", "1::"], &["1:2:3", "1::2::3"]),
        ("uuid", &["123e4567-e89b-12d3-a456-426614174000"], &["123e4567"]),
        ("uri", &["https://example.com/a/b?c=d#e", "mailto:a@b.de"], &["/a/b", "a b:c"]),
    ];
    for (format, yes, no) in cases {
        let parameters =
            json!({"properties": {"a": {"type": "string", "format": format}}, "required": ["a"]});
        let tool =
            Tool(json!({"type": "function", "function": {"name": NAME, "parameters": parameters}}));
        let constraint =
            constraint(&all[0].form, &[ForcedTool::new(&tool).unwrap()], false, &[]).unwrap();
        let grammar = grammars(&[]).compile(&constraint).unwrap();
        let takes = |value: &str| {
            let call = list_format.write(&[("a", ValueKind::Text, value)]);
            let tokens = draw.tokens(&format!("{}{NAME}{call}", all[0].form.before));
            draw.takes(&grammar, &tokens).is_some_and(|mut grammar| grammar.is_complete())
        };
        assert!(yes.iter().all(|value| takes(value)), "{format}");
        assert!(!no.iter().any(|value| takes(value)), "{format}");
    }
}

#[test]
fn keywords_that_cannot_be_enforced_are_rejected_by_name() {
    let all = cases();
    let refused = |case: &Case, parameters: Value| {
        let tool =
            Tool(json!({"type": "function", "function": {"name": "f", "parameters": parameters}}));
        let made =
            ForcedTool::new(&tool).and_then(|tool| constraint(&case.form, &[tool], false, &[]));
        let failure = made.unwrap_err();
        assert_eq!(failure.status, 400);
        failure.message
    };
    for (parameters, word) in [
        (json!({"patternProperties": {"a": {}}}), "patternProperties"),
        (json!({"properties": {"a": {}}, "not": {}}), "not"),
        (json!({"properties": {"a": false}, "required": ["a"]}), "\"a\""),
        (json!({"$ref": "#/$defs/none"}), "#/$defs/none"),
        (
            json!({"anyOf": [{"$ref": "#"}]}),
            "no finite value matches #: its references are circular",
        ),
    ] {
        let message = refused(&all[0], parameters);
        assert!(message.contains(word) && message.contains("\"f\""), "{message}");
    }
    let gemma = all.iter().find(|case| case.title == "gemma4-small").unwrap();
    let nested = json!({"properties": {"a": {"type": "object", "properties": {"b c": {}}}}});
    assert!(refused(gemma, nested).contains("b c"));
}

/// Returns hostile schemas that grow exponentially, each in another way.
fn explosive_schemas() -> Vec<(&'static str, Value)> {
    let step = |keyword: &str, n: usize| json!({keyword: vec![json!({"$ref": format!("#/$defs/{n}")}); 50]});
    let tower = |keyword: &str, ground: Value| {
        let mut defs: serde_json::Map<String, Value> =
            (1..17).map(|n| (n.to_string(), step(keyword, n - 1))).collect();
        defs.insert("0".into(), ground);
        json!({"properties": {"x": {"$ref": "#/$defs/16"}}, "$defs": defs})
    };
    let twice = |name: &str| json!({"items": {"$ref": format!("#/$defs/{name}")}});
    let doubled = json!({"type": "array", "allOf": [twice("a"), twice("b")]});
    let lists = json!({"a": doubled, "b": {"type": "array", "minItems": 1, "allOf": [twice("b"), twice("a")]}});
    let words: Vec<String> = (0..40_000).map(|n| format!("word{n}")).collect();
    vec![
        ("allOf", tower("allOf", json!({"type": "string"}))),
        ("anyOf of nothing", tower("anyOf", json!(false))),
        ("anyOf", tower("anyOf", json!({"type": "string"}))),
        ("lists of lists", json!({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": lists})),
        ("size", json!({"properties": {"x": {"enum": words}}})),
    ]
}

#[test]
fn exponentially_growing_schemas_take_bounded_time() {
    let start = std::time::Instant::now();
    for case in cases() {
        for (what, parameters) in explosive_schemas() {
            let tool = Tool(
                json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
            );
            // Whether it is rejected or not, the construction ends.
            let made =
                ForcedTool::new(&tool).and_then(|tool| constraint(&case.form, &[tool], false, &[]));
            assert!(
                made.is_ok() || made.is_err_and(|failure| failure.status == 400),
                "{}: {what}",
                case.title
            );
        }
    }
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

#[test]
fn recursive_schemas_with_inheritance_produce_a_finite_grammar() {
    let all = cases();
    let gemma = all.iter().find(|case| case.title == "gemma4-small").unwrap();
    let node = |own: Value| json!({"type": "object", "properties": {"children": {"type": "array", "items": own}}});
    let base = node(json!({"$ref": "#/$defs/base"}));
    let derived =
        json!({"allOf": [{"$ref": "#/$defs/base"}, node(json!({"$ref": "#/$defs/derived"}))]});
    let parameters = json!({"properties": {"x": {"$ref": "#/$defs/derived"}}, "$defs": {"base": base, "derived": derived}});
    let tool =
        Tool(json!({"type": "function", "function": {"name": "f", "parameters": parameters}}));
    let lark = constraint(&gemma.form, &[ForcedTool::new(&tool).unwrap()], false, &[]).unwrap();
    let Constraint::Lark(lark) = lark else { panic!("{lark:?}") };
    assert!(lark.len() < 20_000, "{}", lark.len());
}
