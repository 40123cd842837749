//! What is seen from outside of a loop that works, waits, or hangs.

use std::sync::{Mutex, PoisonError};

use puna_graph::{
    Backend, BackendError, CacheSpec, Description, OpTime, Plan, ProgramId, Rope, StepInput, Weight,
};

use super::*;

/// A backend whose steps wait for a lock.
pub struct Hanging(pub CpuBackend, pub Arc<Mutex<()>>);

impl Backend for Hanging {
    fn describe(&self) -> Description {
        self.0.describe()
    }
    fn adopt(&mut self, weights: Vec<Weight>, ropes: Vec<Rope>) -> Result<(), BackendError> {
        self.0.adopt(weights, ropes)
    }
    fn create_cache(&mut self, spec: CacheSpec) -> Result<(), BackendError> {
        self.0.create_cache(spec)
    }
    fn compile(&mut self, plan: Plan) -> Result<ProgramId, BackendError> {
        self.0.compile(plan)
    }
    fn run(&mut self, program: ProgramId, input: &StepInput) {
        let _lock = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.run(program, input);
    }
    fn result(&self) -> &[f32] {
        self.0.result()
    }
    fn copy_page(&mut self, from: u32, to: u32, tokens: usize) {
        self.0.copy_page(from, to, tokens);
    }
    fn scratch_bytes(&self) -> usize {
        self.0.scratch_bytes()
    }
    fn measure(&mut self, on: bool) {
        self.0.measure(on);
    }
    fn measured(&self) -> Vec<OpTime> {
        self.0.measured()
    }
}

#[test]
fn a_step_that_hangs_is_work_whose_rounds_stand_still() {
    let lock = Arc::new(Mutex::new(()));
    let backend = CpuBackend::new(&Config { threads: Some(1), kernels: None }).unwrap();
    let backend = Box::new(Hanging(backend, lock.clone()));
    let engine = Engine::open(file("tests/data/zoo/llama.gguf"), backend, &EngineOptions::default()).unwrap();
    let held = lock.lock().unwrap();
    let events = start(&engine, Job { max_tokens: Some(3), ..job(&engine, "hello") });
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
fn rounds_go_on_while_every_listener_is_slow() {
    let engine = cria(&EngineOptions::default());
    let id = engine.submit(job(&engine, "Hello"), Box::new(Deaf)).unwrap();
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
