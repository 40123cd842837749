//! `puna debug parse`: splits a model's text with an output parser.

use anyhow::{Context, Result};
use puna_prompt::{OutputParser, OutputPart, ParserInput, Think, ThinkTags};
use serde_json::{Value, json};

use crate::cli::ParseArgs;
use crate::{out, usage};

pub fn run(args: &ParseArgs) -> Result<()> {
    let tools: Vec<Value> = match &args.tools {
        Some(file) => serde_json::from_str(&crate::local::read_text(file)?)
            .with_context(|| format!("{} is not a JSON list of tools", file.display()))?,
        None => Vec::new(),
    };
    let mut parser = parser(args, &tools)?;
    let shown = args.chunks.display();
    let text = crate::local::read_text(&args.chunks)?;
    let chunks: Vec<String> = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a JSON list of texts"))?;
    let mut parts = Vec::new();
    for chunk in &chunks {
        parts.extend(parser.push(chunk));
    }
    parts.extend(parser.finish());
    show(parts, args.json)
}

fn parser(args: &ParseArgs, tools: &[Value]) -> Result<OutputParser> {
    if args.parser == "thinking" {
        let tags = ThinkTags { open: args.open.clone(), close: args.close.clone() };
        return Ok(OutputParser::thinking(tags, if args.opened { &args.open } else { "" }));
    }
    let think = args.think.map(Think::Switch);
    let input = ParserInput { tools, think: think.as_ref(), ..ParserInput::default() };
    OutputParser::by_name(&args.parser, &input).ok_or_else(|| {
        let known: Vec<&str> = OutputParser::names().chain(["thinking"]).collect();
        usage::error(format!("unknown parser {:?}: use one of {}", args.parser, known.join(", ")))
    })
}

fn show(parts: Vec<OutputPart>, as_json: bool) -> Result<()> {
    let (mut content, mut thinking, mut calls, mut malformed) =
        (String::new(), String::new(), Vec::new(), Vec::new());
    for part in parts {
        match part {
            OutputPart::Thinking(text) => thinking.push_str(&text),
            OutputPart::Content(text) => content.push_str(&text),
            OutputPart::Call(call) => calls.push(json!({"function": call})),
            // A tool call is printed when it is complete.
            OutputPart::CallStart(_) | OutputPart::CallArguments(_) => {}
            OutputPart::Malformed { text, error } => {
                malformed.push(json!({"text": text, "error": error.to_string()}))
            }
        }
    }
    if as_json {
        let mut all = json!({"content": content, "thinking": thinking, "tool_calls": calls});
        if !malformed.is_empty() {
            all["malformed"] = malformed.into();
        }
        return out::json(&all);
    }
    if !thinking.is_empty() {
        out::text(&format!("Thinking...\n{thinking}\n...done thinking.\n\n"))?;
    }
    out::line(&content)?;
    for call in calls.iter().chain(&malformed) {
        out::line(&call.to_string())?;
    }
    Ok(())
}
