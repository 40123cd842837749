//! Measures each phase of the compilation of hostile constraints:
//! `cargo test -p puna-sampler --lib phases -- --ignored --nocapture`. `PUNA_PHASES=TEXT` measures
//! the cases with this text in their name.

use std::sync::Mutex;

use super::*;

/// Number of tokens of the vocabulary, as in the models of Llama 3.
const LARGE_VOCABULARY: usize = 128_000;
/// Number of the check of cancellation that each phase ends with.
const PHASES: [(&str, usize); 5] =
    [("translate", 1), ("load", 2), ("first bytes", 259), ("parser", 260), ("shortest end", 261)];

/// Tokens of all bytes, and of words with up to four letters with and without a space before them.
pub(super) fn large_vocabulary() -> GrammarCompiler {
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.extend((10..1000).map(|number: u32| number.to_string().into_bytes()));
    let letters =
        |number: usize| (0..4).map(move |place| b'a' + (number / 26_usize.pow(place) % 26) as u8);
    let further = (0..).map(|number| match number % 2 {
        0 => letters(number / 2 * 7).collect(),
        _ => std::iter::once(b' ').chain(letters(number / 2 * 7)).collect(),
    });
    words.extend(further.take(LARGE_VOCABULARY - words.len()));
    let texts = words.iter().map(|bytes| GrammarToken { bytes, is_text: true });
    let end = GrammarToken { bytes: b"<end>", is_text: false };
    GrammarCompiler::new(texts.chain([end]), &[LARGE_VOCABULARY as u32]).unwrap()
}

/// Processor time of all threads, in steps of 10 ms.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let numbers = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = numbers.skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Repeats a text with the number of each repetition until it has about `bytes` bytes.
fn fill(bytes: usize, part: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for number in 0.. {
        let next = part(number);
        if text.len() + next.len() > bytes {
            break;
        }
        text.push_str(&next);
    }
    text
}

/// A pseudo-random word of a number.
fn word(number: usize) -> String {
    let mut state = number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    (0..12)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'a' + (state >> 33) as u8 % 26)
        })
        .collect()
}

/// Almost the largest constraint.
const FULL: usize = MAX_CONSTRAINT_BYTES - 200;

fn regexes() -> Vec<(&'static str, String)> {
    let words = |bytes| fill(bytes, |n| format!("{}|", word(n)));
    vec![
        ("nested repeats", "(a{1,500}){1,500}".into()),
        ("three nested repeats", "((a{1,500}){1,500}b{1,300}){1,500}".into()),
        ("ambiguous", format!("({})+", "(a|aa)+".repeat(50))),
        ("ambiguous ends", "(.*a.{1,300}b.{1,300}c){1,50}".into()),
        ("exponential states", "(.*a.{18})|(.*b.{17})".into()),
        ("unicode classes", r"[\p{L}\p{N}--\p{Lu}]{1,300}\P{Greek}{1,100}".repeat(100)),
        (
            "distinct unicode classes",
            fill(FULL, |n| format!("[\\p{{L}}&&[^\\u{{{:x}}}]]", 0x4e00 + n)),
        ),
        ("case insensitive", format!("(?i){}", fill(20_000, |n| format!("{}|", word(n))) + "x")),
        ("words", words(FULL) + "x"),
        ("words repeated", format!("({}x){{1,100}}", words(FULL - 20))),
        ("words in any text", format!(".*({}x).*", words(FULL - 20))),
        ("letters optional", "a?".repeat(FULL / 2)),
        ("optional words", fill(FULL, |n| format!("({})?", word(n)))),
        ("long literal", fill(FULL, word)),
        (
            "many classes",
            fill(FULL, |n| {
                format!("[{}-{}]", (b'a' + (n % 13) as u8) as char, (b'n' + (n % 7) as u8) as char)
            }),
        ),
        ("stars", fill(FULL, |n| format!("{}*", word(n)))),
        ("repeated pieces", fill(FULL, |n| format!("({}){{0,{}}}", word(n), n % 900 + 1))),
        ("dots", ".{0,100}x".repeat(FULL / 9)),
        ("deep", format!("{}a{}", "(".repeat(240), ")?".repeat(240))),
        ("deep repeats", format!("{}a{}", "(b".repeat(200), "){1,9}".repeat(200))),
    ]
}

fn larks() -> Vec<(&'static str, String)> {
    let rules = |n: usize| format!("r{n}: \"{}\" r{} | \"{}\"\n", word(n), n + 1, word(n + 9));
    let rule_count = 5000;
    vec![
        (
            "rules",
            format!(
                "start: r0\n{}r{rule_count}: \"z\"\n",
                (0..rule_count).map(rules).collect::<String>()
            ),
        ),
        (
            "nullable rules",
            format!(
                "start: r0\n{}r8000: \"z\"\n",
                (0..8000).map(|n| format!("r{n}: r{}? r{}?\n", n + 1, n + 1)).collect::<String>()
            ),
        ),
        (
            "recursion",
            format!(
                "start: r0\n{}r999: \"z\"\n",
                (0..999)
                    .map(|n| format!("r{n}: r{} r0 | r0 r{} | \"a\"\n", n + 1, n + 1))
                    .collect::<String>()
            ),
        ),
        ("literals", format!("start: {}\"z\"", fill(FULL, |n| format!("\"{}\" | ", word(n))))),
        (
            "literal sequence",
            format!("start: {}\"z\"", fill(FULL, |n| format!("\"{}\" ", word(n)))),
        ),
        ("short literals", format!("start: {}\"z\"", fill(FULL, |n| format!("\"{n:x}\"|")))),
        ("terminals", format!("start: {}\"z\"", fill(FULL, |n| format!("/{n:x}+/|")))),
        ("wide terminals", format!("start: {}\"z\"", fill(FULL, |n| format!("/.*{n:x}.*/|")))),
        (
            "intersections",
            format!("start: T\nT: {}/.*z.*/", fill(2000, |n| format!("/.*{n:x}.*/ & "))),
        ),
        (
            "short intersection",
            format!("start: T\nT: {}/.*z.*/", fill(120, |n| format!("/.*{n:x}.*/ & "))),
        ),
        (
            "intersection behind a prefix",
            format!(
                "start: T\nT: {}/x+/",
                (0..14).map(|n| format!("/xxx(?s:.*)[ab]{n}x/ & ")).collect::<String>()
            ),
        ),
        (
            "growing intersection",
            format!(
                "start: T\nT: {}/.*x/",
                (0..10).map(|n| format!("/(?s:.*)a{{{}}}b/ & ", n + 1)).collect::<String>()
            ),
        ),
        ("negations", format!("start: T\nT: {}/[a-z]+/", fill(FULL, |n| format!("~/{n:x}+/ & ")))),
        (
            "long negations",
            format!(
                "start: T\nT: {}/(?s:.*)/",
                fill(3000, |n| format!("~/(?s:.*){n:x}(?s:.*)/ & "))
            ),
        ),
        ("rule repeats", "start: (\"a\" (\"b\" | \"c\" \"d\"){1,500}){1,500}".into()),
        (
            "nested rule repeats",
            "start: a{1,999}\na: b{1,999}\nb: c{1,999}\nc: \"x\" | \"y\" a".into(),
        ),
        (
            "many rule repeats",
            format!(
                "start: r0\n{}r2000: \"z\"\n",
                (0..2000)
                    .map(|n| format!("r{n}: (\"{}\" r{}){{1,900}}\n", word(n), n + 1))
                    .collect::<String>()
            ),
        ),
        (
            "many schemas",
            format!(
                "start: {}\"z\"",
                fill(FULL, |n| format!("%json {{\"type\":\"string\",\"maxLength\":{}}} | ", n + 1))
            ),
        ),
        (
            "many objects",
            format!(
                "start: {}\"z\"",
                fill(FULL, |n| format!(
                    "%json {{\"type\":\"object\",\"properties\":{{\"{n:x}\":{{}}}}}} | "
                ))
            ),
        ),
        ("substrings", format!("start: %regex {{\"substring_chars\": \"{}\"}}", fill(FULL, word))),
        (
            "substring words",
            format!("start: %regex {{\"substring_words\": \"{}\"}}", fill(FULL, |n| word(n) + " ")),
        ),
        (
            "substring letters",
            format!("start: %regex {{\"substring_chars\": \"{}\"}}", "a".repeat(FULL)),
        ),
        (
            "doubled terminals",
            format!(
                "start: T0\n{}T16: \"a\" | \"b\"\n",
                (0..16).map(|n| format!("T{n}: T{} T{}\n", n + 1, n + 1)).collect::<String>()
            ),
        ),
        (
            "terminal chain",
            format!(
                "start: T0\n{}T4000: \"a\" | \"b\"\n",
                (0..4000)
                    .map(|n| format!("T{n}: \"{}\" T{}\n", word(n), n + 1))
                    .collect::<String>()
            ),
        ),
        (
            "repeated terminals",
            format!(
                "start: T0\n{}T8: \"a\" | \"b\"\n",
                (0..8)
                    .map(|n| format!("T{n}: (T{} \"{n}\"){{1,900}}\n", n + 1))
                    .collect::<String>()
            ),
        ),
        (
            "ignore",
            format!(
                "start: {}\"z\"\n%ignore /(.*x.{{1,300}}y)+/",
                fill(2000, |n| format!("\"{}\" ", word(n)))
            ),
        ),
        (
            "terminals within the limit",
            format!(
                "start: {}\"z\"",
                (0..11_900).map(|n| format!("/{n:x}+y/|")).collect::<String>()
            ),
        ),
        (
            "rules within the limit",
            format!(
                "start: r0\n{}r6500: \"z\"\n",
                (0..6500).map(|n| format!("r{n}: r{}? r{}?\n", n + 1, n + 1)).collect::<String>()
            ),
        ),
        (
            "recursion within the limit",
            format!(
                "start: r0\n{}r400: \"z\"\n",
                (0..400)
                    .map(|n| format!("r{n}: r{} r0 | r0 r{} | \"a\"\n", n + 1, n + 1))
                    .collect::<String>()
            ),
        ),
        (
            "intersections within the limit",
            format!(
                "start: {}\"z\"\n{}",
                (0..60).map(|n| format!("T{n} | ")).collect::<String>(),
                (0..60)
                    .map(|n| format!(
                        "T{n}: {}/.*/\n",
                        (0..10)
                            .map(|k| format!("/.*a{{{},}}b/ & ", n * 10 + k + 1))
                            .collect::<String>()
                    ))
                    .collect::<String>()
            ),
        ),
        (
            "optional parts within the limit",
            format!("start: T\nT: {}\n", "(\"a\" | /[b-d]/)? ".repeat(1900)),
        ),
        (
            "optional classes within the limit",
            format!(
                "start: /{}/",
                (0..1900)
                    .map(|n| format!(
                        "[{}{}]?",
                        char::from(b'a' + (n % 26) as u8),
                        char::from(b'A' + (n % 25) as u8)
                    ))
                    .collect::<String>()
            ),
        ),
        (
            "substrings within the limit",
            format!("start: %regex {{\"substring_chars\": \"{}\"}}", fill(29_990, word)),
        ),
        (
            "counted parameters",
            "start: r::0\nr::_: \"a\" r::incr([0:16]) %if bit_count_lt(_, 60)\n | \"b\"".into(),
        ),
        ("nested groups", format!("start: {}\"a\"{}", "(".repeat(60_000), ")?".repeat(60_000))),
        (
            "parameters",
            "start: r::0\nr::_: \"a\" r::incr([0:16]) %if bit_count_lt(_, 60000)\n | \"b\"".into(),
        ),
        (
            "lazy",
            format!(
                "start: {}",
                fill(20_000, |n| format!("t{n} "))
                    + "\n"
                    + &fill(200_000, |n| format!("t{n}[lazy]: /.*{n:x}/\n"))
            ),
        ),
    ]
}

fn gbnfs() -> Vec<(&'static str, String)> {
    vec![
        ("words", format!("root ::= {}\"z\"", fill(FULL, |n| format!("\"{}\" | ", word(n))))),
        (
            "recursive words",
            format!(
                "root ::= ({}\"z\") root | \"y\"",
                fill(FULL - 20, |n| format!("\"{}\" | ", word(n)))
            ),
        ),
        (
            "many terminals",
            format!("root ::= {}\"z\"", fill(FULL - 20, |n| format!("\"{n:x}\" root | "))),
        ),
        (
            "doubling",
            format!(
                "root ::= r0\n{}r14 ::= \"ab\" | \"c\"\n",
                (0..14).map(|n| format!("r{n} ::= r{} r{}\n", n + 1, n + 1)).collect::<String>()
            ),
        ),
        (
            "recursive doubling",
            format!(
                "root ::= \"(\" root \")\" | r0\n{}r14 ::= \"ab\" | \"c\"\n",
                (0..14).map(|n| format!("r{n} ::= r{} r{}\n", n + 1, n + 1)).collect::<String>()
            ),
        ),
        (
            "copies",
            format!(
                "long ::= {}\"z\"\nroot ::= {}\"z\"\n",
                fill(4000, |n| format!("\"{}\" | ", word(n))),
                fill(60_000, |n| format!("long \"{n:x}\" root | "))
            ),
        ),
        ("repeats", "root ::= ((([a-z]{1,500} \" \"){1,500} \",\"){1,500} \";\"){1,500}".into()),
        ("recursive repeats", "root ::= (\"a\" root | \"b\"){1,2000}".into()),
        (
            "nested recursive repeats",
            "root ::= ((\"a\" root | \"b\"){1,2000} \"c\"){1,2000}".into(),
        ),
        (
            "classes",
            format!(
                "root ::= {}",
                fill(FULL, |n| format!(
                    "[^{}-\\u{:04x}] ",
                    (b'a' + (n % 20) as u8) as char,
                    0x100 + n % 0xc000
                ))
            ),
        ),
        ("any", format!("root ::= {}", "(.* \"x\")? ".repeat(FULL / 12))),
    ]
}

fn schemas() -> Vec<(&'static str, Value)> {
    let named = |count: usize, make: &dyn Fn(usize) -> Value| -> Value {
        Value::Object((0..count).map(|n| (word(n), make(n))).collect())
    };
    let formats = ["date-time", "uri", "email", "ipv6"];
    let all_of = |count, pattern: &dyn Fn(usize) -> String| -> Vec<Value> {
        (0..count).map(|n| json!({"type": "string", "pattern": pattern(n)})).collect()
    };
    let texts = |count| (0..count).map(word).collect::<Vec<_>>();
    vec![
        ("enum", json!({"enum": texts(16_000)})),
        (
            "enums",
            json!({"type": "object", "properties": named(100, &|n| json!({"enum": (0..120).map(|k| word(n * 1000 + k)).collect::<Vec<_>>()}))}),
        ),
        ("numbers", json!({"enum": (0..40_000).collect::<Vec<_>>()})),
        (
            "number bounds",
            json!({"type": "object", "properties": named(3000, &|n| json!({"type": "number", "minimum": n as f64 / 7.0, "maximum": 1e9 + n as f64}))}),
        ),
        (
            "multiples",
            json!({"type": "object", "properties": named(3000, &|n| json!({"type": "integer", "multipleOf": 900 + n}))}),
        ),
        (
            "two multiples",
            json!({"allOf": [{"type": "integer", "multipleOf": 1999}, {"type": "integer", "multipleOf": 1993}]}),
        ),
        (
            "optional properties",
            json!({"type": "object", "properties": named(5000, &|_| json!({"type": "string"}))}),
        ),
        (
            "open object",
            json!({"type": "object", "properties": named(5000, &|_| json!({"type": "string"})), "additionalProperties": {"type": "string"}}),
        ),
        (
            "patterns",
            json!({"type": "object", "properties": named(2500, &|n| json!({"type": "string", "pattern": format!("^(.*{n}.{{1,40}})+$")}))}),
        ),
        (
            "lookaheads",
            json!({"type": "string", "pattern": format!("^{}[a-z0-9]+$", fill(200, |n| format!("(?=.*{n})")))}),
        ),
        (
            "negative lookaheads",
            json!({"type": "string", "pattern": format!("^{}[a-z0-9]+$", fill(FULL / 2, |n| format!("(?!{})", word(n))))}),
        ),
        (
            "pattern and length",
            json!({"type": "string", "pattern": "^(a|b|ab|.*x)*$", "minLength": 1000, "maxLength": 5000}),
        ),
        (
            "patterns of one value",
            json!({"allOf": (0..12).map(|n| json!({"type": "string", "pattern": format!("{}.{{3}}{n}", word(n).split_at(2).0)})).collect::<Vec<_>>()}),
        ),
        (
            "lengths",
            json!({"type": "object", "properties": named(3500, &|n| json!({"type": "string", "maxLength": 1000 + n}))}),
        ),
        (
            "items",
            json!({"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 200, "maxItems": 900}, "maxItems": 900}, "maxItems": 900}),
        ),
        (
            "any of",
            json!({"anyOf": (0..3500).map(|n| json!({"type": "object", "properties": {word(n): {"type": "integer"}}})).collect::<Vec<_>>()}),
        ),
        (
            "short patterns of one value",
            json!({"allOf": (1..10).map(|n| json!({"type": "string", "pattern": format!("(a|b){{{n},}}")})).collect::<Vec<_>>()}),
        ),
        (
            "many short patterns of one value",
            json!({"allOf": (1..60).map(|n| json!({"type": "string", "pattern": format!("(a|b){{{n},}}")})).collect::<Vec<_>>()}),
        ),
        (
            "unanchored patterns of one value",
            json!({"allOf": all_of(24, &|n| format!("[ab]{n}x"))}),
        ),
        (
            "patterns of one value by several keywords",
            json!({"allOf": (0..24).map(|n| {
                let text = json!({"type": "string", "pattern": format!("[ab]{n}x")});
                match n % 3 {
                    0 => json!({"properties": {"a": text}, "required": ["a"]}),
                    1 => json!({"additionalProperties": text}),
                    _ => json!({"patternProperties": {"^a": text}}),
                }
            }).collect::<Vec<_>>()}),
        ),
        (
            "repeated patterns of one value",
            json!({"allOf": all_of(8, &|n| format!("^(a?){{30}}{n}$"))}),
        ),
        (
            "long repeats of one value",
            json!({"allOf": all_of(3, &|n| format!("^(a?){{1000}}{n}$"))}),
        ),
        (
            "formats of one value",
            json!({"allOf": formats.map(|format| json!({"type": "string", "format": format}))}),
        ),
        (
            "property names of one object",
            json!({"allOf": (0..24).map(|n| json!({"type": "object", "propertyNames": {"pattern": format!("[ab]{n}x")}})).collect::<Vec<_>>()}),
        ),
        (
            "overlapping pattern properties",
            json!({"type": "object", "patternProperties": (0..3).map(|n| (format!("^(a?){{1000}}{n}$"), json!({"type": "integer"}))).collect::<serde_json::Map<_, _>>()}),
        ),
        (
            "wide patterns of one value",
            json!({"allOf": (1..3).map(|n| json!({"type": "string", "pattern": format!("({}z){{{n},}}", fill(300, |n| format!("{}{n}|", char::from(b'A' + n as u8 % 60))))})).collect::<Vec<_>>()}),
        ),
        (
            "one of",
            json!({"oneOf": (0..1500).map(|n| json!({"type": "object", "properties": {"kind": {"const": word(n)}, "a": {"type": "string"}}, "required": ["kind"]})).collect::<Vec<_>>()}),
        ),
        (
            "crossed any of",
            json!({"allOf": (0..12).map(|n| json!({"anyOf": (0..4).map(|k| json!({"type": "object", "properties": {word(n * 9 + k): {"type": "integer"}}})).collect::<Vec<_>>()})).collect::<Vec<_>>()}),
        ),
        (
            "references",
            json!({"$ref": "#/$defs/a0", "$defs": Value::Object((0..3000).map(|n| (format!("a{n}"), json!({"type": "object", "properties": {"x": {"$ref": format!("#/$defs/a{}", (n + 1) % 3000)}, "y": {"$ref": format!("#/$defs/a{}", (n * 7) % 3000)}}}))).collect())}),
        ),
        (
            "property names",
            json!({"type": "object", "propertyNames": {"pattern": "^(.*a.{1,30}b)+$"}, "additionalProperties": {"type": "string"}}),
        ),
        (
            "pattern properties",
            json!({"type": "object", "patternProperties": (0..300).map(|n| (format!("^{}.*$", word(n)), json!({"type": "integer"}))).collect::<serde_json::Map<_, _>>()}),
        ),
        (
            "formats",
            json!({"type": "object", "properties": named(4000, &|n| json!({"type": "string", "format": formats[n % 4]}))}),
        ),
    ]
}

fn corpus() -> Vec<(String, Constraint)> {
    let mut all = Vec::new();
    let text = |form: &'static str, make: fn(String) -> Constraint| {
        move |(name, text): (&'static str, String)| (format!("{form}: {name}"), make(text))
    };
    all.extend(regexes().into_iter().map(text("regex", Constraint::Regex)));
    all.extend(larks().into_iter().map(text("lark", Constraint::Lark)));
    all.extend(gbnfs().into_iter().map(text("gbnf", Constraint::Gbnf)));
    let schema = |(name, schema)| (format!("schema: {name}"), Constraint::schema(schema));
    all.extend(schemas().into_iter().map(schema));
    all
}

#[test]
#[ignore = "prints times; some constraints take seconds"]
fn phases_of_hostile_constraints() {
    let filter = std::env::var("PUNA_PHASES").unwrap_or_default();
    let grammars = large_vocabulary();
    for (name, constraint) in corpus().into_iter().filter(|(name, _)| name.contains(&filter)) {
        let checks = Mutex::new(Vec::new());
        let start = processor_time();
        let result = grammars.compile_unless(&constraint, true, &|| {
            if is_compiling_thread() {
                checks.lock().unwrap().push(processor_time() - start);
            }
            false
        });
        let total = processor_time() - start;
        let mut checks = checks.into_inner().unwrap();
        checks.push(total);
        let mut line = format!("{name:32} {:>7} {:>7.2}", constraint.bytes(), total.as_secs_f64());
        let mut before = Duration::ZERO;
        for (phase, check) in PHASES.into_iter().chain([("first mask", usize::MAX)]) {
            let Some(at) = checks.get(check.min(checks.len() - 1)) else { continue };
            let took = (*at).saturating_sub(before).as_secs_f64();
            before = *at;
            if took >= 0.1 {
                line += &format!(", {phase} {took:.2}");
            }
        }
        let result = match result {
            Ok(_) => "accepted".into(),
            Err(error) => error.to_string().chars().take(110).collect::<String>(),
        };
        eprintln!("{line}: {result}");
    }
}
