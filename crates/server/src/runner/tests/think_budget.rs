//! Tests of the thinking budget, with the embedded model.

use puna_api::ollama::{Message, Think};
use puna_sampler::Constraint;
use serde_json::json;

use super::*;

/// Returns a question that makes the model think.
fn question(change: impl FnOnce(&mut GenerateTask)) -> Task {
    let Task::Generate(mut generate) = task("", 200, 4, true, true) else { panic!() };
    let question = Message {
        role: "user".into(),
        content: "What's 13 + 8 + 34?".into(),
        ..Message::default()
    };
    generate.model = PromptConfig { thinking: true, ..PromptConfig::default() };
    generate.input = Input::Chat { messages: vec![question], tools: Vec::new() };
    generate.think = Some(Think::On);
    generate.options.sampling.temperature = 0.0;
    change(&mut generate);
    Task::Generate(generate)
}

/// Returns the reasoning, the number of its events, the answer, and the number of all tokens.
async fn answer(connection: &RunnerConnection, task: Task) -> (String, usize, String, u64) {
    let mut events = connection.submit(1, task);
    let (mut thought, mut pieces, mut content) = (String::new(), 0, String::new());
    loop {
        match events.next().await.unwrap() {
            Event::Thinking(piece) => {
                thought.push_str(&piece.text);
                pieces += usize::from(!piece.text.trim().is_empty());
            }
            Event::Content(piece) => content.push_str(&piece.text),
            Event::Done(done) => return (thought, pieces, content, done.generated_tokens),
            Event::Error(failure) => panic!("{failure}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn reasoning_over_its_budget_is_ended_and_the_answer_follows() {
    let connection = loaded_file(None, 512).await;
    let (whole, pieces, content, _) = answer(&connection, question(|_| {})).await;
    assert!(
        whole.contains("= 55") && content.starts_with("55") && pieces > 8,
        "{whole:?} {content:?}"
    );
    for budget in [0, 1, 5] {
        let (thought, pieces, content, tokens) =
            answer(&connection, question(|task| task.options.think_budget = Some(budget))).await;
        assert!(pieces <= budget as usize, "{thought:?}");
        assert!(whole.starts_with(thought.trim_end()), "{thought:?} is no beginning of {whole:?}");
        assert!(!content.is_empty() && !content.contains("think"), "{content:?}");
        assert!(tokens < 40, "{tokens}");
    }
    let enough = answer(&connection, question(|task| task.options.think_budget = Some(500))).await;
    assert_eq!((enough.0, enough.2), (whole, content));
}

#[tokio::test]
async fn a_constrained_answer_follows_reasoning_that_was_ended() {
    let connection = loaded_file(None, 512).await;
    let schema =
        json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    for budget in [0, 5] {
        let task_with_schema = question(|task| {
            task.format = Some(Constraint::schema(schema.clone()));
            task.options.think_budget = Some(budget);
        });
        let (thought, pieces, content, _) = answer(&connection, task_with_schema).await;
        assert!(pieces <= budget as usize, "{thought:?}");
        let value: serde_json::Value =
            serde_json::from_str(&content).unwrap_or_else(|e| panic!("{e}: {content}"));
        assert!(value["sum"].is_i64(), "{content}");
    }
}

#[tokio::test]
async fn repeating_reasoning_before_a_constrained_answer_is_ended() {
    let connection = loaded_file(None, 512).await;
    let schema =
        json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    let circling = |format| {
        question(move |task| {
            // The bias makes the model repeat a line end.
            task.options.sampling.logit_bias = [(198, 100.0)].into_iter().collect();
            task.format = format;
        })
    };
    let (_, _, content, tokens) =
        answer(&connection, circling(Some(Constraint::schema(schema)))).await;
    let value: serde_json::Value =
        serde_json::from_str(&content).unwrap_or_else(|e| panic!("{e}: {content}"));
    assert!(value["sum"].is_i64() && tokens < 100, "{content}");
    // Without a constraint, the repetition ends the answer.
    assert_eq!(answer(&connection, circling(None)).await.2, "");
}
