//! Parser for most families: reasoning and calls stand between tags, the answer is plain text.

use super::body::{CallBody, TagText};
use super::call_stream::StreamedFormat;
use super::format_parser::{FormatParser, OutputStage, closing, is_free_of};
use super::output_part::CallError;
use super::part_sink::PartSink;
use super::pending::{BracketMatcher, PendingText, TagMatch, first_tag};
use super::tools::Tools;
use super::value_style::ValueStyle;
use crate::message::FunctionCall;

/// Output format of a family.
#[derive(Debug, Clone)]
pub(super) struct TaggedFormat {
    pub(super) think: Option<ReasoningFormat>,
    pub(super) calls: Option<CallsFormat>,
    /// Tags that are removed from the answer.
    pub(super) removed_tags: &'static [&'static str],
    /// Opening and closing tag of sections that are removed from the answer, with their text.
    pub(super) removed_sections: Option<(&'static str, &'static str)>,
    /// White space and an incomplete tag at the end of the output belong to the answer.
    pub(super) keep_tail: bool,
    /// Further special tokens of the family that the detokenizer must keep.
    pub(super) preserved_tokens: &'static [&'static str],
}

impl TaggedFormat {
    /// Plain text only.
    pub(super) const PLAIN: TaggedFormat = TaggedFormat {
        think: None,
        calls: None,
        removed_tags: &[],
        removed_sections: None,
        keep_tail: false,
        preserved_tokens: &[],
    };
}

/// Format of reasoning.
#[derive(Debug, Clone)]
pub(super) struct ReasoningFormat {
    pub(super) open: TagText,
    pub(super) close: TagText,
    pub(super) start: ReasoningStart,
    /// A call may start inside the reasoning, and ends it.
    pub(super) call_ends_reasoning: bool,
    /// Reasoning may start anywhere in the output.
    pub(super) reasoning_anywhere: bool,
    /// The reasoning is removed.
    pub(super) discard: bool,
    /// A closing tag at the start of the output, without an opening tag, ends empty reasoning.
    pub(super) allows_missing_open_tag: bool,
}

impl ReasoningFormat {
    /// Reasoning between `open` and `close`.
    pub(super) fn tags(
        open: impl Into<TagText>,
        close: impl Into<TagText>,
        start: ReasoningStart,
    ) -> Self {
        let (open, close) = (open.into(), close.into());
        Self {
            open,
            close,
            start,
            call_ends_reasoning: false,
            reasoning_anywhere: false,
            discard: false,
            allows_missing_open_tag: false,
        }
    }

    /// Adds reasoning to the output unless it is discarded.
    fn emit(&self, text: &str, out: &mut PartSink) {
        if !self.discard {
            out.thinking(text);
        }
    }
}

/// How the output starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReasoningStart {
    /// With the answer, without reasoning.
    Answer,
    /// With reasoning that the prompt has opened.
    InReasoning,
    /// Like [`ReasoningStart::InReasoning`], but the model may repeat the opening tag.
    MayReopen,
    /// With reasoning if the opening tag comes first.
    MayOpen,
}

/// Format of tool calls.
#[derive(Debug, Clone)]
pub(super) struct CallsFormat {
    /// Tags around all calls of an answer.
    pub(super) section: Option<(TagText, TagText)>,
    /// Tag before a call.
    pub(super) open: TagText,
    /// End of a call.
    pub(super) end: CallEnd,
    pub(super) body: CallBody,
    /// White space before a call belongs to the answer.
    pub(super) keep_blank: bool,
    /// Handling of a call without its end.
    pub(super) unclosed: UnclosedCall,
    /// Calls must be of declared tools.
    pub(super) only_declared: bool,
    /// The body of a call includes the opening tag.
    pub(super) body_includes_open: bool,
    /// If a call cannot be read, its closing tag may be part of a string: the parser tries the next
    /// closing tag.
    pub(super) retry_after_close: bool,
    /// A closing tag inside a value is part of the value.
    pub(super) close_tag_in_values: bool,
}

impl CallsFormat {
    /// Calls with default settings.
    pub(super) fn new(open: impl Into<TagText>, end: CallEnd, body: CallBody) -> Self {
        Self {
            section: None,
            open: open.into(),
            end,
            body,
            keep_blank: false,
            unclosed: UnclosedCall::Malformed,
            only_declared: false,
            body_includes_open: false,
            retry_after_close: false,
            close_tag_in_values: false,
        }
    }

    /// Calls between an opening and a closing tag.
    pub(super) fn between(
        open: impl Into<TagText>,
        close: impl Into<TagText>,
        body: CallBody,
    ) -> Self {
        Self::new(open, CallEnd::Tag(close.into()), body)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// A closing tag.
    Tag(TagText),
    /// The end of the call's JSON value, or of the JSON value behind a separator.
    Json(Option<TagText>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnclosedCall {
    /// The call is malformed.
    Malformed,
    /// The call is valid if the model ended the output, the tool is declared, and all required
    /// arguments are present.
    IfComplete,
}

/// Meaning of a closing tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClosingTag {
    /// The tag ends the call.
    EndsCall,
    /// The tag is probably part of a value.
    InValue,
    /// The tag is not part of a value, and the first closing tag was not either: that one ended the
    /// call.
    FirstEndedCall,
}

/// Number of closing tags of a call that are examined.
const MAX_CLOSING_TAGS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaggedState {
    Start,
    Reasoning,
    Answer,
    /// Between the calls of a section.
    Section,
    Call,
    Discarded,
}

/// Parser of a [`TaggedFormat`].
#[derive(Debug, Clone)]
pub(super) struct TaggedParser {
    format: TaggedFormat,
    tools: Tools,
    state: TaggedState,
    /// White space is dropped until other text arrives.
    trim: bool,
    /// White space before a call. It belongs to the answer if the call is malformed.
    blank: String,
    brackets: BracketMatcher,
    /// The separator before the JSON of the current call has arrived.
    in_json: bool,
    /// Number of closing tags of the current call that did not end it.
    attempts: usize,
    /// Offset of the first of these closing tags.
    first_close: Option<usize>,
}

impl TaggedParser {
    pub(super) fn new(format: TaggedFormat, tools: Tools) -> Self {
        let (state, trim) = match format.think.as_ref().map(|think| think.start) {
            None | Some(ReasoningStart::Answer) => (TaggedState::Answer, false),
            Some(ReasoningStart::InReasoning) => (TaggedState::Reasoning, true),
            Some(ReasoningStart::MayReopen | ReasoningStart::MayOpen) => {
                (TaggedState::Start, false)
            }
        };
        Self {
            format,
            tools,
            state,
            trim,
            blank: String::new(),
            brackets: BracketMatcher::default(),
            in_json: false,
            attempts: 0,
            first_close: None,
        }
    }

    /// Enters a state and resets what belongs to the current call. Returns true for `step`.
    fn enter(&mut self, state: TaggedState, trim: bool) -> bool {
        (self.state, self.trim) = (state, trim);
        (self.brackets, self.in_json) = (BracketMatcher::default(), false);
        (self.attempts, self.first_close) = (0, None);
        true
    }

    /// The tag that ends plain text: the opening tag of a section or of a call.
    fn call_tag(&self) -> Option<&str> {
        let calls = self.format.calls.as_ref()?;
        Some(calls.section.as_ref().map_or(&calls.open, |(open, _)| open))
    }

    /// Enters the state behind the opening tag of a section or call.
    fn enter_calls(&mut self) -> bool {
        let has_section = self.format.calls.as_ref().is_some_and(|calls| calls.section.is_some());
        self.enter(if has_section { TaggedState::Section } else { TaggedState::Call }, false)
    }

    /// Checks whether the output starts with the opening tag of reasoning.
    fn start(&mut self, text: &mut PendingText, end: bool) -> bool {
        let Some(think) = &self.format.think else { return self.enter(TaggedState::Answer, false) };
        let reopened = think.start == ReasoningStart::MayReopen;
        let rest = match text.first_non_blank() {
            Some(at) => &text.rest()[at..],
            None if end => "",
            None => return false,
        };
        if rest.starts_with(think.open.as_ref()) {
            let length = text.search_position() + think.open.len();
            text.take(length);
            return self.enter(TaggedState::Reasoning, true);
        }
        let lone = think.allows_missing_open_tag.then_some(think.close.as_ref());
        if let Some(close) = lone.filter(|close| rest.starts_with(*close)) {
            let length = text.search_position() + close.len();
            text.take(length);
            return self.enter(TaggedState::Answer, true);
        }
        if !end && std::iter::once(think.open.as_ref()).chain(lone).any(|tag| tag.starts_with(rest))
        {
            return false;
        }
        text.set_search_position(0);
        if reopened {
            self.enter(TaggedState::Reasoning, true)
        } else {
            self.enter(TaggedState::Answer, false)
        }
    }

    /// Consumes reasoning up to its closing tag, or to a call.
    fn reasoning(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let Some(think) = &self.format.think else { return self.enter(TaggedState::Answer, false) };
        let call = self.call_tag().filter(|_| think.call_ends_reasoning);
        let tags: Vec<&str> = std::iter::once(think.close.as_ref()).chain(call).collect();
        let released = text.release(&tags);
        match released.tag {
            Some(tag) => {
                think.emit(released.text.trim_end(), out);
                if tag == 0 { self.enter(TaggedState::Answer, true) } else { self.enter_calls() }
            }
            None => {
                think.emit(&released.text, out);
                if end {
                    let rest = text.take_all();
                    think.emit(rest.trim_end(), out);
                }
                false
            }
        }
    }

    /// Consumes the answer up to the next tag.
    fn answer(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let section_open = self.format.removed_sections.map(|(open, _)| open);
        let removed_tags = self.format.removed_tags.iter().copied();
        let reasoning = self
            .format
            .think
            .as_ref()
            .filter(|think| think.reasoning_anywhere)
            .map(|think| think.open.as_ref());
        let tags: Vec<&str> = self
            .call_tag()
            .into_iter()
            .chain(reasoning)
            .chain(section_open)
            .chain(removed_tags)
            .collect();
        let keeps_blank = self.format.calls.as_ref().is_some_and(|calls| calls.keep_blank);
        let released =
            if keeps_blank { text.release_with_blanks(&tags) } else { text.release(&tags) };
        let Some(tag) = released.tag.map(|tag| tags[tag]) else {
            out.content(&released.text);
            if end {
                self.end_answer(text, out);
            }
            return false;
        };
        if Some(tag) == self.call_tag() {
            let content_end =
                if keeps_blank { released.text.len() } else { released.text.trim_end().len() };
            out.content(&released.text[..content_end]);
            released.text[content_end..].clone_into(&mut self.blank);
            self.enter_calls()
        } else if Some(tag) == reasoning {
            out.content(released.text.trim_end());
            self.enter(TaggedState::Reasoning, true)
        } else if Some(tag) == section_open {
            out.content(released.text.trim_end());
            self.enter(TaggedState::Discarded, false)
        } else {
            out.content(&released.text);
            true
        }
    }

    /// Handles text that is left when the output ends in the answer.
    fn end_answer(&mut self, text: &mut PendingText, out: &mut PartSink) {
        let rest = text.take_all();
        if self.format.keep_tail {
            out.content(&rest);
        } else if !rest.trim().is_empty() {
            out.malformed(rest, CallError::TagCutOff);
        }
    }

    /// Consumes text between the calls of a section.
    fn section(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let Some(CallsFormat { section: Some((_, close)), open, .. }) = &self.format.calls else {
            return self.enter(TaggedState::Answer, false);
        };
        let (junk, tag) = match text.take_through_any(&[open, close]) {
            Some((junk, tag)) => (junk, Some(tag)),
            None if end => (text.take_all(), None),
            None => return false,
        };
        if !junk.trim().is_empty() {
            out.malformed(junk, CallError::Syntax("tags with a call between them"));
        }
        match tag {
            Some(0) => self.enter(TaggedState::Call, false),
            Some(_) => self.enter(TaggedState::Answer, true),
            None => false,
        }
    }

    /// Consumes a call once its end has arrived.
    fn call(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        let Some(calls) = &self.format.calls else { return self.enter(TaggedState::Answer, false) };
        let (length, closing) = match &calls.end {
            CallEnd::Tag(tag) => {
                let (length, available) = match text.find(&[tag]) {
                    TagMatch::Tag { at, .. } => (Some(at), at),
                    TagMatch::Partial(at) => (None, at),
                    TagMatch::None => (None, text.rest().len()),
                };
                self.stream_call(calls, &text.rest()[..available], out);
                (length, if length.is_some() { tag.len() } else { 0 })
            }
            CallEnd::Json(separator) => {
                if let Some(separator) = separator.as_ref().filter(|_| !self.in_json) {
                    let TagMatch::Tag { at, .. } = text.find(&[separator]) else {
                        return self.wait_or_end(text, end, out);
                    };
                    text.set_search_position(at + separator.len());
                    self.in_json = true;
                }
                let searched = text.search_position();
                let length = self
                    .brackets
                    .find_end(&text.rest()[searched..])
                    .map(|length| searched + length);
                text.set_search_position(text.rest().len());
                self.stream_call(calls, &text.rest()[..length.unwrap_or(text.rest().len())], out);
                (length, 0)
            }
        };
        let mut length = match length {
            Some(length) => length,
            // The first closing tag was not part of a value.
            None if end => match self.first_close {
                Some(first) => first,
                None => return self.wait_or_end(text, end, out),
            },
            None => return self.wait_or_end(text, end, out),
        };
        let closing = if let CallEnd::Tag(tag) = &calls.end { tag.len() } else { closing };
        match self.classify_closing_tag(calls, &text.rest()[..length]) {
            ClosingTag::InValue
                if self.attempts < MAX_CLOSING_TAGS && self.first_close != Some(length) =>
            {
                self.first_close.get_or_insert(length);
                self.attempts += 1;
                text.set_search_position(length + closing);
                return true;
            }
            ClosingTag::EndsCall => {}
            ClosingTag::InValue | ClosingTag::FirstEndedCall => {
                length = self.first_close.unwrap_or(length)
            }
        }
        let inside = &text.rest()[..length];
        let read = self.read(calls, inside);
        if read.is_err() && calls.retry_after_close && self.attempts < MAX_CLOSING_TAGS {
            self.attempts += 1;
            text.set_search_position(length + closing);
            return true;
        }
        let (in_section, trim) = (calls.section.is_some(), !calls.keep_blank && read.is_ok());
        let blank = std::mem::take(&mut self.blank);
        let whole = &text.rest()[..length + closing];
        out.calls(read, |sent_bytes| match sent_bytes {
            0 => format!("{blank}{}{whole}", calls.open),
            sent_bytes => whole[sent_bytes..].to_owned(),
        });
        text.take(length + closing);
        self.enter(if in_section { TaggedState::Section } else { TaggedState::Answer }, trim)
    }

    /// Classifies the closing tag behind `inside`. In JSON, the tag ends the call if `inside`
    /// parses. Between tags, the next tag must end the value.
    fn classify_closing_tag(&self, calls: &CallsFormat, inside: &str) -> ClosingTag {
        let Some(first) = self.first_close.filter(|_| calls.close_tag_in_values) else {
            return match calls.close_tag_in_values && calls.body.ends_in_value(inside) {
                true => ClosingTag::InValue,
                false => ClosingTag::EndsCall,
            };
        };
        let Some((end, others)) = calls.body.value_tags() else {
            return if self.read(calls, inside).is_ok() {
                ClosingTag::EndsCall
            } else {
                ClosingTag::InValue
            };
        };
        let tags: Vec<&str> = [end, &calls.open].into_iter().chain(others).collect();
        match first_tag(inside, first, &tags) {
            TagMatch::Tag { tag: 0, .. } if calls.body.ends_in_value(inside) => ClosingTag::InValue,
            TagMatch::Tag { tag: 0, .. } => ClosingTag::EndsCall,
            TagMatch::Tag { .. } => ClosingTag::FirstEndedCall,
            TagMatch::Partial(_) | TagMatch::None => ClosingTag::InValue,
        }
    }

    /// Streams the current call up to the text `inside`.
    fn stream_call(&self, calls: &CallsFormat, inside: &str, out: &mut PartSink) {
        let streamed_format = match &calls.body {
            CallBody::Json => StreamedFormat::Object,
            CallBody::NameJson(format) => StreamedFormat::NameJson(format),
            _ => return,
        };
        out.stream_call(streamed_format, inside, &self.tools);
    }

    /// Waits for more text, or handles the call in which the output ends.
    fn wait_or_end(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if end {
            self.end_inside_call(text, out);
        }
        false
    }

    /// Parses the body of a call and checks that its tools are declared, if required.
    fn read(&self, calls: &CallsFormat, inside: &str) -> Result<Vec<FunctionCall>, CallError> {
        let read = match calls.body_includes_open {
            true => calls.body.read(&format!("{}{inside}", calls.open), &self.tools)?,
            false => calls.body.read(inside, &self.tools)?,
        };
        match read.iter().find(|call| calls.only_declared && !self.tools.has(&call.name)) {
            Some(call) => Err(CallError::Undeclared(call.name.clone())),
            None => Ok(read),
        }
    }

    /// Handles a call in which the output ends.
    fn end_inside_call(&mut self, text: &mut PendingText, out: &mut PartSink) {
        let Some(calls) = &self.format.calls else { return };
        // The text without the incomplete closing tag at its end.
        let searched = text.search_position();
        let all = text.take_all();
        let inside = if matches!(calls.end, CallEnd::Tag(_)) { &all[..searched] } else { &all };
        let read = match calls.unclosed {
            _ if text.is_truncated() => Err(CallError::Unclosed),
            UnclosedCall::Malformed => Err(CallError::Unclosed),
            UnclosedCall::IfComplete => self.read(calls, inside).and_then(|read| {
                for call in &read {
                    if !self.tools.has(&call.name) {
                        return Err(CallError::Undeclared(call.name.clone()));
                    }
                    if let Some(argument) = self.tools.missing_argument(&call.name, &call.arguments)
                    {
                        return Err(CallError::Missing { tool: call.name.clone(), argument });
                    }
                }
                Ok(read)
            }),
        };
        let blank = std::mem::take(&mut self.blank);
        out.calls(read, |sent_bytes| match sent_bytes {
            0 => format!("{blank}{}{all}", calls.open),
            sent_bytes => all[sent_bytes..].to_owned(),
        });
        self.enter(TaggedState::Answer, true);
    }

    /// Drops text up to the closing tag of a discarded section.
    fn skip_discarded(&mut self, text: &mut PendingText, end: bool) -> bool {
        let Some((_, close)) = self.format.removed_sections else {
            return self.enter(TaggedState::Answer, false);
        };
        match text.take_through(close) {
            Some(_) => self.enter(TaggedState::Answer, true),
            None => {
                if end {
                    text.take_all();
                }
                false
            }
        }
    }
}

impl FormatParser for TaggedParser {
    fn step(&mut self, text: &mut PendingText, end: bool, out: &mut PartSink) -> bool {
        if !text.trim_start_if(&mut self.trim) {
            return false;
        }
        match self.state {
            TaggedState::Start => self.start(text, end),
            TaggedState::Reasoning => self.reasoning(text, end, out),
            TaggedState::Answer => self.answer(text, end, out),
            TaggedState::Section => self.section(text, end, out),
            TaggedState::Call => self.call(text, end, out),
            TaggedState::Discarded => self.skip_discarded(text, end),
        }
    }

    fn stage(&self) -> OutputStage {
        match self.state {
            TaggedState::Start
                if self
                    .format
                    .think
                    .as_ref()
                    .is_some_and(|think| think.start == ReasoningStart::MayOpen) =>
            {
                OutputStage::Start
            }
            TaggedState::Start | TaggedState::Reasoning => OutputStage::Thinking,
            _ => OutputStage::Answer,
        }
    }

    fn reasoning_end(&self) -> Option<String> {
        let thinks = self.stage() == OutputStage::Thinking;
        self.format.think.as_ref().filter(|_| thinks).map(|think| closing(&think.close))
    }

    fn keeps_thinking(&self, piece: &str) -> bool {
        let Some(think) =
            self.format.think.as_ref().filter(|_| self.state == TaggedState::Reasoning)
        else {
            return false;
        };
        let call = self.call_tag().filter(|_| think.call_ends_reasoning);
        is_free_of(piece, call.into_iter().chain([think.close.as_ref()]))
    }

    fn value_style(&self) -> Option<(ValueStyle, Vec<String>)> {
        let calls = self.format.calls.as_ref()?;
        let (style, mut forbidden) = calls.body.value_style()?;
        if let CallEnd::Tag(tag) = &calls.end {
            forbidden.push(tag.to_string());
        }
        Some((style, forbidden))
    }

    fn clone_box(&self) -> Box<dyn FormatParser> {
        Box::new(self.clone())
    }

    fn preserved_tokens(&self) -> Vec<String> {
        let mut all: Vec<&str> = self.format.preserved_tokens.to_vec();
        if let Some(think) = &self.format.think {
            all.extend([think.open.as_ref(), think.close.as_ref()]);
        }
        if let Some(calls) = &self.format.calls {
            all.push(&calls.open);
            if let CallEnd::Tag(tag) = &calls.end {
                all.push(tag);
            }
            all.extend(
                calls.section.iter().flat_map(|(open, close)| [open.as_ref(), close.as_ref()]),
            );
            all.extend(calls.body.tags());
        }
        all.extend(self.format.removed_tags);
        all.extend(self.format.removed_sections.iter().flat_map(|(open, close)| [*open, *close]));
        all.into_iter().map(str::to_owned).collect()
    }
}
