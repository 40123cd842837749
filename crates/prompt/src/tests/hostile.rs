//! Hostile templates: mutated real ones, deep nesting, endless loops, large texts. Nothing panics
//! or overflows the stack (test threads have 2 MiB), and limits apply before memory runs out.

use serde_json::{Value as Json, json};

use crate::{Chat, Message, PromptError, Template, TemplateFormat, TemplateLimit, render};

/// An xorshift generator, with the same mutations in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

fn sources(file: &str) -> Vec<String> {
    let path = format!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/cases/{}"), file);
    let text = std::fs::read_to_string(path).expect("the case file is part of the repository");
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).expect("a row is one JSON object"));
    rows.filter_map(|row| row["template"].as_str().map(str::to_string)).collect()
}

fn chat_messages() -> Vec<Message> {
    let call = r#"{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":{"a":[1,{"b":null}]}}}]}"#;
    vec![
        Message::new("system", "S"),
        Message::new("user", "Hi é"),
        serde_json::from_str(call).expect("a message"),
        Message { tool_name: Some("f".into()), ..Message::new("tool", "r") },
        Message::new("user", "Bye"),
    ]
}

/// Changes a source in up to four places: deletes or doubles a piece, inserts a piece of another
/// source, or inserts a delimiter.
fn mutate(random: &mut Random, source: &str, other: &str) -> String {
    const MARKS: [&str; 24] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "(",
        ")",
        "[",
        "]",
        "-",
        "|",
        ".",
        "\"",
        "'",
        "\\",
        " in ",
        " is ",
        " end ",
        "$",
        ":=",
        "0x",
        "1e9",
        "\u{1F600}",
    ];
    let mut chars: Vec<char> = source.chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.below(chars.len() + 1);
        let end = (at + random.below(12)).min(chars.len());
        match random.below(4) {
            0 => _ = chars.drain(at..end),
            1 => {
                let piece: Vec<char> = chars[at..end].to_vec();
                _ = chars.splice(at..at, piece);
            }
            2 => {
                let from = random.below(other.chars().count() + 1);
                let piece: Vec<char> = other.chars().skip(from).take(random.below(20)).collect();
                _ = chars.splice(at..end, piece);
            }
            _ => _ = chars.splice(at..at, MARKS[random.below(MARKS.len())].chars()),
        }
    }
    chars.into_iter().collect()
}

fn mutated_templates_never_panic(kind: TemplateFormat, file: &str) {
    let sources = sources(file);
    let messages = chat_messages();
    let tools = [
        json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "array"}}}}}),
    ];
    let chat = Chat { tools: &tools, ..Chat::new(&messages) };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut parsed, mut rendered) = (0, 0);
    for round in 0..4000 {
        let source = &sources[round % sources.len()];
        let other = &sources[random.below(sources.len())];
        let mutated = mutate(&mut random, source, other);
        if let Ok(template) = Template::parse(kind, &mutated) {
            parsed += 1;
            rendered += usize::from(render(&template, &chat).is_ok());
            let _ = (template.capabilities(), template.think_tags(), template.tool_tag());
        }
    }
    // The mutations must reach the evaluator, not only the parser.
    assert!(parsed > 500 && rendered > 200, "{parsed} parsed, {rendered} rendered");
}

#[test]
fn mutated_go_templates_never_panic() {
    mutated_templates_never_panic(TemplateFormat::Go, "go-templates.jsonl");
}

#[test]
fn mutated_jinja_templates_never_panic() {
    mutated_templates_never_panic(TemplateFormat::Jinja, "jinja.jsonl");
}

#[test]
fn deep_sources_are_refused_or_rendered_but_never_overflow_the_stack() {
    let n = 20_000;
    let jinja = [
        "{% if x %}".repeat(n),
        "{% for x in y %}".repeat(n),
        format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n)),
        format!("{{{{ {}{} }}}}", "[".repeat(n), "]".repeat(n)),
        format!("{{{{ {}1 }}}}", "{'a':".repeat(n)),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ {}1 }}}}", "-".repeat(n)),
        format!("{{{{ {}1 }}}}", "- ".repeat(n)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(n)),
        format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(n)),
        format!("{{{{ 1{} }}}}", " ** 1".repeat(n)),
        format!("{{{{ x{} }}}}", ".a".repeat(n)),
        format!("{{{{ 'x'{} }}}}", "|upper".repeat(n)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(n)),
        format!("{{{{ 1{} }}}}", " if 1".repeat(n)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(n)),
        format!("{{{{ 1{} }}}}", " < 1".repeat(n)),
        format!("{{{{ x{} }}}}", "(1)".repeat(n)),
        format!("{{{{ {} }}}}", "x(".repeat(n)),
        format!("{{% set {}x = 1 %}}", "(".repeat(n)),
        format!("{{% if 1 %}}a{}{{% endif %}}", "{% elif 1 %}b".repeat(n)),
        "{% macro m() %}".repeat(n),
    ];
    for source in &jinja {
        if let Ok(template) = Template::parse(TemplateFormat::Jinja, source) {
            let _ = render(&template, &Chat::new(&[]));
        }
    }
    let go = [
        "{{ if 1 }}".repeat(n),
        "{{ range 1 }}".repeat(n),
        format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n)),
        format!("{{{{ {}", "print (".repeat(n)),
        format!("{{{{ 1{} }}}}", " | print".repeat(n)),
        format!("{{{{ ${} }}}}", ".a".repeat(n)),
        format!("{{{{ if 1 }}}}{}{{{{ end }}}}", "{{ else if 1 }}".repeat(n)),
        "{{ define \"x\" }}".repeat(n),
        "{{ block \"x\" . }}".repeat(n),
    ];
    for source in &go {
        if let Ok(template) = Template::parse(TemplateFormat::Go, source) {
            let _ = render(&template, &Chat::new(&[]));
        }
    }
}

fn limit_of(kind: TemplateFormat, source: &str) -> Option<TemplateLimit> {
    let template = Template::parse(kind, source).expect("the template parses");
    match render(&template, &Chat::new(&[Message::new("user", "Hi")])) {
        Err(PromptError::Limit { limit, line }) => {
            assert!(line >= 1);
            Some(limit)
        }
        Ok(_) => None,
        Err(e) => panic!("{source}: {e}"),
    }
}

#[test]
fn endless_recursion_exceeds_the_depth_limit() {
    let jinja = [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a(n) %}{% for i in [1] %}{% if true %}{{ [a(n + 1)][0] ~ '' }}{% endif %}{% endfor %}{% endmacro %}{{ a(1) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}",
        "{% macro m() %}{% call m() %}{{ m() }}{% endcall %}{{ caller is defined and caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(10000) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{% set ns = namespace(l={}) %}{% for i in range(10000) %}{% set ns.l = {'a': ns.l} %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(10000) %}{% for x in [ns.l] %}{% set ns.l = loop %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(l=1) %}{% for i in range(10000) %}{% set ns.l = cycler(ns.l) %}{% endfor %}",
    ];
    for source in jinja {
        assert_eq!(limit_of(TemplateFormat::Jinja, source), Some(TemplateLimit::Depth), "{source}");
    }
    let go = [
        "{{ .Messages | len }}{{ define \"t\" }}{{ template \"t\" . }}{{ end }}{{ template \"t\" . }}",
        "{{ .Messages | len }}{{ define \"t\" }}{{ if true }}{{ with . }}{{ range 1 }}{{ template \"t\" $ }}{{ end }}{{ end }}{{ end }}{{ end }}{{ template \"t\" . }}",
    ];
    for source in go {
        assert_eq!(limit_of(TemplateFormat::Go, source), Some(TemplateLimit::Depth), "{source}");
    }
}

#[test]
fn endless_work_exceeds_the_step_limit() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert_eq!(limit_of(TemplateFormat::Jinja, loops), Some(TemplateLimit::Steps));
    let captures = "{% for a in range(99999) %}{% for b in range(999) %}{% macro m() %}{% endmacro %}{% endfor %}{% endfor %}";
    assert_eq!(limit_of(TemplateFormat::Jinja, captures), Some(TemplateLimit::Steps));
    let go = "{{ .Messages | len }}{{ range 9999999999 }}{{ end }}";
    assert_eq!(limit_of(TemplateFormat::Go, go), Some(TemplateLimit::Steps));
}

#[test]
fn large_texts_exceed_a_limit_before_they_are_created() {
    let jinja = [
        "{{ 'a' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=['aaaa']) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=['aaaa']) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000)|replace('', 'b' * 1000000) }}",
        "{{ ('b' * 1000000).join('a' * 1000000) }}",
        "{{ (['a' * 1000000] * 100000)|join }}",
        "{{ 'a'.center(99999999999) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ ('{0}' * 1000).format('a' * 1000000) }}",
        "{{ ('\\n' * 1000000)|indent(1000, blank=true) }}",
        "{% for i in range(99999) %}{{ 'a' * 1000000 }}{% endfor %}",
    ];
    for source in jinja {
        let limit = limit_of(TemplateFormat::Jinja, source);
        assert!(
            matches!(limit, Some(TemplateLimit::Text | TemplateLimit::Steps)),
            "{source}: {limit:?}"
        );
    }
    let go = [
        "{{ .Messages | len }}{{ $s := \"a\" }}{{ range 99 }}{{ $s = print $s $s }}{{ end }}",
        "{{ .Messages | len }}{{ range 999999 }}{{ printf \"%1000d\" 1 }}{{ end }}",
    ];
    for source in go {
        let limit = limit_of(TemplateFormat::Go, source);
        assert!(
            matches!(limit, Some(TemplateLimit::Text | TemplateLimit::Steps)),
            "{source}: {limit:?}"
        );
    }
}

#[test]
fn comparing_shared_lists_counts_towards_the_step_limit() {
    let source = "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}\
        {% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}";
    assert_eq!(limit_of(TemplateFormat::Jinja, source), Some(TemplateLimit::Steps));
}

/// Ten million letters, and loops that process all of them in one or two steps an iteration.
const LONG_TEXT: &str =
    "{% set s = 'x' * 10000000 %}{% set l = range(99999)|list %}{% for i in range(99999) %}";

#[test]
fn reading_a_long_text_counts_towards_the_step_limit() {
    let turns = [
        "{% set x = s[i] %}",
        "{% if s == s ~ '' %}{% endif %}",
        "{% if s < s %}{% endif %}",
        "{% if s is lower %}{% endif %}",
        "{% if s is sameas s %}{% endif %}",
        "{% if {s: 1} %}{% endif %}",
        "{% if {}[s] %}{% endif %}",
        "{% if {}[l] %}{% endif %}",
        "{% if {}.get(s) %}{% endif %}",
        "{% if s in {} %}{% endif %}",
        "{% if i|attr(s) %}{% endif %}",
        "{% if ''|replace(s, s) %}{% endif %}",
        "{% if [1]|join(s) %}{% endif %}",
        "{% if 1|tojson(separators=(s, s)) %}{% endif %}",
        "{% if joiner(s) %}{% endif %}",
        "{% if dict(**{s: 1}) %}{% endif %}",
        "{% if '%.0s' % s %}{% endif %}",
        "{% if '{:.0}'.format(s) %}{% endif %}",
        "{% if loop.changed(s ~ '') %}{% endif %}",
    ];
    for turn in turns {
        let source = format!("{LONG_TEXT}{turn}{{% endfor %}}");
        assert_eq!(limit_of(TemplateFormat::Jinja, &source), Some(TemplateLimit::Steps), "{turn}");
    }
    let go = "{{ .Messages | len }}{{ $s := \"aaaaaaaaaaaaaaaa\" }}{{ range 20 }}{{ $s = print $s $s }}{{ end }}";
    for turn in ["slice $s 5", "eq $s $s", "lt $s $s", "html $s", "printf \"%.0s\" $s"] {
        let source =
            format!("{go}{{{{ range 99999 }}}}{{{{ if {turn} }}}}{{{{ end }}}}{{{{ end }}}}");
        assert_eq!(limit_of(TemplateFormat::Go, &source), Some(TemplateLimit::Steps), "{turn}");
    }
}

#[test]
fn unbounded_work_in_one_operation_exceeds_a_limit() {
    let jinja = [
        // One copy for each item, each as long as the longest text.
        "{{ (['a' * 1000000] * 100000)|sort }}",
        "{{ (['a' * 1000000] * 100000)|unique|list }}",
        "{{ (['a' * 1000000] * 100000)|max }}",
        "{{ ([{'a': 'a' * 1000000}] * 100000)|groupby('a') }}",
        "{{ (['a' * 1000000 ~ 'b'] * 100000)|sort(case_sensitive=true) }}",
        // Keys with shared parts, which are hashed separately.
        "{% set ns = namespace(t=(1,)) %}{% for i in range(99) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} }}",
        "{% set ns = namespace(t=(1,)) %}{% for i in range(99) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ ns.t in {} }}",
        // Texts that are written many times and truncated to nothing.
        "{{ ('%(a).0s' * 100000) % {'a': 'a' * 10000000} }}",
        "{{ ('{0:.0}' * 100000).format('a' * 10000000) }}",
        "{{ ('{a}' * 100000).format(**dict(range(90000)|map('string')|batch(2)|list, a='')) }}",
        "{{ ('x' * 10000000).startswith(('x' * 10000000 ~ 'y',) * 100000) }}",
        "{{ (['x'] * 100000)|map(attribute='0.' * 100000 ~ '0')|list }}",
    ];
    for source in jinja {
        let limit = limit_of(TemplateFormat::Jinja, source);
        assert!(
            matches!(limit, Some(TemplateLimit::Depth | TemplateLimit::Steps)),
            "{source}: {limit:?}"
        );
    }
    // Searching once for each removed character, and many variables, are fast.
    let quick = [
        "{{ ('a' * 1000000).strip('b' * 1000000 ~ 'a')|length }}".to_owned(),
        (0..40_000).map(|i| format!("{{% set v{i:05} = 1 %}}")).collect::<String>()
            + "{% for i in range(99999) %}{{ v99999 }}{% endfor %}",
    ];
    for source in quick {
        assert_eq!(limit_of(TemplateFormat::Jinja, &source), None);
    }
    let go =
        "{{ .Messages | len }}{{ $s := \"%[1]s\" }}{{ range 20 }}{{ $s = print $s $s }}{{ end }}";
    let long = "{{ $t := print $s }}{{ printf $s $t }}";
    let limit = limit_of(TemplateFormat::Go, &format!("{go}{long}"));
    assert!(matches!(limit, Some(TemplateLimit::Text | TemplateLimit::Steps)), "{limit:?}");
    // Padding that is longer than the argument.
    let padded = go.replace("%[1]s", "%999[1]d").replace("range 20", "range 14");
    let turns = "{{ range 99 }}{{ if printf $s 1 }}{{ end }}{{ end }}";
    assert_eq!(
        limit_of(TemplateFormat::Go, &format!("{padded}{turns}")),
        Some(TemplateLimit::Steps)
    );
    // Brackets that are never closed.
    let open = go.replace("%[1]s", "%[");
    let limit = limit_of(TemplateFormat::Go, &format!("{open}{{{{ $t := printf $s 1 }}}}"));
    assert!(matches!(limit, None | Some(TemplateLimit::Text | TemplateLimit::Steps)), "{limit:?}");
}

#[test]
fn first_and_last_do_not_expand_a_long_value_to_a_list() {
    let source = "{% set s = 'a' ~ 'é' * 1000000 ~ 'z' %}{% set l = [1] * 900000 + [2] %}{% set g = 'xyz'|map('upper') %}\
        {{ [s|first, s|last, l|first, l|last, {'k': 1, 'm': 2}|first, {'k': 1, 'm': 2}|last, g|first] }}\
        {{ []|first is undefined }}{{ ''|last is undefined }}{{ ''|first is undefined }}";
    let template = Template::parse(TemplateFormat::Jinja, source).expect("it parses");
    let shown = render(&template, &Chat::new(&[])).expect("it renders");
    assert_eq!(shown, "['a', 'z', 1, 2, 'k', 'm', 'X']TrueTrueTrue");
}

#[test]
fn long_texts_are_never_expanded_to_lists() {
    let lists = [
        "s|list",
        "s|random",
        "s|sort|first",
        "dict(s)",
        "range(*s)",
        "''.join(s)",
        "s|map('upper')|first",
        "[s]|urlencode",
        "1|tojson(separators=s)",
    ];
    let lists = lists.map(|list| format!("{{{{ {list} }}}}"));
    let turns =
        ["{% set a, b = s %}", "{% for c in s %}{% endfor %}", "{% for c in s if 0 %}{% endfor %}"]
            .map(str::to_owned);
    for list in lists.iter().chain(&turns) {
        let source = format!("{{% set s = 'a' * 30000000 %}}{list}");
        assert_eq!(limit_of(TemplateFormat::Jinja, &source), Some(TemplateLimit::Text), "{list}");
    }
}

#[test]
fn names_longer_than_1024_bytes_are_refused() {
    let name = "a".repeat(1025);
    let source = format!("{{{{ {name} }}}}");
    let error =
        Template::parse(TemplateFormat::Jinja, &source).map(|_| ()).expect_err("it is longer");
    assert!(error.to_string().contains("a name is longer than 1024 bytes"), "{error}");
    let source = format!("{{{{ {} is defined }}}}", &name[1..]);
    assert_eq!(limit_of(TemplateFormat::Jinja, &source), None);
}

#[test]
fn a_very_long_source_is_refused_before_it_is_parsed() {
    let source = "{".repeat(crate::MAX_SOURCE_BYTES + 1);
    for kind in [TemplateFormat::Go, TemplateFormat::Jinja] {
        let error = Template::parse(kind, &source).err();
        assert_eq!(error, Some(PromptError::Limit { line: 0, limit: TemplateLimit::Source }));
    }
}

#[test]
fn errors_name_the_line_of_the_template() {
    let template = Template::parse(TemplateFormat::Jinja, "a\nb\n{{ nope.x }}").expect("it parses");
    let error = render(&template, &Chat::new(&[])).expect_err("nope is undefined");
    assert_eq!(error.to_string(), "chat template, line 3: 'nope' is undefined");
    let error =
        Template::parse(TemplateFormat::Go, "a\nb\n{{ nope }}").expect_err("no such function");
    assert_eq!(error.to_string(), "template: :3: function \"nope\" not defined");
}
