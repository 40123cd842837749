//! A model that calls a function and answers with its result:
//! `cargo run -p puna-api --example tools -- cria`

use puna_api::Client;
use puna_api::ollama::{ChatRequest, Message, Tool};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let weather = json!({
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "The city's name"}},
                "required": ["city"]
            }
        }
    });
    let client = Client::from_env();
    let mut request = ChatRequest {
        model: std::env::args().nth(1).unwrap_or_else(|| "cria".into()),
        messages: vec![Message::text("user", "What is the weather in Paris?")],
        tools: vec![Tool(weather)],
        ..ChatRequest::default()
    };
    // Limited, since a model may call functions endlessly.
    for _ in 0..4 {
        let answer = client.chat_whole(&request).await?.message;
        let calls = answer.tool_calls.clone();
        if calls.is_empty() {
            println!("{}", answer.content);
            return Ok(());
        }
        request.messages.push(answer);
        for call in calls {
            let city = call
                .function
                .arguments
                .get("city")
                .and_then(|city| city.as_str())
                .unwrap_or("nowhere");
            println!("called {}({city})", call.function.name);
            request.messages.push(Message {
                tool_name: call.function.name.clone(),
                tool_call_id: call.id,
                ..Message::text("tool", format!("It is sunny in {city}, 21 degrees."))
            });
        }
    }
    println!("the model does nothing but call functions");
    Ok(())
}
