//! Dialect of OpenAI's older text completions (`POST /v1/completions`).

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use puna_api::ollama::{Logprob, PromptLogprob};
use puna_api::openai::{
    Completion, CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionRequest, Usage,
};
use serde_json::{Value, json as value};

use super::request::think;
use super::{
    DONE, MAX_ANSWERS, add_usage, count, push_event, push_failure, reject_in_stream, stop_texts,
    vllm_prompt_logprobs,
};
use crate::api::generation_request::GenerationRequest;
use crate::api::progress::PromptProgress;
use crate::api::{AnswerEncoder, AnswerEvent, CollectedResponse, Times, logprobs, prompt_logprobs};
use crate::canonical::{ApiError, GenerateTask, Input, Overflow, Prompt};
use crate::http::{StreamFormat, json_plain};
use crate::options::RequestOptions;
use crate::util::random_ids;

/// Parameters of a completion request beyond the canonical request.
pub(crate) struct CompletionParams {
    prompts: Vec<PromptInput>,
    /// Number of answers to each prompt (`n`).
    answers: usize,
    /// Number of generations for each prompt (`best_of`). The answer has the most likely ones.
    best_of: usize,
    echo: bool,
    logprobs: bool,
    prompt_logprobs: bool,
    stream: bool,
}

/// A prompt of a completion request.
#[derive(Debug, Clone, PartialEq)]
enum PromptInput {
    Text(String),
    Tokens(Vec<u32>),
}

/// Converts a request of `POST /v1/completions`. The canonical request has the first prompt;
/// [`CompletionParams::generations`] adds the others.
pub(crate) fn to_request(
    request: CompletionRequest,
) -> Result<(GenerationRequest, CompletionParams), ApiError> {
    let prompts = prompts(&request.prompt)?;
    let (answers, of) = (count("n", request.n)?, count("best_of", request.best_of.or(request.n))?);
    let invalid = |text: String| Err(ApiError::bad_request(text));
    if of < answers {
        return invalid(format!("best_of must be at least n ({answers}), but is {of}"));
    }
    if of > answers && request.stream {
        return invalid("best_of greater than n cannot be streamed: set stream to false".into());
    }
    if prompts.len() * of > MAX_ANSWERS as usize {
        return invalid(format!(
            "{} prompts with {of} answers each exceed the limit of {MAX_ANSWERS} answers",
            prompts.len()
        ));
    }
    let tokens = prompts.iter().any(|prompt| matches!(prompt, PromptInput::Tokens(_)));
    if tokens && !request.suffix.is_empty() {
        return invalid("suffix needs a prompt of text, not of token ids".into());
    }
    let (echo, has_logprobs) = (request.echo == Some(true), request.logprobs.is_some());
    let requested = reject_in_stream(request.prompt_logprobs, request.stream)?;
    // An echoed prompt has log-probabilities, too.
    let prompt_top_logprobs = requested.max(request.logprobs.filter(|_| echo));
    if request.logprobs.is_some_and(|top| !(0..=20).contains(&top)) {
        return invalid("logprobs must be between 0 and 20".into());
    }
    let options = options(&request)?;
    let effort = think(request.reasoning.map(|r| r.effort), request.reasoning_effort)?;
    let prompt = Prompt {
        // A single empty prompt only loads the model; several prompts never do.
        text: match prompts.as_slice() {
            [PromptInput::Text(text)] => text.clone(),
            _ => " ".into(),
        },
        // Scoring applies to the text itself, without a template.
        raw: echo && has_logprobs && request.suffix.is_empty(),
        suffix: request.suffix,
        ..Prompt::default()
    };
    let truncates = request.truncate == Some(true);
    let first = GenerationRequest {
        keep_alive: request.keep_alive,
        options,
        think: request.think.or(effort),
        // `best_of` needs log-probabilities to rank the answers.
        logprobs: logprobs(has_logprobs || of > answers, request.logprobs.unwrap_or(0))?,
        prompt_logprobs: prompt_logprobs(prompt_top_logprobs)?,
        overflow: if truncates { Overflow::DropMessages } else { Overflow::Refuse },
        names_overflow: request.truncate.is_some(),
        shift: request.shift,
        render_only: request.debug_render_only,
        cache_salt: request.cache_salt,
        ..GenerationRequest::new(request.model, Input::Prompt(prompt))
    };
    let prompt_logprobs = requested.is_some();
    let stream = request.stream;
    let params = CompletionParams {
        prompts,
        answers,
        best_of: of,
        echo,
        logprobs: has_logprobs,
        prompt_logprobs,
        stream,
    };
    Ok((first, params))
}

/// Parses the prompts: a text, a list of texts, a list of tokens, or a list of token lists.
fn prompts(prompt: &Value) -> Result<Vec<PromptInput>, ApiError> {
    let invalid = |kind: &str| {
        ApiError::bad_request(format!(
            "json: cannot unmarshal {kind} into Go struct field CompletionRequest.prompt of type string"
        ))
    };
    let list = match prompt {
        Value::Null => return Ok(vec![PromptInput::Text(String::new())]),
        Value::String(text) => return Ok(vec![PromptInput::Text(text.clone())]),
        Value::Array(list) => list,
        other => return Err(invalid(puna_api::decode::kind(other))),
    };
    match list.first() {
        None => Err(ApiError::bad_request("prompt: the list is empty")),
        Some(Value::Number(_)) => Ok(vec![PromptInput::Tokens(tokens(list)?)]),
        Some(_) => {
            let prompt_input = |prompt: &Value| match prompt {
                Value::String(text) => Ok(PromptInput::Text(text.clone())),
                Value::Array(list) if !list.is_empty() => tokens(list).map(PromptInput::Tokens),
                other => Err(invalid(puna_api::decode::kind(other))),
            };
            list.iter().map(prompt_input).collect()
        }
    }
}

/// Parses a list of token ids.
fn tokens(list: &[Value]) -> Result<Vec<u32>, ApiError> {
    let token = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let tokens = list.iter().map(token).collect::<Option<_>>();
    tokens.ok_or_else(|| {
        ApiError::bad_request("prompt: a list of tokens must contain token ids only")
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

impl CompletionParams {
    /// Returns the index and the tokens of each token prompt to echo. The server must decode these
    /// to text.
    pub(crate) fn unread(&self) -> Vec<(usize, Vec<u32>)> {
        let tokens = |(i, prompt): (usize, &PromptInput)| match prompt {
            PromptInput::Tokens(tokens) if self.echo => Some((i, tokens.clone())),
            _ => None,
        };
        self.prompts.iter().enumerate().filter_map(tokens).collect()
    }

    /// Returns all generations, grouped by prompt in order of the prompts.
    pub(crate) fn generations(&self, first: &GenerateTask) -> Result<Vec<GenerateTask>, ApiError> {
        let of_prompt = |prompt: &PromptInput| {
            let mut generate = first.clone();
            if let Input::Prompt(native) = &mut generate.input {
                match prompt {
                    PromptInput::Text(text) => native.text.clone_from(text),
                    PromptInput::Tokens(tokens) => {
                        *native = Prompt { tokens: Some(tokens.clone()), ..Prompt::default() }
                    }
                }
            }
            generate
        };
        let generations_by_prompt =
            self.prompts.iter().map(|prompt| of_prompt(prompt).replicate(self.best_of));
        let mut generations_by_prompt = generations_by_prompt.collect::<Result<Vec<_>, _>>()?;
        if !self.stream {
            // All generations of a prompt share its log-probabilities. Only the first computes
            // them, to avoid repeated scoring.
            let others =
                generations_by_prompt.iter_mut().flat_map(|of_prompt| of_prompt.iter_mut().skip(1));
            others.for_each(|generate| generate.prompt_logprobs = None);
        }
        Ok(generations_by_prompt.into_iter().flatten().collect())
    }
}

/// A prompt that the answer repeats (`echo`).
#[derive(Clone, Default)]
struct Echo {
    text: String,
    /// Whether the request gave tokens. The answer then lists all of them.
    is_token_prompt: bool,
}

/// Position in an echoed prompt: the end of the tokens listed so far.
#[derive(Clone, Copy, Default)]
struct EchoPosition {
    bytes: usize,
    chars: usize,
}

/// Encodes the answer to `POST /v1/completions`.
pub(crate) struct CompletionEncoder {
    id: String,
    model: String,
    include_usage: bool,
    params: Arc<CompletionParams>,
    /// Echo of each prompt.
    echoes: Vec<Echo>,
    /// Position of each generation in its echoed prompt.
    echo_positions: Vec<EchoPosition>,
    /// Number of characters sent of each generation, or `None` before the first piece.
    sent_chars: Vec<Option<usize>>,
    usage: Option<Usage>,
    /// Smallest number of cached tokens of each prompt among its answers so far.
    cached: Vec<Option<u64>>,
    ended_count: usize,
    prompt_progress: PromptProgress,
}

impl CompletionEncoder {
    /// Creates an encoder for the generations of `params`.
    pub(crate) fn new(model: String, include_usage: bool, params: Arc<CompletionParams>) -> Self {
        let echo = |prompt: &PromptInput| match prompt {
            PromptInput::Text(text) if params.echo => {
                Echo { text: text.clone(), is_token_prompt: false }
            }
            PromptInput::Text(_) => Echo::default(),
            PromptInput::Tokens(_) => Echo { text: String::new(), is_token_prompt: true },
        };
        let echoes: Vec<_> = params.prompts.iter().map(echo).collect();
        let (id, sent_chars) =
            (random_ids::alphanumeric("cmpl-"), vec![None; params.prompts.len() * params.best_of]);
        let (usage, cached) = (None, vec![None; params.prompts.len()]);
        let echo_positions = vec![EchoPosition::default(); sent_chars.len()];
        let (ended_count, prompt_progress) = (0, PromptProgress::default());
        Self {
            id,
            model,
            include_usage,
            params,
            echoes,
            echo_positions,
            sent_chars,
            usage,
            cached,
            ended_count,
            prompt_progress,
        }
    }

    /// Sets the decoded texts of the prompts from [`CompletionParams::unread`].
    pub(crate) fn set_read(&mut self, read: Vec<(usize, String)>) {
        for (i, text) in read {
            self.echoes[i].text = text;
        }
    }

    /// Returns a chunk with these choices.
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

    /// Returns a response with these choices.
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

    /// Returns the answers as one object.
    pub(crate) fn whole(&self, all: Vec<CollectedResponse>) -> Response {
        let mut usage = None;
        for of_prompt in all.chunks(self.params.best_of) {
            let mut cached = None;
            for done in of_prompt.iter().filter_map(|answer| answer.done.as_deref()) {
                add_usage(&mut usage, done, &mut cached);
            }
        }
        let mut all = all.into_iter();
        let mut choices = Vec::new();
        for echo in &self.echoes {
            let mut answers: Vec<_> = all.by_ref().take(self.params.best_of).collect();
            if let Some((first, others)) = answers.split_first_mut() {
                // Only the first generation of a prompt has the prompt's log-probabilities.
                others
                    .iter_mut()
                    .for_each(|other| other.prompt_logprobs.clone_from(&first.prompt_logprobs));
            }
            if self.params.best_of > self.params.answers {
                // Sorts the most likely answers first. The sort is stable.
                answers.sort_by(|a, b| mean_logprob(b).total_cmp(&mean_logprob(a)));
                answers.truncate(self.params.answers);
            }
            choices.extend(answers.into_iter().map(|answer| self.choice(echo, answer)));
        }
        for (choice, index) in choices.iter_mut().zip(0..) {
            choice.index = index;
        }
        self.answer(choices, usage)
    }

    /// Converts one answer to a choice.
    fn choice(&self, echo: &Echo, answer: CollectedResponse) -> CompletionChoice {
        let thoughts = answer.thought_tokens.min(answer.logprobs.len());
        let mut all = CompletionLogprobs::default();
        if self.params.echo {
            add_prompt_logprobs(
                &mut all,
                &answer.prompt_logprobs,
                echo,
                &mut EchoPosition::default(),
            );
        }
        add_logprobs(&mut all, &answer.logprobs[thoughts..], echo.text.chars().count());
        let finish_reason = answer.done.map(|done| done.reason.as_str().to_owned());
        let prompt =
            self.params.prompt_logprobs.then(|| vllm_prompt_logprobs(&answer.prompt_logprobs));
        CompletionChoice {
            text: format!("{}{}", echo.text, answer.content),
            reasoning: answer.thinking,
            index: 0,
            logprobs: self.params.logprobs.then_some(all),
            finish_reason,
            prompt_logprobs: prompt.flatten(),
        }
    }

    /// Returns the answer to a request that generates no text, for example to load a model.
    pub(crate) fn empty(&self, reason: &str) -> Response {
        let choice = CompletionChoice {
            finish_reason: Some(reason.to_owned()),
            ..CompletionChoice::default()
        };
        self.answer(vec![choice], Some(Usage::default()))
    }

    /// Sends a piece of text. `add` adds its log-probabilities, given the character offset of the
    /// piece.
    fn send_piece(
        &mut self,
        generation: usize,
        text: String,
        add: impl FnOnce(&mut CompletionLogprobs, usize),
        out: &mut Vec<u8>,
    ) {
        let offset = self.sent_chars[generation].get_or_insert(0);
        let mut all = CompletionLogprobs::default();
        add(&mut all, *offset);
        *offset += all.tokens.iter().map(|token| token.chars().count()).sum::<usize>();
        let logprobs = (self.params.logprobs && !all.tokens.is_empty()).then_some(all);
        let choice = CompletionChoice {
            text,
            index: generation as u32,
            logprobs,
            ..CompletionChoice::default()
        };
        push_event(&self.chunk(vec![choice], Usage::default()), out);
    }
}

/// Returns the mean log-probability of an answer's tokens.
fn mean_logprob(answer: &CollectedResponse) -> f32 {
    let count = answer.logprobs.len().max(1) as f32;
    answer.logprobs.iter().map(|l| l.logprob).sum::<f32>() / count
}

/// Adds log-probabilities in this dialect's format. `offset` is the character offset of the first
/// token.
fn add_logprobs(all: &mut CompletionLogprobs, logprobs: &[Logprob], mut offset: usize) {
    for logprob in logprobs {
        all.tokens.push(logprob.token.clone());
        all.token_logprobs.push(Some(logprob.logprob));
        let top = logprob.top_logprobs.iter().map(|top| (top.token.clone(), value!(top.logprob)));
        all.top_logprobs.push(Some(top.collect()));
        all.text_offset.push(offset);
        offset += logprob.token.chars().count();
    }
}

/// Adds log-probabilities of prompt tokens, aligned with the echoed text. Text prompts omit a
/// begin-of-sequence token, and the first token loses the space that some tokenizers prepend.
fn add_prompt_logprobs(
    all: &mut CompletionLogprobs,
    logprobs: &[PromptLogprob],
    echo: &Echo,
    position: &mut EchoPosition,
) {
    for prompt_token in logprobs {
        let rest = echo.text.as_bytes().get(position.bytes..).unwrap_or_default();
        let begins = position.bytes == 0;
        let (token, taken_bytes) = match prompt_token.bytes.as_slice() {
            bytes if rest.starts_with(bytes) => (prompt_token.token.clone(), bytes.len()),
            [b' ', bytes @ ..] if begins && rest.starts_with(bytes) => {
                (prompt_token.token[1..].to_owned(), bytes.len())
            }
            _ if begins && prompt_token.logprob.is_none() && echo.is_token_prompt => {
                (String::new(), 0)
            }
            _ if begins && prompt_token.logprob.is_none() => continue,
            _ => (prompt_token.token.clone(), 0),
        };
        all.tokens.push(token);
        all.token_logprobs.push(prompt_token.logprob);
        let top =
            prompt_token.top_logprobs.iter().map(|top| (top.token.clone(), value!(top.logprob)));
        all.top_logprobs.push(prompt_token.logprob.map(|_| top.collect()));
        all.text_offset.push(position.chars);
        // A character counts for the token that has its first byte.
        position.chars += rest[..taken_bytes].iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        position.bytes += taken_bytes;
    }
}

impl AnswerEncoder for CompletionEncoder {
    const STREAM_FORMAT: StreamFormat = StreamFormat::Sse;

    fn encode(&mut self, generation: usize, event: AnswerEvent, _: Times, out: &mut Vec<u8>) {
        let echo = &self.echoes[generation / self.params.best_of];
        if matches!(
            event,
            AnswerEvent::Thinking(_)
                | AnswerEvent::Content(_)
                | AnswerEvent::Prompt(_)
                | AnswerEvent::Done(_)
        ) && self.sent_chars[generation].is_none()
            && !echo.text.is_empty()
        {
            let text = echo.text.clone();
            let chars = text.chars().count();
            self.send_piece(generation, text, |_, _| {}, out);
            self.sent_chars[generation] = Some(chars);
        }
        match event {
            AnswerEvent::Content(piece) if !piece.text.is_empty() || !piece.logprobs.is_empty() => {
                let add = |all: &mut _, at| add_logprobs(all, &piece.logprobs, at);
                self.send_piece(generation, piece.text, add, out);
            }
            AnswerEvent::Thinking(piece) if !piece.text.is_empty() => {
                let (index, reasoning) = (generation as u32, piece.text);
                let choice = CompletionChoice { index, reasoning, ..CompletionChoice::default() };
                push_event(&self.chunk(vec![choice], Usage::default()), out);
            }
            AnswerEvent::Prompt(tokens) if self.params.echo => {
                let (echo, mut position) = (
                    self.echoes[generation / self.params.best_of].clone(),
                    self.echo_positions[generation],
                );
                let sent = self.sent_chars[generation];
                self.send_piece(
                    generation,
                    String::new(),
                    |all, _| add_prompt_logprobs(all, &tokens, &echo, &mut position),
                    out,
                );
                (self.echo_positions[generation], self.sent_chars[generation]) =
                    (position, sent.or(Some(0)));
            }
            AnswerEvent::Done(done) => {
                let finish_reason = Some(done.reason.as_str().to_owned());
                let choice = CompletionChoice {
                    index: generation as u32,
                    finish_reason,
                    ..CompletionChoice::default()
                };
                push_event(&self.chunk(vec![choice], Usage::default()), out);
                add_usage(
                    &mut self.usage,
                    &done,
                    &mut self.cached[generation / self.params.best_of],
                );
                self.ended_count += 1;
                if self.ended_count < self.sent_chars.len() {
                    return;
                }
                if let Some(usage) = self.usage.take().filter(|_| self.include_usage) {
                    push_event(&self.chunk(Vec::new(), usage), out);
                }
                out.extend_from_slice(DONE);
            }
            AnswerEvent::Progress { done, total } if generation == 0 => {
                self.prompt_progress.report(done, total, out)
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
