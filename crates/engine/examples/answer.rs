//! A question to a model in a file:
//! `cargo run --release -p puna-engine --example answer -- MODEL.gguf "QUESTION"`.

use std::io::Write;
use std::sync::{Arc, mpsc::channel};

use puna_cpu::{Config, CpuBackend};
use puna_engine::{Engine, EngineOptions, Event, Request};
use puna_gguf::{Gguf, View};
use puna_sampler::Params;
use puna_tokenizer::EncodeOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (path, text) = (args.next().ok_or("which model?")?, args.next().ok_or("what question?")?);
    let view = View::new(Arc::new(Gguf::open(path.as_ref())?))?;
    let engine = Engine::open(
        view,
        Box::new(CpuBackend::new(&Config::default())?),
        &EngineOptions::default(),
    )?;
    let prompt =
        engine.tokenizer().encode(&text, EncodeOptions { add_special: true, parse_special: true });
    let (sender, events) = channel();
    engine.submit(
        Request::new(prompt, Params::default()),
        Box::new(move |event| sender.send(event).is_ok()),
    )?;
    for event in events {
        match event {
            Event::Piece(piece) => print!("{}", piece.text),
            Event::Failed(reason) | Event::Refused(reason) => return Err(reason.into()),
            Event::Done(_) => break,
            Event::Prefill { .. } | Event::Prompt(_) => {}
        }
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
