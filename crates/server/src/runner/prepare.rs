//! From a task to a job of the engine: template, prompt, truncation, tokens.

use std::sync::Arc;

use puna_api::native::{self, Tool, ToolChoice};
use puna_engine::{Doses, EngineError, Job, Speculation};
use puna_prompt::{
    Adaptations, CallForm, Chat, FunctionCall, Kind, Message, OutputParser, ParserInput, PromptError, Stage,
    Template, Think, ToolCall, conversation, fit, fit_turns, generation, is_marked, mark_written,
    marked_parts, prefer_jinja, render, render_adapted, render_insert, strip_past_thoughts, unmarked,
};
use puna_sampler::{CONSTRAINT_BYTES_MAX, Grammar};
use serde_json::Value;

use super::answer::{Answer, no_tokens};
use super::forced;
use super::form::Limits;
use super::generator::Generator;
use super::schema_check::AnswerChecks;
use super::templates::{PLAIN_TEMPLATE, Templates};
use super::worker::Handle;
use crate::canonical::{Event, Failure, Generate, Input, ModelText, Overflow, Prompt, RunOptions, Task};
use crate::speculate::Mode;

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
    templates: Templates,
}

/// A prompt as text and what was left out of it.
pub(super) struct Text {
    prompt: String,
    /// The same with what users wrote marked, where that must be told from the template's own words.
    marked: Option<String>,
    template: Option<Arc<Template>>,
    /// The template is the request's own.
    own: bool,
    /// Tools that are offered.
    tools: Vec<Value>,
    /// The last message, which the model may have to go on with.
    last: Option<Message>,
    dropped_messages: usize,
    /// Tokens that were cut out of messages that stayed.
    dropped_tokens: usize,
    /// What was changed in the conversation for the template.
    adaptations: Adaptations,
}

impl Text {
    fn new(prompt: String, template: Option<Arc<Template>>) -> Self {
        let (marked, own, tools, last) = (None, false, Vec::new(), None);
        let adaptations = Adaptations::new();
        let (dropped_messages, dropped_tokens) = (0, 0);
        Self { prompt, marked, template, own, tools, last, dropped_messages, dropped_tokens, adaptations }
    }
}

/// A prompt as tokens.
struct Tokens {
    tokens: Vec<u32>,
    /// How many were cut out.
    cut: usize,
    /// Tokens at its head that survive a context shift.
    keep: usize,
}

impl Preparer {
    pub(crate) fn new(generator: Arc<dyn Generator>) -> Self {
        Self { generator, templates: Templates::default() }
    }

    /// Starts a task; its events go to `handle`.
    pub(crate) fn start(&self, handle: Handle, task: Task) -> Result<(), Failure> {
        match task {
            Task::Generate(generate) => self.generate(handle, *generate),
            Task::Count(generate) => self.count(&handle, *generate),
            Task::Embed(embed) => self.embed(handle, embed),
            Task::Rank(rank) => self.rank(handle, rank),
            Task::Tokenize(text) => self.end(&handle, Event::Tokens(self.generator.tokenize(&text))),
            Task::Detokenize(tokens) => {
                let text = self.known(&tokens).map(|()| self.generator.decode(&tokens))?;
                self.end(&handle, Event::Text(text))
            }
        }
    }

    fn generate(&self, handle: Handle, mut task: Generate) -> Result<(), Failure> {
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
        let parser = parser_of(&task, &text);
        let parser = if task.stream_calls { parser.map(OutputParser::telling_early) } else { parser };
        let num_ctx = self.context(task.options.num_ctx);
        let mut sampling = task.options.sampling.clone();
        self.check_biases(&sampling.logit_bias)?;
        let doses = self.doses(task.options.adapters.as_deref())?;
        sampling.normalize(num_ctx).map_err(|e| Failure::bad_request(e.to_string()))?;
        let tags = parser.iter().flat_map(OutputParser::preserved);
        let tags = tags.filter_map(|text| self.generator.control_token(&text).map(|token| (text, token)));
        let tags: Vec<(String, u32)> = tags.collect();
        let think_budget = self.think_budget(&task, &text)?;
        listening(&handle)?;
        let checks = AnswerChecks::of(&task)?;
        let calls_max = calls_max(&task);
        let limits = Limits {
            tokens: self.max_tokens(&task.options, num_ctx),
            prompt: tokens.tokens.len(),
            context: (!task.shift).then_some(num_ctx as usize),
        };
        let (grammar, beginning) = self.answer_form(&handle, &task, &text, &tags, parser.as_ref(), limits)?;
        if let Some(checks) = &checks {
            handle.send(Event::SchemaUnenforced(checks.keywords()));
        }
        let shown = tags.iter().map(|(_, token)| *token).collect();
        let answer = Answer::new(handle.clone(), self.generator.clone(), parser)
            .with_form(grammar.is_some())
            .with_stop(&task.options.stop, task.options.has_own_stops)
            .with_forced(beginning)
            .with_calls_max(calls_max)
            .with_think_budget(think_budget)
            .with_checks(checks)
            .with_dropped(text.dropped_messages, text.dropped_tokens + tokens.cut);
        if task.options.num_predict == 0 && task.prompt_logprobs.is_none() {
            handle.send(Event::Done(Box::new(no_tokens(&answer, tokens.tokens))));
            return Ok(());
        }
        let job = Job {
            prompt: tokens.tokens,
            sampling,
            max_tokens: limits.tokens,
            speculation: Some(self.speculation(&task.options)),
            stop: task.options.stop,
            shown,
            keep: tokens.keep,
            context: Some(num_ctx as usize),
            shift: task.shift,
            logprobs: task.logprobs,
            prompt_logprobs: task.prompt_logprobs,
            client: handle.client,
            doses,
            grammar,
            diffusion: task.options.diffusion.into(),
        };
        self.generator.check_job(&job).map_err(told)?;
        // Before the job is there, so that nothing of it comes first. What could still refuse it was looked at.
        handle.send(Event::Started { prompt_tokens: job.prompt.len() as u64 });
        self.begun(&handle, self.generator.submit(job, Box::new(answer)))
    }

    /// Takes note of a job that the engine has taken, or says why it has not. A client that has gone meanwhile ends it.
    pub(super) fn begun(&self, handle: &Handle, job: Result<u64, EngineError>) -> Result<(), Failure> {
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
        let is_meant = options.speculate_said || !self.generator.facts().unmasks;
        let mode = if is_meant { options.speculate } else { Mode::Off };
        mode.speculation(options.draft_num_predict)
    }

    /// Tokens that the thought may have, unless it is one that cannot be ended.
    fn think_budget(&self, task: &Generate, text: &Text) -> Result<Option<u64>, Failure> {
        match think_budget(task, text) {
            Some(_) if self.generator.facts().unmasks => Err(Failure::bad_request(ENDLESS)),
            budget => Ok(budget),
        }
    }

    /// The grammar of the call that the request demands, if it does, and how it begins.
    pub(super) fn demanded_call(
        &self,
        handle: &Handle,
        task: &Generate,
        text: &Text,
        tags: &[(String, u32)],
    ) -> Result<Option<(Grammar, String)>, Failure> {
        let Input::Chat { tools, .. } = &task.input else { return Ok(None) };
        let tools = forced::demanded(&task.tool_choice, tools);
        let (false, Some(template)) = (tools.is_empty(), &text.template) else { return Ok(None) };
        let facts = self.generator.facts();
        let parser = task.model.parser.as_deref().filter(|_| !text.own);
        let form = CallForm::of(template, parser, template.think_tags().as_ref(), &facts.ends);
        let form = form.ok_or_else(|| {
            Failure::bad_request(
                "tool_choice: the form in which this model's template writes calls cannot be demanded; use \"auto\"",
            )
        })?;
        let answers = parser_of(task, text).is_some_and(|parser| parser.stage() != Stage::Thinking);
        let form = if answers { form.without_thought_end(template.think_tags().as_ref()) } else { form };
        // The names are read behind whatever the form begins with.
        forced::check_names(&form, &tools, || {
            parser_after(task, text, if answers { &text.prompt } else { "" })
        })?;
        let constraint = forced::constraint(&form, &tools, calls_max(task) > 1, tags)?;
        let grammar = self.generator.grammar(&constraint, true).map_err(|error| {
            let small = constraint.bytes() <= CONSTRAINT_BYTES_MAX;
            let suspects = if small { tools.as_slice() } else { &[] };
            // Each of them takes as long; nobody may be waiting any more.
            let refused =
                |form: &_| listening(handle).ok().and_then(|()| self.generator.grammar(form, false).err());
            forced::blame(&form, suspects, &error, refused)
        })?;
        Ok(Some((grammar, form.before)))
    }

    /// Counts a prompt's tokens, as many as they are.
    fn count(&self, handle: &Handle, task: Generate) -> Result<(), Failure> {
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

    fn end(&self, handle: &Handle, event: Event) -> Result<(), Failure> {
        handle.send(event);
        Ok(())
    }

    fn text(&self, handle: &Handle, task: &Generate) -> Result<Text, Failure> {
        match &task.input {
            Input::Chat { messages, tools } => {
                let offered = if task.tool_choice == ToolChoice::None { &[] } else { tools.as_slice() };
                forced::check_named(offered)?;
                self.chat(handle, task, messages, offered)
            }
            Input::Prompt(prompt) => self.prompt(handle, task, prompt),
        }
    }

    /// The prompt of a conversation: stored messages and those of the request.
    fn chat(
        &self,
        handle: &Handle,
        task: &Generate,
        messages: &[native::Message],
        tools: &[Tool],
    ) -> Result<Text, Failure> {
        let template = self.template(&task.model)?;
        let (stored, messages) = (prompt_messages(&task.model.messages), prompt_messages(messages));
        let mut all = conversation(task.model.system.as_deref(), &stored, &messages);
        if task.model.strip_thoughts {
            strip_past_thoughts(&mut all);
        }
        let mut tools: Vec<_> = tools.iter().map(|tool| tool.0.clone()).collect();
        let mut variables = task.variables.clone();
        let beside = tools.iter_mut().chain(variables.values_mut());
        mark_written(&mut all, beside, |text| self.generator.controls_in(text));
        let rules = Some(self.templates.rules(&template));
        let chat = Chat { tools: &tools, variables, rules, ..Chat::new(&all) };
        // Places are those of the request's messages.
        let before = all.len() - messages.len();
        self.fitted(handle, task, template, &chat, "").map_err(|error| match error {
            PromptError::Message { index, error } if index >= before => {
                failure(PromptError::Message { index: index - before, error })
            }
            PromptError::Message { error, .. } => failure(*error),
            error => failure(error),
        })
    }

    /// The prompt of a single text.
    fn prompt(&self, handle: &Handle, task: &Generate, prompt: &Prompt) -> Result<Text, Failure> {
        if let Some(tokens) = &prompt.tokens {
            self.known(tokens)?;
            return Ok(Text::new(self.generator.decode(tokens), None));
        }
        if prompt.raw {
            return Ok(Text::new(prompt.text.clone(), None));
        }
        // Not kept: clients could push the models' own templates out.
        let own = prompt.template.as_deref().map(|source| Template::parse(Kind::Go, source));
        let own = own.transpose().map_err(failure)?.map(Arc::new);
        let template = match &own {
            Some(own) => own.clone(),
            None if !prompt.suffix.is_empty() => self.insert_template(&task.model)?,
            None => self.template(&task.model)?,
        };
        let before = self.earlier(prompt.context.as_deref())?;
        if !prompt.suffix.is_empty() {
            let think = think(task);
            let text =
                render_insert(&template, &prompt.text, &prompt.suffix, think.as_ref()).map_err(failure)?;
            return Ok(Text { own: own.is_some(), ..Text::new(before + &text, Some(template)) });
        }
        // Who goes on with an earlier answer has the stored messages in it already.
        let stored =
            if prompt.context.is_some() { Vec::new() } else { prompt_messages(&task.model.messages) };
        let system = prompt.system.as_deref().or(task.model.system.as_deref());
        let messages = generation(system, &stored, &prompt.text, &[]);
        let chat = Chat { variables: task.variables.clone(), ..Chat::new(&messages) };
        if own.is_some() {
            let chat = self.template_input(task, &chat);
            let text = render(&template, &chat).map_err(failure)?;
            return Ok(Text { own: true, ..Text::new(before + &text, Some(template)) });
        }
        self.fitted(handle, task, template, &chat, &before).map_err(failure)
    }

    /// The text of an earlier answer's tokens.
    fn earlier(&self, context: Option<&[u32]>) -> Result<String, Failure> {
        let Some(tokens) = context else { return Ok(String::new()) };
        self.known(tokens).map_err(|e| Failure::bad_request(format!("context: {}", e.message)))?;
        Ok(self.generator.decode(tokens))
    }

    /// Refuses tokens that the model does not have.
    pub(super) fn known(&self, tokens: &[u32]) -> Result<(), Failure> {
        let known = self.generator.vocab_size();
        match tokens.iter().find(|token| **token as usize >= known) {
            Some(token) => Err(Failure::bad_request(format!("this model has no token {token}"))),
            None => Ok(()),
        }
    }

    /// Refuses biases of tokens that the model does not have.
    fn check_biases(&self, biases: &[(u32, f32)]) -> Result<(), Failure> {
        let known = self.generator.vocab_size();
        match biases.iter().find(|(token, _)| *token as usize >= known) {
            Some((token, _)) => Err(Failure::bad_request(format!(
                "logit_bias: this model has no token {token}: its vocabulary has {known} tokens, numbered from 0"
            ))),
            None => Ok(()),
        }
    }

    /// How much of each adapter there is to be: nothing of those that are not named, where some are.
    fn doses(&self, asked: Option<&[(u32, f32)]>) -> Result<Doses, Failure> {
        let Some(asked) = asked else { return Ok(Doses::default()) };
        let known = self.generator.facts().adapters;
        let mut factors = vec![0.0; known];
        for &(id, scale) in asked {
            let factor = factors.get_mut(id as usize).ok_or_else(|| {
                let order = "numbered from 0 in the order of its ADAPTER lines";
                Failure::bad_request(format!(
                    "adapters: this model has no adapter {id}; it has {known}, {order}"
                ))
            })?;
            *factor = scale;
        }
        Ok(Doses::new(&factors))
    }

    /// Renders messages; leaves out the oldest until they fit, if that is allowed.
    fn fitted(
        &self,
        handle: &Handle,
        task: &Generate,
        template: Arc<Template>,
        chat: &Chat<'_>,
        before: &str,
    ) -> Result<Text, PromptError> {
        let chat = self.template_input(task, chat);
        let (prompt, dropped_messages, dropped_tokens, adaptations) = if task.overflow != Overflow::Refuse {
            let limit = self.context(task.options.num_ctx) as usize;
            let mut count = |text: &str| {
                // Every attempt costs as much as the first.
                listening(handle).map_err(|gone| PromptError::Count(gone.message))?;
                Ok(self.encode(task, &format!("{before}{text}"), Some(&template)).len())
            };
            let fitted = match task.overflow {
                Overflow::DropTurns => {
                    // What has to be cut anyway leaves room for an answer.
                    let room = u64::try_from(task.options.num_predict).unwrap_or(u64::MAX);
                    let room = room.min(limit as u64 / 8) as usize;
                    let most = limit.saturating_sub(1);
                    fit_turns(&template, &chat, most, most - room, &mut count)?
                }
                _ => fit(&template, &chat, limit, &mut count)?,
            };
            (fitted.prompt, fitted.dropped_messages, fitted.dropped_tokens, fitted.adaptations)
        } else {
            let rendered = render_adapted(&template, &chat)?;
            (rendered.prompt, 0, 0, rendered.adaptations)
        };
        let (tools, last) = (chat.tools.to_vec(), chat.messages.last().cloned());
        let mut text = Text::new(format!("{before}{prompt}"), Some(template));
        if may_be_marked(task) && is_marked(&text.prompt) {
            let prompt = unmarked(&text.prompt);
            text.marked = Some(std::mem::replace(&mut text.prompt, prompt));
        }
        Ok(Text { tools, last, dropped_messages, dropped_tokens, adaptations, ..text })
    }

    fn template_input<'a>(&'a self, task: &Generate, chat: &Chat<'a>) -> Chat<'a> {
        let facts = self.generator.facts();
        Chat { think: think(task), bos: &facts.bos, eos: &facts.eos, ..chat.clone() }
    }

    /// The template of a model: its renderer, Go's or the file's own.
    fn template(&self, model: &ModelText) -> Result<Arc<Template>, Failure> {
        if let Some(renderer) = &model.renderer {
            return self.parsed(Kind::BuiltIn, renderer);
        }
        let jinja = self.generator.facts().chat_template.as_deref();
        match (model.template.as_deref(), jinja) {
            (None, None) => self.parsed(Kind::Go, PLAIN_TEMPLATE),
            (Some(go), None) => self.parsed(Kind::Go, go),
            (None, Some(jinja)) => self.parsed(Kind::Jinja, jinja),
            (Some(go), Some(_)) if model.go_template == Some(true) => self.parsed(Kind::Go, go),
            (Some(_), Some(jinja)) if model.go_template == Some(false) => self.parsed(Kind::Jinja, jinja),
            (Some(go), Some(jinja)) => {
                let go = self.parsed(Kind::Go, go)?;
                match self.parsed(Kind::Jinja, jinja) {
                    Ok(jinja) if prefer_jinja(&jinja, &go) => Ok(jinja),
                    _ => Ok(go),
                }
            }
        }
    }

    /// The template that fills gaps: only Go's can, even where another one renders conversations.
    fn insert_template(&self, model: &ModelText) -> Result<Arc<Template>, Failure> {
        match &model.template {
            Some(go) => self.parsed(Kind::Go, go),
            None => self.template(model),
        }
    }

    fn parsed(&self, kind: Kind, source: &str) -> Result<Arc<Template>, Failure> {
        self.templates.get(kind, source).map_err(failure)
    }

    /// The tokens of a prompt: those of the request, if it brought some.
    fn prompt_tokens(&self, text: &Text, task: &Generate) -> Vec<u32> {
        match &task.input {
            Input::Prompt(Prompt { tokens: Some(tokens), .. }) => tokens.clone(),
            _ => self.encode(task, text.marked.as_ref().unwrap_or(&text.prompt), text.template.as_deref()),
        }
    }

    /// Tokens of a text that a template wrote.
    fn encode(&self, task: &Generate, text: &str, template: Option<&Template>) -> Vec<u32> {
        let parts = if may_be_marked(task) { marked_parts(text) } else { vec![(text, true)] };
        self.generator.encode_prompt(&parts, template.map_or("", Template::leading_bos))
    }

    /// A prompt whose tokens are too many for the context is cut in the middle, or refused.
    fn tokens(&self, mut tokens: Vec<u32>, task: &Generate) -> Result<Tokens, Failure> {
        let (length, num_ctx) = (tokens.len(), self.context(task.options.num_ctx) as usize);
        let bos = usize::from(tokens.first().is_some_and(|t| self.generator.is_bos(*t)));
        let keep =
            usize::try_from(task.options.num_keep).map_or(length, |n| n.saturating_add(bos)).min(length);
        if length == 0 {
            return Err(Failure::bad_request("the prompt is empty"));
        }
        if length < num_ctx {
            return Ok(Tokens { tokens, cut: 0, keep });
        }
        let lengths = Some((length as u64, num_ctx as u64));
        if matches!(task.overflow, Overflow::Refuse | Overflow::DropTurns) {
            let message = format!("prompt is too long: {length} tokens, context is {num_ctx}");
            return Err(Failure { lengths, ..Failure::bad_request(message) });
        }
        if !task.shift {
            let message = "the prompt is longer than the context length currently available to the model; shorten the \
                           prompt, adjust the context length in settings, or use a model with a longer context length";
            return Err(Failure { lengths, ..Failure::bad_request(message) });
        }
        let keep = keep.min(num_ctx.saturating_sub(2));
        let left = num_ctx - ((num_ctx - keep) / 2).max(1);
        let cut = length - left;
        tokens.drain(keep..keep + cut);
        Ok(Tokens { tokens, cut, keep })
    }
}

/// Fails where nobody waits for the task any more: the rest of the work is for nothing. Nobody hears the failure either.
pub(super) fn listening(handle: &Handle) -> Result<(), Failure> {
    match handle.state.is_cancelled() {
        true => Err(Failure::new(Failure::LEFT, "the client has gone")),
        false => Ok(()),
    }
}

/// What a client is told of an error of the engine: mostly that its request asks for what cannot be.
pub(super) fn told(error: EngineError) -> Failure {
    match error {
        EngineError::Stopped
        | EngineError::Backend(_)
        | EngineError::Model(_)
        | EngineError::Tokenizer(_) => Failure::internal(error.to_string()),
        _ => Failure::bad_request(error.to_string()),
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
        formed: task.format.is_some()
            && !matches!(task.tool_choice, ToolChoice::Required | ToolChoice::Named(_)),
    };
    let name = task.model.parser.as_deref().filter(|_| !text.own);
    name.and_then(|name| OutputParser::by_name(name, &input)).or_else(|| {
        let thinks = task.model.thinking && task.think != Some(native::Think::Off);
        let tags = template.think_tags().filter(|_| thinks);
        Some(OutputParser::for_template(template, tags, &input))
    })
}

/// Whether a prompt may have marks of what users wrote. One of one's own may have the same letters, and they are no marks.
fn may_be_marked(task: &Generate) -> bool {
    matches!(task.input, Input::Chat { .. })
}

/// The thinking switch as templates take it: a model that thinks does so unless told otherwise.
fn think(task: &Generate) -> Option<Think> {
    match task.think {
        None => task.model.thinking.then_some(Think::Switch(true)),
        Some(native::Think::Off) => Some(Think::Switch(false)),
        Some(native::Think::On) => Some(Think::Switch(true)),
        Some(level) => Some(Think::Level(level.level().to_owned())),
    }
}

/// Refuses what would be too much of an answer.
fn check_prompt_logprobs(task: &Generate, tokens: usize) -> Result<(), Failure> {
    let Some(top) = task.prompt_logprobs else { return Ok(()) };
    if tokens.saturating_mul(top + 1) <= PROMPT_LOGPROBS {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
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

fn prompt_messages(messages: &[native::Message]) -> Vec<Message> {
    messages.iter().map(prompt_message).collect()
}

/// A message as templates take it, without its images.
pub(crate) fn prompt_message(message: &native::Message) -> Message {
    let text = |text: &String| Some(text.clone()).filter(|t| !t.is_empty());
    let call = |call: &native::ToolCall| ToolCall {
        id: call.id.clone(),
        function: FunctionCall {
            index: usize::try_from(call.function.index).unwrap_or(0),
            name: call.function.name.clone(),
            arguments: call.function.arguments.clone(),
        },
    };
    Message {
        thinking: text(&message.thinking),
        tool_calls: message.tool_calls.iter().map(call).collect(),
        tool_name: text(&message.tool_name),
        tool_call_id: text(&message.tool_call_id),
        ..Message::new(message.role.to_lowercase(), &message.content)
    }
}

/// A template that refuses a conversation is the client's matter, like one that the client brought.
fn failure(error: PromptError) -> Failure {
    Failure::bad_request(error.to_string())
}
