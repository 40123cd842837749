//! Planned memory compared with the memory that steps of all sizes take.

use puna_engine::{Diffusion, plan_memory};

use super::*;

/// Embeds and generates in steps of every size. Returns the planned scratch bytes and the
/// backend's.
fn planned_and_taken(path: &str) -> (u64, u64) {
    let options =
        EngineOptions { num_batch: 128, max_sequences: Some(2), ..EngineOptions::default() };
    let engine = open(path, &options);
    let alone = Config { threads: Some(1), kernels: None, ..Config::default() };
    let planned =
        plan_memory(&file(path), Box::new(CpuBackend::new(&alone).unwrap()), &options).unwrap();
    assert_eq!(planned, engine.memory(), "{path}: as planned with another backend");
    for tokens in [128, 64, 32, 16, 8, 4, 2, 1] {
        let prompt: Vec<u32> = (0..tokens).map(|t| 20 + (t * 7 + tokens) % 200).collect();
        if engine.info().can_generate {
            // A diffusion model computes its whole text in each step: once a short one, once a long
            // one.
            let is_filled = engine.info().unmasking.is_some();
            let diffusion = Diffusion { steps: is_filled.then_some(1), ..Diffusion::default() };
            let requests = [2, if is_filled { engine.info().n_ctx } else { 2 }].map(|tokens| {
                let request = Request {
                    max_tokens: Some(tokens),
                    diffusion,
                    ..Request::new(prompt.clone(), greedy())
                };
                start(&engine, request)
            });
            requests.iter().for_each(|events| drop(finish(events)));
        } else {
            let (sender, result) = channel();
            // One step takes several texts.
            let texts = prompt.chunks(engine.info().n_ctx).map(<[u32]>::to_vec).collect();
            engine.embed(0, texts, Box::new(move |r| sender.send(r).unwrap())).unwrap();
            result.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
        }
    }
    wait_until_idle(&engine);
    (planned.scratch, engine.stats().scratch_bytes)
}

#[test]
fn a_model_takes_no_more_than_was_planned_and_not_much_less() {
    for name in [
        "llama-q8_0",
        "qwen3moe",
        "gpt-oss",
        "gemma2",
        "bert-mean",
        "mamba",
        "qwen35",
        "qwen4exp",
        "minimax-01",
        "minimax-m3",
        "t5",
        "dream",
        "rnd1",
    ] {
        let (planned, taken) = planned_and_taken(&format!("tests/data/zoo/{name}.gguf"));
        assert!(taken <= planned, "{name}: {planned} planned, {taken} taken");
        assert!(taken >= planned / 2, "{name}: {planned} planned, {taken} taken");
    }
}
