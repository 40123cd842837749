//! State of a conversation, and the effect of messages and commands on it.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use puna_api::KeepAlive;
use puna_api::ollama::{
    ChatRequest, CreateRequest, Message, Metrics, ShowRequest, ShowResponse, Think,
};
use puna_store::{ModelName, parse_parameter};
use serde_json::{Map, Value};

use super::attach::{names_attachment, take_attachments};
use super::command::{Command, Item, Setting, Topic};
use super::{
    AnswerPrinter, Backend, BackendError, ChatEvent, Interrupt, Screen, help, warn_truncated,
    write_stats,
};
use crate::format::escape_control;

/// Initial settings of a session.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The model's name as the user wrote it.
    pub model: String,
    /// From `--think`; `None` selects the model's default.
    pub think: Option<Think>,
    /// From `--hidethinking`.
    pub hide_thinking: bool,
    /// From `--format`: `"json"` or a JSON schema.
    pub format: Option<Value>,
    /// From `--keepalive`.
    pub keep_alive: Option<KeepAlive>,
    /// Cleared by `--nowordwrap`.
    pub word_wrap: bool,
    /// From `--verbose`.
    pub verbose: bool,
    /// Path of the input history; `None` disables the file.
    pub history_file: Option<PathBuf>,
    /// Whether new entries are written to the file. `OLLAMA_NOHISTORY` disables it.
    pub save_history: bool,
    /// Program that Ctrl-G starts, with arguments.
    pub editor: String,
    /// Model options sent with every request.
    pub parameters: Map<String, Value>,
}

/// Action of the input loop after a message or command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Stay,
    Leave,
    SaveHistory(bool),
}

/// A conversation with a model.
pub(super) struct Session<'a> {
    backend: &'a mut dyn Backend,
    interrupt: &'a Interrupt,
    screen: Screen,
    options: Options,
    model: Model,
    /// Whether the user chose a reasoning level, which another model then does not change.
    think_is_explicit: bool,
    /// System message of the session; empty selects the model's own.
    system: String,
    /// Parameters set in the session, sent with every request.
    parameters: Map<String, Value>,
    /// Messages of the conversation, without those stored with the model.
    messages: Vec<Message>,
}

/// Properties of the loaded model that the session uses.
#[derive(Clone, Debug, Default)]
struct Model {
    name: String,
    /// Model from which it was created, if that has a valid name.
    parent: Option<String>,
    /// Messages stored with the model, which precede every conversation.
    messages: Vec<Message>,
    thinks: bool,
    /// Whether the user can attach images or audio.
    is_multimodal: bool,
}

impl Model {
    fn new(name: String, info: &ShowResponse) -> Self {
        let can = |capability: &str| info.capabilities.iter().any(|c| c == capability);
        let parent = Some(info.details.parent_model.clone())
            .filter(|parent| ModelName::parse(parent).is_ok());
        let is_multimodal = can("vision") || can("audio");
        Self {
            name,
            parent,
            messages: info.messages.clone(),
            thinks: can("thinking"),
            is_multimodal,
        }
    }
}

impl<'a> Session<'a> {
    /// Loads the model and shows the messages stored with it.
    pub(super) fn open(
        options: Options,
        backend: &'a mut dyn Backend,
        interrupt: &'a Interrupt,
        screen: Screen,
    ) -> Result<Self> {
        let think_is_explicit = options.think.is_some();
        let (name, parameters) = (options.model.clone(), options.parameters.clone());
        let mut session = Self {
            backend,
            interrupt,
            screen,
            options,
            model: Model::default(),
            think_is_explicit,
            system: String::new(),
            parameters,
            messages: Vec::new(),
        };
        session.switch_to(name)?;
        session.replay()?;
        Ok(session)
    }

    /// Writes a line to standard output, with escaped control characters.
    pub(super) fn print_line(&mut self, text: &str) -> Result<()> {
        writeln!(self.screen.out, "{}", escape_control(text))?;
        Ok(self.screen.out.flush()?)
    }

    /// Shows the server's error message, so that the conversation can continue.
    ///
    /// # Errors
    /// Returns a local failure ([`BackendError::Other`]).
    fn report(&mut self, error: BackendError) -> Result<()> {
        match error {
            BackendError::Other(e) => Err(e),
            BackendError::Interrupted => Ok(()),
            e => self.print_line(&format!("error: {e}")),
        }
    }

    /// Whether `word` at the start of the line is the path of a file to attach.
    pub(super) fn is_attachment(&self, line: &str, word: &str) -> bool {
        self.model.is_multimodal && names_attachment(line, word)
    }

    /// Sends a message and shows the answer.
    pub(super) fn send(&mut self, text: String) -> Result<Flow> {
        let mut message = Message::text("user", text);
        if self.model.is_multimodal {
            let attached = take_attachments(&message.content, &mut self.screen.err)?;
            (message.content, message.images) = (attached.text, attached.images);
        }
        self.messages.push(message);
        match self.answer() {
            Ok(Some(answer)) => self.messages.push(answer),
            Ok(None) => {}
            Err(e) => {
                self.messages.pop();
                self.report(e)?;
            }
        }
        Ok(Flow::Stay)
    }

    /// Executes a command.
    pub(super) fn execute(&mut self, command: Command) -> Result<Flow> {
        match command {
            Command::Leave => return Ok(Flow::Leave),
            Command::Help(topic) => self.help(topic)?,
            Command::Clear => self.clear()?,
            Command::List(prefix) => match self.backend.list_table(prefix.as_deref()) {
                Ok(table) => write!(self.screen.out, "{table}")?,
                Err(e) => self.report(e)?,
            },
            Command::Load(Some(name)) => self.load(name)?,
            Command::Load(None) => self.usage("Usage:\n  /load <modelname>")?,
            Command::Save(Some(name)) => self.save(name)?,
            Command::Save(None) => self.usage("Usage:\n  /save <modelname>")?,
            Command::Set(Setting::History(on)) => return Ok(Flow::SaveHistory(on)),
            Command::Set(setting) => self.set(setting)?,
            Command::Show(item) => self.show(item)?,
            Command::Unknown(word) => {
                self.print_line(&format!("Unknown command '{word}'. Type /? for help"))?
            }
        }
        self.screen.out.flush()?;
        Ok(Flow::Stay)
    }

    /// Streams the answer to the conversation; `None` if the user stopped it.
    fn answer(&mut self) -> Result<Option<Message>, BackendError> {
        let request = self.request();
        let mut spinner = self.screen.spinner();
        let mut printer = AnswerPrinter::new(true, self.options.hide_thinking);
        let mut answer = Message::text("assistant", "");
        let mut metrics = Metrics::default();
        let mut written = Ok(());
        let Self { backend, interrupt, screen, options, .. } = self;
        interrupt.clear();
        let result = backend.chat(request, interrupt, &mut |event| {
            if interrupt.is_raised() {
                return ControlFlow::Break(());
            }
            if printer.shows(&event) {
                spinner.stop();
            }
            let columns = screen.columns().filter(|_| options.word_wrap);
            written = printer.event(&event, columns, &mut screen.out);
            match event {
                ChatEvent::Thinking(text) => answer.thinking.push_str(&text),
                ChatEvent::Content(text) => answer.content.push_str(&text),
                ChatEvent::ToolCall(_) => {}
                ChatEvent::Done(figures) => metrics = figures,
            }
            if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        spinner.stop();
        let broken = printer.break_off(&mut screen.out);
        let failed = match result {
            Ok(()) | Err(BackendError::Interrupted) => None,
            Err(e) => Some(e),
        };
        let has_begun = !answer.content.is_empty() || !answer.thinking.is_empty();
        let written = written
            .and(broken)
            .and_then(|()| {
                screen.out.write_all(if failed.is_none() || has_begun { b"\n\n" } else { b"" })
            })
            .and_then(|()| screen.out.flush());
        written.map_err(|e| BackendError::Other(e.into()))?;
        if let Some(error) = failed {
            return Err(error);
        }
        if interrupt.is_raised() {
            return Ok(None);
        }
        let remedy = "/set parameter num_ctx N";
        let mut noted = warn_truncated(&metrics, remedy, &mut screen.err);
        if options.verbose {
            noted = noted.and_then(|()| write_stats(&metrics, &mut screen.err));
        }
        noted.map_err(|e| BackendError::Other(e.into()))?;
        Ok(Some(answer))
    }

    fn request(&self) -> ChatRequest {
        ChatRequest {
            model: self.model.name.clone(),
            messages: self.messages.clone(),
            format: self.options.format.clone(),
            keep_alive: self.options.keep_alive,
            options: (!self.parameters.is_empty()).then(|| self.parameters.clone()),
            think: self.options.think,
            ..ChatRequest::default()
        }
    }

    /// Loads a model and switches the session to it. On failure the session keeps its current
    /// model.
    fn switch_to(&mut self, name: String) -> Result<(), BackendError> {
        let info =
            self.backend.show(ShowRequest { model: name.clone(), ..ShowRequest::default() })?;
        let model = Model::new(name, &info);
        let think = match self.think_is_explicit {
            true => self.options.think,
            false => model.thinks.then_some(Think::On),
        };
        self.interrupt.clear();
        let spinner = self.screen.spinner();
        let loaded = self.backend.load(&model.name, think, self.interrupt);
        drop(spinner);
        loaded?;
        self.model = model;
        self.options.think = think;
        Ok(())
    }

    /// Shows the messages stored with the model as if they had just been exchanged.
    fn replay(&mut self) -> Result<()> {
        let columns = self.screen.columns().filter(|_| self.options.word_wrap);
        let out = &mut self.screen.out;
        for message in &self.model.messages {
            match message.role.as_str() {
                "user" => writeln!(out, ">>> {}", escape_control(&message.content))?,
                "assistant" => {
                    let event = ChatEvent::Content(message.content.clone());
                    AnswerPrinter::new(true, false).event(&event, columns, out)?;
                    write!(out, "\n\n")?;
                }
                _ => {}
            }
        }
        Ok(out.flush()?)
    }

    fn help(&mut self, topic: Topic) -> Result<()> {
        if let Some(text) = help::text(topic, self.model.is_multimodal) {
            write!(self.screen.err, "{text}")?;
        }
        Ok(())
    }

    fn usage(&mut self, text: &str) -> Result<()> {
        Ok(writeln!(self.screen.err, "{text}")?)
    }

    fn clear(&mut self) -> Result<()> {
        self.messages.clear();
        if !self.system.is_empty() {
            self.messages.push(Message::text("system", self.system.clone()));
        }
        self.print_line("Cleared session context")
    }

    fn load(&mut self, name: String) -> Result<()> {
        self.print_line(&format!("Loading model '{name}'"))?;
        match self.switch_to(name.clone()) {
            Ok(()) => self.messages.clear(),
            Err(BackendError::NotFound(_)) => {
                self.print_line(&format!("Couldn't find model '{name}'"))?
            }
            Err(e) => self.report(e)?,
        }
        Ok(())
    }

    fn save(&mut self, name: String) -> Result<()> {
        if ModelName::parse(&name).is_err() {
            return self.print_line(&format!("error: The model name '{name}' is invalid"));
        }
        let request = CreateRequest {
            model: name.clone(),
            from: self.model.parent.clone().unwrap_or_else(|| self.model.name.clone()),
            system: self.system.clone(),
            parameters: (!self.parameters.is_empty()).then(|| self.parameters.clone()),
            messages: self.model.messages.iter().chain(&self.messages).cloned().collect(),
            ..CreateRequest::default()
        };
        match self.backend.create(request) {
            Ok(()) => self.print_line(&format!("Created new model '{name}'")),
            Err(e) => self.report(e),
        }
    }

    fn set(&mut self, setting: Setting) -> Result<()> {
        match setting {
            // The input loop owns the history, and the composer closes blocks before they arrive
            // here.
            Setting::History(_) | Setting::SystemOpen(_) => Ok(()),
            Setting::WordWrap(on) => {
                self.options.word_wrap = on;
                self.print_line(if on { "Set 'wordwrap' mode." } else { "Set 'nowordwrap' mode." })
            }
            Setting::Verbose(on) => {
                self.options.verbose = on;
                self.print_line(if on { "Set 'verbose' mode." } else { "Set 'quiet' mode." })
            }
            Setting::Think(level) => self.set_think(level),
            Setting::NoThink => {
                self.choose_thinking(Think::Off)?;
                self.print_line("Set 'nothink' mode.")
            }
            Setting::Format(true) => {
                self.options.format = Some("json".into());
                self.print_line("Set format to 'json' mode.")
            }
            Setting::Format(false) => {
                self.print_line("Invalid or missing format. For 'json' mode use '/set format json'")
            }
            Setting::NoFormat => {
                self.options.format = None;
                self.print_line("Disabled format.")
            }
            Setting::Parameter { name, values } => self.set_parameter(name, &values),
            Setting::System(text) => self.set_system(text),
            Setting::Unknown(word) => {
                self.print_line(&format!("Unknown command '/set {word}'. Type /? for help"))
            }
        }
    }

    fn set_think(&mut self, level: Option<String>) -> Result<()> {
        let value = match &level {
            None => Value::Bool(true),
            Some(level) => level.as_str().into(),
        };
        match serde_json::from_value(value) {
            Err(e) => self.print_line(&format!("error: {e}")),
            Ok(think) => {
                self.choose_thinking(think)?;
                match level {
                    Some(level) => self.print_line(&format!("Set 'think' mode to '{level}'.")),
                    None => self.print_line("Set 'think' mode."),
                }
            }
        }
    }

    fn choose_thinking(&mut self, think: Think) -> Result<()> {
        self.options.think = Some(think);
        self.think_is_explicit = true;
        if !self.model.thinks {
            let name = &self.model.name;
            writeln!(
                self.screen.err,
                "warning: model \"{name}\" does not support thinking output"
            )?;
        }
        Ok(())
    }

    fn set_parameter(&mut self, name: String, values: &[String]) -> Result<()> {
        let words: Vec<&str> = values.iter().map(String::as_str).collect();
        match parse_parameter(&name, &words) {
            Err(e) => self.print_line(&format!("Couldn't set parameter: {:?}", e.to_string())),
            Ok(None) => self.print_line(&format!("warning: parameter {name} is deprecated")),
            Ok(Some(value)) => {
                self.print_line(&format!("Set parameter '{name}' to '{}'", words.join(", ")))?;
                self.parameters.insert(name, value);
                Ok(())
            }
        }
    }

    fn set_system(&mut self, text: String) -> Result<()> {
        if self.messages.last().is_some_and(|last| last.role == "system") {
            self.messages.pop();
        }
        self.messages.push(Message::text("system", text.clone()));
        self.system = text;
        self.print_line("Set system message.")
    }

    fn show(&mut self, item: Item) -> Result<()> {
        let request = ShowRequest {
            model: self.model.name.clone(),
            system: self.system.clone(),
            options: (!self.parameters.is_empty()).then(|| self.parameters.clone()),
            ..ShowRequest::default()
        };
        let info = match self.backend.show(request) {
            Ok(info) => info,
            Err(e) => return self.report(e),
        };
        match item {
            Item::Info => {
                let text = self.backend.describe(&info);
                Ok(write!(self.screen.err, "{text}")?)
            }
            Item::License => self.say_or(&info.license, "No license was specified for this model."),
            Item::Modelfile => self.print_line(&info.modelfile),
            Item::Parameters => self.show_parameters(&info),
            Item::System => {
                let text = [&self.system, &info.system].into_iter().find(|text| !text.is_empty());
                let text = text.map(|text| format!("{text}\n")).unwrap_or_default();
                self.say_or(&text, "No system message was specified for this model.")
            }
            Item::Template => {
                self.say_or(&info.template, "No prompt template was specified for this model.")
            }
            Item::Unknown(word) => {
                self.print_line(&format!("Unknown command '/show {word}'. Type /? for help"))
            }
        }
    }

    fn say_or(&mut self, text: &str, otherwise: &str) -> Result<()> {
        self.print_line(if text.is_empty() { otherwise } else { text })
    }

    fn show_parameters(&mut self, info: &ShowResponse) -> Result<()> {
        let out = &mut self.screen.out;
        writeln!(out, "Model defined parameters:")?;
        if info.parameters.is_empty() {
            writeln!(out, "  No additional parameters were specified for this model.")?;
        }
        for line in info.parameters.lines() {
            writeln!(out, "  {}", escape_control(line))?;
        }
        writeln!(out)?;
        if !self.parameters.is_empty() {
            writeln!(out, "User defined parameters:")?;
            for (name, value) in &self.parameters {
                writeln!(out, "  {name:30} {}", plain(value))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

/// A value without quotes; a list in brackets.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(plain).collect::<Vec<_>>().join(" ")),
        other => other.to_string(),
    }
}
