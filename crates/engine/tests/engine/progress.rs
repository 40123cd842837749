//! Progress of the engine loop while it works, waits or hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use puna_graph::{
    Backend, BackendError, CacheSpec, Description, KvType, OpTime, Plan, ProgramId, Rope,
    StateSpec, StepInput, Weight,
};

use super::*;

/// A backend with steps that wait for a lock and are counted.
pub struct Hanging {
    inner: CpuBackend,
    lock: Arc<Mutex<()>>,
    steps: Arc<AtomicU64>,
}

/// An engine on a [`Hanging`] backend, with the lock and the number of steps.
pub fn hanging(path: &str, options: &EngineOptions) -> (Engine, Arc<Mutex<()>>, Arc<AtomicU64>) {
    let (lock, steps) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
    let inner =
        CpuBackend::new(&Config { threads: Some(1), kernels: None, ..Config::default() }).unwrap();
    let backend = Hanging { inner, lock: lock.clone(), steps: steps.clone() };
    (Engine::open(file(path), Box::new(backend), options).unwrap(), lock, steps)
}

impl Backend for Hanging {
    fn describe(&self) -> Description {
        self.inner.describe()
    }
    fn load_weights(&mut self, weights: Vec<Weight>, ropes: Vec<Rope>) -> Result<(), BackendError> {
        self.inner.load_weights(weights, ropes)
    }
    fn create_cache(&mut self, spec: CacheSpec) -> Result<(), BackendError> {
        self.inner.create_cache(spec)
    }
    fn compile(&mut self, plan: Plan) -> Result<ProgramId, BackendError> {
        self.inner.compile(plan)
    }
    fn run(&mut self, program: ProgramId, input: &StepInput) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.inner.run(program, input);
    }
    fn result(&self) -> &[f32] {
        self.inner.result()
    }
    fn copy_page(&mut self, from: u32, to: u32) {
        self.inner.copy_page(from, to);
    }
    fn copy_window_page(&mut self, from: u32, to: u32) {
        self.inner.copy_window_page(from, to);
    }
    fn create_states(&mut self, spec: StateSpec) -> Result<(), BackendError> {
        self.inner.create_states(spec)
    }
    fn copy_state(&mut self, from: u32, to: u32) {
        self.inner.copy_state(from, to);
    }
    fn scratch_bytes(&self) -> usize {
        self.inner.scratch_bytes()
    }
    fn measure(&mut self, on: bool) {
        self.inner.measure(on);
    }
    fn op_times(&self) -> Vec<OpTime> {
        self.inner.op_times()
    }
}

#[test]
fn a_hanging_step_stops_the_round_counter() {
    let (engine, lock, _) = hanging("tests/data/zoo/llama.gguf", &EngineOptions::default());
    let held = lock.lock().unwrap();
    let events = start(&engine, Request { max_tokens: Some(3), ..request(&engine, "hello") });
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while engine.stats().running == 0 {
        assert!(std::time::Instant::now() < deadline, "the work is not seen: {:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    let before = engine.stats();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(engine.stats(), before);
    drop(held);
    finish(&events);
    assert!(engine.stats().rounds > before.rounds);
}

struct Deaf;

impl puna_engine::Sink for Deaf {
    fn ready(&self) -> bool {
        false
    }
    fn send(&mut self, _: Event) -> bool {
        true
    }
}

#[test]
fn slow_sinks_do_not_stop_the_round_counter() {
    let engine = cria(&EngineOptions::default());
    let id = engine.submit(request(&engine, "Hello"), Box::new(Deaf)).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while engine.stats().rounds < 5 {
        assert!(std::time::Instant::now() < deadline, "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!((engine.stats().running, engine.stats().steps), (1, 0));
    engine.cancel(id);
    wait_until_idle(&engine);
    assert_eq!(engine.stats().running, 0);
}

/// A text of several steps for a causal embedding model.
fn long_text() -> Vec<u32> {
    (0..300).map(|t| 40 + (t * 7) % 250).collect()
}

const CHUNKED: EngineOptions = EngineOptions {
    media_cache_bytes: 0,
    adapters: Vec::new(),
    num_ctx: None,
    num_batch: 64,
    cache_k: KvType::F16,
    cache_v: KvType::F16,
    max_sequences: Some(1),
    cache_pages: None,
    window_pages: None,
    states: None,
    speculation: puna_engine::Speculation::AUTO,
};

#[test]
fn a_long_text_that_is_embedded_can_be_cancelled_between_its_steps() {
    let (engine, lock, steps) = hanging("tests/data/zoo/qwen3-embedding.gguf", &CHUNKED);
    let held = lock.lock().unwrap();
    let (sender, result) = channel();
    let id =
        engine.embed(0, vec![long_text()], Box::new(move |r| sender.send(r).unwrap())).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while steps.load(Ordering::Relaxed) == 0 {
        assert!(std::time::Instant::now() < deadline, "the text is not begun");
        std::thread::sleep(Duration::from_millis(2));
    }
    engine.cancel(id);
    drop(held);
    assert!(
        result.recv_timeout(Duration::from_secs(20)).is_err(),
        "who cancels hears nothing more"
    );
    wait_until_idle(&engine);
    assert_eq!((steps.load(Ordering::Relaxed), engine.stats().pages_pinned), (1, 0));
}

#[test]
fn embedding_in_several_steps_is_exact_and_lets_others_run() {
    let whole = EngineOptions { num_batch: 512, ..CHUNKED };
    let vector = |options: &EngineOptions, others: bool| {
        let engine = open("tests/data/zoo/qwen3-embedding.gguf", options);
        let (sender, result) = channel();
        engine.embed(0, vec![long_text()], Box::new(move |r| sender.send(r).unwrap())).unwrap();
        if others {
            let (sender, other) = channel();
            engine
                .embed(0, vec![long_text(), vec![50]], Box::new(move |r| sender.send(r).unwrap()))
                .unwrap();
            other.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
        }
        let vectors = result.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
        wait_until_idle(&engine);
        assert_eq!(engine.stats().pages_pinned, 0);
        vectors.into_iter().next().unwrap()
    };
    let one = vector(&whole, false);
    for others in [false, true] {
        for (a, b) in one.iter().zip(vector(&CHUNKED, others)) {
            assert!((a - b).abs() < 1e-2, "{a} and {b}");
        }
    }
}

/// A sink that ends its request after this number of pieces.
struct Few {
    left: usize,
    events: std::sync::mpsc::Sender<Event>,
}

impl puna_engine::Sink for Few {
    fn has_enough(&self) -> bool {
        self.left == 0
    }

    fn send(&mut self, event: Event) -> bool {
        self.left -= usize::from(matches!(event, Event::Piece(_)));
        self.events.send(event).is_ok()
    }
}

#[test]
fn a_sink_that_has_enough_gets_the_counts_so_far() {
    let engine = cria(&EngineOptions { num_ctx: Some(256), ..EngineOptions::default() });
    let prompt: Vec<u32> = (0..100).map(|t| 40 + t).collect();
    let params = Params { temperature: 0.0, ignore_eos: true, ..Params::default() };
    let request =
        Request { prompt, sampling: params, max_tokens: Some(50), ..request(&engine, "x") };
    for cached in [false, true] {
        let (events, heard) = channel();
        engine.submit(request.clone(), Box::new(Few { left: 3, events })).unwrap();
        let summary = finish(&heard).1;
        assert_eq!((summary.finish, summary.generated_tokens), (FinishReason::End, 3));
        assert_eq!((summary.tokens.len(), summary.cached_tokens > 0), (103, cached));
    }
}
