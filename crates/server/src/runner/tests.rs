//! A fake engine behind the real protocol, in threads of this process.

mod calls;
mod ranks;
mod thinks;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use puna_engine::{Event as EngineEvent, Finish, Job, Piece, PromptToken, Sink, Summary};
use puna_sampler::{Constraint, Grammar, TokenLogprobs};
use tokio::sync::oneshot;

use super::generator::{EmbedDone, Facts, Generator, LoadError, Loader, PairForm, RankDone};
use super::launch::{Launched, Launcher};
use super::link::{Events, Link};
use super::protocol::{LoadSpec, MemoryParts, Pulse, WINDOW};
use super::worker;
use crate::canonical::{EmbedText, Event, Generate, Input, ModelText, Prompt, RunOptions, Task, Tokenize};
use crate::scheduler::Exit;

/// What the fake does; shared with the test.
#[derive(Default)]
pub(crate) struct Fake {
    /// Bytes that every model needs.
    pub(crate) need: AtomicU64,
    /// Loading fails.
    pub(crate) broken: AtomicBool,
    /// Tokens generated so far, by all runners.
    pub(crate) generated: AtomicU64,
    /// Steps of the model never end.
    pub(crate) hangs: AtomicBool,
    /// Rounds before the first token of every answer, 10 ms each.
    pub(crate) prefill: AtomicU64,
    /// Texts of 300000 bytes are not tokenized before this is over.
    pub(crate) dawdles: AtomicBool,
    /// Every text gets a first token.
    pub(crate) adds_bos: AtomicBool,
    /// It scores pairs: a hundredth a token.
    pub(crate) ranks: AtomicBool,
    /// Pairs that it scored.
    pub(crate) ranked: AtomicU64,
    /// How many of them were begun with.
    pub(crate) dawdled: AtomicU64,
    /// Rounds so far, and generations that go on, by all runners.
    rounds: AtomicU64,
    pub(crate) works: AtomicU64,
    /// What it says instead, piece by piece, if that is not nothing.
    pub(crate) says: Mutex<Vec<String>>,
    /// Runners started so far.
    pub(crate) started: AtomicU64,
    /// The socket of the last runner, to cut it.
    pub(crate) socket: Mutex<Option<UnixStream>>,
}

impl Fake {
    /// Ends the last runner as a crash would.
    pub(crate) fn crash(&self) {
        let socket = self.socket.lock().unwrap().take().unwrap();
        socket.shutdown(Shutdown::Both).unwrap();
    }
}

/// Starts fake runners.
pub(crate) struct FakeLauncher(pub(crate) Arc<Fake>);

impl Launcher for FakeLauncher {
    fn launch(&self) -> io::Result<Launched> {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        let (launched, socket) = in_threads(FakeLoader(self.0.clone()))?;
        *self.0.socket.lock().unwrap() = Some(socket);
        Ok(launched)
    }
}

/// Starts a runner in threads of this process; also its socket.
fn in_threads(loader: impl Loader + Send + 'static) -> io::Result<(Launched, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let (ended, end) = oneshot::channel();
    let (kill, killed) = oneshot::channel();
    let (socket, cut, end_of_process) = (theirs.try_clone()?, theirs.try_clone()?, theirs.try_clone()?);
    thread::spawn(move || {
        let _ = worker::run(theirs, &loader);
        let _ = end_of_process.shutdown(Shutdown::Both);
        let _ = ended.send(());
    });
    tokio::spawn(async move {
        let _ = killed.await;
        let _ = cut.shutdown(Shutdown::Both);
    });
    let exit: Pin<Box<dyn Future<Output = Exit> + Send>> = Box::pin(async move {
        let _ = end.await;
        Exit { reason: "signal: 9, killed".into(), out_of_memory: false }
    });
    Ok((Launched { pid: 0, stream: tokio::net::UnixStream::from_std(ours)?, kill, exit }, socket))
}

struct FakeLoader(Arc<Fake>);

impl Loader for FakeLoader {
    fn plan(&self, _: &LoadSpec) -> Result<MemoryParts, LoadError> {
        Ok(MemoryParts { weights: self.0.need.load(Ordering::Relaxed), ..MemoryParts::default() })
    }

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn Generator>, LoadError> {
        if self.0.broken.load(Ordering::Relaxed) {
            panic!("the fake is broken");
        }
        let pairs = PairForm { before: vec![1], between: vec![2], after: vec![2], template: None };
        let ranks = self.0.ranks.load(Ordering::Relaxed).then_some(pairs);
        let facts = Facts { num_ctx: spec.options.num_ctx, ranks, ..Facts::default() };
        let memory = self.plan(spec)?;
        Ok(Box::new(FakeEngine {
            fake: self.0.clone(),
            facts,
            memory,
            cancelled: Arc::default(),
            next: AtomicU64::new(1),
        }))
    }
}

/// Tokens are bytes. The answer to everything is `w0 w1 w2 …`, or `<same> <same> …` to a prompt with "again" in it.
struct FakeEngine {
    fake: Arc<Fake>,
    facts: Facts,
    memory: MemoryParts,
    cancelled: Arc<Mutex<HashMap<u64, Arc<AtomicBool>>>>,
    next: AtomicU64,
}

impl Generator for FakeEngine {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        if text.len() > 300_000 {
            self.fake.dawdled.fetch_add(1, Ordering::Relaxed);
            while self.fake.dawdles.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let bos = self.fake.adds_bos.load(Ordering::Relaxed).then_some(BOS);
        bos.into_iter().chain(text.bytes().map(u32::from)).collect()
    }

    fn tokenize(&self, text: &Tokenize) -> Vec<u32> {
        text.text.bytes().map(u32::from).collect()
    }

    fn encode_parts(&self, parts: &[(&str, bool)]) -> Vec<u32> {
        parts.iter().flat_map(|(text, _)| text.bytes().map(u32::from)).collect()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        tokens.iter().map(|t| char::from(*t as u8)).collect()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        vec![token as u8]
    }

    fn control_token(&self, _: &str) -> Option<u32> {
        None
    }

    fn is_bos(&self, token: u32) -> bool {
        self.fake.adds_bos.load(Ordering::Relaxed) && token == BOS
    }

    fn vocab_size(&self) -> usize {
        256
    }

    fn grammar(&self, _: &Constraint) -> Result<Grammar, String> {
        Err("no forms here".into())
    }

    fn submit(&self, job: Job, mut sink: Box<dyn Sink>) -> Result<u64, String> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let cancelled = Arc::new(AtomicBool::new(false));
        self.cancelled.lock().unwrap().insert(id, cancelled.clone());
        let fake = self.fake.clone();
        thread::spawn(move || {
            let _works = Works::new(&fake);
            for _ in 0..fake.prefill.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                fake.rounds.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(top) = job.prompt_logprobs {
                let likely = |top| TokenLogprobs { logprob: -1.5, top: vec![(119, -0.5); top] };
                let scored = job.prompt.iter().enumerate().map(|(i, &token)| PromptToken {
                    token,
                    logprobs: (i > 0).then(|| likely(top.min(1))),
                    rank: 2 * (i > 0) as u32,
                });
                sink.send(EngineEvent::Prompt(scored.collect()));
            }
            let again = job.prompt.windows(5).any(|w| w.iter().map(|t| *t as u8).eq(*b"again"));
            let says = fake.says.lock().unwrap().clone();
            let most = if says.is_empty() { job.max_tokens.unwrap_or(usize::MAX) } else { says.len() };
            let whole = if says.is_empty() { Finish::Length } else { Finish::End };
            let (mut finish, mut generated) = (whole, 0);
            for i in 0..most {
                while !sink.ready() && !cancelled.load(Ordering::Relaxed) {
                    fake.rounds.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
                if cancelled.load(Ordering::Relaxed) {
                    return;
                }
                while fake.hangs.load(Ordering::Relaxed) && !cancelled.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
                fake.generated.fetch_add(1, Ordering::Relaxed);
                generated += 1;
                fake.rounds.fetch_add(1, Ordering::Relaxed);
                let text = match says.get(i) {
                    Some(text) => text.clone(),
                    None if again => "same ".into(),
                    None => format!("w{i} "),
                };
                if let Some(index) = job.stop.iter().position(|stop| stop == text.trim()) {
                    finish = Finish::Stop(index);
                    break;
                }
                let logprobs = job
                    .logprobs
                    .map(|top| TokenLogprobs { logprob: -0.5, top: vec![(119, -0.5); top.min(1)] });
                if !sink.send(EngineEvent::Piece(Piece { text, token: 119, logprobs })) {
                    return;
                }
                thread::sleep(Duration::from_micros(200));
            }
            sink.send(EngineEvent::Done(Summary {
                finish,
                prompt_tokens: job.prompt.len(),
                cached_tokens: 0,
                prefill: Duration::from_millis(1),
                generated_tokens: generated,
                decode: Duration::from_millis(1),
                queued: Duration::ZERO,
                speculated: Default::default(),
                shifted_tokens: 0,
                tokens: job.prompt,
            }));
        });
        Ok(id)
    }

    fn cancel(&self, job: u64) {
        if let Some(cancelled) = self.cancelled.lock().unwrap().get(&job) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn embed(&self, inputs: Vec<Vec<u32>>, done: EmbedDone) -> Result<u64, String> {
        done(Ok(inputs.iter().map(|input| vec![input.len() as f32, 1.0]).collect()));
        Ok(0)
    }

    fn rank(&self, pairs: Vec<Vec<u32>>, done: RankDone) -> Result<u64, String> {
        self.fake.ranked.fetch_add(pairs.len() as u64, Ordering::Relaxed);
        done(Ok(pairs.iter().map(|pair| pair.len() as f32 / 100.0).collect()));
        Ok(0)
    }

    fn pulse(&self) -> Pulse {
        let rounds = self.fake.rounds.load(Ordering::Relaxed);
        Pulse {
            memory: self.memory,
            rounds,
            works: self.fake.works.load(Ordering::Relaxed) > 0,
            ..Pulse::default()
        }
    }
}

/// Counts a generation while it goes on.
struct Works<'a>(&'a Fake);

impl<'a> Works<'a> {
    fn new(fake: &'a Fake) -> Self {
        fake.works.fetch_add(1, Ordering::Relaxed);
        Self(fake)
    }
}

impl Drop for Works<'_> {
    fn drop(&mut self) {
        self.0.works.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The first token of every text, if there is one.
const BOS: u32 = 1;

fn task(text: &str, num_predict: i64, num_keep: i64, truncate: bool, shift: bool) -> Task {
    let prompt = Prompt { text: text.into(), raw: true, ..Prompt::default() };
    Task::Generate(Box::new(Generate {
        model: ModelText::default(),
        input: Input::Prompt(prompt),
        options: RunOptions { num_predict, num_keep, ..RunOptions::default() },
        think: None,
        format: None,
        truncate,
        shift,
        logprobs: None,
        prompt_logprobs: None,
        stream_calls: false,
        render_only: false,
        tool_choice: Default::default(),
        parallel_tool_calls: true,
    }))
}

/// How long a step may take in these tests: a few signs of life.
const STEP: Duration = Duration::from_millis(300);

async fn loaded(fake: &Arc<Fake>, num_ctx: u32) -> Link {
    let launched = FakeLauncher(fake.clone()).launch().unwrap();
    loaded_by(launched, None, num_ctx).await
}

/// The engine of this program with a file, or with the model inside it.
async fn loaded_file(weights: Option<std::path::PathBuf>, num_ctx: u32) -> Link {
    let (launched, _) = in_threads(super::local::LocalLoader).unwrap();
    loaded_by(launched, weights, num_ctx).await
}

async fn loaded_by(launched: Launched, weights: Option<std::path::PathBuf>, num_ctx: u32) -> Link {
    let (to, mut notices) = tokio::sync::mpsc::unbounded_channel();
    let link = Link::new(launched, Some(STEP), Box::new(move |notice| drop(to.send(notice))));
    let options = crate::scheduler::LoadOptions { num_ctx, ..Default::default() };
    let spec = LoadSpec { weights, options, kv_cache_type: "f16".into(), kernels: None, threads: Some(1) };
    link.plan(spec);
    assert!(matches!(notices.recv().await, Some(super::link::Notice::Planned(_))));
    link.load();
    assert!(matches!(notices.recv().await, Some(super::link::Notice::Loaded(_))));
    link
}

async fn end(link: &Link, task: Task) -> Event {
    end_of(&mut link.submit(1, task)).await
}

async fn end_of(events: &mut Events) -> Event {
    loop {
        let event = events.next().await.unwrap();
        if event.is_end() {
            return event;
        }
    }
}

/// A question to a model with a built-in renderer.
fn question(renderer: &str, render_only: bool) -> Task {
    let message =
        puna_api::native::Message { role: "user".into(), content: "Q?".into(), ..Default::default() };
    let Task::Generate(generate) = task("", 1, 4, true, true) else { panic!() };
    Task::Generate(Box::new(Generate {
        model: ModelText { renderer: Some(renderer.into()), ..ModelText::default() },
        input: Input::Chat { messages: vec![message], tools: Vec::new() },
        render_only,
        ..*generate
    }))
}

#[tokio::test]
async fn a_built_in_renderer_writes_the_prompt_but_not_a_first_token_that_the_tokenizer_adds() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 128).await;
    let prompt = "<bos><|turn>user\nQ?<turn|>\n<|turn>model\n";
    let Event::Rendered(text) = end(&link, question("gemma4", true)).await else { panic!() };
    assert_eq!(text, prompt);
    let Event::Done(done) = end(&link, question("gemma4", false)).await else { panic!() };
    assert_eq!(done.prompt_tokens as usize, prompt.len());
    fake.adds_bos.store(true, Ordering::Relaxed);
    let Event::Done(done) = end(&link, question("gemma4", false)).await else { panic!() };
    assert_eq!(done.prompt_tokens as usize, 1 + prompt.len() - "<bos>".len());
    let Event::Error(failure) = end(&link, question("nope", false)).await else { panic!() };
    assert_eq!(failure.message, "unknown renderer \"nope\"");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_cut_in_the_middle_or_refused_with_the_numbers() {
    let link = loaded(&Arc::default(), 128).await;
    let text = "x".repeat(310);
    let Event::Done(done) = end(&link, task(&text, 1, 4, true, true)).await else { panic!() };
    assert_eq!((done.prompt_tokens, done.dropped_tokens), (66, 244));
    let Event::Error(failure) = end(&link, task(&text, 1, 4, false, true)).await else { panic!() };
    assert_eq!(failure.message, "prompt is too long: 310 tokens, context is 128");
    assert_eq!(failure.lengths, Some((310, 128)));
    let Event::Error(failure) = end(&link, task(&text, 1, 4, true, false)).await else { panic!() };
    assert!(failure.message.starts_with("the prompt is longer than the context length currently available"));
}

#[tokio::test]
async fn zero_tokens_are_no_tokens_and_endless_repetition_ends() {
    let fake = Arc::default();
    let link = loaded(&fake, 128).await;
    let Event::Done(done) = end(&link, task("hi", 0, 4, true, true)).await else { panic!() };
    assert_eq!((done.generated_tokens, done.reason.as_str()), (0, "length"));
    let Event::Done(done) = end(&link, task("again", 1000, 4, true, true)).await else { panic!() };
    assert_eq!((done.generated_tokens, done.reason.as_str()), (32, "stop"));
}

#[tokio::test]
async fn an_accepted_prompt_is_told_before_anything_else_and_a_stop_string_with_the_end() {
    let link = loaded(&Arc::default(), 128).await;
    let Task::Generate(mut generate) = task("hi", 10, 4, true, true) else { panic!() };
    generate.options.stop = vec![String::new(), "w9".into(), "w3".into()];
    let mut events = link.submit(1, Task::Generate(generate));
    assert!(matches!(events.next().await, Some(Event::Started { prompt_tokens: 2 })));
    let Event::Done(done) = end_of(&mut events).await else { panic!() };
    assert_eq!((done.reason.as_str(), done.stop.as_deref()), ("stop", Some("w3")));
}

#[tokio::test]
async fn tokens_are_counted_made_and_undone_without_generating() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 8).await;
    let Task::Generate(generate) = task("much longer than the context", 10, 4, true, true) else { panic!() };
    assert!(matches!(end(&link, Task::Count(generate)).await, Event::Counted(28)));
    let text = Tokenize { text: "ab".into(), add_special: true, parse_special: false };
    let Event::Tokens(tokens) = end(&link, Task::Tokenize(text)).await else { panic!() };
    assert_eq!(tokens, [97, 98]);
    assert!(matches!(end(&link, Task::Detokenize(tokens)).await, Event::Text(text) if text == "ab"));
    let Event::Error(failure) = end(&link, Task::Detokenize(vec![97, 256])).await else { panic!() };
    assert_eq!((failure.status, failure.message.as_str()), (400, "this model has no token 256"));
    assert_eq!(fake.generated.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_prompt_of_tokens_is_taken_as_it_is() {
    let link = loaded(&Arc::default(), 128).await;
    let ask = |tokens: Vec<u32>| {
        let Task::Generate(mut generate) = task("", 2, 4, true, true) else { panic!() };
        generate.input = Input::Prompt(Prompt { tokens: Some(tokens), ..Prompt::default() });
        Task::Generate(generate)
    };
    let Event::Done(done) = end(&link, ask(vec![1, 2, 3])).await else { panic!() };
    assert_eq!((done.prompt_tokens, done.generated_tokens), (3, 2));
    assert!(
        matches!(end(&link, ask(vec![1, 999])).await, Event::Error(f) if f.message == "this model has no token 999")
    );
}

#[tokio::test]
async fn a_client_that_does_not_read_slows_only_its_own_answer() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 128).await;
    let mut slow = link.submit(1, task("hi", 1000, 4, true, true));
    tokio::time::sleep(Duration::from_millis(150)).await;
    let waiting = fake.generated.load(Ordering::Relaxed);
    assert!(waiting > 10 && waiting <= WINDOW.into(), "{waiting}");
    assert!(matches!(end(&link, task("hi", 200, 4, true, true)).await, Event::Done(_)));
    let mut pieces = 0;
    while let Some(event) = slow.next().await {
        pieces += usize::from(matches!(event, Event::Content(_)));
    }
    assert_eq!(pieces, 1000);
}

#[tokio::test]
async fn a_requests_own_context_is_its_limit_on_a_runner_that_has_more() {
    let link = loaded(&Arc::default(), 128).await;
    let limited = |num_ctx, truncate| {
        let Task::Generate(mut generate) = task(&"x".repeat(100), 5, 4, truncate, true) else { panic!() };
        generate.options.num_ctx = num_ctx;
        Task::Generate(generate)
    };
    let lengths = async |task| match end(&link, task).await {
        Event::Done(done) => Ok((done.prompt_tokens, done.dropped_tokens)),
        Event::Error(failure) => Err((failure.status, failure.message)),
        event => panic!("{event:?}"),
    };
    assert_eq!(lengths(limited(None, true)).await, Ok((100, 0)));
    assert_eq!(lengths(limited(Some(1_000_000), true)).await, Ok((100, 0)), "no more than there is");
    assert_eq!(lengths(limited(Some(64), true)).await, Ok((34, 66)), "what is cut is told");
    let told = "prompt is too long: 100 tokens, context is 64".to_owned();
    assert_eq!(lengths(limited(Some(64), false)).await, Err((400, told)));
    assert_eq!(lengths(limited(None, true)).await, Ok((100, 0)), "others have what they had");
}

#[tokio::test]
async fn dropping_the_events_stops_the_generation() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 128).await;
    let mut events = link.submit(1, task("hi", 1_000_000, 4, true, true));
    for _ in 0..100 {
        events.next().await.unwrap();
    }
    drop(events);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let after = fake.generated.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(fake.generated.load(Ordering::Relaxed), after);
}

#[tokio::test]
async fn a_crash_is_an_error_to_every_open_request_and_to_later_ones() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 128).await;
    let mut events = link.submit(1, task("hi", 1_000_000, 4, true, true));
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
    assert!(matches!(end(&link, task("hi", 1, 4, true, true)).await, Event::Error(_)));
}

#[tokio::test]
async fn huge_prompts_hold_up_nobody_else_and_are_not_read_for_clients_that_have_gone() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 128).await;
    fake.dawdles.store(true, Ordering::Relaxed);
    let text = "x".repeat(300_001);
    let mut huge: Vec<Events> = (0..20).map(|_| link.submit(1, task(&text, 1, 4, true, true))).collect();
    for _ in 0..20 {
        assert!(matches!(end(&link, task("hi", 5, 4, true, true)).await, Event::Done(_)));
    }
    let mut last = huge.pop().unwrap();
    drop(huge);
    // What comes after the cancellations on the same socket has seen them.
    assert!(matches!(end(&link, task("hi", 5, 4, true, true)).await, Event::Done(_)));
    fake.dawdles.store(false, Ordering::Relaxed);
    assert!(matches!(end_of(&mut last).await, Event::Done(_)));
    let read = fake.dawdled.load(Ordering::Relaxed);
    assert!(read <= 3, "{read} read: two when their clients left, and one whose client had not");
}

#[tokio::test]
async fn a_request_that_is_too_large_for_a_message_is_an_error_and_others_go_on() {
    let link = loaded(&Arc::default(), 128).await;
    let text = "x".repeat(super::protocol::MAX_FRAME);
    let Event::Error(failure) = end(&link, task(&text, 1, 4, true, true)).await else { panic!() };
    assert!(failure.status == 413 && failure.message.starts_with("the request is too large"), "{failure}");
    assert!(matches!(end(&link, task("hi", 5, 4, true, true)).await, Event::Done(_)));
}

#[tokio::test]
async fn a_step_that_hangs_ends_the_runner_and_its_requests_hear_why() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 128).await;
    let mut events = link.submit(1, task("hi", 1_000_000, 4, true, true));
    events.next().await.unwrap();
    fake.hangs.store(true, Ordering::Relaxed);
    let Event::Error(failure) = end_of(&mut events).await else { panic!("a step that hangs is an error") };
    assert!(
        failure.message.contains("busy with a single step for more than 1 seconds"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn neither_idleness_nor_a_long_prompt_nor_a_slow_client_is_taken_for_a_hanging_step() {
    let fake = Arc::<Fake>::default();
    let link = loaded(&fake, 128).await;
    tokio::time::sleep(STEP * 3).await;
    fake.prefill.store(90, Ordering::Relaxed);
    assert!(matches!(end(&link, task("hi", 5, 4, true, true)).await, Event::Done(_)));
    let mut slow = link.submit(1, task("hi", 1000, 4, true, true));
    slow.next().await.unwrap();
    tokio::time::sleep(STEP * 3).await;
    assert!(matches!(end_of(&mut slow).await, Event::Done(_)));
}

#[tokio::test]
async fn embeddings_keep_their_head_when_they_are_cut() {
    let link = loaded(&Arc::default(), 128).await;
    let embed = |truncate| {
        Task::Embed(crate::canonical::Embed {
            inputs: vec![EmbedText::Text("x".repeat(200))],
            truncate,
            num_ctx: None,
        })
    };
    // This fake has no embeddings of its own kind.
    assert!(
        matches!(end(&link, embed(true)).await, Event::Error(f) if f.message.contains("does not support embeddings"))
    );
}
