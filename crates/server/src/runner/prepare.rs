//! From a task to a job of the engine.

use std::sync::Arc;

use puna_api::native::{self, ToolChoice};
use puna_engine::{AdapterScales, EngineError, Request, Speculation};
use puna_prompt::{CallFormat, OutputParser, OutputStage, ParserInput, Template};
use puna_sampler::{CONSTRAINT_BYTES_MAX, Grammar, Params};

use super::answer::{Answer, no_tokens};
use super::forced::{self, ForcedTool};
use super::form::Limits;
use super::generator::Generator;
use super::prompt::{Text, think};
use super::schema_check::AnswerChecks;
use super::templates::Templates;
use super::worker::Handle;
use crate::canonical::{ApiError, Event, Generate, Overflow, RunOptions, Task};
use crate::speculate::SpeculationMode;

/// Tokens of a thought at the level `low`, for models that know no levels.
const LOW_BUDGET: u64 = 1024;

/// The same at the level `medium`.
const MEDIUM_BUDGET: u64 = 4096;

/// Calls of an answer that must be calls: more than one step of an agent needs, and an end for models that only go on.
const FORCED_CALLS: usize = 8;

/// Why a diffusion model has no budget of thoughts.
const ENDLESS: &str = "this model fills masked places in any order, so that its thoughts cannot be ended after so many tokens: ask \
                       without a budget, and without a level of thinking";

/// Log-probabilities of a prompt that are told at most, alternatives included.
const PROMPT_LOGPROBS: usize = 1 << 20;

/// Makes jobs of tasks.
pub(crate) struct Preparer {
    pub(crate) generator: Arc<dyn Generator>,
    pub(super) templates: Templates,
}

impl Preparer {
    pub(crate) fn new(generator: Arc<dyn Generator>) -> Self {
        Self { generator, templates: Templates::default() }
    }

    /// Starts a task; its events go to `handle`.
    pub(crate) fn start(&self, handle: Handle, task: Task) -> Result<(), ApiError> {
        match task {
            Task::Generate(generate) => self.generate(handle, *generate),
            Task::Count(generate) => self.count(&handle, *generate),
            Task::Embed(embed) => self.embed(handle, embed),
            Task::Rank(rank) => self.rank(handle, rank),
            Task::Tokenize(text) => {
                self.end(&handle, Event::Tokens(self.generator.tokenize(&text)))
            }
            Task::Detokenize(tokens) => {
                let text = self.known(&tokens).map(|()| self.generator.decode(&tokens))?;
                self.end(&handle, Event::Text(text))
            }
        }
    }

    fn generate(&self, handle: Handle, mut task: Generate) -> Result<(), ApiError> {
        task.options.stop.retain(|stop| !stop.is_empty());
        let text = self.text(&handle, &task)?;
        listening(&handle)?;
        if !text.adaptations.is_empty() {
            handle.send(Event::Adapted(text.adaptations.iter().map(ToString::to_string).collect()));
        }
        if task.render_only {
            handle.send(Event::Rendered(text.prompt));
            return Ok(());
        }
        let tokens = self.tokens(self.prompt_tokens(&text, &task), &task)?;
        check_prompt_logprobs(&task, tokens.tokens.len())?;
        let num_ctx = self.context(task.options.num_ctx);
        let limits = Limits {
            tokens: self.max_tokens(&task.options, num_ctx),
            prompt: tokens.tokens.len(),
            context: (!task.shift).then_some(num_ctx as usize),
        };
        let sampling = self.sampling(&task.options, num_ctx)?;
        let adapter_scales = self.adapter_scales(task.options.adapters.as_deref())?;
        let parser = parser_of(&task, &text);
        let parser =
            if task.stream_calls { parser.map(OutputParser::with_call_streaming) } else { parser };
        let tags = self.control_tags(parser.as_ref());
        let (answer, grammar) = self.answer(&handle, &task, &text, parser, &tags, limits)?;
        let answer = answer.with_dropped(text.dropped_messages, text.dropped_tokens + tokens.cut);
        if task.options.num_predict == 0 && task.prompt_logprobs.is_none() {
            handle.send(Event::Done(Box::new(no_tokens(&answer, tokens.tokens))));
            return Ok(());
        }
        let job = Request {
            prompt: tokens.tokens,
            sampling,
            max_tokens: limits.tokens,
            speculation: Some(self.speculation(&task.options)),
            stop: task.options.stop,
            shown: tags.iter().map(|(_, token)| *token).collect(),
            keep: tokens.keep,
            context: Some(num_ctx as usize),
            shift: task.shift,
            logprobs: task.logprobs,
            prompt_logprobs: task.prompt_logprobs,
            client: handle.client,
            adapter_scales,
            grammar,
            diffusion: task.options.diffusion.into(),
        };
        self.generator.check_request(&job).map_err(told)?;
        // Before the job is there, so that nothing of it comes first. What could still refuse it was looked at.
        handle.send(Event::Started { prompt_tokens: job.prompt.len() as u64 });
        self.begun(&handle, self.generator.submit(job, Box::new(answer)))
    }

    /// The settings of the sampler, checked against the model's vocabulary and the context.
    fn sampling(&self, options: &RunOptions, num_ctx: u32) -> Result<Params, ApiError> {
        let mut sampling = options.sampling.clone();
        self.check_biases(&sampling.logit_bias)?;
        sampling.normalize(num_ctx).map_err(|e| ApiError::bad_request(e.to_string()))?;
        Ok(sampling)
    }

    /// The texts that the parser must see and that are control tokens of the model, with these tokens.
    fn control_tags(&self, parser: Option<&OutputParser>) -> Vec<(String, u32)> {
        let texts = parser.into_iter().flat_map(OutputParser::preserved_tokens);
        texts
            .filter_map(|text| self.generator.control_token(&text).map(|token| (text, token)))
            .collect()
    }

    /// The answer that the job's tokens go to, and the grammar that they must follow.
    fn answer(
        &self,
        handle: &Handle,
        task: &Generate,
        text: &Text,
        parser: Option<OutputParser>,
        tags: &[(String, u32)],
        limits: Limits,
    ) -> Result<(Answer, Option<Grammar>), ApiError> {
        let think_budget = self.think_budget(task, text)?;
        listening(handle)?;
        let tools = forced::forced_tools(task)?;
        let checks = AnswerChecks::of(task, &tools);
        let call = self.forced_call(handle, task, text, tags, &tools)?;
        let (grammar, beginning) = self.answer_form(handle, task, call, parser.as_ref(), limits)?;
        if let Some(checks) = &checks {
            handle.send(Event::SchemaUnenforced(checks.keywords()));
        }
        let answer = Answer::new(handle.clone(), self.generator.clone(), parser)
            .with_form(grammar.is_some())
            .with_stop(&task.options.stop, task.options.has_request_stops)
            .with_forced(beginning)
            .with_calls_max(calls_max(task))
            .with_think_budget(think_budget)
            .with_checks(checks);
        Ok((answer, grammar))
    }

    /// Takes note of a job that the engine has taken, or says why it has not. A client that has gone meanwhile ends it.
    pub(super) fn begun(
        &self,
        handle: &Handle,
        job: Result<u64, EngineError>,
    ) -> Result<(), ApiError> {
        let job = job.map_err(told)?;
        if !handle.started(job) {
            self.generator.cancel(job);
        }
        Ok(())
    }

    /// Tokens of an answer at most. A diffusion model knows how long one is of which nobody says it.
    fn max_tokens(&self, options: &RunOptions, num_ctx: u32) -> Option<usize> {
        let most = 10 * u64::from(num_ctx);
        let unsaid = (!self.generator.facts().unmasks).then_some(most);
        let tokens = u64::try_from(options.num_predict).ok().or(unsaid)?;
        Some(tokens.min(most) as usize)
    }

    /// How to guess ahead. What the configuration says of all models is no wish of one that guesses nothing.
    fn speculation(&self, options: &RunOptions) -> Speculation {
        let is_meant = options.speculate_explicit || !self.generator.facts().unmasks;
        let mode = if is_meant { options.speculate } else { SpeculationMode::Off };
        mode.speculation(options.draft_num_predict)
    }

    /// Tokens that the thought may have, unless it is one that cannot be ended.
    fn think_budget(&self, task: &Generate, text: &Text) -> Result<Option<u64>, ApiError> {
        match think_budget(task, text) {
            Some(_) if self.generator.facts().unmasks => Err(ApiError::bad_request(ENDLESS)),
            budget => Ok(budget),
        }
    }

    /// The grammar of the call that the request demands, if it does, and how it begins.
    pub(super) fn forced_call(
        &self,
        handle: &Handle,
        task: &Generate,
        text: &Text,
        tags: &[(String, u32)],
        tools: &[ForcedTool<'_>],
    ) -> Result<Option<(Grammar, String)>, ApiError> {
        let (false, Some(template)) = (tools.is_empty(), &text.template) else { return Ok(None) };
        let facts = self.generator.facts();
        let parser = task.model.parser.as_deref().filter(|_| !text.own);
        let form = CallFormat::probe(template, parser, template.think_tags().as_ref(), &facts.ends);
        let form = form.ok_or_else(|| {
            ApiError::bad_request(
                "tool_choice: the form in which this model's template writes calls cannot be forced; use \"auto\"",
            )
        })?;
        let answers =
            parser_of(task, text).is_some_and(|parser| parser.stage() != OutputStage::Thinking);
        let form =
            if answers { form.without_reasoning_end(template.think_tags().as_ref()) } else { form };
        // The names are read behind whatever the form begins with.
        forced::check_names(&form, tools, || {
            parser_after(task, text, if answers { &text.prompt } else { "" })
        })?;
        let constraint = forced::constraint(&form, tools, calls_max(task) > 1, tags)?;
        let grammar = self.generator.grammar(&constraint, true).map_err(|error| {
            let small = constraint.bytes() <= CONSTRAINT_BYTES_MAX;
            let suspects = if small { tools } else { &[] };
            // Each of them takes as long; nobody may be waiting any more.
            let refused = |form: &_| {
                listening(handle).ok().and_then(|()| self.generator.grammar(form, true).err())
            };
            forced::blame(&form, suspects, &error, refused)
        })?;
        Ok(Some((grammar, form.before)))
    }

    /// Counts a prompt's tokens, as many as they are.
    fn count(&self, handle: &Handle, task: Generate) -> Result<(), ApiError> {
        let task = Generate { overflow: Overflow::Refuse, ..task };
        let text = self.text(handle, &task)?;
        listening(handle)?;
        self.end(handle, Event::Counted(self.prompt_tokens(&text, &task).len() as u64))
    }

    /// Tokens that the context of a request holds: what it asks for, as far as there are so many.
    pub(super) fn context(&self, asked: Option<u32>) -> u32 {
        let most = self.generator.facts().num_ctx;
        asked.map_or(most, |tokens| tokens.min(most))
    }

    fn end(&self, handle: &Handle, event: Event) -> Result<(), ApiError> {
        handle.send(event);
        Ok(())
    }

    /// Refuses tokens that the model does not have.
    pub(super) fn known(&self, tokens: &[u32]) -> Result<(), ApiError> {
        let known = self.generator.vocab_size();
        match tokens.iter().find(|token| **token as usize >= known) {
            Some(token) => Err(ApiError::bad_request(format!("this model has no token {token}"))),
            None => Ok(()),
        }
    }

    /// Refuses biases of tokens that the model does not have.
    fn check_biases(&self, biases: &[(u32, f32)]) -> Result<(), ApiError> {
        let known = self.generator.vocab_size();
        match biases.iter().find(|(token, _)| *token as usize >= known) {
            Some((token, _)) => Err(ApiError::bad_request(format!(
                "logit_bias: this model has no token {token}: its vocabulary has {known} tokens, numbered from 0"
            ))),
            None => Ok(()),
        }
    }

    /// How much of each adapter there is to be: nothing of those that are not named, where some are.
    fn adapter_scales(&self, asked: Option<&[(u32, f32)]>) -> Result<AdapterScales, ApiError> {
        let Some(asked) = asked else { return Ok(AdapterScales::default()) };
        let known = self.generator.facts().adapters;
        let mut factors = vec![0.0; known];
        for &(id, scale) in asked {
            let factor = factors.get_mut(id as usize).ok_or_else(|| {
                let order = "numbered from 0 in the order of its ADAPTER lines";
                ApiError::bad_request(format!(
                    "adapters: this model has no adapter {id}; it has {known}, {order}"
                ))
            })?;
            *factor = scale;
        }
        Ok(AdapterScales::new(&factors))
    }
}

/// Fails where nobody waits for the task any more: the rest of the work is for nothing. Nobody hears the failure either.
pub(super) fn listening(handle: &Handle) -> Result<(), ApiError> {
    match handle.state.is_cancelled() {
        true => Err(ApiError::new(ApiError::CLIENT_CLOSED_REQUEST, "the client has gone")),
        false => Ok(()),
    }
}

/// What a client is told of an error of the engine: mostly that its request asks for what cannot be.
pub(super) fn told(error: EngineError) -> ApiError {
    match error {
        EngineError::Stopped
        | EngineError::Backend(_)
        | EngineError::Model(_)
        | EngineError::Tokenizer(_) => ApiError::internal(error.to_string()),
        _ => ApiError::bad_request(error.to_string()),
    }
}

/// The parser of the model's output: the one that the model names, or what its template shows. Text without a template
/// is the answer as it is.
fn parser_of(task: &Generate, text: &Text) -> Option<OutputParser> {
    parser_after(task, text, &text.prompt)
}

/// The same, behind another prompt.
fn parser_after(task: &Generate, text: &Text, prompt: &str) -> Option<OutputParser> {
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
    let name = task.model.parser.as_deref().filter(|_| !text.own);
    name.and_then(|name| OutputParser::by_name(name, &input)).or_else(|| {
        let thinks = task.model.thinking && task.think != Some(native::Think::Off);
        let tags = template.think_tags().filter(|_| thinks);
        Some(OutputParser::for_template(template, tags, &input))
    })
}

/// Refuses what would be too much of an answer.
fn check_prompt_logprobs(task: &Generate, tokens: usize) -> Result<(), ApiError> {
    let Some(top) = task.prompt_logprobs else { return Ok(()) };
    if tokens.saturating_mul(top + 1) <= PROMPT_LOGPROBS {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "prompt_logprobs: {top} alternatives for each of {tokens} tokens are too many: together they may be {PROMPT_LOGPROBS}"
    )))
}

/// Calls of an answer at most. A tool that the request names is called once.
fn calls_max(task: &Generate) -> usize {
    match task.tool_choice {
        _ if !task.parallel_tool_calls => 1,
        ToolChoice::Named(_) => 1,
        ToolChoice::Required => FORCED_CALLS,
        _ => usize::MAX,
    }
}

/// Tokens that the thought may have: as asked for, or as a level means where the template knows no levels.
fn think_budget(task: &Generate, text: &Text) -> Option<u64> {
    if let Some(budget) = task.options.think_budget {
        return Some(budget.into());
    }
    let level = match task.think {
        Some(native::Think::Low) => LOW_BUDGET,
        Some(native::Think::Medium) => MEDIUM_BUDGET,
        _ => return None,
    };
    let known = text.template.as_deref().is_none_or(Template::has_think_levels);
    (!known).then_some(level)
}
