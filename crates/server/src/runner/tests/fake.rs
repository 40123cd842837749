//! The fake engine, and runners of it.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use puna_engine::{
    EngineError, Event as EngineEvent, Finish, Piece, PromptToken, Request, Sink, Summary,
};
use puna_sampler::{Constraint, Grammar, GrammarCompiler, GrammarToken, TokenLogprobs};
use tokio::sync::oneshot;

use crate::canonical::Tokenize;
use crate::runner::generator::{
    EmbedDone, Facts, Generator, LoadError, Loader, PairForm, RankDone,
};
use crate::runner::launch::{Launched, Launcher};
use crate::runner::protocol::{LoadSpec, MemoryParts, Pulse};
use crate::runner::worker;
use crate::scheduler::RunnerExit;

/// What the fake does; shared with the test.
#[derive(Default)]
pub(crate) struct Fake {
    /// Bytes that every model needs.
    pub(crate) need: AtomicU64,
    /// Loading takes so many milliseconds.
    pub(crate) slow: AtomicU64,
    /// Loading fails.
    pub(crate) broken: AtomicBool,
    /// Tokens generated so far, by all runners.
    pub(crate) generated: AtomicU64,
    /// Steps of the model never end.
    pub(crate) hangs: AtomicBool,
    /// Rounds before the first token of every answer, 10 ms each.
    pub(crate) prefill: AtomicU64,
    /// Texts of 300000 bytes are not tokenized before this is over, and no grammar is read.
    pub(crate) dawdles: AtomicBool,
    /// Milliseconds that a grammar takes, and how many were read.
    pub(crate) form_ms: AtomicU64,
    pub(crate) forms: AtomicU64,
    /// It reads every form; what it says does not follow any.
    pub(crate) reads_forms: AtomicBool,
    /// Every text gets a first token.
    pub(crate) adds_bos: AtomicBool,
    /// It makes vectors of two numbers: a text's length, and 1.
    pub(crate) embeds: AtomicBool,
    /// It takes no jobs any more.
    pub(crate) stopped: AtomicBool,
    /// It scores pairs: a hundredth a token.
    pub(crate) ranks: AtomicBool,
    /// Pairs that it scored.
    pub(crate) ranked: AtomicU64,
    /// Prompt tokens that it scored.
    pub(crate) scored: AtomicU64,
    /// How many of them were begun with.
    pub(crate) dawdled: AtomicU64,
    /// Rounds so far, and generations that go on, by all runners.
    rounds: AtomicU64,
    pub(crate) works: AtomicU64,
    /// What it says instead, piece by piece, if that is not nothing.
    pub(crate) says: Mutex<Vec<String>>,
    /// Tokens that are found in the cache, as every answer says.
    pub(crate) cached: AtomicU64,
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
    fn plan(&self, spec: &LoadSpec) -> Result<MemoryParts, LoadError> {
        FakeLoader(self.0.clone()).plan(spec)
    }

    fn launch(&self) -> io::Result<Launched> {
        self.0.started.fetch_add(1, Ordering::Relaxed);
        let (launched, socket) = in_threads(FakeLoader(self.0.clone()))?;
        *self.0.socket.lock().unwrap() = Some(socket);
        Ok(launched)
    }
}

/// Starts a runner in threads of this process; also its socket.
pub(super) fn in_threads(
    loader: impl Loader + Send + 'static,
) -> io::Result<(Launched, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let (ended, end) = oneshot::channel();
    let (kill, killed) = oneshot::channel();
    let (socket, cut, end_of_process) =
        (theirs.try_clone()?, theirs.try_clone()?, theirs.try_clone()?);
    thread::spawn(move || {
        let _ = worker::run(theirs, &loader);
        let _ = end_of_process.shutdown(Shutdown::Both);
        let _ = ended.send(());
    });
    tokio::spawn(async move {
        let _ = killed.await;
        let _ = cut.shutdown(Shutdown::Both);
    });
    let exit: Pin<Box<dyn Future<Output = RunnerExit> + Send>> = Box::pin(async move {
        let _ = end.await;
        RunnerExit { reason: "signal: 9, killed".into(), out_of_memory: false }
    });
    Ok((Launched { pid: 0, stream: tokio::net::UnixStream::from_std(ours)?, kill, exit }, socket))
}

struct FakeLoader(Arc<Fake>);

impl Loader for FakeLoader {
    fn plan(&self, _: &LoadSpec) -> Result<MemoryParts, LoadError> {
        Ok(MemoryParts { weights: self.0.need.load(Ordering::Relaxed), ..MemoryParts::default() })
    }

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn Generator>, LoadError> {
        thread::sleep(Duration::from_millis(self.0.slow.load(Ordering::Relaxed)));
        if self.0.broken.load(Ordering::Relaxed) {
            panic!("the fake is broken");
        }
        let pairs = PairForm { before: vec![1], between: vec![2], after: vec![2], template: None };
        let ranks = self.0.ranks.load(Ordering::Relaxed).then_some(pairs);
        let (num_ctx, embeds) = (spec.options.num_ctx, self.0.embeds.load(Ordering::Relaxed));
        let facts = Facts { num_ctx, ranks, embeds, ends: vec![END.0.into()], ..Facts::default() };
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

impl FakeEngine {
    /// Fails where it has stopped.
    fn check(&self) -> Result<(), EngineError> {
        if self.fake.stopped.load(Ordering::Relaxed) { Err(EngineError::Stopped) } else { Ok(()) }
    }
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

    fn encode_prompt(&self, parts: &[(&str, bool)], leading_bos: &str) -> Vec<u32> {
        // Written as text, the end is spelt with marks of its own.
        let shown = |&(text, trusted): &(&str, bool)| {
            if trusted { text.to_owned() } else { format!("«{text}»") }
        };
        let text = parts.iter().map(shown).collect::<String>();
        let adds_bos = self.fake.adds_bos.load(Ordering::Relaxed);
        self.encode(text.strip_prefix(leading_bos).filter(|_| adds_bos).unwrap_or(&text))
    }

    fn controls_in(&self, text: &str) -> Vec<Range<usize>> {
        text.match_indices(END.0).map(|(at, end)| at..at + end.len()).collect()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        tokens.iter().map(|t| char::from(*t as u8)).collect()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        vec![token as u8]
    }

    fn control_token(&self, text: &str) -> Option<u32> {
        (text == END.0).then_some(END.1)
    }

    fn is_bos(&self, token: u32) -> bool {
        self.fake.adds_bos.load(Ordering::Relaxed) && token == BOS
    }

    fn vocab_size(&self) -> usize {
        256
    }

    fn grammar(&self, form: &Constraint, _: bool) -> Result<Grammar, String> {
        while self.fake.dawdles.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(self.fake.form_ms.load(Ordering::Relaxed)));
        self.fake.forms.fetch_add(1, Ordering::Relaxed);
        let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let texts = bytes.iter().map(|bytes| GrammarToken { bytes, is_text: true });
        let is_read = self.fake.reads_forms.load(Ordering::Relaxed);
        match form {
            form if is_read || matches!(form, Constraint::Regex(pattern) if pattern == FORM) => {
                let grammars = GrammarCompiler::new(texts, &[END.1]).map_err(|e| e.to_string())?;
                grammars.compile(form).map_err(|e| e.to_string())
            }
            _ => Err("no forms here".into()),
        }
    }

    fn check_request(&self, _: &Request) -> Result<(), EngineError> {
        Ok(())
    }

    fn submit(&self, job: Request, mut sink: Box<dyn Sink>) -> Result<u64, EngineError> {
        self.check()?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let cancelled = Arc::new(AtomicBool::new(false));
        self.cancelled.lock().unwrap().insert(id, cancelled.clone());
        let fake = self.fake.clone();
        thread::spawn(move || {
            let _works = Works::new(&fake);
            let rounds = fake.prefill.load(Ordering::Relaxed) as usize;
            for round in 1..=rounds {
                thread::sleep(Duration::from_millis(10));
                fake.rounds.fetch_add(1, Ordering::Relaxed);
                // As the engine, after each step.
                let (total, done) = (job.prompt.len(), job.prompt.len() * round / rounds);
                if !sink.send(EngineEvent::Prefill { done, total }) {
                    return;
                }
            }
            if let Some(top) = job.prompt_logprobs {
                fake.scored.fetch_add(job.prompt.len() as u64, Ordering::Relaxed);
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
            let most =
                if says.is_empty() { job.max_tokens.unwrap_or(usize::MAX) } else { says.len() };
            let whole = if says.is_empty() { Finish::Length } else { Finish::End };
            let (mut finish, mut generated, mut tokens) = (whole, 0, job.prompt.clone());
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
                tokens.push(119);
                if sink.forced().first() == Some(&END.1) {
                    finish = Finish::End;
                    break;
                }
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
                if sink.has_enough() {
                    finish = Finish::End;
                    break;
                }
                thread::sleep(Duration::from_micros(200));
            }
            sink.send(EngineEvent::Done(Summary {
                finish,
                prompt_tokens: job.prompt.len(),
                cached_tokens: fake.cached.load(Ordering::Relaxed) as usize,
                prefill: Duration::from_millis(1),
                generated_tokens: generated,
                decode: Duration::from_millis(1),
                queued: Duration::ZERO,
                speculated: Default::default(),
                shifted_tokens: 0,
                tokens,
            }));
        });
        Ok(id)
    }

    fn cancel(&self, job: u64) {
        if let Some(cancelled) = self.cancelled.lock().unwrap().get(&job) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn embed(&self, inputs: Vec<Vec<u32>>, done: EmbedDone) -> Result<u64, EngineError> {
        self.check()?;
        done(Ok(inputs.iter().map(|input| vec![input.len() as f32, 1.0]).collect()));
        Ok(0)
    }

    fn rank(&self, pairs: Vec<Vec<u32>>, done: RankDone) -> Result<u64, EngineError> {
        self.check()?;
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

/// The one form that there is: any text.
pub(super) const FORM: &str = "(?s:.)*";

/// The token that ends an answer.
const END: (&str, u32) = ("<|end|>", 2);

/// The first token of every text, if there is one.
const BOS: u32 = 1;
