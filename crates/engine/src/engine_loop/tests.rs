use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use puna_cpu::{Config, CpuBackend};
use puna_gguf::{Gguf, View};
use puna_sampler::Params;

use crate::{Engine, EngineOptions, Event, Request, Sink};

/// A sink that takes events once it is open.
struct GatedSink {
    open: Arc<AtomicBool>,
    events: Sender<Event>,
}

impl Sink for GatedSink {
    fn ready(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    fn send(&mut self, event: Event) -> bool {
        self.events.send(event).is_ok()
    }
}

/// In unit tests the loop does not poll its sinks within an hour.
#[test]
fn a_woken_loop_continues_with_a_sink_that_became_ready() {
    for model in ["llama", "llada"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../tests/data/zoo/{model}.gguf"));
        let view = View::new(Arc::new(Gguf::open(&path).unwrap())).unwrap();
        let backend = CpuBackend::new(&Config { threads: Some(1), ..Config::default() }).unwrap();
        let engine = Engine::open(view, Box::new(backend), &EngineOptions::default()).unwrap();
        let open = Arc::new(AtomicBool::new(false));
        let (events, received) = channel();
        let request = Request {
            max_tokens: Some(4),
            ..Request::new(vec![1, 2, 3], Params { temperature: 0.0, ..Params::default() })
        };
        engine.submit(request, Box::new(GatedSink { open: open.clone(), events })).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while engine.stats().running + engine.stats().waiting == 0 {
            assert!(Instant::now() < deadline, "{model}: the request does not start");
            std::thread::sleep(Duration::from_millis(2));
        }
        open.store(true, Ordering::Release);
        engine.wake();
        loop {
            match received.recv_timeout(Duration::from_secs(60)) {
                Ok(Event::Done(_)) => break,
                Ok(_) => {}
                Err(error) => panic!("{model}: {error}"),
            }
        }
    }
}
