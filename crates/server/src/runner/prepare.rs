//! Turns a task into a request to the engine.

use puna_api::ollama::{self, ToolChoice};
use puna_engine::{AdapterScales, CacheNamespace, Request, Speculation};
use puna_prompt::{CallFormat, OutputParser, OutputStage, ParserInput, Template};
use puna_sampler::{Grammar, MAX_CONSTRAINT_BYTES, Params};

use super::answer_limits::AnswerLimits;
use super::answer_sink::{AnswerSink, summary_without_tokens};
use super::forced::{self, ForcedTool};
use super::preparer::{Preparer, to_api_error};
use super::prompt::{PromptText, think};
use super::schema_check::AnswerChecks;
use super::task_handle::{TaskHandle, check_connected};
use super::text_limits::check_request_text_bytes;
use crate::canonical::{ApiError, Event, GenerateTask, Overflow, RunOptions, Task};
use crate::options::speculate::SpeculationMode;

/// Reasoning tokens at the level `low`, for templates that know no levels.
const LOW_THINK_TOKENS: u64 = 1024;

/// Reasoning tokens at the level `medium`, for templates that know no levels.
const MEDIUM_THINK_TOKENS: u64 = 4096;

/// Maximum number of calls in a forced tool call: more than a step of an agent needs, and a limit
/// for models that never stop calling.
const MAX_FORCED_CALLS: usize = 8;

/// Error for a thinking budget with a diffusion model.
const DIFFUSION_THINK_BUDGET_ERROR: &str =
    "diffusion models do not support think_budget and levels of thinking: leave them out";

/// Maximum number of log-probabilities of a prompt, including alternatives.
const MAX_PROMPT_LOGPROBS: usize = 1 << 20;

/// Maximum length of an answer, in contexts. It equals the limit of Ollama.
const MAX_ANSWER_CONTEXTS: u64 = 10;

impl Preparer {
    /// Starts a task; its events go to `handle`.
    pub(crate) fn start(&self, handle: TaskHandle, task: Task) -> Result<(), ApiError> {
        match task {
            Task::Generate(generate) => self.generate(handle, *generate),
            Task::Count(generate) => self.count(&handle, *generate),
            Task::Embed(embed) => self.embed(handle, embed),
            Task::Rerank(rank) => self.rerank(handle, rank),
            Task::Tokenize(text) => {
                check_request_text_bytes(text.text.len())?;
                let tokens = self.model.tokenize(&text, handle.cancelled())?;
                self.send_event(&handle, Event::Tokens(tokens))
            }
            Task::Detokenize(tokens) => {
                let text = self.check_tokens(&tokens).map(|()| self.model.decode(&tokens))?;
                self.send_event(&handle, Event::Text(text))
            }
        }
    }

    fn generate(&self, handle: TaskHandle, mut task: GenerateTask) -> Result<(), ApiError> {
        task.options.stop.retain(|stop| !stop.is_empty());
        let text = self.prompt_text(&handle, &task)?;
        check_connected(&handle)?;
        if !text.adaptations.is_empty() {
            handle.send(Event::Adapted(text.adaptations.iter().map(ToString::to_string).collect()));
        }
        if task.render_only {
            handle.send(Event::Rendered(text.prompt));
            return Ok(());
        }
        self.check_min_token_count(&handle, &text, &task)?;
        let tokens = self.truncate_tokens(self.prompt_tokens(&handle, &text, &task)?, &task)?;
        check_prompt_logprobs(&task, tokens.tokens.len())?;
        let num_ctx = self.context(task.options.num_ctx);
        let limits = AnswerLimits {
            tokens: self.max_tokens(&task.options, num_ctx),
            prompt: tokens.tokens.len(),
            context: (!task.shift).then_some(num_ctx as usize),
        };
        let sampling = self.sampling(&task.options, num_ctx)?;
        let adapter_scales = self.adapter_scales(task.options.adapters.as_deref())?;
        let parser = output_parser(&task, &text);
        let parser =
            if task.stream_calls { parser.map(OutputParser::with_call_streaming) } else { parser };
        let tags = self.control_tags(parser.as_ref());
        let (answer, grammar) = self.answer_sink(&handle, &task, &text, parser, &tags, limits)?;
        let answer =
            answer.with_dropped(text.dropped_messages, text.dropped_tokens + tokens.cut_tokens);
        if task.options.num_predict == 0 && task.prompt_logprobs.is_none() {
            handle.send(Event::Done(Box::new(summary_without_tokens(&answer, tokens.tokens))));
            return Ok(());
        }
        let public_prefix = self.public_prefix(&handle, &task, &tokens.tokens);
        let request = Request {
            media: Vec::new(),
            prompt: tokens.tokens,
            sampling,
            max_tokens: limits.tokens,
            speculation: Some(self.speculation(&task.options)),
            stop: task.options.stop,
            visible_control_tokens: tags.iter().map(|(_, token)| *token).collect(),
            keep: tokens.keep,
            context: Some(num_ctx as usize),
            shift: task.shift,
            logprobs: task.logprobs,
            prompt_logprobs: task.prompt_logprobs,
            client: handle.client,
            cache_namespace: CacheNamespace(task.cache_namespace),
            public_prefix,
            adapter_scales,
            grammar,
            diffusion: task.options.diffusion.into(),
        };
        self.model.check_request(&request).map_err(to_api_error)?;
        // Sent before the engine has the request, so that no other event comes first.
        // `check_request` has found every reason to reject it.
        handle.send(Event::Started { prompt_tokens: request.prompt.len() as u64 });
        self.record_request(&handle, self.model.submit(request, Box::new(answer)))
    }

    /// Returns the sampling parameters, checked against the vocabulary and the context.
    fn sampling(&self, options: &RunOptions, num_ctx: u32) -> Result<Params, ApiError> {
        let mut sampling = options.sampling.clone();
        self.check_biases(&sampling.logit_bias)?;
        sampling.normalize(num_ctx).map_err(|e| ApiError::bad_request(e.to_string()))?;
        Ok(sampling)
    }

    /// Returns the control tokens that the parser must see, with their texts.
    fn control_tags(&self, parser: Option<&OutputParser>) -> Vec<(String, u32)> {
        let texts = parser.into_iter().flat_map(OutputParser::preserved_tokens);
        texts
            .filter_map(|text| self.model.control_token(&text).map(|token| (text, token)))
            .collect()
    }

    /// Creates the sink that receives the tokens of a request, and the grammar that they must
    /// follow.
    fn answer_sink(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        text: &PromptText,
        parser: Option<OutputParser>,
        tags: &[(String, u32)],
        limits: AnswerLimits,
    ) -> Result<(AnswerSink, Option<Grammar>), ApiError> {
        let think_budget = self.think_budget(task, text)?;
        check_connected(handle)?;
        let tools = forced::forced_tools(task)?;
        let checks = AnswerChecks::of(task, &tools);
        let call = self.forced_call(handle, task, text, tags, &tools)?;
        let (grammar, forced_prefix) =
            self.answer_grammar(handle, task, call, parser.as_ref(), limits)?;
        if let Some(checks) = &checks {
            handle.send(Event::SchemaUnenforced(checks.keywords()));
        }
        let answer = AnswerSink::new(handle.clone(), self.model.clone(), parser)
            .with_constraint(grammar.is_some())
            .with_stop(&task.options.stop, task.options.has_request_stops)
            .with_forced_prefix(forced_prefix)
            .with_calls_max(calls_max(task))
            .with_think_budget(think_budget)
            .with_checks(checks);
        Ok((answer, grammar))
    }

    /// Maximum number of tokens of an answer. A diffusion model has its own default length.
    fn max_tokens(&self, options: &RunOptions, num_ctx: u32) -> Option<usize> {
        let max = MAX_ANSWER_CONTEXTS * u64::from(num_ctx);
        let default_tokens = (!self.model.model_info().is_diffusion).then_some(max);
        let tokens = u64::try_from(options.num_predict).ok().or(default_tokens)?;
        Some(tokens.min(max) as usize)
    }

    /// Returns the speculation settings. The configuration's default for all models does not apply
    /// to diffusion models.
    fn speculation(&self, options: &RunOptions) -> Speculation {
        let applies = options.speculate_explicit || !self.model.model_info().is_diffusion;
        let mode = if applies { options.speculate } else { SpeculationMode::Off };
        mode.speculation(options.draft_num_predict)
    }

    /// Returns the maximum number of reasoning tokens. Rejects a budget for a diffusion model.
    fn think_budget(
        &self,
        task: &GenerateTask,
        text: &PromptText,
    ) -> Result<Option<u64>, ApiError> {
        match think_budget(task, text) {
            Some(_) if self.model.model_info().is_diffusion => {
                Err(ApiError::bad_request(DIFFUSION_THINK_BUDGET_ERROR))
            }
            budget => Ok(budget),
        }
    }

    /// Returns the grammar of the forced tool call and the text that starts it, if the request
    /// forces a call.
    pub(super) fn forced_call(
        &self,
        handle: &TaskHandle,
        task: &GenerateTask,
        text: &PromptText,
        tags: &[(String, u32)],
        tools: &[ForcedTool<'_>],
    ) -> Result<Option<(Grammar, String)>, ApiError> {
        let (false, Some(template)) = (tools.is_empty(), &text.template) else { return Ok(None) };
        let model_info = self.model.model_info();
        let parser_name = task.model.parser.as_deref().filter(|_| !text.is_request_template);
        let call_format = CallFormat::probe(
            template,
            parser_name,
            template.think_tags().as_ref(),
            &model_info.end_texts,
        );
        let call_format = call_format.ok_or_else(|| {
            ApiError::bad_request(
                "tool_choice: calls in this model's format cannot be forced: use \"auto\"",
            )
        })?;
        let starts_in_answer =
            output_parser(task, text).is_some_and(|parser| parser.stage() != OutputStage::Thinking);
        let call_format = if starts_in_answer {
            call_format.without_reasoning_end(template.think_tags().as_ref())
        } else {
            call_format
        };
        // `check_names` parses the names after the text that starts the call.
        forced::check_names(&call_format, tools, || {
            output_parser_after(task, text, if starts_in_answer { &text.prompt } else { "" })
        })?;
        let constraint = forced::constraint(&call_format, tools, calls_max(task) > 1, tags)?;
        let compile = |constraint: &_| self.model.grammar(constraint, true, handle.cancelled());
        let grammar = compile(&constraint).map_err(|error| {
            let small = constraint.bytes() <= MAX_CONSTRAINT_BYTES;
            let candidates = if small { tools } else { &[] };
            // Each candidate takes as long as the whole, so a disconnected client ends the search.
            let refused = |constraint: &_| {
                check_connected(handle).ok().and_then(|()| compile(constraint).err())
            };
            forced::rejected_tool_error(&call_format, candidates, &error, refused)
        })?;
        Ok(Some((grammar, call_format.before)))
    }

    /// Counts the tokens of a prompt without truncating it.
    fn count(&self, handle: &TaskHandle, task: GenerateTask) -> Result<(), ApiError> {
        let task = GenerateTask { overflow: Overflow::Refuse, ..task };
        let text = self.prompt_text(handle, &task)?;
        check_connected(handle)?;
        let tokens = self.prompt_tokens(handle, &text, &task)?;
        self.send_event(handle, Event::Counted(tokens.len() as u64))
    }

    fn send_event(&self, handle: &TaskHandle, event: Event) -> Result<(), ApiError> {
        handle.send(event);
        Ok(())
    }

    /// Rejects biases of tokens outside the vocabulary.
    fn check_biases(&self, biases: &[(u32, f32)]) -> Result<(), ApiError> {
        let known = self.model.vocab_size();
        match biases.iter().find(|(token, _)| *token as usize >= known) {
            Some((token, _)) => Err(ApiError::bad_request(format!(
                "logit_bias: token {token} is not in the vocabulary of {known} tokens"
            ))),
            None => Ok(()),
        }
    }

    /// Returns the scale of each adapter. If the request names any, the others get scale 0.
    fn adapter_scales(&self, requested: Option<&[(u32, f32)]>) -> Result<AdapterScales, ApiError> {
        let Some(requested) = requested else { return Ok(AdapterScales::default()) };
        let known = self.model.model_info().adapters;
        let mut scales = vec![0.0; known];
        for &(id, scale) in requested {
            let entry = scales.get_mut(id as usize).ok_or_else(|| {
                let order = "numbered from 0 in the order of its ADAPTER lines";
                ApiError::bad_request(format!(
                    "adapters: this model has no adapter {id}: it has {known}, {order}"
                ))
            })?;
            *entry = scale;
        }
        Ok(AdapterScales::new(&scales))
    }
}

/// Creates the parser of the model's output: the parser that the model names, or that its template
/// implies. Without a template, all text is the answer.
fn output_parser(task: &GenerateTask, text: &PromptText) -> Option<OutputParser> {
    output_parser_after(task, text, &text.prompt)
}

/// As [`output_parser`], for output that follows another prompt.
fn output_parser_after(
    task: &GenerateTask,
    text: &PromptText,
    prompt: &str,
) -> Option<OutputParser> {
    let template = text.template.as_deref()?;
    let think = think(task);
    let input = ParserInput {
        tools: &text.tools,
        think: think.as_ref(),
        last: text.last.as_ref(),
        prompt,
        constrained: task.format.is_some()
            && !matches!(task.tool_choice, ToolChoice::Required | ToolChoice::Named(_)),
    };
    let name = task.model.parser.as_deref().filter(|_| !text.is_request_template);
    name.and_then(|name| OutputParser::by_name(name, &input)).or_else(|| {
        let thinks = task.model.thinking && task.think != Some(ollama::Think::Off);
        let tags = template.think_tags().filter(|_| thinks);
        Some(OutputParser::for_template(template, tags, &input))
    })
}

/// Rejects a request for too many log-probabilities of the prompt.
fn check_prompt_logprobs(task: &GenerateTask, tokens: usize) -> Result<(), ApiError> {
    let Some(top) = task.prompt_logprobs else { return Ok(()) };
    if tokens.saturating_mul(top + 1) <= MAX_PROMPT_LOGPROBS {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "prompt_logprobs: {top} alternatives for each of {tokens} tokens exceed the limit of {MAX_PROMPT_LOGPROBS} values"
    )))
}

/// Maximum number of calls in an answer. A tool that the request names is called once.
fn calls_max(task: &GenerateTask) -> usize {
    match task.tool_choice {
        _ if !task.parallel_tool_calls => 1,
        ToolChoice::Named(_) => 1,
        ToolChoice::Required => MAX_FORCED_CALLS,
        _ => usize::MAX,
    }
}

/// Maximum number of reasoning tokens: the requested number, or that of the level if the template
/// knows no levels.
fn think_budget(task: &GenerateTask, text: &PromptText) -> Option<u64> {
    if let Some(budget) = task.options.think_budget {
        return Some(budget.into());
    }
    let level = match task.think {
        Some(ollama::Think::Low) => LOW_THINK_TOKENS,
        Some(ollama::Think::Medium) => MEDIUM_THINK_TOKENS,
        _ => return None,
    };
    let known = text.template.as_deref().is_none_or(Template::has_think_levels);
    (!known).then_some(level)
}
