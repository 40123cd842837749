//! Fitting: dropped messages, kept messages, and the number of renderings.

use crate::{
    Adaptation, Chat, FittedPrompt, FunctionCall, Message, PromptError, Template, TemplateFormat,
    ToolCall, fit, fit_turns,
};

const CHATML: &str = "{{ range .Messages }}<{{ .Role }}>{{ .Content }}\n{{ end }}";
/// Refuses a conversation that does not start with a user message.
const STRICT: &str = "{% for m in messages %}{% if loop.first and m.role != 'user' %}\
    {{ raise_exception('must begin with user') }}{% endif %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";

fn go(source: &str) -> Template {
    Template::parse(TemplateFormat::Go, source).expect("the template parses")
}

/// A conversation of n user and assistant messages; `tokens` counts 10 tokens for each.
fn conversation_of(n: usize) -> Vec<Message> {
    let role = |i: usize| if i.is_multiple_of(2) { "user" } else { "assistant" };
    (0..n).map(|i| Message::new(role(i), format!("message {i}"))).collect()
}

/// Fits a conversation, and returns the number of counted prompts. Every line has 10 tokens.
fn run(template: &Template, messages: &[Message], limit: usize) -> (FittedPrompt, usize) {
    let mut counted = 0;
    let fitted = fit(template, &Chat::new(messages), limit, &mut |prompt| {
        counted += 1;
        Ok(10 * prompt.lines().count())
    });
    (fitted.expect("it renders"), counted)
}

#[test]
fn a_conversation_that_fits_is_rendered_once_and_whole() {
    let (fitted, counted) = run(&go(CHATML), &conversation_of(9), 90);
    assert_eq!((fitted.dropped_messages, fitted.tokens, counted), (0, 90, 1));
    assert!(!fitted.truncated());
}

#[test]
fn the_fewest_oldest_messages_are_dropped() {
    for limit in 10..200 {
        let (fitted, _) = run(&go(CHATML), &conversation_of(20), limit);
        assert_eq!(fitted.dropped_messages, 20 - (limit / 10).min(20), "limit {limit}");
        assert!(fitted.tokens <= limit && fitted.prompt.ends_with("<assistant>message 19\n"));
    }
}

#[test]
fn system_messages_are_kept_at_any_position() {
    let mut messages = conversation_of(8);
    messages.insert(0, Message::new("system", "first"));
    messages.insert(4, Message::new("system", "second"));
    let (fitted, _) = run(&go(CHATML), &messages, 40);
    // Dropping makes the two system messages neighbours, and collation joins them with an empty
    // line.
    assert_eq!(fitted.prompt, "<system>first\n\nsecond\n<assistant>message 7\n");
    assert_eq!(fitted.dropped_messages, 7);
}

#[test]
fn a_newest_message_that_is_too_long_is_kept_and_reported() {
    let (fitted, _) = run(&go(CHATML), &conversation_of(5), 5);
    assert_eq!(fitted.prompt, "<user>message 4\n");
    assert!(fitted.too_long && fitted.truncated());
    assert_eq!(fitted.dropped_messages, 4);
}

#[test]
fn a_long_conversation_is_counted_only_a_few_times() {
    let (fitted, counted) = run(&go(CHATML), &conversation_of(1001), 3000);
    assert_eq!(fitted.dropped_messages, 701);
    assert!(counted <= 12, "{counted} prompts were counted");
}

#[test]
fn cuts_that_the_template_refuses_are_skipped() {
    let template = Template::parse(TemplateFormat::Jinja, STRICT).expect("it parses");
    let (fitted, _) = run(&template, &conversation_of(11), 65);
    // Six messages would fit, but the sixth from the end is an assistant message.
    assert_eq!(fitted.dropped_messages, 6);
    assert!(fitted.prompt.starts_with("<user>message 6\n"));
    assert!(!fitted.too_long);
}

#[test]
fn a_conversation_that_the_template_refuses_as_a_whole_is_an_error() {
    let template = Template::parse(TemplateFormat::Jinja, STRICT).expect("it parses");
    let messages = [Message::new("assistant", "hello"), Message::new("user", "hi")];
    let result = fit(&template, &Chat::new(&messages), 5, &mut |_| Ok(100));
    assert!(
        matches!(result, Err(PromptError::Raised { message, .. }) if message == "must begin with user")
    );
}

#[test]
fn images_count_with_their_tokens() {
    let mut messages = conversation_of(3);
    messages[0].images.push(crate::Image("aW1n".into()));
    let chat = Chat { image_tokens: 768, ..Chat::new(&messages) };
    let mut count = |prompt: &str| Ok(10 * prompt.lines().count());
    let whole = fit(&go(CHATML), &chat, 1000, &mut count).expect("it renders");
    assert_eq!((whole.tokens, whole.dropped_messages), (798, 0));
    assert!(whole.prompt.starts_with("<user>[img-0]message 0\n"));
    let cut = fit(&go(CHATML), &chat, 700, &mut count).expect("it renders");
    assert_eq!((cut.tokens, cut.dropped_messages), (20, 1));
}

#[test]
fn an_error_of_the_counter_ends_the_search() {
    let result = fit(&go(CHATML), &Chat::new(&conversation_of(3)), 5, &mut |_| {
        Err(PromptError::Count("no vocabulary".into()))
    });
    assert_eq!(result, Err(PromptError::Count("no vocabulary".into())));
}

/// An agent conversation: a system message, a task, two steps of the first turn, an older turn, and
/// the newest one with two steps.
fn agent() -> Vec<Message> {
    let mut messages = vec![Message::new("system", "S"), Message::new("user", "task")];
    let step = |messages: &mut Vec<Message>, id: &str| {
        let function = FunctionCall { name: "f".into(), ..FunctionCall::default() };
        let tool_calls = vec![ToolCall { id: id.into(), function }];
        messages.push(Message { tool_calls, ..Message::new("assistant", format!("call {id}")) });
        messages.push(Message {
            tool_call_id: Some(id.into()),
            ..Message::new("tool", format!("result {id}"))
        });
    };
    step(&mut messages, "1");
    step(&mut messages, "2");
    messages.push(Message::new("user", "older"));
    messages.push(Message::new("assistant", "answer"));
    messages.push(Message::new("user", "newest"));
    step(&mut messages, "3");
    step(&mut messages, "4");
    messages
}

/// Fits by turns. Every line has 10 tokens, and a result has as many tokens as bytes.
fn run_turns(messages: &[Message], limit: usize) -> FittedPrompt {
    let mut count = |prompt: &str| Ok(prompt.lines().map(|line| 10.max(line.len())).sum());
    fit_turns(&go(CHATML), &Chat::new(messages), limit, limit, &mut count).expect("it renders")
}

#[test]
fn oldest_turns_are_dropped_first_and_results_stay_with_their_calls() {
    let messages = agent();
    let kept = |limit: usize| {
        let fitted = run_turns(&messages, limit);
        // Neighbouring messages of one role become one message of several lines.
        let lines = fitted.prompt.lines().map(|line| line.rsplit('>').next().unwrap_or_default());
        let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        (lines.join(","), fitted.dropped_messages, fitted.too_long)
    };
    let whole: usize = run_turns(&messages, 10_000).tokens;
    let steps = [
        (
            "S,task,call 1,result 1,call 2,result 2,older,answer,newest,call 3,result 3,call 4,result 4",
            0,
        ),
        ("S,task,call 2,result 2,older,answer,newest,call 3,result 3,call 4,result 4", 2),
        ("S,task,older,answer,newest,call 3,result 3,call 4,result 4", 4),
        ("S,task,newest,call 3,result 3,call 4,result 4", 6),
        ("S,task,newest,call 4,result 4", 8),
    ];
    let mut seen = Vec::new();
    for limit in (0..=whole).rev() {
        let (text, dropped, too_long) = kept(limit);
        assert!(too_long || run_turns(&messages, limit).tokens <= limit);
        if seen.last() != Some(&(text.clone(), dropped)) {
            seen.push((text, dropped));
        }
    }
    assert_eq!(seen, steps.map(|(text, dropped)| (text.to_owned(), dropped)));
    assert!(run_turns(&messages, whole - 1).adaptations.contains(&Adaptation::Dropped));
}

#[test]
fn the_longest_result_is_cut_if_nothing_else_can_be_dropped() {
    let mut messages = agent();
    messages.truncate(4);
    messages[3].content = format!("start{}end", "é".repeat(3000));
    let fitted = run_turns(&messages, 1000);
    assert!(!fitted.too_long && (900..=1000).contains(&fitted.tokens), "{}", fitted.tokens);
    assert_eq!(fitted.dropped_messages, 0);
    assert!(fitted.dropped_tokens > 5000 && fitted.adaptations.contains(&Adaptation::Dropped));
    let prompt = fitted.prompt;
    assert!(
        prompt.contains("task")
            && prompt.contains("call 1")
            && prompt.contains("start")
            && prompt.contains("end")
    );
    assert!(prompt.contains(" bytes were left out"), "{prompt}");
    // A task that is too long on its own is reported as too long.
    messages[1].content = "x".repeat(5000);
    assert!(run_turns(&messages, 1000).too_long);
}

#[test]
fn a_trailing_system_message_does_not_drop_the_question() {
    let messages = [
        Message::new("user", "old"),
        Message::new("assistant", "a"),
        Message::new("user", "q"),
        Message::new("system", "late"),
    ];
    let fitted = run_turns(&messages, 30);
    assert_eq!(fitted.dropped_messages, 1);
    assert!(
        fitted.prompt.contains("old")
            && fitted.prompt.contains("q")
            && fitted.prompt.contains("late")
    );
}

#[test]
fn a_late_system_message_that_is_too_long_is_cut_in_its_middle() {
    let messages = [Message::new("user", "q"), Message::new("system", "x y z ".repeat(700))];
    let fitted = run_turns(&messages, 1000);
    assert!(
        !fitted.too_long
            && fitted.prompt.contains(">q\n")
            && fitted.prompt.contains("bytes were left out")
    );
    let first = [Message::new("system", "x y z ".repeat(700)), Message::new("user", "q")];
    assert!(run_turns(&first, 1000).too_long, "the instructions of a conversation are never cut");
}
