//! OpenAI's older dialect of single texts.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::native::{Logprob, PromptLogprob};
use puna_api::openai::{
    Completion, CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionRequest, Usage,
};
use serde_json::{Value, json as value};

use super::request::think;
use super::{
    DONE, MAX_ANSWERS, add_usage, count, push_event, push_failure, stop_texts, whole_only,
    wire_prompt,
};
use crate::canonical::{ApiError, Generate, Input, Overflow, Prompt};
use crate::dialect::waiting::Reading;
use crate::dialect::{AnswerEvent, Collected, Encoder, Times, logprobs, prompt_logprobs};
use crate::http::{StreamFormat, json_plain};
use crate::options::RequestOptions;
use crate::random_ids;
use crate::request::GenerationRequest;

/// What is asked for besides a generation.
pub(crate) struct Wanted {
    prompts: Vec<Wish>,
    /// Answers to each prompt.
    answers: usize,
    /// Answers to each prompt of which the likeliest are returned.
    of: usize,
    echo: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    stream: bool,
}

/// A prompt.
#[derive(Debug, Clone, PartialEq)]
enum Wish {
    Text(String),
    Tokens(Vec<u32>),
}

/// The request of a completion, with the first of its prompts.
pub(crate) fn to_request(
    request: CompletionRequest,
) -> Result<(GenerationRequest, Wanted), ApiError> {
    let prompts = prompts(&request.prompt)?;
    let (answers, of) = (count("n", request.n)?, count("best_of", request.best_of.or(request.n))?);
    let wrong = |text: String| Err(ApiError::bad_request(text));
    if of < answers {
        return wrong(format!("best_of must be at least n, but is {of} of {answers}"));
    }
    if of > answers && request.stream {
        return wrong(
            "best_of greater than n cannot be streamed: which are the best is known at the end"
                .into(),
        );
    }
    if prompts.len() * of > MAX_ANSWERS as usize {
        return wrong(format!(
            "{} prompts with {of} answers each are more than {MAX_ANSWERS}",
            prompts.len()
        ));
    }
    let tokens = prompts.iter().any(|prompt| matches!(prompt, Wish::Tokens(_)));
    if tokens && !request.suffix.is_empty() {
        return wrong("suffix needs a prompt of text, not of tokens".into());
    }
    let (echo, has_logprobs) = (request.echo == Some(true), request.logprobs.is_some());
    let asked = whole_only(request.prompt_logprobs, request.stream)?;
    // Who has the prompt repeated gets its log-probabilities, too.
    let wanted_of_prompt = asked.max(request.logprobs.filter(|_| echo));
    if request.logprobs.is_some_and(|top| !(0..=20).contains(&top)) {
        return wrong("logprobs must be between 0 and 20".into());
    }
    let options = options(&request)?;
    let effort = think(request.reasoning.map(|r| r.effort), request.reasoning_effort)?;
    let prompt = Prompt {
        // An empty one only loads the model, where it is the only one.
        text: match prompts.as_slice() {
            [Wish::Text(text)] => text.clone(),
            _ => " ".into(),
        },
        // Who scores a text wants that of the text and not of a template around it.
        raw: echo && has_logprobs && request.suffix.is_empty(),
        suffix: request.suffix,
        ..Prompt::default()
    };
    let is_cut = request.truncate == Some(true);
    let first = GenerationRequest {
        keep_alive: request.keep_alive,
        options,
        think: request.think.or(effort),
        // What is the best is told by them.
        logprobs: logprobs(has_logprobs || of > answers, request.logprobs.unwrap_or(0))?,
        prompt_logprobs: prompt_logprobs(wanted_of_prompt)?,
        overflow: if is_cut { Overflow::DropMessages } else { Overflow::Refuse },
        names_overflow: request.truncate.is_some(),
        shift: request.shift,
        render_only: request.debug_render_only,
        ..GenerationRequest::new(request.model, Input::Prompt(prompt))
    };
    let prompt_logprobs = asked.is_some();
    let stream = request.stream;
    let wanted =
        Wanted { prompts, answers, of, echo, logprobs: has_logprobs, prompt_logprobs, stream };
    Ok((first, wanted))
}

/// A text, a list of them, the tokens of one, or a list of those.
fn prompts(prompt: &Value) -> Result<Vec<Wish>, ApiError> {
    let wrong = |kind: &str| {
        ApiError::bad_request(format!(
            "json: cannot unmarshal {kind} into Go struct field CompletionRequest.prompt of type string"
        ))
    };
    let list = match prompt {
        Value::Null => return Ok(vec![Wish::Text(String::new())]),
        Value::String(text) => return Ok(vec![Wish::Text(text.clone())]),
        Value::Array(list) => list,
        other => return Err(wrong(puna_api::decode::kind(other))),
    };
    match list.first() {
        None => Err(ApiError::bad_request("prompt: the list is empty")),
        Some(Value::Number(_)) => Ok(vec![Wish::Tokens(tokens(list)?)]),
        Some(_) => {
            let one = |prompt: &Value| match prompt {
                Value::String(text) => Ok(Wish::Text(text.clone())),
                Value::Array(list) if !list.is_empty() => tokens(list).map(Wish::Tokens),
                other => Err(wrong(puna_api::decode::kind(other))),
            };
            list.iter().map(one).collect()
        }
    }
}

fn tokens(list: &[Value]) -> Result<Vec<u32>, ApiError> {
    let token = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let tokens = list.iter().map(token).collect::<Option<_>>();
    tokens.ok_or_else(|| {
        ApiError::bad_request("prompt: a list of tokens may hold nothing but their numbers")
    })
}

fn options(request: &CompletionRequest) -> Result<RequestOptions, ApiError> {
    Ok(RequestOptions {
        num_predict: request.max_tokens,
        seed: request.seed,
        stop: stop_texts(request.stop.as_ref())?,
        temperature: request.temperature,
        top_p: request.top_p.map(|p| if p == 0.0 { 1.0 } else { p }),
        frequency_penalty: request.frequency_penalty,
        presence_penalty: request.presence_penalty,
        logit_bias: request.logit_bias.clone().filter(|bias| !bias.is_empty()),
        ..RequestOptions::named(request.options.as_ref())
    })
}

impl Wanted {
    /// Prompts of tokens whose text is to be repeated.
    pub(crate) fn unread(&self) -> Vec<(usize, Vec<u32>)> {
        let tokens = |(i, prompt): (usize, &Wish)| match prompt {
            Wish::Tokens(tokens) if self.echo => Some((i, tokens.clone())),
            _ => None,
        };
        self.prompts.iter().enumerate().filter_map(tokens).collect()
    }

    /// All generations: those of the first prompt, then those of the second …
    pub(crate) fn generations(&self, first: &Generate) -> Result<Vec<Generate>, ApiError> {
        let of_prompt = |prompt: &Wish| {
            let mut generate = first.clone();
            if let Input::Prompt(native) = &mut generate.input {
                match prompt {
                    Wish::Text(text) => native.text.clone_from(text),
                    Wish::Tokens(tokens) => {
                        *native = Prompt { tokens: Some(tokens.clone()), ..Prompt::default() }
                    }
                }
            }
            generate
        };
        let several = self.prompts.iter().map(|prompt| of_prompt(prompt).replicate(self.of));
        let mut several = several.collect::<Result<Vec<_>, _>>()?;
        if !self.stream {
            // What the prompt's tokens have is the same for all answers, and to score it is to compute it.
            let others = several.iter_mut().flat_map(|of_prompt| of_prompt.iter_mut().skip(1));
            others.for_each(|generate| generate.prompt_logprobs = None);
        }
        Ok(several.into_iter().flatten().collect())
    }
}

/// A prompt as the answer repeats it.
#[derive(Clone, Default)]
struct Echo {
    text: String,
    /// The request named its tokens, so that all of them are told.
    of_tokens: bool,
}

/// How much of a repeated prompt its tokens so far make up.
#[derive(Clone, Copy, Default)]
struct Told {
    bytes: usize,
    chars: usize,
}

/// Encodes the answer to `POST /v1/completions`.
pub(crate) struct CompletionEncoder {
    id: String,
    model: String,
    include_usage: bool,
    wanted: Arc<Wanted>,
    /// What each prompt is repeated as.
    echoes: Vec<Echo>,
    /// How much of it each generation has told the tokens of.
    told: Vec<Told>,
    /// Characters of each generation that were sent.
    sent: Vec<Option<usize>>,
    usage: Option<Usage>,
    /// Tokens of each prompt that were found in the cache.
    cached: Vec<Option<u64>>,
    ended: usize,
    reading: Reading,
}

impl CompletionEncoder {
    pub(crate) fn new(model: String, include_usage: bool, wanted: Arc<Wanted>) -> Self {
        let echo = |prompt: &Wish| match prompt {
            Wish::Text(text) if wanted.echo => Echo { text: text.clone(), of_tokens: false },
            Wish::Text(_) => Echo::default(),
            Wish::Tokens(_) => Echo { text: String::new(), of_tokens: true },
        };
        let echoes: Vec<_> = wanted.prompts.iter().map(echo).collect();
        let (id, sent) =
            (random_ids::alphanumeric("cmpl-"), vec![None; wanted.prompts.len() * wanted.of]);
        let (usage, cached) = (None, vec![None; wanted.prompts.len()]);
        let told = vec![Told::default(); sent.len()];
        let (ended, reading) = (0, Reading::default());
        Self { id, model, include_usage, wanted, echoes, told, sent, usage, cached, ended, reading }
    }

    /// Takes the texts of [`Wanted::unread`].
    pub(crate) fn set_read(&mut self, read: Vec<(usize, String)>) {
        for (i, text) in read {
            self.echoes[i].text = text;
        }
    }

    fn chunk(&self, choices: Vec<CompletionChoice>, usage: Usage) -> CompletionChunk {
        CompletionChunk {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: Timestamp::now().as_second(),
            choices,
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            usage: self.include_usage.then_some(usage),
        }
    }

    fn answer(&self, choices: Vec<CompletionChoice>, usage: Option<Usage>) -> Response {
        let answer = Completion {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: Timestamp::now().as_second(),
            model: self.model.clone(),
            system_fingerprint: "fp_ollama".into(),
            choices,
            usage,
        };
        json_plain(StatusCode::OK, &answer)
    }

    /// The answers in one object.
    pub(crate) fn whole(&self, all: Vec<Collected>) -> Response {
        let mut usage = None;
        for of_prompt in all.chunks(self.wanted.of) {
            let mut cached = None;
            for done in of_prompt.iter().filter_map(|answer| answer.done.as_deref()) {
                add_usage(&mut usage, done, &mut cached);
            }
        }
        let mut all = all.into_iter();
        let mut choices = Vec::new();
        for echo in &self.echoes {
            let mut answers: Vec<_> = all.by_ref().take(self.wanted.of).collect();
            if let Some((first, others)) = answers.split_first_mut() {
                // They were asked for once.
                others
                    .iter_mut()
                    .for_each(|other| other.prompt_logprobs.clone_from(&first.prompt_logprobs));
            }
            if self.wanted.of > self.wanted.answers {
                // The likeliest first; equals stay in their order.
                answers.sort_by(|a, b| likelihood(b).total_cmp(&likelihood(a)));
                answers.truncate(self.wanted.answers);
            }
            choices.extend(answers.into_iter().map(|answer| self.choice(echo, answer)));
        }
        for (choice, index) in choices.iter_mut().zip(0..) {
            choice.index = index;
        }
        self.answer(choices, usage)
    }

    fn choice(&self, echo: &Echo, answer: Collected) -> CompletionChoice {
        let thoughts = answer.thought_tokens.min(answer.logprobs.len());
        let mut all = CompletionLogprobs::default();
        if self.wanted.echo {
            add_prompt(&mut all, &answer.prompt_logprobs, echo, &mut Told::default());
        }
        add(&mut all, &answer.logprobs[thoughts..], echo.text.chars().count());
        let finish_reason = answer.done.map(|done| done.reason.as_str().to_owned());
        let prompt = self.wanted.prompt_logprobs.then(|| wire_prompt(&answer.prompt_logprobs));
        CompletionChoice {
            text: format!("{}{}", echo.text, answer.content),
            reasoning: answer.thinking,
            index: 0,
            logprobs: self.wanted.logprobs.then_some(all),
            finish_reason,
            prompt_logprobs: prompt.flatten(),
        }
    }

    /// The answer where nothing was to be generated.
    pub(crate) fn empty(&self, reason: &str) -> Response {
        let choice = CompletionChoice {
            finish_reason: Some(reason.to_owned()),
            ..CompletionChoice::default()
        };
        self.answer(vec![choice], Some(Usage::default()))
    }

    /// A piece of text with the log-probabilities that `add` adds, given where it begins.
    fn piece(
        &mut self,
        from: usize,
        text: String,
        add: impl FnOnce(&mut CompletionLogprobs, usize),
        out: &mut Vec<u8>,
    ) {
        let offset = self.sent[from].get_or_insert(0);
        let mut all = CompletionLogprobs::default();
        add(&mut all, *offset);
        *offset += all.tokens.iter().map(|token| token.chars().count()).sum::<usize>();
        let logprobs = (self.wanted.logprobs && !all.tokens.is_empty()).then_some(all);
        let choice =
            CompletionChoice { text, index: from as u32, logprobs, ..CompletionChoice::default() };
        push_event(&self.chunk(vec![choice], Usage::default()), out);
    }
}

/// Mean log-probability of an answer's tokens.
fn likelihood(answer: &Collected) -> f32 {
    let count = answer.logprobs.len().max(1) as f32;
    answer.logprobs.iter().map(|l| l.logprob).sum::<f32>() / count
}

/// Adds log-probabilities in this dialect's form, of tokens that begin at a character.
fn add(all: &mut CompletionLogprobs, logprobs: &[Logprob], mut offset: usize) {
    for logprob in logprobs {
        all.tokens.push(logprob.token.clone());
        all.token_logprobs.push(Some(logprob.logprob));
        let top = logprob.top_logprobs.iter().map(|top| (top.token.clone(), value!(top.logprob)));
        all.top_logprobs.push(Some(top.collect()));
        all.text_offset.push(offset);
        offset += logprob.token.chars().count();
    }
}

/// The same of a prompt's tokens, as parts of the text that repeats it: without a first token that every text gets, and
/// without the space that some tokenizers put in front.
fn add_prompt(
    all: &mut CompletionLogprobs,
    logprobs: &[PromptLogprob],
    echo: &Echo,
    told: &mut Told,
) {
    for of in logprobs {
        let rest = echo.text.as_bytes().get(told.bytes..).unwrap_or_default();
        let begins = told.bytes == 0;
        let (token, taken) = match of.bytes.as_slice() {
            bytes if rest.starts_with(bytes) => (of.token.clone(), bytes.len()),
            [b' ', bytes @ ..] if begins && rest.starts_with(bytes) => {
                (of.token[1..].to_owned(), bytes.len())
            }
            _ if begins && of.logprob.is_none() && echo.of_tokens => (String::new(), 0),
            _ if begins && of.logprob.is_none() => continue,
            _ => (of.token.clone(), 0),
        };
        all.tokens.push(token);
        all.token_logprobs.push(of.logprob);
        let top = of.top_logprobs.iter().map(|top| (top.token.clone(), value!(top.logprob)));
        all.top_logprobs.push(of.logprob.map(|_| top.collect()));
        all.text_offset.push(told.chars);
        // Characters count where they begin.
        told.chars += rest[..taken].iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        told.bytes += taken;
    }
}

impl Encoder for CompletionEncoder {
    const WIRE: StreamFormat = StreamFormat::Sse;

    fn encode(&mut self, from: usize, event: AnswerEvent, _: Times, out: &mut Vec<u8>) {
        let echo = &self.echoes[from / self.wanted.of];
        if matches!(
            event,
            AnswerEvent::Thinking(_)
                | AnswerEvent::Content(_)
                | AnswerEvent::Prompt(_)
                | AnswerEvent::Done(_)
        ) && self.sent[from].is_none()
            && !echo.text.is_empty()
        {
            let text = echo.text.clone();
            let chars = text.chars().count();
            self.piece(from, text, |_, _| {}, out);
            self.sent[from] = Some(chars);
        }
        match event {
            AnswerEvent::Content(piece) if !piece.text.is_empty() || !piece.logprobs.is_empty() => {
                let add = |all: &mut _, at| add(all, &piece.logprobs, at);
                self.piece(from, piece.text, add, out);
            }
            AnswerEvent::Thinking(piece) if !piece.text.is_empty() => {
                let (index, reasoning) = (from as u32, piece.text);
                let choice = CompletionChoice { index, reasoning, ..CompletionChoice::default() };
                push_event(&self.chunk(vec![choice], Usage::default()), out);
            }
            AnswerEvent::Prompt(tokens) if self.wanted.echo => {
                let (echo, mut told) =
                    (self.echoes[from / self.wanted.of].clone(), self.told[from]);
                let sent = self.sent[from];
                self.piece(
                    from,
                    String::new(),
                    |all, _| add_prompt(all, &tokens, &echo, &mut told),
                    out,
                );
                (self.told[from], self.sent[from]) = (told, sent.or(Some(0)));
            }
            AnswerEvent::Done(done) => {
                let finish_reason = Some(done.reason.as_str().to_owned());
                let choice = CompletionChoice {
                    index: from as u32,
                    finish_reason,
                    ..CompletionChoice::default()
                };
                push_event(&self.chunk(vec![choice], Usage::default()), out);
                add_usage(&mut self.usage, &done, &mut self.cached[from / self.wanted.of]);
                self.ended += 1;
                if self.ended < self.sent.len() {
                    return;
                }
                if let Some(usage) = self.usage.take().filter(|_| self.include_usage) {
                    push_event(&self.chunk(Vec::new(), usage), out);
                }
                out.extend_from_slice(DONE);
            }
            AnswerEvent::Progress { done, total } if from == 0 => {
                self.reading.progress(done, total, out)
            }
            AnswerEvent::Error(failure) => push_failure(failure, out),
            _ => {}
        }
    }

    fn rendered(&self, prompt: String) -> Response {
        let finish_reason = Some("load".to_owned());
        let choice =
            CompletionChoice { text: prompt, finish_reason, ..CompletionChoice::default() };
        self.answer(vec![choice], Some(Usage::default()))
    }
}
