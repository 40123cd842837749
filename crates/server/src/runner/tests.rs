//! Tests of the runner with a fake engine behind the real protocol, in threads of this process.

mod calls;
mod control_marks;
mod fake;
mod rerank;
mod schemas;
mod scripted;
mod think_budget;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fake::in_threads;
pub(crate) use fake::{Fake, FakeLauncher};
use puna_sampler::Constraint;

use super::connection::{RunnerConnection, TaskEvents};
use super::launch::{Launcher, RunnerProcess};
use super::protocol::{INITIAL_EVENT_CREDIT, LoadSpec};
use super::text_limits::MAX_TEXT_BYTES;
use crate::canonical::{
    EmbedText, Event, GenerateTask, Input, Overflow, Prompt, PromptConfig, RunOptions, Task,
    TokenizeTask,
};

fn task(text: &str, num_predict: i64, num_keep: i64, truncate: bool, shift: bool) -> Task {
    let prompt = Prompt { text: text.into(), raw: true, ..Prompt::default() };
    Task::Generate(Box::new(GenerateTask {
        model: PromptConfig::default(),
        input: Input::Prompt(prompt),
        options: RunOptions { num_predict, num_keep, ..RunOptions::default() },
        think: None,
        variables: Default::default(),
        format: None,
        overflow: if truncate { Overflow::DropMessages } else { Overflow::Refuse },
        schema_label: Default::default(),
        shift,
        logprobs: None,
        prompt_logprobs: None,
        stream_calls: false,
        render_only: false,
        cache_salt: None,
        cache_namespace: 0,
        tool_choice: Default::default(),
        parallel_tool_calls: true,
    }))
}

/// Step timeout in these tests: a few heartbeats.
const STEP_TIMEOUT: Duration = Duration::from_millis(300);

async fn loaded(fake: &Arc<Fake>, num_ctx: u32) -> RunnerConnection {
    let process = FakeLauncher(fake.clone()).launch().unwrap();
    loaded_by(process, None, num_ctx).await
}

/// Loads this program's engine with a file, or with the embedded model.
async fn loaded_file(weights: Option<std::path::PathBuf>, num_ctx: u32) -> RunnerConnection {
    let (process, _) = in_threads(super::local::LocalLoader).unwrap();
    loaded_by(process, weights, num_ctx).await
}

async fn loaded_by(
    process: RunnerProcess,
    weights: Option<std::path::PathBuf>,
    num_ctx: u32,
) -> RunnerConnection {
    let (to, mut events_of_runner) = tokio::sync::mpsc::unbounded_channel();
    let connection = RunnerConnection::new(
        process,
        Some(STEP_TIMEOUT),
        Box::new(move |notice| drop(to.send(notice))),
    );
    let options = crate::model_scheduler::LoadOptions { num_ctx, ..Default::default() };
    let spec = LoadSpec {
        weights,
        adapters: Vec::new(),
        options,
        kv_cache_type: "f16".into(),
        kernels: None,
        threads: Some(1),
    };
    connection.plan(spec);
    assert!(matches!(
        events_of_runner.recv().await,
        Some(super::connection::RunnerEvent::Planned(_))
    ));
    connection.load();
    assert!(matches!(
        events_of_runner.recv().await,
        Some(super::connection::RunnerEvent::Loaded(_))
    ));
    connection
}

async fn end(connection: &RunnerConnection, task: Task) -> Event {
    end_of(&mut connection.submit(1, task)).await
}

async fn end_of(events: &mut TaskEvents) -> Event {
    loop {
        let event = events.next().await.unwrap();
        if event.is_end() {
            return event;
        }
    }
}

/// Returns a question to a model with a built-in renderer.
fn question(renderer: &str, render_only: bool) -> Task {
    let message = puna_api::ollama::Message {
        role: "user".into(),
        content: "Q?".into(),
        ..Default::default()
    };
    let Task::Generate(generate) = task("", 1, 4, true, true) else { panic!() };
    Task::Generate(Box::new(GenerateTask {
        model: PromptConfig { renderer: Some(renderer.into()), ..PromptConfig::default() },
        input: Input::Chat { messages: vec![message], tools: Vec::new() },
        render_only,
        ..*generate
    }))
}

#[tokio::test]
async fn a_built_in_renderer_writes_the_prompt_but_not_a_first_token_that_the_tokenizer_adds() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    let prompt = "<bos><|turn>user\nQ?<turn|>\n<|turn>model\n";
    let Event::Rendered(text) = end(&connection, question("gemma4", true)).await else { panic!() };
    assert_eq!(text, prompt);
    let Event::Done(done) = end(&connection, question("gemma4", false)).await else { panic!() };
    assert_eq!(done.prompt_tokens as usize, prompt.len());
    fake.adds_bos.store(true, Ordering::Relaxed);
    let Event::Done(done) = end(&connection, question("gemma4", false)).await else { panic!() };
    assert_eq!(done.prompt_tokens as usize, 1 + prompt.len() - "<bos>".len());
    let Event::Error(failure) = end(&connection, question("nope", false)).await else { panic!() };
    assert_eq!(failure.message, "unknown renderer \"nope\"");
}

#[tokio::test]
async fn a_conversation_that_exceeds_the_limit_with_its_template_is_too_large() {
    let connection = loaded(&Arc::default(), 128).await;
    let Task::Generate(mut generate) = question("gemma4", false) else { panic!() };
    let Input::Chat { messages, .. } = &mut generate.input else { panic!() };
    messages[0].content = "x".repeat(MAX_TEXT_BYTES);
    let Event::Error(failure) = end(&connection, Task::Generate(generate)).await else { panic!() };
    assert_eq!(failure.status, 413, "{failure}");
    assert!(failure.message.starts_with("the prompt is too long: it has "), "{failure}");
}

#[tokio::test]
async fn a_text_longer_than_any_context_is_not_sent_to_the_runner() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    let long = || "x".repeat(MAX_TEXT_BYTES + 1);
    let Task::Generate(mut chat) = question("gemma4", false) else { panic!() };
    let Input::Chat { messages, .. } = &mut chat.input else { panic!() };
    messages[0].content = long();
    let tokenize = TokenizeTask { text: long(), add_special: true, parse_special: false };
    let tasks = [
        (task(&long(), 1, 4, true, true), "the prompt is too long: it has 786433 bytes"),
        (Task::Generate(chat), "the conversation is too long: it has 786433 bytes"),
        (Task::Tokenize(tokenize), "the text is too long: it has 786433 bytes"),
    ];
    // The runner would not answer while a text of this size waits in its tokenizer.
    fake.dawdles.store(true, Ordering::Relaxed);
    for (task, error) in tasks {
        let Event::Error(failure) = end(&connection, task).await else { panic!() };
        assert!(failure.status == 413 && failure.message.starts_with(error), "{failure}");
    }
    fake.dawdles.store(false, Ordering::Relaxed);
    // The longest token of this model is long enough for the text.
    fake.max_token_bytes.store(16 << 10, Ordering::Relaxed);
    let connection = loaded(&fake, 128).await;
    let Event::Done(_) = end(&connection, task(&long(), 1, 4, true, true)).await else { panic!() };
}

#[tokio::test]
async fn a_long_prompt_is_rejected_with_an_estimate_of_its_length() {
    let fake = Arc::<Fake>::default();
    fake.max_token_bytes.store(16, Ordering::Relaxed);
    let connection = loaded(&fake, 128).await;
    let text = "x".repeat(200_000);
    let Event::Error(failure) = end(&connection, task(&text, 1, 4, false, true)).await else {
        panic!()
    };
    assert_eq!(failure.message, "prompt is too long: at least 12500 tokens, context is 128");
    assert_eq!(failure.lengths, Some((200_000, 128)), "a token of this model is a byte");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_cut_in_the_middle_or_rejected_with_its_length() {
    let connection = loaded(&Arc::default(), 128).await;
    let text = "x".repeat(310);
    let Event::Done(done) = end(&connection, task(&text, 1, 4, true, true)).await else { panic!() };
    assert_eq!((done.prompt_tokens, done.dropped_tokens), (66, 244));
    let Event::Error(failure) = end(&connection, task(&text, 1, 4, false, true)).await else {
        panic!()
    };
    assert_eq!(failure.message, "prompt is too long: 310 tokens, context is 128");
    assert_eq!(failure.lengths, Some((310, 128)));
    let Event::Error(failure) = end(&connection, task(&text, 1, 4, true, false)).await else {
        panic!()
    };
    assert!(
        failure
            .message
            .starts_with("the prompt is longer than the context length currently available")
    );
}

#[tokio::test]
async fn zero_tokens_end_at_once_and_endless_repetition_ends() {
    let fake = Arc::default();
    let connection = loaded(&fake, 128).await;
    let Event::Done(done) = end(&connection, task("hi", 0, 4, true, true)).await else { panic!() };
    assert_eq!((done.generated_tokens, done.reason.as_str()), (0, "length"));
    let Event::Done(done) = end(&connection, task("again", 1000, 4, true, true)).await else {
        panic!()
    };
    assert_eq!((done.generated_tokens, done.reason.as_str()), (32, "stop"));
}

#[tokio::test]
async fn the_first_event_reports_the_prompt_and_the_last_one_the_stop_string() {
    let connection = loaded(&Arc::default(), 128).await;
    let Task::Generate(mut generate) = task("hi", 10, 4, true, true) else { panic!() };
    generate.options.stop = vec![String::new(), "w9".into(), "w3".into()];
    let mut events = connection.submit(1, Task::Generate(generate));
    assert!(matches!(events.next().await, Some(Event::Started { prompt_tokens: 2 })));
    let Event::Done(done) = end_of(&mut events).await else { panic!() };
    assert_eq!((done.reason.as_str(), done.stop.as_deref()), ("stop", Some("w3")));
}

#[tokio::test]
async fn tokens_are_counted_encoded_and_decoded_without_generating() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 8).await;
    let Task::Generate(generate) = task("much longer than the context", 10, 4, true, true) else {
        panic!()
    };
    assert!(matches!(end(&connection, Task::Count(generate)).await, Event::Counted(28)));
    let text = TokenizeTask { text: "ab".into(), add_special: true, parse_special: false };
    let Event::Tokens(tokens) = end(&connection, Task::Tokenize(text)).await else { panic!() };
    assert_eq!(tokens, [97, 98]);
    assert!(
        matches!(end(&connection, Task::Detokenize(tokens)).await, Event::Text(text) if text == "ab")
    );
    let Event::Error(failure) = end(&connection, Task::Detokenize(vec![97, 256])).await else {
        panic!()
    };
    assert_eq!((failure.status, failure.message.as_str()), (400, "this model has no token 256"));
    assert_eq!(fake.generated.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_prompt_of_token_ids_is_used_unchanged() {
    let connection = loaded(&Arc::default(), 128).await;
    let ask = |tokens: Vec<u32>| {
        let Task::Generate(mut generate) = task("", 2, 4, true, true) else { panic!() };
        generate.input = Input::Prompt(Prompt { tokens: Some(tokens), ..Prompt::default() });
        Task::Generate(generate)
    };
    let Event::Done(done) = end(&connection, ask(vec![1, 2, 3])).await else { panic!() };
    assert_eq!((done.prompt_tokens, done.generated_tokens), (3, 2));
    assert!(
        matches!(end(&connection, ask(vec![1, 999])).await, Event::Error(f) if f.message == "this model has no token 999")
    );
}

/// Waits until `holds` returns true.
pub(crate) async fn wait_until(holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "it does not happen within a minute");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_only_its_own_answer() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    let mut slow = connection.submit(1, task("hi", 1000, 4, true, true));
    wait_until(|| fake.generated.load(Ordering::Relaxed) > 10).await;
    assert!(matches!(end(&connection, task("hi", 200, 4, true, true)).await, Event::Done(_)));
    let generated = fake.generated.load(Ordering::Relaxed);
    assert!(generated <= 200 + u64::from(INITIAL_EVENT_CREDIT), "{generated}");
    let mut pieces = 0;
    while let Some(event) = slow.next().await {
        pieces += usize::from(matches!(event, Event::Content(_)));
    }
    assert_eq!(pieces, 1000);
}

#[tokio::test]
async fn a_requests_own_context_is_its_limit_on_a_runner_that_has_more() {
    let connection = loaded(&Arc::default(), 128).await;
    let limited = |num_ctx, truncate| {
        let Task::Generate(mut generate) = task(&"x".repeat(100), 5, 4, truncate, true) else {
            panic!()
        };
        generate.options.num_ctx = num_ctx;
        Task::Generate(generate)
    };
    let lengths = async |task| match end(&connection, task).await {
        Event::Done(done) => Ok((done.prompt_tokens, done.dropped_tokens)),
        Event::Error(failure) => Err((failure.status, failure.message)),
        event => panic!("{event:?}"),
    };
    assert_eq!(lengths(limited(None, true)).await, Ok((100, 0)));
    assert_eq!(
        lengths(limited(Some(1_000_000), true)).await,
        Ok((100, 0)),
        "no more than there is"
    );
    assert_eq!(lengths(limited(Some(64), true)).await, Ok((34, 66)), "what is cut is told");
    let expected = "prompt is too long: 100 tokens, context is 64".to_owned();
    assert_eq!(lengths(limited(Some(64), false)).await, Err((400, expected)));
    let (status, text) = lengths(limited(Some(1), true)).await.unwrap_err();
    assert!(status == 400 && text.starts_with("the context of the model has 1 token"), "{text}");
    assert_eq!(lengths(limited(None, true)).await, Ok((100, 0)), "others have what they had");
}

#[tokio::test]
async fn dropping_the_events_stops_the_generation() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    let mut events = connection.submit(1, task("hi", 1_000_000, 4, true, true));
    for _ in 0..100 {
        events.next().await.unwrap();
    }
    drop(events);
    wait_until(|| fake.works.load(Ordering::Relaxed) == 0).await;
    assert!(fake.generated.load(Ordering::Relaxed) < 1_000_000);
}

#[tokio::test]
async fn a_crash_is_an_error_to_every_open_request_and_to_later_ones() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    let mut events = connection.submit(1, task("hi", 1_000_000, 4, true, true));
    events.next().await.unwrap();
    fake.crash();
    let failure = loop {
        match events.next().await.unwrap() {
            Event::Error(failure) => break failure,
            event => assert!(!event.is_end()),
        }
    };
    assert!(
        failure.message.contains("model runner has unexpectedly stopped")
            && failure.message.ends_with("killed")
    );
    assert!(matches!(end(&connection, task("hi", 1, 4, true, true)).await, Event::Error(_)));
}

#[tokio::test]
async fn huge_prompts_do_not_delay_others_and_are_not_tokenized_for_disconnected_clients() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    fake.dawdles.store(true, Ordering::Relaxed);
    let text = "x".repeat(300_001);
    let mut huge: Vec<TaskEvents> =
        (0..20).map(|_| connection.submit(1, task(&text, 1, 4, true, true))).collect();
    for _ in 0..20 {
        assert!(matches!(end(&connection, task("hi", 5, 4, true, true)).await, Event::Done(_)));
    }
    let mut last = huge.pop().unwrap();
    drop(huge);
    // Messages on one socket arrive in order, so this task starts after the cancellations.
    assert!(matches!(end(&connection, task("hi", 5, 4, true, true)).await, Event::Done(_)));
    fake.dawdles.store(false, Ordering::Relaxed);
    assert!(matches!(end_of(&mut last).await, Event::Done(_)));
    let read = fake.dawdled.load(Ordering::Relaxed);
    assert!(read <= 3, "{read} read: two when their clients left, and one whose client had not");
}

#[tokio::test]
async fn an_answer_that_repeats_itself_ends_with_the_counts_of_the_engine() {
    let fake = Arc::<Fake>::default();
    fake.cached.store(3, Ordering::Relaxed);
    let connection = loaded(&fake, 128).await;
    let Event::Done(done) = end(&connection, task("again", 1000, 4, true, true)).await else {
        panic!()
    };
    assert_eq!((done.reason, done.cached_tokens), (crate::canonical::FinishReason::Stop, 3));
    assert!(done.generated_tokens < 100, "{}", done.generated_tokens);
    assert_eq!(done.context.len() as u64, done.prompt_tokens + done.generated_tokens);
}

fn constrained_task() -> Task {
    let mut task = task("hi", 1, 4, true, true);
    if let Task::Generate(generate) = &mut task {
        generate.format = Some(Constraint::Json);
    }
    task
}

#[tokio::test]
async fn constraints_of_different_clients_are_compiled_in_turn() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    fake.form_ms.store(25, Ordering::Relaxed);
    let mut many: Vec<TaskEvents> =
        (0..60).map(|_| connection.submit(1, constrained_task())).collect();
    for client in 2..5 {
        let mut one = connection.submit(client, constrained_task());
        assert!(matches!(end_of(&mut one).await, Event::Error(_)));
    }
    let read = fake.forms.load(Ordering::Relaxed);
    assert!(read < 40, "{read} were read before those of others");
    // Constraints of disconnected clients are not compiled.
    let mut last = many.pop().unwrap();
    drop(many);
    assert!(matches!(end_of(&mut last).await, Event::Error(_)));
    let read = fake.forms.load(Ordering::Relaxed);
    assert!(read < 50, "{read} were read");
}

#[tokio::test]
async fn slow_constraints_do_not_delay_requests_without_one() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    fake.dawdles.store(true, Ordering::Relaxed);
    let mut waiting: Vec<TaskEvents> =
        (0..20).map(|_| connection.submit(1, constrained_task())).collect();
    let plain = end(&connection, task("hi", 5, 4, true, true));
    let plain = tokio::time::timeout(Duration::from_secs(20), plain).await;
    fake.dawdles.store(false, Ordering::Relaxed);
    assert!(matches!(plain, Ok(Event::Done(_))), "{plain:?}");
    let mut last = waiting.pop().unwrap();
    assert!(
        matches!(end_of(&mut last).await, Event::Error(failure) if failure.message == "no forms here")
    );
}

#[tokio::test]
async fn a_request_that_is_too_large_for_a_message_fails_alone() {
    let connection = loaded(&Arc::default(), 128).await;
    // Each number takes eight bytes of the message.
    let tokens = vec![1_000_000; super::protocol::MAX_MESSAGE_BYTES / 8];
    let Event::Error(failure) = end(&connection, Task::Detokenize(tokens)).await else { panic!() };
    assert!(
        failure.status == 413 && failure.message.starts_with("the request is too large"),
        "{failure}"
    );
    assert!(matches!(end(&connection, task("hi", 5, 4, true, true)).await, Event::Done(_)));
}

#[tokio::test]
async fn a_step_that_hangs_ends_the_runner_and_its_requests_get_the_reason() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    let mut events = connection.submit(1, task("hi", 1_000_000, 4, true, true));
    events.next().await.unwrap();
    fake.hangs.store(true, Ordering::Relaxed);
    let Event::Error(failure) = end_of(&mut events).await else {
        panic!("a step that hangs is an error")
    };
    assert!(failure.message.contains("a step took more than 1 seconds"), "{}", failure.message);
}

#[tokio::test]
async fn idleness_long_prompts_and_slow_clients_do_not_count_as_a_hanging_step() {
    let fake = Arc::<Fake>::default();
    let connection = loaded(&fake, 128).await;
    tokio::time::sleep(STEP_TIMEOUT * 3).await;
    fake.prefill.store(90, Ordering::Relaxed);
    assert!(matches!(end(&connection, task("hi", 5, 4, true, true)).await, Event::Done(_)));
    let mut slow = connection.submit(1, task("hi", 1000, 4, true, true));
    slow.next().await.unwrap();
    tokio::time::sleep(STEP_TIMEOUT * 3).await;
    assert!(matches!(end_of(&mut slow).await, Event::Done(_)));
}

fn embedding(text: &str) -> Task {
    let inputs = vec![EmbedText::Text(text.into())];
    Task::Embed(crate::canonical::EmbedTask {
        inputs,
        truncate: true,
        num_ctx: None,
        explicit_parameters: Default::default(),
    })
}

#[tokio::test]
async fn embedding_with_an_unsuitable_model_is_refused_with_the_reason() {
    let connection = loaded(&Arc::default(), 128).await;
    let Event::Error(failure) = end(&connection, embedding("x")).await else { panic!() };
    assert_eq!(
        (failure.status, &*failure.message),
        (400, "this model does not support embeddings")
    );
}

#[tokio::test]
async fn an_engine_that_has_stopped_is_an_internal_error() {
    let fake = Arc::<Fake>::default();
    for state in [&fake.embeds, &fake.ranks, &fake.stopped] {
        state.store(true, Ordering::Relaxed);
    }
    let connection = loaded(&fake, 128).await;
    let rank = crate::canonical::RerankTask {
        query: "q".into(),
        documents: vec!["d".into()],
        truncate: false,
        document_tokens: None,
        pair_tokens: None,
        num_ctx: None,
    };
    for task in [task("hi", 5, 4, true, true), embedding("x"), Task::Rerank(rank)] {
        let Event::Error(failure) = end(&connection, task).await else { panic!("an error") };
        assert_eq!((failure.status, &*failure.message), (500, "the engine has stopped"));
    }
}
