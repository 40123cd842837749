//! Plays any bytes as messages of a runner to the server, and as messages of the server to a
//! runner. It is the body of the fuzz target `protocol`.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use super::connection::{RunnerConnection, RunnerEvent};
use super::launch::RunnerProcess;
use super::protocol::{LoadSpec, MemoryParts, RunnerRequest, RunnerResponse, encode_message, read};
use super::runner_model::{LoadError, Loader, RunnerModel};
use super::sandbox::Sandbox;
use super::worker;
use crate::api::EventSequencer;
use crate::canonical::{Event, Task};
use crate::model_scheduler::RunnerExit;

/// Step timeout of the played runner, which ends long before.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Plays the bytes in both directions.
///
/// # Panics
/// A message breaks one side, or a request never ends.
pub fn play(data: &[u8]) {
    decode::<RunnerRequest>(data);
    decode::<RunnerResponse>(data);
    play_to_runner(data);
    let (_, events) = play_to_server(data);
    events.into_iter().for_each(sequence);
}

/// Decodes messages up to the first error. A message that was decoded and encoded is the same when
/// that happens again.
fn decode<T: DeserializeOwned + Serialize>(mut data: &[u8]) {
    while let Ok(Some(message)) = read::<T>(&mut data) {
        let Ok(bytes) = encode_message(&message) else { continue };
        // An infinite number has no form in JSON.
        if let Ok(Some(again)) = read::<T>(&mut &bytes[..]) {
            assert_eq!(encode_message(&again).ok().as_deref(), Some(&bytes[..]));
        }
    }
}

/// A loader that plans every model and loads none.
struct RefusingLoader;

impl Loader for RefusingLoader {
    fn plan(&self, _: &LoadSpec) -> Result<MemoryParts, LoadError> {
        Ok(MemoryParts::default())
    }

    fn load(&self, _: &LoadSpec) -> Result<Box<dyn RunnerModel>, LoadError> {
        Err(LoadError { message: "no model".into(), ..LoadError::default() })
    }
}

fn play_to_runner(data: &[u8]) {
    let (mut server, runner) = UnixStream::pair().expect("a pair of sockets");
    std::thread::scope(|threads| {
        threads.spawn(move || {
            // The runner may end at an invalid message and leave the rest unread.
            let _ = server.write_all(data).and_then(|()| server.shutdown(Shutdown::Write));
            let _ = std::io::copy(&mut server, &mut std::io::sink());
        });
        let _ = worker::run(runner, &RefusingLoader, |_| Sandbox::default());
    });
}

/// Returns the exit of the runner, and all events of two tasks.
fn play_to_server(data: &[u8]) -> (RunnerExit, [Vec<Event>; 2]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (stream, mut runner) = tokio::net::UnixStream::pair().expect("a pair of sockets");
        let (kill, _killed) = oneshot::channel();
        let exit = RunnerExit { reason: "end of the input".into(), ..RunnerExit::default() };
        let exit = Box::pin(std::future::ready(exit));
        let (to, mut events) = mpsc::unbounded_channel();
        let connection = RunnerConnection::new(
            RunnerProcess { pid: 0, stream, kill, exit },
            Some(STEP_TIMEOUT),
            Box::new(move |event| drop(to.send(event))),
        );
        let submit = |client| {
            connection.submit_with_reservation(client, Task::Detokenize(vec![client as u32]), None)
        };
        let tasks = [submit(1).await, submit(2).await];
        let data = data.to_vec();
        // The server may stop reading at an invalid message.
        tokio::spawn(async move { runner.write_all(&data).await });
        let exit = loop {
            match events.recv().await.expect("the exit of the runner") {
                RunnerEvent::Exited(exit) => break exit,
                RunnerEvent::Planned(memory) => _ = memory.total(),
                RunnerEvent::Loaded(loaded) => _ = loaded.memory.total(),
            }
        };
        let _ = (connection.heartbeat(), connection.memory().total(), connection.sandbox());
        let mut all = [Vec::new(), Vec::new()];
        for (mut task, all) in tasks.into_iter().zip(&mut all) {
            while all.last().is_none_or(|last: &Event| !last.is_end()) {
                let event = std::future::poll_fn(|cx| task.poll_next(cx)).await;
                all.push(event.expect("a final event"));
            }
        }
        (exit, all)
    })
}

/// Serializes the events of a task as an answer does.
fn sequence(events: Vec<Event>) {
    let mut sequencer = EventSequencer::default();
    for event in events {
        sequencer.push(event);
        while sequencer.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::canonical::{ApiError, CallOutcome, Piece};
    use crate::model_scheduler::LoadOptions;
    use crate::runner::connection::MAX_REASON_CHARS;
    use crate::runner::protocol::{Heartbeat, LoadReport, MAX_CALLS, VERSION};
    use crate::runner::sandbox::SandboxReport;

    fn requests() -> Vec<RunnerRequest> {
        let spec = LoadSpec {
            weights: Some("/models/a".into()),
            adapters: vec!["/models/b".into()],
            options: LoadOptions::default(),
            kv_cache_type: "f16".into(),
            kernels: None,
            threads: Some(1),
        };
        vec![
            RunnerRequest::Plan(Box::new(spec)),
            RunnerRequest::Submit { id: 1, client: 2, task: Task::Detokenize(vec![1, 2]) },
            RunnerRequest::Credit(1, 32),
            RunnerRequest::Cancel(1),
            RunnerRequest::RequestHeartbeat,
            RunnerRequest::Load,
        ]
    }

    fn responses() -> Vec<RunnerResponse> {
        let memory = MemoryParts { weights: 9, ..MemoryParts::default() };
        let piece = || Piece { text: "a".into(), logprobs: Vec::new() };
        let start = |index| Event::CallStart { index, id: "i".into(), name: "n".into() };
        let outcome = CallOutcome::Complete(Map::from_iter([("a".to_owned(), json!(1))]));
        vec![
            RunnerResponse::Hello { version: VERSION },
            RunnerResponse::Sandboxed(SandboxReport::default()),
            RunnerResponse::Planned(memory),
            RunnerResponse::Loaded(LoadReport { num_ctx: 64, max_token_bytes: Some(16), memory }),
            RunnerResponse::Heartbeat(Heartbeat { memory, ..Heartbeat::default() }),
            RunnerResponse::Event(1, Event::Content(piece())),
            RunnerResponse::Event(1, start(0)),
            RunnerResponse::Event(1, start(1)),
            RunnerResponse::Event(1, Event::CallArguments { index: 1, text: "{}".into() }),
            RunnerResponse::Event(1, Event::CallEnd { index: 1, outcome: outcome.clone() }),
            RunnerResponse::Event(1, Event::CallEnd { index: 0, outcome }),
            RunnerResponse::Event(2, Event::Thinking(piece())),
            RunnerResponse::Event(2, Event::Error(ApiError::internal("x"))),
            RunnerResponse::Failed {
                message: "no".into(),
                out_of_memory: true,
                is_invalid_model: false,
            },
        ]
    }

    fn encode<T: Serialize>(messages: &[T]) -> Vec<Vec<u8>> {
        messages.iter().map(|message| encode_message(message).unwrap()).collect()
    }

    /// Numbers that replace digits of a message.
    const ODD_NUMBERS: [&str; 6] =
        ["-1", "18446744073709551615", "1e400", "null", "\"\"", "4294967296"];

    #[test]
    fn changed_messages_break_neither_side() {
        let seeds = [encode(&requests()), encode(&responses())];
        seeds.iter().for_each(|messages| play(&messages.concat()));
        // A small random number generator (xorshift64*).
        let mut state = 0x7075_6e61_u64;
        let mut below = move |end: usize| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end.max(1)
        };
        for _ in 0..400 {
            let mut messages = seeds[below(2)].clone();
            let at = below(messages.len());
            let message = &mut messages[at];
            let place = below(message.len());
            match below(5) {
                0 => message[place] = below(256) as u8,
                1 => message.truncate(place),
                // A number of the text, with a header that fits.
                2 | 3 => {
                    let mut text = String::from_utf8(message.split_off(4)).unwrap();
                    if let Some(digit) = text.find(|c: char| c.is_ascii_digit()) {
                        text.replace_range(digit..=digit, ODD_NUMBERS[below(ODD_NUMBERS.len())]);
                    }
                    *message = (text.len() as u32).to_le_bytes().to_vec();
                    message.extend_from_slice(text.as_bytes());
                }
                _ => {
                    let other = below(messages.len());
                    messages.swap(at, other);
                }
            }
            play(&messages.concat());
        }
    }

    #[test]
    fn seeds_of_the_fuzz_target_are_messages() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/protocol");
        for (name, messages) in
            [("requests", encode(&requests())), ("responses", encode(&responses()))]
        {
            let path = folder.join(name);
            if std::env::var_os("PUNA_WRITE_DOCS").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, messages.concat()).unwrap();
            }
            let written = std::fs::read(&path).unwrap();
            assert!(written == messages.concat(), "write {name} again with PUNA_WRITE_DOCS=1");
        }
    }

    #[test]
    fn long_reasons_of_a_runner_are_cut_off() {
        let message = "x".repeat(10 * MAX_REASON_CHARS);
        let failed =
            RunnerResponse::Failed { message, out_of_memory: false, is_invalid_model: true };
        let (exit, _) = play_to_server(&encode_message(&failed).unwrap());
        assert_eq!(exit.reason, "x".repeat(MAX_REASON_CHARS));
        let unknown = format!("{{\"{}\":1}}", "é".repeat(10 * MAX_REASON_CHARS));
        let mut invalid = (unknown.len() as u32).to_le_bytes().to_vec();
        invalid.extend_from_slice(unknown.as_bytes());
        let (exit, events) = play_to_server(&invalid);
        assert!(exit.reason.starts_with("it sent an invalid message: "), "{}", exit.reason);
        assert_eq!(exit.reason.chars().count(), MAX_REASON_CHARS);
        let Some(Event::Error(failure)) = events[0].last() else { panic!() };
        assert!(failure.message.len() < 3 * MAX_REASON_CHARS);
    }

    #[test]
    fn a_runner_cannot_start_more_calls_than_an_answer_may_have() {
        let start = |index| {
            let event = Event::CallStart { index, id: String::new(), name: String::new() };
            encode_message(&RunnerResponse::Event(1, event)).unwrap()
        };
        let (_, [events, _]) =
            play_to_server(&(0..MAX_CALLS + 1).flat_map(start).collect::<Vec<_>>());
        let calls = events.iter().filter(|event| matches!(event, Event::CallStart { .. })).count();
        assert!(calls <= MAX_CALLS && matches!(events.last(), Some(Event::Error(_))), "{calls}");
    }
}
