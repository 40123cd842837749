//! Ending the reasoning from outside with `reasoning_end`.

use super::hostile::PIECES;
use super::*;
use crate::TemplateFormat;

fn thinking() -> impl Iterator<Item = (&'static str, OutputParser)> {
    let on = &Think::Switch(true);
    OutputParser::names().filter_map(move |name| {
        let input = ParserInput { think: Some(on), ..ParserInput::default() };
        let mut parser = OutputParser::by_name(name, &input).unwrap();
        let open = match name {
            "harmony" => "<|channel|>analysis<|message|>",
            "gemma4" => "<|channel>thought\n",
            "glimmer" => " to=self<|message|>",
            "olmo3-think" | "lfm2-thinking" | "qwen3-thinking" => "<think>",
            _ => "",
        };
        parser.push(open);
        parser.push("Let me see.");
        parser.is_thinking().then_some((name, parser))
    })
}

#[test]
fn reasoning_end_ends_the_reasoning_and_starts_the_answer() {
    let mut known = Vec::new();
    for (name, mut parser) in thinking() {
        let Some(end) = parser.reasoning_end() else { continue };
        known.push(name);
        parser.push(&end);
        assert_eq!(
            (parser.stage(), parser.reasoning_end()),
            (OutputStage::Answer, None),
            "{name}: {end:?}"
        );
        let mut parts = parser.push("42");
        parts.extend(parser.finish());
        assert!(
            parts.iter().any(|part| *part == OutputPart::Content("42".into())),
            "{name}: {parts:?}"
        );
    }
    for name in [
        "harmony",
        "gemma4",
        "qwen3-thinking",
        "qwen3.5",
        "deepseek3",
        "glm-4.7",
        "laguna",
        "cohere",
        "glimmer",
    ] {
        assert!(known.contains(&name), "{name} is not among {known:?}");
    }
}

#[test]
fn glimmer_may_answer_between_messages_to_itself() {
    let message = |parser: &mut OutputParser| {
        let end = parser.reasoning_end().unwrap();
        let parts = parser.push(&(end + "42<|eot|>"));
        assert_eq!(
            (parts, parser.stage()),
            (vec![OutputPart::Content("42".into())], OutputStage::Answer)
        );
    };
    for before in ["", " to=self<|message|>Well.<|eom|>"] {
        let mut parser = OutputParser::by_name("glimmer", &ParserInput::default()).unwrap();
        parser.push(before);
        message(&mut parser);
    }
    // An unfinished header cannot be continued.
    let mut parser = OutputParser::by_name("glimmer", &ParserInput::default()).unwrap();
    parser.push(" to=");
    assert!(parser.is_thinking() && parser.reasoning_end().is_none());
}

#[test]
fn keeps_thinking_is_true_only_if_the_reasoning_continues() {
    let template =
        Template::parse(TemplateFormat::Jinja, "{{ '<think>\\n' }}{{ messages }}</think>").unwrap();
    let tags = template.think_tags();
    let generic = OutputParser::for_template(
        &template,
        tags,
        &ParserInput { prompt: "<think>", ..ParserInput::default() },
    );
    let mut sure = 0;
    for (name, parser) in thinking().chain([("template", generic)]) {
        for piece in
            PIECES.iter().copied().chain(["and so", " 1 < 2", "\n", "<", "[", "\n</thi", "é"])
        {
            if parser.keeps_thinking(piece) {
                sure += 1;
                assert_eq!(parser.peek_stage(piece), OutputStage::Thinking, "{name}: {piece:?}");
                // The text behind the piece does not end the reasoning earlier than in one piece.
                let mut parser = parser.snapshot();
                parser.push(piece);
                assert!(
                    parser.is_thinking() && !parser.keeps_thinking("</think>"),
                    "{name}: {piece:?}"
                );
            }
        }
    }
    assert!(sure > 40, "{sure}");
}
