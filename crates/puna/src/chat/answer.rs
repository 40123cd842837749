//! Prints an answer as it arrives: reasoning, text, and tool calls that the session cannot execute.

use std::io::{self, Write};

use puna_api::ollama::ToolCall;

use super::ChatEvent;
use super::wrap::Wrapper;
use crate::format::escape_control_in_json;

const GREY: &str = "\x1b[38;5;245m";
const BOLD: &str = "\x1b[1m";
const RESET: &str = "\x1b[0m";

/// Prints the events of one answer.
#[derive(Debug, Default)]
pub struct AnswerPrinter {
    /// Whether to colour reasoning and tool calls.
    colour: bool,
    hide_thinking: bool,
    wrapper: Wrapper,
    thinking: Thinking,
}

#[derive(Debug, Default, PartialEq)]
enum Thinking {
    #[default]
    No,
    Open {
        at_line_start: bool,
    },
}

impl AnswerPrinter {
    /// Set `colour` for an interactive session or a terminal, and clear it for a pipe. With
    /// `hide_thinking`, the printer shows the answer without its reasoning.
    pub fn new(colour: bool, hide_thinking: bool) -> Self {
        Self { colour, hide_thinking, ..Self::default() }
    }

    /// Whether the printer writes anything for an event. The spinner stays until an event is shown.
    pub fn shows(&self, event: &ChatEvent) -> bool {
        match event {
            ChatEvent::Thinking(text) => !self.hide_thinking && !text.is_empty(),
            ChatEvent::Content(text) => !text.is_empty(),
            ChatEvent::ToolCall(_) => true,
            ChatEvent::Done(_) => false,
        }
    }

    /// Writes an event. Lines are wrapped to a terminal of `width` columns; `None` disables
    /// wrapping.
    pub fn event(
        &mut self,
        event: &ChatEvent,
        width: Option<usize>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if !self.shows(event) {
            return Ok(());
        }
        match event {
            ChatEvent::Thinking(text) => {
                if self.thinking == Thinking::No {
                    self.open_thinking(out)?;
                }
                self.thinking = Thinking::Open { at_line_start: text.ends_with('\n') };
                self.text(text, width, out)
            }
            ChatEvent::Content(text) => {
                self.close_thinking(out)?;
                self.text(text, width, out)
            }
            ChatEvent::ToolCall(call) => {
                self.close_thinking(out)?;
                self.tool_call(call, out)
            }
            ChatEvent::Done(_) => Ok(()),
        }
    }

    /// Ends an interrupted answer and resets the grey colour.
    pub fn break_off(&mut self, out: &mut dyn Write) -> io::Result<()> {
        match std::mem::take(&mut self.thinking) {
            Thinking::Open { .. } if self.colour => out.write_all(RESET.as_bytes()),
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: &str, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        // A pipe receives the text unchanged; a terminal must not receive control characters.
        let shown = if self.colour || width.is_some() {
            self.wrapper.push(text, width)
        } else {
            text.to_owned()
        };
        out.write_all(shown.as_bytes())?;
        out.flush()
    }

    fn open_thinking(&mut self, out: &mut dyn Write) -> io::Result<()> {
        match self.colour {
            true => write!(out, "{GREY}{BOLD}Thinking...\n{RESET}{GREY}"),
            false => writeln!(out, "Thinking..."),
        }
    }

    fn close_thinking(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let Thinking::Open { at_line_start } = std::mem::take(&mut self.thinking) else {
            return Ok(());
        };
        if !at_line_start {
            writeln!(out)?;
        }
        self.wrapper = Wrapper::default();
        match self.colour {
            true => write!(out, "{GREY}{BOLD}...done thinking.\n\n{RESET}"),
            false => write!(out, "...done thinking.\n\n"),
        }
    }

    fn tool_call(&mut self, call: &ToolCall, out: &mut dyn Write) -> io::Result<()> {
        let printable = |text: &str| Wrapper::default().push(text, None);
        let name = printable(&call.function.name);
        let arguments = serde_json::to_string(&call.function.arguments).unwrap_or_default();
        let arguments = escape_control_in_json(&arguments);
        let (title, value, end) =
            if self.colour { (format!("{GREY}{BOLD}"), RESET, RESET) } else { Default::default() };
        writeln!(
            out,
            "{title}  Model called a non-existent function '{value}{name}()'{title} with arguments: {value}{arguments}{end}",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use puna_api::ollama::Metrics;

    fn shown(printer: &mut AnswerPrinter, events: &[ChatEvent]) -> String {
        let mut out = Vec::new();
        for event in events {
            printer.event(event, None, &mut out).expect("writing to memory");
        }
        String::from_utf8(out).expect("text")
    }

    fn thinking(text: &str) -> ChatEvent {
        ChatEvent::Thinking(text.into())
    }

    fn content(text: &str) -> ChatEvent {
        ChatEvent::Content(text.into())
    }

    #[test]
    fn thinking_is_between_two_titles_and_ends_with_a_line_break() {
        let events = [
            thinking("Hm"),
            thinking(", yes"),
            content("It is"),
            content(" so."),
            ChatEvent::Done(Metrics::default()),
        ];
        let plain = shown(&mut AnswerPrinter::new(false, false), &events);
        assert_eq!(plain, "Thinking...\nHm, yes\n...done thinking.\n\nIt is so.");
        let broken =
            shown(&mut AnswerPrinter::new(false, false), &[thinking("Hm\n"), content("Yes.")]);
        assert_eq!(broken, "Thinking...\nHm\n...done thinking.\n\nYes.");
    }

    #[test]
    fn in_a_session_thinking_is_grey_and_its_titles_bold() {
        let shown = shown(&mut AnswerPrinter::new(true, false), &[thinking("Hm"), content("Yes.")]);
        let grey_bold = "\x1b[38;5;245m\x1b[1m";
        let title = format!("{grey_bold}Thinking...\n\x1b[0m\x1b[38;5;245m");
        assert_eq!(shown, format!("{title}Hm\n{grey_bold}...done thinking.\n\n\x1b[0mYes."));
    }

    #[test]
    fn hidden_thinking_prints_nothing() {
        let mut printer = AnswerPrinter::new(true, true);
        assert!(!printer.shows(&thinking("Hm")));
        assert_eq!(shown(&mut printer, &[thinking("Hm"), content("Yes.")]), "Yes.");
    }

    #[test]
    fn interrupted_thinking_resets_the_colour() {
        let mut printer = AnswerPrinter::new(true, false);
        shown(&mut printer, &[thinking("Hm")]);
        let mut out = Vec::new();
        printer.break_off(&mut out).expect("writing to memory");
        printer.break_off(&mut out).expect("writing to memory");
        assert_eq!(out, RESET.as_bytes());
    }

    #[test]
    fn a_tool_call_is_shown_with_its_arguments() {
        let mut call = ToolCall::default();
        call.function.name = "get\x1b_weather".into();
        call.function.arguments.insert("city".into(), "Paris\u{9b}".into());
        let shown = shown(&mut AnswerPrinter::new(false, false), &[ChatEvent::ToolCall(call)]);
        let want = r#"  Model called a non-existent function 'get_weather()' with arguments: {"city":"Paris\u009b"}"#;
        assert_eq!(shown, format!("{want}\n"));
    }
}
