//! A server with a fake model that sends the time at a fixed rate, which measures the cost of HTTP
//! without a model. `benches/load … layer` drives it.
//!
//! The environment sets its options, as for `puna serve`. A stream has 20 pieces a second. Streams
//! with the prompt `together` send their pieces at the same moments, as sequences of one engine
//! step do.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use puna_engine::{EngineError, Event, FinishReason, GenerationStats, Piece, Request, Sink};
use puna_sampler::{Constraint, Grammar};
use puna_server::canonical::TokenizeTask;
use puna_server::runner::protocol::{Heartbeat, LoadSpec, MemoryParts};
use puna_server::runner::runner_model::{
    EmbedCallback, EncodeCancelled, EncodeResult, LoadError, Loader, RerankCallback, RunnerModel,
    RunnerModelInfo,
};
use puna_server::runner::sandbox::Sandbox;
use puna_server::runner::worker;

/// Time between two pieces of a stream.
const PIECE_INTERVAL: Duration = Duration::from_millis(50);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("runner") {
        let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        return Ok(worker::run(socket, &ClockLoader, |_| Sandbox::default())?);
    }
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return Ok(puna_server::file_worker::main()?);
    }
    let config = puna_server::Config::from_env()?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let listener = puna_server::listen(&config.address, "OLLAMA_HOST").await?;
        let mut terminated =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        Ok(puna_server::serve(config, listener, async move {
            terminated.recv().await.unwrap_or_default()
        })
        .await?)
    })
}

struct ClockLoader;

impl Loader for ClockLoader {
    fn plan(&self, _: &LoadSpec) -> Result<MemoryParts, LoadError> {
        Ok(MemoryParts::default())
    }

    fn load(&self, spec: &LoadSpec) -> Result<Box<dyn RunnerModel>, LoadError> {
        let model_info =
            RunnerModelInfo { num_ctx: spec.options.num_ctx, ..RunnerModelInfo::default() };
        Ok(Box::new(ClockGenerator {
            model_info,
            cancelled: Mutex::default(),
            next: AtomicU64::new(1),
        }))
    }
}

/// Model with bytes as tokens.
struct ClockGenerator {
    model_info: RunnerModelInfo,
    cancelled: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    next: AtomicU64,
}

/// Returns the next moment at which all synchronized streams send a piece.
fn next_step() -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = *FIRST.get_or_init(Instant::now);
    let steps = first.elapsed().as_millis().div_ceil(PIECE_INTERVAL.as_millis());
    first + PIECE_INTERVAL * u32::try_from(steps).unwrap_or(u32::MAX)
}

/// Sends pieces until the requested number is reached or the client disconnects.
fn send_times(request: &Request, sink: &mut dyn Sink, cancelled: &AtomicBool) {
    let token_count = request.max_tokens.unwrap_or(usize::MAX);
    let started = if request.prompt.iter().copied().eq("together".bytes().map(u32::from)) {
        next_step()
    } else {
        Instant::now()
    };
    for n in 0..token_count {
        let due = started + PIECE_INTERVAL * u32::try_from(n).unwrap_or(u32::MAX);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        while !sink.ready() && !cancelled.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let piece = Piece { text: now.as_nanos().to_string(), token: 0, logprobs: None };
        if cancelled.load(Ordering::Relaxed) || !sink.send(Event::Piece(piece)) {
            return;
        }
    }
    sink.send(Event::Done(GenerationStats {
        finish: FinishReason::Length,
        prompt_tokens: request.prompt.len(),
        cached_tokens: 0,
        prefill: Duration::ZERO,
        generated_tokens: token_count,
        decode: started.elapsed(),
        queued: Duration::ZERO,
        draft_stats: Default::default(),
        shifted_tokens: 0,
        tokens: request.prompt.clone(),
    }));
}

impl RunnerModel for ClockGenerator {
    fn model_info(&self) -> &RunnerModelInfo {
        &self.model_info
    }

    fn encode(&self, text: &str, _: &AtomicBool) -> EncodeResult {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn tokenize(&self, text: &TokenizeTask, cancelled: &AtomicBool) -> EncodeResult {
        self.encode(&text.text, cancelled)
    }

    fn encode_parts(&self, parts: &[(&str, bool)], _: &AtomicBool) -> EncodeResult {
        Ok(parts.iter().flat_map(|(text, _)| text.bytes().map(u32::from)).collect())
    }

    fn encode_prompt(
        &self,
        parts: &[(&str, bool)],
        _: &str,
        cancelled: &AtomicBool,
    ) -> EncodeResult {
        self.encode_parts(parts, cancelled)
    }

    fn controls_in(&self, _: &str, _: &AtomicBool) -> Result<Vec<Range<usize>>, EncodeCancelled> {
        Ok(Vec::new())
    }

    fn decode(&self, tokens: &[u32]) -> String {
        tokens.iter().map(|token| char::from(*token as u8)).collect()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        vec![token as u8]
    }

    fn control_token(&self, _: &str) -> Option<u32> {
        None
    }

    fn is_bos(&self, _: u32) -> bool {
        false
    }

    fn vocab_size(&self) -> usize {
        256
    }

    fn grammar(&self, _: &Constraint, _: bool, _: &AtomicBool) -> Result<Grammar, String> {
        Err("a clock has no grammar".into())
    }

    fn check_request(&self, _: &Request) -> Result<(), EngineError> {
        Ok(())
    }

    fn submit(&self, request: Request, mut sink: Box<dyn Sink>) -> Result<u64, EngineError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let cancelled = Arc::<AtomicBool>::default();
        self.cancelled.lock().map_err(|_| EngineError::Stopped)?.insert(id, cancelled.clone());
        thread::spawn(move || send_times(&request, sink.as_mut(), &cancelled));
        Ok(id)
    }

    fn cancel(&self, request: u64) {
        if let Some(cancelled) =
            self.cancelled.lock().ok().and_then(|mut jobs| jobs.remove(&request))
        {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn embed(&self, _: u64, _: Vec<Vec<u32>>, done: EmbedCallback) -> Result<u64, EngineError> {
        done(Err(EngineError::CannotEmbed));
        Ok(0)
    }

    fn rerank(&self, _: u64, _: Vec<Vec<u32>>, done: RerankCallback) -> Result<u64, EngineError> {
        done(Err(EngineError::CannotRank));
        Ok(0)
    }

    fn heartbeat(&self) -> Heartbeat {
        Heartbeat::default()
    }
}
