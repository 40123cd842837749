//! Tests of the scripted model on this program's engine.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::scripted::ScriptLoader;
use super::fake::in_threads;
use super::{loaded_by, task};
use crate::canonical::Event;

/// Runs a script on a prompt; returns the text and the final event.
async fn play(answers: Value, prompt: &str) -> (String, Event) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script.json");
    std::fs::write(&path, json!({"answers": answers}).to_string()).unwrap();
    let (process, _) = in_threads(ScriptLoader::open(path).unwrap()).unwrap();
    let connection = loaded_by(process, None, 2048).await;
    let mut events = connection.submit(1, task(prompt, 1000, 4, true, true));
    let mut text = String::new();
    loop {
        match events.next().await.unwrap() {
            Event::Content(piece) => text.push_str(&piece.text),
            event if event.is_end() => return (text, event),
            _ => {}
        }
    }
}

#[tokio::test]
async fn scripted_steps_use_the_models_syntax_and_count_its_tokens() {
    let steps = json!([
        {"thinking": "I look."}, {"text": "Here: né 🦙"}, {"calls": [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": "{\"cut"}]},
    ]);
    let (text, end) = play(json!([{"steps": steps}]), "<|im_start|>user\nTASK<|im_end|>\n").await;
    let calls = "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\":1}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {\"cut}\n</tool_call>";
    let Event::Done(done) = end else { panic!("{end:?}") };
    // Without a parser, control tokens are not shown as text.
    let shown = text.replace("<think>", "").replace("</think>", "");
    assert_eq!(shown.trim_start(), format!("I look.\n\n\nHere: né 🦙\n{calls}"));
    assert_eq!(done.reason.as_str(), "stop");
    assert!((30..200).contains(&done.generated_tokens) && done.prompt_tokens > 4, "{done:?}");
}

#[tokio::test]
async fn an_answer_is_cut_off_paused_or_fails_as_the_script_says() {
    let prompt = "<|im_start|>user\nTASK<|im_end|>\n";
    let (text, end) =
        play(json!([{"steps": [{"text": "some words"}], "finish": "length"}]), prompt).await;
    let Event::Done(done) = end else { panic!("{end:?}") };
    assert_eq!((text.as_str(), done.reason.as_str()), ("some words", "length"));
    let (text, end) =
        play(json!([{"steps": [{"text": "some "}, {"fail": "it rains"}, {"text": "x"}]}]), prompt)
            .await;
    let Event::Error(failure) = end else { panic!("{end:?}") };
    assert!(text == "some " && failure.message.ends_with("it rains"), "{failure:?}");
    let (text, end) = play(json!([{"steps": [{"fail": "at once"}]}]), prompt).await;
    assert!(
        text.is_empty()
            && matches!(end, Event::Error(failure) if failure.message.ends_with("at once"))
    );
    let before = Instant::now();
    let (text, _) = play(
        json!([{"steps": [{"wait": 150}, {"text": "a"}, {"wait": 150}, {"text": "b"}]}]),
        prompt,
    )
    .await;
    assert!(text == "ab" && before.elapsed() >= Duration::from_millis(300));
    let (_, end) = play(json!([{"when": {"contains": ["other"]}}]), prompt).await;
    assert!(
        matches!(end, Event::Error(failure) if failure.message.ends_with("has no answer to request 1"))
    );
}
