//! The manager with fake runners.

use puna_api::KeepAlive;

use super::*;
use crate::model_scheduler::{LoadOptions, Memory};
use crate::runner::protocol::LoadSpec;
use crate::runner::tests::{Fake, FakeLauncher};

const TIMEOUTS: RunnerTimeouts = RunnerTimeouts { load: None, step: None };

fn limits() -> Limits {
    Limits { max_loaded: 3, max_queue: 512, keep_alive: KeepAlive::Forever }
}

fn models(memory: MemorySource) -> ModelManager {
    let launcher = Arc::new(FakeLauncher(Arc::<Fake>::default()));
    ModelManager::start(limits(), launcher, memory, TIMEOUTS, Arc::default())
}

fn acquire_request(model: &str) -> AcquireRequest {
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
    AcquireRequest {
        client: 1,
        key: ModelKey(model.into()),
        spec,
        num_ctx: None,
        keep_alive: None,
        listing: ModelListing::default(),
    }
}

#[tokio::test]
async fn the_systems_memory_is_read_only_to_load_a_model() {
    static READ: AtomicU64 = AtomicU64::new(0);
    let models = models(|| {
        READ.fetch_add(1, Ordering::Relaxed);
        Memory { total: u64::MAX, available: u64::MAX }
    });
    drop(models.acquire(acquire_request("a")).await.unwrap());
    let loaded = READ.load(Ordering::Relaxed);
    assert!(loaded > 0);
    for _ in 0..100 {
        drop(models.acquire(acquire_request("a")).await.unwrap());
    }
    assert_eq!(READ.load(Ordering::Relaxed), loaded);
    drop(models.acquire(acquire_request("b")).await.unwrap());
    assert!(READ.load(Ordering::Relaxed) > loaded);
}
