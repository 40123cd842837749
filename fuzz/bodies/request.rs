//! Body of the request fuzz target: the first byte selects the request type, the rest is the body.

use puna_api::decode::{MAX_IGNORED, from_slice, from_slice_with_ignored};
use puna_api::{anthropic, json, ollama, openai, responses};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Parses `data` as a request. A valid request must be equal after serialising and parsing it
/// again.
pub fn run(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    agrees(body);
    let kinds: [fn(&[u8]); 15] = [
        check::<ollama::ChatRequest>,
        check::<ollama::GenerateRequest>,
        check::<openai::ChatCompletionRequest>,
        check::<openai::CompletionRequest>,
        check::<responses::ResponsesRequest>,
        check::<anthropic::MessagesRequest>,
        check::<ollama::CreateRequest>,
        check::<ollama::EmbedRequest>,
        check::<ollama::EmbeddingsRequest>,
        check::<openai::EmbedRequest>,
        check::<ollama::ShowRequest>,
        check::<ollama::CopyRequest>,
        check::<ollama::PullRequest>,
        check::<ollama::TokenizeRequest>,
        check::<ollama::DetokenizeRequest>,
    ];
    kinds[usize::from(*choice) % kinds.len()](body);
}

/// A body that the strict parser accepts must give the same value here, or exceed a limit.
fn agrees(body: &[u8]) {
    let Ok(strict) = serde_json::from_slice::<Value>(body) else { return };
    match json::parse(body) {
        Ok(ours) => assert!(same(&ours, &strict), "{ours} is not {strict}"),
        Err(error) => assert!(
            matches!(error, json::SyntaxError::TooDeep | json::SyntaxError::TooMany),
            "{error}"
        ),
    }
}

/// Whether two values are equal; numbers are compared by value and not by representation.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

fn check<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let (request, ignored): (T, _) = match from_slice_with_ignored(body) {
        Ok(read) => read,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(ignored.len() <= MAX_IGNORED);
    let written = serde_json::to_vec(&request).expect("a request that was read");
    let again: T = from_slice(&written).expect("a request that was written");
    assert_eq!(again, request, "{}", String::from_utf8_lossy(&written));
}
