//! The manager with fake runners.

use super::*;
use crate::runner::tests::{Fake, FakeLauncher};
use crate::scheduler::LoadOptions;

const PATIENCE: Patience = Patience { load: None, step: None };

fn limits() -> Limits {
    Limits { max_loaded: 3, max_queue: 512, keep_alive: KeepAlive::Forever }
}

fn models(memory: MemorySource) -> Models {
    let launcher = Arc::new(FakeLauncher(Arc::<Fake>::default()));
    Models::start(limits(), launcher, memory, PATIENCE, Arc::default())
}

fn ask(model: &str) -> Ask {
    let spec = LoadSpec {
        weights: None,
        adapters: Vec::new(),
        options: LoadOptions {
            num_ctx: 64,
            cache: 64,
            parallel: Some(1),
            ..LoadOptions::default()
        },
        kv_cache_type: "f16".into(),
        kernels: None,
        threads: None,
    };
    Ask {
        client: 1,
        key: Key(model.into()),
        spec,
        num_ctx: None,
        keep_alive: None,
        about: About::default(),
    }
}

#[tokio::test]
async fn the_systems_memory_is_read_when_a_model_is_loaded_and_not_for_one_that_is_there() {
    static READ: AtomicU64 = AtomicU64::new(0);
    let models = models(|| {
        READ.fetch_add(1, Ordering::Relaxed);
        Memory { total: u64::MAX, available: u64::MAX }
    });
    drop(models.acquire(ask("a")).await.unwrap());
    let loaded = READ.load(Ordering::Relaxed);
    assert!(loaded > 0);
    for _ in 0..100 {
        drop(models.acquire(ask("a")).await.unwrap());
    }
    assert_eq!(READ.load(Ordering::Relaxed), loaded);
    drop(models.acquire(ask("b")).await.unwrap());
    assert!(READ.load(Ordering::Relaxed) > loaded);
}
