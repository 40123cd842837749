//! `puna debug parse`: what an output parser makes of a model's text.

use anyhow::{Context, Result};
use puna_prompt::{OutputParser, ThinkTags};
use serde_json::json;

use crate::cli::ParseArgs;
use crate::{out, usage};

pub fn run(args: &ParseArgs) -> Result<()> {
    let tags = ThinkTags { open: args.open.clone(), close: args.close.clone() };
    let prompt = if args.opened { args.open.as_str() } else { "" };
    let mut parser = OutputParser::by_name(&args.parser, tags, prompt).ok_or_else(|| {
        let known = OutputParser::NAMES.join(", ");
        usage::wrong(format!("unknown parser {:?}; known are {known}", args.parser))
    })?;
    let shown = args.chunks.display();
    let text = crate::local::read_text(&args.chunks)?;
    let chunks: Vec<String> =
        serde_json::from_str(&text).with_context(|| format!("{shown} is not a JSON list of texts"))?;
    let (mut content, mut thinking) = (String::new(), String::new());
    for chunk in &chunks {
        let split = parser.push(chunk);
        content.push_str(&split.content);
        thinking.push_str(&split.thinking);
    }
    let rest = parser.finish();
    content.push_str(&rest.content);
    thinking.push_str(&rest.thinking);
    if args.json {
        // The parsers of this version find thoughts; none of them reads calls.
        return out::json(&json!({"content": content, "thinking": thinking, "tool_calls": []}));
    }
    if !thinking.is_empty() {
        out::text(&format!("Thinking...\n{thinking}\n...done thinking.\n\n"))?;
    }
    out::line(&content)
}
