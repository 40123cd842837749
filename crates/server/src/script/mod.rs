//! Scripted models for tests: a file says what a model answers to which request.
//!
//! A script is a JSON document:
//!
//! ```json
//! {
//!   "window": 131072,
//!   "answers": [
//!     {"when": {"contains": ["TASK-1"], "assistant_turns": 0}, "steps": [{"thinking": "I look."}, {"call": {"name": "bash", "arguments": {"command": "ls"}}}]},
//!     {"when": {"last": "README"}, "times": 1, "steps": [{"text": "There is "}, {"wait": 200}, {"fail": "the disk is gone"}]},
//!     {"steps": [{"text": "Done."}]}
//!   ]
//! }
//! ```
//!
//! The first answer with conditions that all hold, and that was not given `times` times yet, is given. The file is read again
//! whenever it has changed, and all counts begin anew; the window is that of the start.
//!
//! The script has two players: a server with the model [`MODEL`], which computes each prompt and generates the
//! script's tokens (`runner::scripted`), and an upstream server of OpenAI's chat dialect ([`upstream`]).

mod model;
#[cfg(test)]
mod tests;
pub(crate) mod upstream;

use std::path::PathBuf;
use std::sync::Mutex;

use serde::Deserialize;
use serde_json::Value;

pub use model::MODEL;
pub(crate) use model::install;

use crate::lock::lock;

/// Tokens of a scripted model's context unless the script says otherwise.
const WINDOW: u32 = 131_072;

/// A script.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    /// Tokens of the context.
    #[serde(default = "default_window")]
    pub(crate) window: u32,
    /// The answers, in the order in which they are tried.
    pub(crate) answers: Vec<Answer>,
}

fn default_window() -> u32 {
    WINDOW
}

/// An answer of a script.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Answer {
    /// The requests that it answers.
    pub(crate) when: Condition,
    /// How often it is given at most.
    pub(crate) times: Option<u64>,
    /// What is generated, in order.
    pub(crate) steps: Vec<Step>,
    /// The finish reason, where it is not the usual one. The scripted model knows `length`, an upstream any text.
    pub(crate) finish: Option<String>,
    /// Milliseconds between two tokens, or between two chunks of an upstream.
    pub(crate) pace: u64,
    /// An upstream reports no usage.
    pub(crate) without_usage: bool,
}

/// What a request must be like. Without any condition every request is.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Condition {
    /// Its number since the script was read, from 1.
    pub(crate) request: Option<u64>,
    /// How many messages of the conversation are the model's.
    pub(crate) assistant_turns: Option<usize>,
    /// Texts that the prompt contains.
    pub(crate) contains: Vec<String>,
    /// A text that the last message contains.
    pub(crate) last: Option<String>,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Step {
    /// Text.
    Text(String),
    /// A thought.
    Thinking(String),
    /// A tool call.
    Call(Call),
    /// Parallel tool calls. An upstream opens all of them and interleaves their arguments.
    Calls(Vec<Call>),
    /// The scripted model's text as it is, in which special tokens are read as such.
    Raw(String),
    /// A delta of an upstream as it is.
    Delta(Value),
    /// Milliseconds in which nothing comes.
    Wait(u64),
    /// The answer ends with this error.
    Fail(String),
    /// The runner's process ends, or the upstream's connection.
    Crash,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Call {
    /// The tool.
    pub(crate) name: String,
    /// Its arguments; a text is written as it is.
    pub(crate) arguments: Value,
    /// Its id, with an upstream.
    #[serde(default)]
    pub(crate) id: Option<String>,
}

impl Call {
    /// The arguments as a model writes them.
    pub(crate) fn arguments_text(&self) -> String {
        match &self.arguments {
            Value::String(text) => text.clone(),
            arguments => arguments.to_string(),
        }
    }
}

/// What conditions are compared with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// The whole prompt.
    pub(crate) prompt: String,
    /// Where the last message begins in it.
    pub(crate) last: usize,
    /// Messages of the model.
    pub(crate) assistant_turns: usize,
}

impl Conversation {
    /// A conversation as the template of [`MODEL`] writes it.
    pub(crate) fn of_prompt(prompt: String) -> Self {
        const BEGIN: &str = "<|im_start|>";
        const ASSISTANT: &str = "<|im_start|>assistant";
        // The last turn is the one that the model is to write.
        let written = prompt.rfind(BEGIN).unwrap_or(prompt.len());
        let last = prompt[..written].rfind(BEGIN).unwrap_or(0);
        let assistant_turns = prompt[..written].matches(ASSISTANT).count();
        Self { prompt, last, assistant_turns }
    }
}

impl Condition {
    fn holds(&self, conversation: &Conversation, request: u64) -> bool {
        let Conversation { prompt, last, assistant_turns } = conversation;
        self.request.is_none_or(|number| number == request)
            && self.assistant_turns.is_none_or(|turns| turns == *assistant_turns)
            && self.last.as_ref().is_none_or(|text| prompt[*last..].contains(text))
            && self.contains.iter().all(|text| prompt.contains(text))
    }
}

/// A script cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// Its file cannot be read.
    #[error("cannot read the script {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is no script.
    #[error("{} is not a script: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        error: serde_json::Error,
    },
    /// A step is for the other player.
    #[error("{}: answer {answer} has a step that this player does not know: {step}", path.display())]
    Step {
        /// The file.
        path: PathBuf,
        /// The answer's number, from 0.
        answer: usize,
        /// The step.
        step: &'static str,
    },
    /// The file of its model cannot be made.
    #[error("cannot make the file of the scripted model: {0}")]
    Weights(#[from] puna_gguf::GgufError),
    /// No answer is left for a request.
    #[error("the script {} has no answer to request {request}", path.display())]
    NoAnswer {
        /// The file.
        path: PathBuf,
        /// The request's number.
        request: u64,
    },
}

/// Who plays a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Player {
    /// The scripted model.
    Model,
    /// The upstream server.
    Upstream,
}

/// A file with a script, and which of its answers were given.
pub(crate) struct ScriptFile {
    path: PathBuf,
    player: Player,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    text: String,
    answers: Vec<Answer>,
    given: Vec<u64>,
    requests: u64,
}

impl ScriptFile {
    /// Reads a script.
    pub(crate) fn open(path: PathBuf, player: Player) -> Result<(Self, Script), ScriptError> {
        let file = Self { path, player, state: Mutex::default() };
        let script = file.parse(&file.read()?)?;
        Ok((file, script))
    }

    fn read(&self) -> Result<String, ScriptError> {
        let unreadable = |error| ScriptError::Unreadable { path: self.path.clone(), error };
        std::fs::read_to_string(&self.path).map_err(unreadable)
    }

    fn parse(&self, text: &str) -> Result<Script, ScriptError> {
        let malformed = |error| ScriptError::Malformed { path: self.path.clone(), error };
        let script: Script = serde_json::from_str(text).map_err(malformed)?;
        for (number, answer) in script.answers.iter().enumerate() {
            for step in &answer.steps {
                let step = match (step, self.player) {
                    (Step::Raw(_), Player::Upstream) => "raw",
                    (Step::Delta(_), Player::Model) => "delta",
                    _ => continue,
                };
                return Err(ScriptError::Step { path: self.path.clone(), answer: number, step });
            }
        }
        Ok(script)
    }

    /// The answer to a request.
    pub(crate) fn answer(&self, conversation: &Conversation) -> Result<Answer, ScriptError> {
        let text = self.read()?;
        let mut state = lock(&self.state);
        if state.text != text {
            let answers = self.parse(&text)?.answers;
            *state = State { text, given: vec![0; answers.len()], answers, requests: 0 };
        }
        state.requests += 1;
        let request = state.requests;
        let fits = |(answer, given): (&Answer, &u64)| {
            answer.times.is_none_or(|times| *given < times)
                && answer.when.holds(conversation, request)
        };
        let Some(at) = state.answers.iter().zip(&state.given).position(fits) else {
            return Err(ScriptError::NoAnswer { path: self.path.clone(), request });
        };
        state.given[at] += 1;
        tracing::info!(request, answer = at, "scripted request");
        Ok(state.answers[at].clone())
    }
}
