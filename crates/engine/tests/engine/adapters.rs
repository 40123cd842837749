//! Adapters with a scale per request: requests with different scales share steps, and the prefix
//! cache keeps them apart.

use puna_engine::{Adapter, AdapterScales};
use puna_gguf::Writer;
use puna_quant::TensorType;

use super::*;

/// An adapter that makes the output of the embedded model's last layer random.
fn wild() -> Adapter {
    let of = "blk.3.ffn_down.weight";
    let view = file("models/cria/cria-q8_0.gguf");
    let shape = view.tensor(of).expect("a tensor of the model").shape.to_vec();
    let mut writer = Writer::new();
    writer
        .set("general.architecture", "llama")
        .set("general.type", "adapter")
        .set("adapter.type", "lora");
    writer.set("adapter.lora.alpha", 40.0f32);
    writer.tensor(&format!("{of}.lora_a"), TensorType::F32, &[shape[0], 1]).unwrap();
    writer.tensor(&format!("{of}.lora_b"), TensorType::F32, &[1, shape[1]]).unwrap();
    let numbers = |count: u64, step: f32| -> Vec<u8> {
        (0..count).flat_map(|i| (i as f32 * step).sin().to_le_bytes()).collect()
    };
    let data = [numbers(shape[0], 0.3), numbers(shape[1], 0.7)];
    let bytes = writer.to_vec(data.iter().map(|d| &d[..])).unwrap();
    Adapter::new("wild", Arc::new(Gguf::from_bytes(bytes).unwrap()))
}

/// Opens a deterministic engine, because random output amplifies differences of rounding.
fn adapted() -> Engine {
    let config = Config { threads: Some(2), deterministic: true, ..Config::default() };
    let options = EngineOptions { adapters: vec![wild()], ..EngineOptions::default() };
    let backend = Box::new(CpuBackend::new(&config).unwrap());
    Engine::open(file("models/cria/cria-q8_0.gguf"), backend, &options).unwrap()
}

fn with_scale(engine: &Engine, text: &str, scale: f32) -> Request {
    Request { adapter_scales: AdapterScales::new(&[scale]), ..request(engine, text) }
}

#[test]
fn requests_in_one_batch_have_their_own_adapter_scales() {
    let question = chat("What is the capital of France?");
    let engine = adapted();
    let alone =
        [0.0, 1.0, -1.0].map(|scale| run(&adapted(), with_scale(&engine, &question, scale)).0);
    assert_eq!(alone[0], "Paris.", "nothing of the adapter is the model as it is");
    assert!(alone[1] != alone[0] && alone[2] != alone[0], "{alone:?}");
    assert_eq!(
        run(&adapted(), request(&engine, &question)).0,
        alone[1],
        "without a word it applies as it is"
    );
    let events =
        [0.0, 1.0, -1.0].map(|scale| start(&engine, with_scale(&engine, &question, scale)));
    assert_eq!(events.each_ref().map(|events| finish(events).0), alone);
}

#[test]
fn cached_prefixes_are_reused_only_with_the_same_adapter_scale() {
    let engine = adapted();
    let prompt = chat(&"Which of these is it? ".repeat(40));
    let ask = |scale| run(&engine, with_scale(&engine, &prompt, scale));
    let (plain, first) = ask(0.0);
    assert_eq!(first.cached_tokens, 0);
    let (wild, other) = ask(1.0);
    assert_eq!(other.cached_tokens, 0, "another scale computes the prompt itself");
    let (plain_again, second) = ask(0.0);
    assert!(second.cached_tokens > PAGE_TOKENS && plain_again == plain);
    let (wild_again, second) = ask(1.0);
    assert!(second.cached_tokens > PAGE_TOKENS && wild_again == wild);
    wait_until_idle(&engine);
    assert_eq!(engine.stats().pages_pinned, 0);
}
