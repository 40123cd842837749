use std::sync::atomic::AtomicU64;

use futures_util::StreamExt;
use serde_json::json;

use super::*;

fn written(folder: &tempfile::TempDir, script: &Value) -> PathBuf {
    let path = folder.path().join("script.json");
    std::fs::write(&path, script.to_string()).unwrap();
    path
}

fn open(
    script: &Value,
    player: ScriptPlayer,
) -> Result<(tempfile::TempDir, ScriptFile, Script), String> {
    let folder = tempfile::tempdir().unwrap();
    let (file, script) =
        ScriptFile::open(written(&folder, script), player).map_err(|e| e.to_string())?;
    Ok((folder, file, script))
}

fn text_of(answer: Result<ScriptAnswer, ScriptError>) -> String {
    match answer {
        Ok(answer) => answer.steps.iter().map(|step| format!("{step:?}")).collect(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_first_matching_answer_with_uses_left_is_chosen() {
    let script = json!({"answers": [
        {"when": {"request": 2}, "steps": [{"text": "second"}]},
        {"when": {"contains": ["TASK", "tool"], "assistant_turns": 1}, "steps": [{"text": "tool"}]},
        {"when": {"last": "TASK"}, "times": 1, "steps": [{"text": "once"}]},
        {"when": {"contains": ["TASK"]}, "steps": [{"text": "task"}]},
    ]});
    let (folder, file, read) = open(&script, ScriptPlayer::Model).unwrap();
    assert_eq!(read.window, 131_072);
    let ask = |prompt: &str| text_of(file.answer(&Conversation::of_prompt(prompt.to_owned())));
    let first = "<|im_start|>user\nTASK<|im_end|>\n<|im_start|>assistant\n";
    let later = "<|im_start|>user\nTASK<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n<|im_start|>tool\ny<|im_end|>\n<|im_start|>assistant\n<think>\n";
    assert_eq!(ask(first), r#"Text("once")"#);
    assert_eq!(ask(first), r#"Text("second")"#);
    assert_eq!(ask(first), r#"Text("task")"#);
    assert_eq!(ask(later), r#"Text("tool")"#);
    assert!(ask("else").ends_with("has no answer to request 5"));
    // A changed file resets all counts.
    written(&folder, &json!({"answers": [{"when": {"request": 1}, "steps": [{"text": "new"}]}]}));
    assert_eq!(ask("else"), r#"Text("new")"#);
    written(&folder, &json!({"answers": 1}));
    assert!(ask("else").contains("is not a script"));
}

#[test]
fn invalid_scripts_are_rejected() {
    let refused = |script: Value, player| open(&script, player).map(|_| ()).unwrap_err();
    let step = |step: Value| json!({"answers": [{"steps": [step]}]});
    assert!(
        refused(json!({"answers": [], "windows": 1}), ScriptPlayer::Model)
            .contains("unknown field")
    );
    assert!(refused(step(json!({"say": "x"})), ScriptPlayer::Model).contains("unknown variant"));
    let delta = refused(step(json!({"delta": {}})), ScriptPlayer::Model);
    assert!(delta.ends_with("answer 0 has an unsupported step: delta"), "{delta}");
    assert!(refused(step(json!({"raw": "x"})), ScriptPlayer::Upstream).ends_with(": raw"));
    assert!(open(&step(json!("crash")), ScriptPlayer::Model).is_ok());
}

async fn streamed(answer: Value) -> (Vec<Value>, String) {
    let answer: ScriptAnswer = serde_json::from_value(answer).unwrap();
    let chunks = upstream::chunks_of(&answer, 7, &AtomicU64::new(0));
    let (mut events, mut end) = (Vec::new(), String::new());
    let mut stream = Box::pin(upstream::stream_chunks(chunks, std::time::Duration::ZERO));
    while let Some(piece) = stream.next().await {
        match piece {
            Err(error) => end = error.to_string(),
            Ok(piece) => {
                let text = String::from_utf8(piece.to_vec()).unwrap();
                let data = text.strip_prefix("data: ").unwrap().trim_end().to_owned();
                match serde_json::from_str(&data) {
                    Ok(event) => events.push(event),
                    Err(_) => end = data,
                }
            }
        }
    }
    (events, end)
}

#[tokio::test]
async fn an_upstream_interleaves_parallel_calls_and_ends_as_scripted() {
    let calls = json!([{"name": "a", "arguments": {"text": "0123456789"}, "id": "one"}, {"name": "b", "arguments": "{\"n\": "}]);
    let (events, end) =
        streamed(json!({"steps": [{"thinking": "so"}, {"calls": calls}, {"text": "\n"}]})).await;
    assert_eq!(end, "[DONE]");
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(deltas[1]["reasoning_content"], "so");
    let order: Vec<u64> =
        deltas.iter().filter_map(|d| d["tool_calls"][0]["index"].as_u64()).collect();
    assert_eq!(order, [0, 1, 0, 1, 0]);
    assert_eq!(
        (&deltas[2]["tool_calls"][0]["id"], &deltas[3]["tool_calls"][0]["id"]),
        (&json!("one"), &json!("call_0"))
    );
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(events[events.len() - 1]["usage"]["prompt_tokens"], 7);
    let (events, _) =
        streamed(json!({"steps": [], "finish": "abort", "without_usage": true})).await;
    assert_eq!(events[events.len() - 1]["choices"][0]["finish_reason"], "abort");
    let (events, end) =
        streamed(json!({"steps": [{"text": "x"}, {"fail": "gone"}, {"text": "y"}]})).await;
    assert_eq!(
        (&events[2]["error"]["message"], events.len(), end.as_str()),
        (&json!("gone"), 3, "")
    );
    let (events, end) = streamed(json!({"steps": [{"text": "x"}, "crash"]})).await;
    assert_eq!((events.len(), end.as_str()), (2, "the script ends the connection"));
}
