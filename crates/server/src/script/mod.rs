//! Scripted models for tests of clients: a file determines the answer to each request.
//!
//! A script is a JSON document:
//!
//! ```json
//! {
//!   "window": 131072,
//!   "answers": [
//!     {
//!       "when": {"contains": ["TASK-1"], "assistant_turns": 0},
//!       "steps": [
//!         {"thinking": "I look."},
//!         {"call": {"name": "bash", "arguments": {"command": "ls"}}}
//!       ]
//!     },
//!     {
//!       "when": {"last": "README"},
//!       "times": 1,
//!       "steps": [{"text": "There is "}, {"wait": 200}, {"fail": "the disk is gone"}]
//!     },
//!     {"steps": [{"text": "Done."}]}
//!   ]
//! }
//! ```
//!
//! The server sends the first answer with fulfilled conditions that was used fewer than `times`
//! times. A changed file is read again and resets all counts, but the window stays as at the start.
//!
//! Two players execute scripts: a server with the model [`MODEL`], which computes each prompt and
//! generates the script's tokens (`runner::scripted`), and an upstream server of OpenAI's chat
//! dialect ([`upstream`]).

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

use crate::util::lock::lock;

/// Default context of a scripted model in tokens.
const DEFAULT_WINDOW: u32 = 131_072;

/// A script.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    /// Context in tokens.
    #[serde(default = "default_window")]
    pub(crate) window: u32,
    /// Answers, in the order in which they are tried.
    pub(crate) answers: Vec<ScriptAnswer>,
}

fn default_window() -> u32 {
    DEFAULT_WINDOW
}

/// An answer of a script.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ScriptAnswer {
    /// Condition on the request.
    pub(crate) when: Condition,
    /// Maximum number of uses; `None` is unlimited.
    pub(crate) times: Option<u64>,
    /// Steps of the answer.
    pub(crate) steps: Vec<Step>,
    /// Finish reason, if not the usual one. The scripted model knows `length`; an upstream accepts
    /// any text.
    pub(crate) finish: Option<String>,
    /// Milliseconds between two tokens, or between two chunks of an upstream.
    pub(crate) pace: u64,
    /// Whether an upstream omits usage.
    pub(crate) without_usage: bool,
}

/// Condition on a request. All set fields must hold; an empty condition always holds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Condition {
    /// Number of the request since the script was read, from 1.
    pub(crate) request: Option<u64>,
    /// Number of assistant messages in the conversation.
    pub(crate) assistant_turns: Option<usize>,
    /// Texts that the prompt must contain.
    pub(crate) contains: Vec<String>,
    /// Text that the last message must contain.
    pub(crate) last: Option<String>,
}

/// A step of an answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Step {
    /// Text.
    Text(String),
    /// Reasoning text.
    Thinking(String),
    /// A tool call.
    Call(Call),
    /// Parallel tool calls. An upstream opens all of them and interleaves their arguments.
    Calls(Vec<Call>),
    /// Raw output of the scripted model, in which special tokens are parsed.
    Raw(String),
    /// A raw delta of an upstream.
    Delta(Value),
    /// A pause in milliseconds.
    Wait(u64),
    /// Ends the answer with this error.
    Fail(String),
    /// Ends the runner process, or the connection of an upstream.
    Crash,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Call {
    /// Name of the tool.
    pub(crate) name: String,
    /// Arguments of the call. A text is sent unchanged.
    pub(crate) arguments: Value,
    /// Identifier of the call, for an upstream.
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

/// Conversation of a request, for conditions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// The whole prompt.
    pub(crate) prompt: String,
    /// Byte offset of the last message in the prompt.
    pub(crate) last: usize,
    /// Number of assistant messages.
    pub(crate) assistant_turns: usize,
}

impl Conversation {
    /// Parses a prompt in the template of [`MODEL`].
    pub(crate) fn of_prompt(prompt: String) -> Self {
        const BEGIN: &str = "<|im_start|>";
        const ASSISTANT: &str = "<|im_start|>assistant";
        // The last turn is empty: the model is about to write it.
        let written = prompt.rfind(BEGIN).unwrap_or(prompt.len());
        let last = prompt[..written].rfind(BEGIN).unwrap_or(0);
        let assistant_turns = prompt[..written].matches(ASSISTANT).count();
        Self { prompt, last, assistant_turns }
    }
}

impl Condition {
    fn matches(&self, conversation: &Conversation, request: u64) -> bool {
        let Conversation { prompt, last, assistant_turns } = conversation;
        self.request.is_none_or(|number| number == request)
            && self.assistant_turns.is_none_or(|turns| turns == *assistant_turns)
            && self.last.as_ref().is_none_or(|text| prompt[*last..].contains(text))
            && self.contains.iter().all(|text| prompt.contains(text))
    }
}

/// Errors of scripts.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The script file cannot be read.
    #[error("cannot read the script {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not a valid script.
    #[error("{} is not a script: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        error: serde_json::Error,
    },
    /// A step is not supported by this player.
    #[error("{}: answer {answer} has an unsupported step: {step}", path.display())]
    Step {
        /// The file.
        path: PathBuf,
        /// Index of the answer, from 0.
        answer: usize,
        /// The step.
        step: &'static str,
    },
    /// The model file cannot be created.
    #[error("cannot create the file of the scripted model: {0}")]
    Weights(#[from] puna_gguf::GgufError),
    /// No answer matches a request.
    #[error("the script {} has no answer to request {request}", path.display())]
    NoAnswer {
        /// The file.
        path: PathBuf,
        /// Number of the request.
        request: u64,
    },
}

/// Executor of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptPlayer {
    /// The scripted model.
    Model,
    /// The upstream server.
    Upstream,
}

/// A script file, with the number of uses of each answer.
pub(crate) struct ScriptFile {
    path: PathBuf,
    player: ScriptPlayer,
    state: Mutex<PlayState>,
}

#[derive(Default)]
struct PlayState {
    text: String,
    answers: Vec<ScriptAnswer>,
    use_counts: Vec<u64>,
    requests: u64,
}

impl ScriptFile {
    /// Reads a script.
    pub(crate) fn open(path: PathBuf, player: ScriptPlayer) -> Result<(Self, Script), ScriptError> {
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
                    (Step::Raw(_), ScriptPlayer::Upstream) => "raw",
                    (Step::Delta(_), ScriptPlayer::Model) => "delta",
                    _ => continue,
                };
                return Err(ScriptError::Step { path: self.path.clone(), answer: number, step });
            }
        }
        Ok(script)
    }

    /// Returns the answer to a request.
    pub(crate) fn answer(&self, conversation: &Conversation) -> Result<ScriptAnswer, ScriptError> {
        let text = self.read()?;
        let mut state = lock(&self.state);
        if state.text != text {
            let answers = self.parse(&text)?.answers;
            *state = PlayState { text, use_counts: vec![0; answers.len()], answers, requests: 0 };
        }
        state.requests += 1;
        let request = state.requests;
        let fits = |(answer, given): (&ScriptAnswer, &u64)| {
            answer.times.is_none_or(|times| *given < times)
                && answer.when.matches(conversation, request)
        };
        let Some(at) = state.answers.iter().zip(&state.use_counts).position(fits) else {
            return Err(ScriptError::NoAnswer { path: self.path.clone(), request });
        };
        state.use_counts[at] += 1;
        tracing::info!(request, answer = at, "scripted request");
        Ok(state.answers[at].clone())
    }
}
