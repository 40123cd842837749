//! Adaptation of conversations that templates would refuse or write incompletely.

use serde_json::{Map, json};

use crate::{
    Adaptation, Adaptations, Chat, FunctionCall, Message, MessageRules, PromptError,
    RenderedPrompt, Renderer, Template, TemplateFormat, ToolCall, render, render_adapted,
};

const SYSTEM_FIRST: &str = "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}\
    {{ raise_exception('system must come first') }}{%- endif %}\n[{{ m.role }}]{{ m.content }}{%- endfor %}\
    {%- if add_generation_prompt %}\n[assistant]{% endif %}";

const ALTERNATING: &str = "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('roles must alternate') }}{%- endif %}\n[{{ m.role }}]{{ m.content | trim }}{%- endfor %}\
    {%- if add_generation_prompt %}\n[assistant]{% endif %}";

const NO_SYSTEM: &str = "{%- if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{%- endif %}\
    {%- for m in messages %}\n[{{ m.role }}]{{ m.content }}{%- endfor %}";

const GO: &str = "{{- if .System }}[system]{{ .System }}\n{{ end }}{{- range .Messages }}\
    {{- if eq .Role \"user\" }}[user]{{ .Content }}\n{{ else if eq .Role \"assistant\" }}[assistant]{{ .Content }}\n\
    {{ else if eq .Role \"tool\" }}[user]<result>{{ .Content }}</result>\n{{ end }}{{- end }}[assistant]";

fn jinja(source: &str) -> Template {
    Template::parse(TemplateFormat::Jinja, source).unwrap()
}

fn message(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

fn calls(ids: &[&str]) -> Message {
    let call = |(index, id): (usize, &&str)| {
        let arguments = Map::from_iter([("command".to_owned(), json!(format!("echo {id}")))]);
        ToolCall {
            id: (*id).into(),
            function: FunctionCall { index, name: "bash".into(), arguments },
        }
    };
    Message { tool_calls: ids.iter().enumerate().map(call).collect(), ..message("assistant", "") }
}

fn result(id: &str, content: &str) -> Message {
    Message {
        tool_call_id: Some(id.into()),
        tool_name: Some("bash".into()),
        ..message("tool", content)
    }
}

fn adapted(template: &Template, messages: &[Message]) -> Result<RenderedPrompt, PromptError> {
    let now = Some(jiff::civil::DateTime::default());
    render_adapted(
        template,
        &Chat { rules: Some(MessageRules::probe(template)), now, ..Chat::new(messages) },
    )
}

fn prompt(template: &Template, messages: &[Message]) -> (String, Vec<Adaptation>) {
    let RenderedPrompt { prompt, adaptations } = adapted(template, messages).unwrap();
    (prompt, adaptations.into_iter().collect())
}

/// Returns true if the prompt contains the texts in this order.
fn has_in_order(prompt: &str, texts: &[&str]) -> bool {
    let mut rest = prompt;
    texts.iter().all(|text| match rest.find(text) {
        Some(at) => {
            rest = &rest[at + text.len()..];
            true
        }
        None => false,
    })
}

#[test]
fn a_late_system_message_becomes_a_marked_user_message() {
    let (prompt, done) =
        prompt(&jinja(SYSTEM_FIRST), &[message("user", "u"), message("system", "S")]);
    assert_eq!(prompt, "[user]u[user]<system>\nS\n</system>[assistant]");
    assert_eq!(done, [Adaptation::Renamed]);
}

#[test]
fn leading_system_and_developer_messages_become_one() {
    let template = jinja(SYSTEM_FIRST);
    let two = [message("developer", "A"), message("developer", "B"), message("user", "u")];
    let (text, done) = prompt(&template, &two);
    assert_eq!(text, "[system]A\n\nB[user]u[assistant]");
    assert_eq!(done, [Adaptation::Merged, Adaptation::Renamed]);
    let render_both = [message("system", "I"), message("developer", "D"), message("user", "u")];
    assert_eq!(prompt(&template, &render_both).0, "[system]I\n\nD[user]u[assistant]");
}

#[test]
fn neighbours_of_one_role_are_merged_if_roles_must_alternate() {
    let template = jinja(ALTERNATING);
    let (text, done) = prompt(&template, &[message("user", "a"), message("user", "b")]);
    assert_eq!(
        (text.as_str(), done.as_slice()),
        ("[user]a\n\nb[assistant]", &[Adaptation::Merged][..])
    );
    let conversation_of = [
        message("user", "a"),
        calls(&["c"]),
        result("c", "R"),
        message("assistant", "k"),
        message("user", "b"),
    ];
    let (text, done) = prompt(&template, &conversation_of);
    assert!(
        has_in_order(
            &text,
            &["[user]a", "[assistant]", "bash", "echo c", "[user]", "R", "[assistant]k", "[user]b"]
        ),
        "{text}"
    );
    assert_eq!(done, [Adaptation::Placeholder, Adaptation::Renamed]);
    let (text, done) = prompt(&template, &[message("assistant", "a"), message("user", "b")]);
    assert!(has_in_order(&text, &["[user]", "[assistant]a", "[user]b"]), "{text}");
    assert_eq!(done, [Adaptation::Placeholder]);
}

#[test]
fn a_system_message_moves_into_the_first_user_message_if_the_template_has_no_system_role() {
    let (text, done) = prompt(&jinja(NO_SYSTEM), &[message("system", "S"), message("user", "u")]);
    assert_eq!((text.as_str(), done.as_slice()), ("[user]S\n\nu", &[Adaptation::Moved][..]));
    let (text, done) = prompt(&jinja(NO_SYSTEM), &[message("system", "S")]);
    assert_eq!((text.as_str(), done.as_slice()), ("[user]S", &[Adaptation::Renamed][..]));
    let late = [
        message("system", "S"),
        message("assistant", "a"),
        message("system", "T"),
        message("user", "u"),
    ];
    let (text, _) = prompt(&jinja(NO_SYSTEM), &late);
    assert!(has_in_order(&text, &["S", "<system>\nT\n</system>", "u"]), "{text}");
}

#[test]
fn developer_messages_are_in_every_prompt() {
    let messages = [message("developer", "RULES"), message("user", "question")];
    let go = Template::parse(TemplateFormat::Go, GO).unwrap();
    assert_eq!(prompt(&go, &messages).0, "[system]RULES\n[user]question\n[assistant]");
    for name in Renderer::names() {
        let template = Template::parse(TemplateFormat::BuiltIn, name).unwrap();
        let (text, _) = prompt(&template, &messages);
        assert!(has_in_order(&text, &["RULES", "question"]), "{name}: {text}");
    }
}

#[test]
fn results_of_parallel_calls_are_sorted_by_their_calls() {
    let messages = [
        message("user", "run a and b"),
        calls(&["A", "B"]),
        result("B", "RESULT-OF-B"),
        result("A", "RESULT-OF-A"),
    ];
    let mut templates = vec![
        Template::parse(TemplateFormat::Go, GO).unwrap(),
        jinja(SYSTEM_FIRST),
        jinja(ALTERNATING),
    ];
    templates.extend(
        Renderer::names().map(|name| Template::parse(TemplateFormat::BuiltIn, name).unwrap()),
    );
    for template in templates {
        let (text, done) = prompt(&template, &messages);
        assert!(done.contains(&Adaptation::Reordered));
        assert!(
            has_in_order(&text, &["RESULT-OF-A", "RESULT-OF-B"]),
            "{}: {text}",
            template.source()
        );
    }
    // Results of unknown calls keep their order.
    let unknown = [message("user", "u"), calls(&["A", "B"]), result("x", "1"), result("A", "2")];
    assert!(has_in_order(&prompt(&jinja(SYSTEM_FIRST), &unknown).0, &["1", "2"]));
}

#[test]
fn a_text_stays_with_its_calls_if_the_template_accepts_calls_but_no_results() {
    let template = jinja(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no results') }}{% endif %}\
         [{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}{{ c.function }}{% endfor %}{% endfor %}",
    );
    let beside = Message { content: "I look".into(), ..calls(&["A", "B"]) };
    let conversation_of =
        [message("user", "a"), beside, result("A", "R"), result("B", "S"), message("user", "b")];
    let (text, done) = prompt(&template, &conversation_of);
    assert!(
        has_in_order(&text, &["[user]a", "[assistant]I look", "echo A", "echo B", "R", "S"]),
        "{text}"
    );
    assert_eq!(done, [Adaptation::Renamed]);
}

#[test]
fn an_accepted_conversation_is_not_changed() {
    let plain = jinja(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}{{ c.function }}{% endfor %}\n{% endfor %}",
    );
    let messages = [
        message("system", "a"),
        message("system", "b"),
        message("user", "c"),
        message("user", "d"),
        calls(&["A", "B"]),
        result("A", "e"),
        result("B", "f"),
        message("assistant", "g"),
        message("system", "h"),
        message("user", "i"),
    ];
    let RenderedPrompt { prompt, adaptations } = adapted(&plain, &messages).unwrap();
    assert_eq!(prompt, render(&plain, &Chat::new(&messages)).unwrap());
    assert!(adaptations.is_empty(), "{adaptations:?}");
}

#[test]
fn a_conversation_that_cannot_be_adapted_is_refused_with_the_index_of_the_message() {
    let picky = jinja(
        "{% for m in messages %}{% if 'no' in m.content %}{{ raise_exception('not that word') }}{% endif %}{{ m.content }}{% endfor %}",
    );
    let error =
        adapted(&picky, &[message("user", "a"), message("assistant", "b"), message("user", "no")])
            .unwrap_err();
    assert!(error.to_string().starts_with("messages[2]: the chat template refuses"), "{error}");
    assert!(error.to_string().ends_with("not that word"), "{error}");
    let go = Template::parse(TemplateFormat::Go, GO).unwrap();
    let error = adapted(&go, &[message("user", "a"), message("critic", "b")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "messages[1]: unknown role \"critic\": use system, user, assistant or tool"
    );
}

mod random {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    /// A random conversation. Each message has a unique text that is not part of another one.
    fn conversation() -> impl Strategy<Value = Vec<Message>> {
        let kinds = select(vec![
            "system",
            "developer",
            "user",
            "user",
            "assistant",
            "assistant",
            "call",
            "calls",
            "text and call",
            "text and calls",
            "call, user, result",
            "call, call, results",
        ]);
        vec(kinds, 0..9).prop_map(|kinds| {
            let mut all = Vec::new();
            for kind in kinds.into_iter().chain(["user"]) {
                let number = all.len();
                match kind {
                    "call" => {
                        let id = format!("c{number:02}");
                        all.extend([calls(&[&id]), result(&id, &format!("text-{number}-result"))]);
                    }
                    "calls" => {
                        let ids = [format!("a{number:02}"), format!("b{number:02}")];
                        all.push(calls(&[&ids[0], &ids[1]]));
                        let results = ids
                            .iter()
                            .enumerate()
                            .map(|(at, id)| result(id, &format!("text-{number}-{at}-result")));
                        all.extend(results.collect::<Vec<_>>().into_iter().rev());
                    }
                    "text and call" => {
                        let id = format!("c{number:02}");
                        let content = format!("text-{number}-beside");
                        all.extend([Message { content, ..calls(&[&id]) }]);
                        all.push(result(&id, &format!("text-{number}-result")));
                    }
                    "text and calls" => {
                        let (a, b) = (format!("a{number:02}"), format!("b{number:02}"));
                        let content = format!("text-{number}-beside");
                        all.push(Message { content, ..calls(&[&a, &b]) });
                        all.extend(
                            [&a, &b].map(|id| result(id, &format!("text-{number}-{id}-result"))),
                        );
                    }
                    "call, user, result" => {
                        let id = format!("c{number:02}");
                        let between = message("user", &format!("text-{number}-between"));
                        let late = result(&id, &format!("late-{number}-result"));
                        all.extend([calls(&[&id]), between, late]);
                    }
                    "call, call, results" => {
                        let (a, b) = (format!("a{number:02}"), format!("b{number:02}"));
                        all.extend([calls(&[&a]), calls(&[&b])]);
                        all.extend(
                            [&a, &b].map(|id| result(id, &format!("late-{number}-{id}-result"))),
                        );
                    }
                    role => all.push(message(role, &format!("text-{number}-said"))),
                }
            }
            all
        })
    }

    /// The templates of the test models, all renderers, and the templates above.
    fn templates() -> Vec<(String, Template)> {
        let mut all: Vec<_> = Renderer::names()
            .map(|name| (name.to_owned(), Template::parse(TemplateFormat::BuiltIn, name).unwrap()))
            .collect();
        for source in [SYSTEM_FIRST, ALTERNATING, NO_SYSTEM] {
            all.push((source.to_owned(), jinja(source)));
        }
        all.push(("go".to_owned(), Template::parse(TemplateFormat::Go, GO).unwrap()));
        let folder = std::env::var_os("PUNA_TEST_MODELS")
            .map(|root| std::path::Path::new(&root).join("templates"));
        let Some(files) = folder.and_then(|folder| std::fs::read_dir(folder).ok()) else {
            eprintln!("SKIPPED: the templates of other models are not to be had here");
            return all;
        };
        for file in files {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jinja") {
                let source = std::fs::read_to_string(&path).unwrap();
                all.push((path.display().to_string(), jinja(&source)));
            }
        }
        all
    }

    /// Texts that the prompt must contain in the order of the conversation. Some adaptations move
    /// system messages, or results that do not follow their calls.
    fn texts(messages: &[Message], done: &Adaptations) -> Vec<String> {
        let is_moved = |message: &Message| match message.role.as_str() {
            "system" | "developer" => done.contains(&Adaptation::Moved),
            _ => message.content.starts_with("late") && done.contains(&Adaptation::Reordered),
        };
        let stays = |message: &&Message| !is_moved(message);
        let mut texts = Vec::new();
        let mut at = 0;
        while at < messages.len() {
            let results = messages[at + 1..].iter().take_while(|m| m.role == "tool").count();
            texts.extend(
                messages
                    .get(at)
                    .filter(stays)
                    .filter(|m| !m.content.is_empty())
                    .map(|m| m.content.clone()),
            );
            let mut of_results: Vec<_> = messages[at + 1..][..results]
                .iter()
                .filter(stays)
                .map(|m| m.content.clone())
                .collect();
            of_results.sort();
            texts.append(&mut of_results);
            at += 1 + results;
        }
        texts
    }

    #[test]
    fn no_template_refuses_a_conversation_or_loses_text() {
        let templates: Vec<_> = templates()
            .into_iter()
            .map(|(name, template)| (name, MessageRules::probe(&template), template))
            // Templates that need more than a user message cannot be adapted.
            .filter(|(_, _, template)| {
                render(template, &Chat::new(&[message("user", "u")])).is_ok()
            })
            .collect();
        assert!(templates.len() > 25);
        let config = ProptestConfig { cases: 200, ..ProptestConfig::default() };
        proptest::test_runner::TestRunner::new(config)
            .run(&conversation(), |messages| {
                for (name, rules, template) in &templates {
                    let now = Some(jiff::civil::DateTime::default());
                    let chat = Chat { rules: Some(*rules), now, ..Chat::new(&messages) };
                    let got = render_adapted(template, &chat);
                    let RenderedPrompt { prompt, adaptations } = match got {
                        Ok(rendered) => rendered,
                        Err(error) => return Err(TestCaseError::fail(format!("{name}: {error}"))),
                    };
                    let wanted = texts(&messages, &adaptations);
                    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
                    prop_assert!(
                        has_in_order(&prompt, &wanted),
                        "{name}: {adaptations:?}\n{wanted:?}\n{prompt}"
                    );
                    let calls = messages.iter().flat_map(|m| &m.tool_calls);
                    let mut commands = calls.map(|call| format!("echo {}", call.id));
                    let has_all = messages.iter().all(|m| prompt.contains(&m.content));
                    prop_assert!(
                        has_all && commands.all(|command| prompt.contains(&command)),
                        "{name}: {adaptations:?}\n{messages:?}\n{prompt}"
                    );
                    let is_changed = adaptations.iter().any(|kind| *kind != Adaptation::Reordered);
                    // Rendering without rules also changes these two roles, without reporting it.
                    let is_silent = |m: &Message| {
                        m.role == "developer" || (m.role == "system" && !rules.system)
                    };
                    if is_changed && !messages.iter().any(is_silent) {
                        let as_is = render(template, &Chat { rules: None, ..chat.clone() });
                        let wanted = texts(&messages, &Adaptations::new());
                        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
                        let writes_everything = |prompt: &str| {
                            let calls = messages.iter().flat_map(|m| &m.tool_calls);
                            let mut commands = calls.map(|call| format!("echo {}", call.id));
                            has_in_order(prompt, &wanted)
                                && commands.all(|command| prompt.contains(&command))
                        };
                        prop_assert!(
                            !as_is.is_ok_and(|prompt| writes_everything(&prompt)),
                            "{name}: {adaptations:?}"
                        );
                    }
                    let systems = messages
                        .iter()
                        .filter(|m| matches!(m.role.as_str(), "system" | "developer"));
                    for message in systems {
                        prop_assert!(
                            prompt.contains(&message.content),
                            "{name}: {}\n{prompt}",
                            message.content
                        );
                    }
                }
                Ok(())
            })
            .unwrap();
    }
}

/// Lists its tools without checking whether there are any.
const TOOLS_ALWAYS: &str = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}\
                            {% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                            {{ raise_exception('System message must be at the beginning') }}{% endif %}\
                            [{{ m.role }}]{{ m.content }}{% endfor %}[assistant]";

#[test]
fn a_template_that_always_lists_tools_is_probed_and_rendered_without_any() {
    let template = jinja(TOOLS_ALWAYS);
    let late = [message("system", "S"), message("user", "u"), message("system", "T")];
    let (text, done) = prompt(&template, &late);
    assert_eq!(text, "[system]S[user]u[user]<system>\nT\n</system>[assistant]");
    assert_eq!(done, [Adaptation::Renamed]);
}
