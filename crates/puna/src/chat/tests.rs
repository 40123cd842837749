//! Whole sessions: input lines in, requests and output text out.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::rc::Rc;

use anyhow::Result;
use puna_api::ollama::{
    ChatRequest, CreateRequest, Message, Metrics, ShowRequest, ShowResponse, Think,
};
use serde_json::json;

use super::editor::{Line, LineSource, PromptKind};
use super::session::{Options, Session};
use super::{Backend, BackendError, ChatEvent, Interrupt, Screen, converse};

/// A server with two models. It answers in capitals and records its requests.
#[derive(Default)]
struct FakeBackend {
    chats: Vec<ChatRequest>,
    loads: Vec<(String, Option<Think>)>,
    shows: Vec<ShowRequest>,
    created: Vec<CreateRequest>,
    info: ShowResponse,
    /// Error that the next chat returns.
    fails: Option<BackendError>,
    /// Number of events of each chat after which the interrupt is raised.
    interrupt_after: Option<usize>,
}

impl Backend for FakeBackend {
    fn chat(
        &mut self,
        request: ChatRequest,
        interrupt: &Interrupt,
        on_event: &mut dyn FnMut(ChatEvent) -> ControlFlow<()>,
    ) -> Result<(), BackendError> {
        let text = request.messages.last().map(|m| m.content.to_uppercase()).unwrap_or_default();
        self.chats.push(request);
        if let Some(error) = self.fails.take() {
            return Err(error);
        }
        let metrics = Metrics { eval_count: 7, ..Metrics::default() };
        let events =
            [ChatEvent::Thinking("hm".into()), ChatEvent::Content(text), ChatEvent::Done(metrics)];
        for (i, event) in events.into_iter().enumerate() {
            if self.interrupt_after == Some(i + 1) {
                interrupt.raise();
            }
            if on_event(event).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn load(
        &mut self,
        model: &str,
        think: Option<Think>,
        _: &Interrupt,
    ) -> Result<(), BackendError> {
        self.loads.push((model.into(), think));
        Ok(())
    }

    fn show(&mut self, request: ShowRequest) -> Result<ShowResponse, BackendError> {
        if !["small", "large"].contains(&request.model.as_str()) {
            return Err(BackendError::NotFound(format!("model '{}' not found", request.model)));
        }
        self.shows.push(request);
        Ok(self.info.clone())
    }

    fn create(&mut self, request: CreateRequest) -> Result<(), BackendError> {
        self.created.push(request);
        Ok(())
    }

    fn list_table(&mut self, prefix: Option<&str>) -> Result<String, BackendError> {
        Ok(format!("NAME    {}\n", prefix.unwrap_or("all")))
    }

    fn describe(&self, info: &ShowResponse) -> String {
        format!("  Model {}\n", info.details.family)
    }
}

/// Input lines typed in advance.
#[derive(Default)]
struct Script {
    lines: VecDeque<Line>,
    prompts: Vec<PromptKind>,
    recorded: Vec<String>,
    saves: Vec<bool>,
}

impl Script {
    fn new(lines: &[&str]) -> Self {
        Self {
            lines: lines.iter().map(|&line| Line::Text(line.into())).collect(),
            ..Self::default()
        }
    }
}

impl LineSource for Script {
    fn read(&mut self, kind: PromptKind) -> Result<Line> {
        self.prompts.push(kind);
        Ok(self.lines.pop_front().unwrap_or(Line::End))
    }
    fn record(&mut self, line: &str) -> Result<()> {
        self.recorded.push(line.into());
        Ok(())
    }
    fn save_history(&mut self, on: bool) {
        self.saves.push(on);
    }
}

#[derive(Clone, Default)]
struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.borrow()).into_owned()
    }
}

/// The two outputs of a session, and its result.
struct SessionOutput {
    out: String,
    err: String,
    end: Result<()>,
}

fn run_with(backend: &mut FakeBackend, options: Options, script: &mut Script) -> SessionOutput {
    let (out, err) = (Buffer::default(), Buffer::default());
    let interrupt = Interrupt::default();
    let screen = Screen::new(Box::new(out.clone()), Box::new(err.clone()));
    let options = Options { model: "small".into(), ..options };
    let end = Session::open(options, backend, &interrupt, screen)
        .and_then(|mut session| converse(&mut session, script));
    SessionOutput { out: out.text(), err: err.text(), end }
}

/// Runs lines in a session that must succeed.
fn run(backend: &mut FakeBackend, lines: &[&str]) -> SessionOutput {
    let options = Options { hide_thinking: true, ..Options::default() };
    let session = run_with(backend, options, &mut Script::new(lines));
    session.end.as_ref().expect("the session ends well");
    session
}

fn texts(messages: &[Message]) -> Vec<(&str, &str)> {
    messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect()
}

#[test]
fn each_request_contains_the_whole_conversation() {
    let mut backend = FakeBackend::default();
    let session = run(&mut backend, &["hello", "", "and you?"]);
    assert_eq!(session.out, "HELLO\n\nAND YOU?\n\n");
    let second = texts(&backend.chats[1].messages);
    assert_eq!(second, [("user", "hello"), ("assistant", "HELLO"), ("user", "and you?")]);
    assert_eq!(backend.chats[1].messages[1].thinking, "hm");
    assert_eq!(backend.chats.len(), 2);
}

#[test]
fn thinking_is_shown_and_statistics_follow_on_request() {
    let mut backend = FakeBackend::default();
    let session = run_with(
        &mut backend,
        Options { verbose: true, ..Options::default() },
        &mut Script::new(&["hi"]),
    );
    assert!(
        session.out.contains("Thinking...") && session.out.ends_with("HI\n\n"),
        "{}",
        session.out
    );
    assert_eq!(session.err, "eval count:           7 token(s)\n");
}

#[test]
fn a_block_in_quotes_is_one_message_with_its_own_prompt() {
    let mut backend = FakeBackend::default();
    let mut script = Script::new(&[r#""""one"#, "two", r#"""""#]);
    run_with(&mut backend, Options::default(), &mut script);
    assert_eq!(backend.chats[0].messages[0].content, "one\ntwo\n");
    let [first, second] = [PromptKind::Message, PromptKind::Continuation];
    assert_eq!(script.prompts, [first, second, second, first]);
}

#[test]
fn ctrl_c_on_an_empty_line_says_how_to_leave_and_drops_an_open_block() {
    let mut backend = FakeBackend::default();
    let interrupted = |was_empty| Line::Interrupted { was_empty };
    let text = |text: &str| Line::Text(text.into());
    let lines =
        [interrupted(true), interrupted(false), text(r#""""half"#), interrupted(true), text("new")];
    let mut script = Script { lines: lines.into(), ..Script::default() };
    let session =
        run_with(&mut backend, Options { hide_thinking: true, ..Options::default() }, &mut script);
    assert_eq!(session.out, "Use Ctrl + d or /bye to exit.\nNEW\n\n");
    assert_eq!(texts(&backend.chats[0].messages), [("user", "new")]);
}

#[test]
fn a_stopped_answer_is_dropped_and_the_session_continues() {
    let mut backend = FakeBackend { interrupt_after: Some(1), ..FakeBackend::default() };
    let session = run(&mut backend, &["first", "second"]);
    assert_eq!(session.out, "\n\n\n\n");
    assert_eq!(texts(&backend.chats[1].messages), [("user", "first"), ("user", "second")]);
}

#[test]
fn a_server_error_is_shown_and_the_session_continues() {
    for refusal in ["\"small\" does not support thinking", "grammar: no", "out of memory"] {
        let fails = Some(BackendError::Refused(refusal.into()));
        let mut backend = FakeBackend { fails, ..FakeBackend::default() };
        let session = run(&mut backend, &["one", "two"]);
        assert_eq!(session.out, format!("error: {refusal}\nTWO\n\n"));
        assert_eq!(texts(&backend.chats[1].messages), [("user", "two")]);
    }
    let gone = Some(BackendError::NotFound("model 'small' not found".into()));
    let session =
        run(&mut FakeBackend { fails: gone, ..FakeBackend::default() }, &["one", "/list"]);
    assert_eq!(session.out, "error: model 'small' not found\nNAME    all\n");
}

#[test]
fn a_local_error_ends_the_session() {
    let fails = Some(BackendError::Other(anyhow::anyhow!("no output")));
    let mut backend = FakeBackend { fails, ..FakeBackend::default() };
    let session = run_with(&mut backend, Options::default(), &mut Script::new(&["one", "two"]));
    assert_eq!(session.end.expect_err("it ends").to_string(), "no output");
    assert_eq!(backend.chats.len(), 1);
}

#[test]
fn clearing_keeps_the_system_message() {
    let mut backend = FakeBackend::default();
    let session = run(&mut backend, &["/set system be brief", "hi", "/clear", "again"]);
    assert_eq!(session.out, "Set system message.\nHI\n\nCleared session context\nAGAIN\n\n");
    assert_eq!(texts(&backend.chats[1].messages), [("system", "be brief"), ("user", "again")]);
}

#[test]
fn a_new_system_message_replaces_only_one_just_before_it() {
    let mut backend = FakeBackend::default();
    run(&mut backend, &["/set system a", "/set system b", "hi", "/set system c", "ho"]);
    let roles =
        [("system", "b"), ("user", "hi"), ("assistant", "HI"), ("system", "c"), ("user", "ho")];
    assert_eq!(texts(&backend.chats[1].messages), roles);
}

#[test]
fn loading_clears_the_conversation_and_an_unknown_model_changes_nothing() {
    let mut backend = FakeBackend::default();
    let session = run(&mut backend, &["hi", "/load nope", "ho", "/load large", "new", "/load"]);
    let loading = "Loading model 'nope'\nCouldn't find model 'nope'\n";
    assert_eq!(session.out, format!("HI\n\n{loading}HO\n\nLoading model 'large'\nNEW\n\n"));
    assert_eq!(session.err, "Usage:\n  /load <modelname>\n");
    assert_eq!((backend.chats[1].model.as_str(), backend.chats[1].messages.len()), ("small", 3));
    assert_eq!((backend.chats[2].model.as_str(), backend.chats[2].messages.len()), ("large", 1));
}

#[test]
fn saving_creates_a_model_from_the_session() {
    let mut backend = FakeBackend::default();
    backend.info.messages = vec![Message::text("user", "old")];
    backend.info.details.parent_model = "base:7b".into();
    let lines =
        ["/set parameter temperature 0.5", "/set system s", "hi", "/save mine", "/save no!"];
    let session = run(&mut backend, &lines);
    assert!(session.out.starts_with(">>> old\n"), "{}", session.out);
    assert!(
        session.out.ends_with("Created new model 'mine'\nerror: The model name 'no!' is invalid\n"),
        "{}",
        session.out
    );
    let request = &backend.created[0];
    assert_eq!((request.from.as_str(), request.system.as_str()), ("base:7b", "s"));
    let messages = [("user", "old"), ("system", "s"), ("user", "hi"), ("assistant", "HI")];
    assert_eq!(texts(&request.messages), messages);
    assert_eq!(request.parameters, json!({"temperature": 0.5}).as_object().cloned());
}

#[test]
fn a_parent_path_is_not_used_as_the_base_of_a_saved_model() {
    let mut backend = FakeBackend::default();
    backend.info.details.parent_model = "/home/somebody/.ollama/models/blobs/sha256-1234".into();
    run(&mut backend, &["/save mine"]);
    assert_eq!(backend.created[0].from, "small");
}

#[test]
fn parameters_are_checked_and_sent_with_every_message() {
    let mut backend = FakeBackend::default();
    let lines = [
        "/set parameter stop a b",
        "/set parameter top_k 4k",
        "/set parameter nope 1",
        "hi",
        "/show parameters",
    ];
    backend.info.parameters = "temperature    1\nseed    3".into();
    let session = run(&mut backend, &lines);
    let want = "\
Set parameter 'stop' to 'a, b'
Couldn't set parameter: \"invalid int value [4k]\"
Couldn't set parameter: \"unknown parameter 'nope'\"
HI

Model defined parameters:
  temperature    1
  seed    3

User defined parameters:
  stop                           [a b]

";
    assert_eq!(session.out, want);
    assert_eq!(backend.chats[0].options, json!({"stop": ["a", "b"]}).as_object().cloned());
}

#[test]
fn format_and_mode_changes_are_confirmed() {
    let mut backend = FakeBackend::default();
    let lines = [
        "/set format json",
        "x",
        "/set format xml",
        "/set noformat",
        "/set verbose",
        "/set quiet",
        "/set nowordwrap",
    ];
    let session = run(&mut backend, &lines);
    let want = "\
Set format to 'json' mode.
X

Invalid or missing format. For 'json' mode use '/set format json'
Disabled format.
Set 'verbose' mode.
Set 'quiet' mode.
Set 'nowordwrap' mode.
";
    assert_eq!(session.out, want);
    assert_eq!(backend.chats[0].format, Some("json".into()));
}

#[test]
fn thinking_is_on_by_default_for_capable_models_and_has_levels() {
    let mut backend = FakeBackend::default();
    backend.info.capabilities = vec!["completion".into(), "thinking".into()];
    let session =
        run(&mut backend, &["a", "/set think high", "b", "/set nothink", "c", "/set think much"]);
    let thinks: Vec<_> = backend.chats.iter().map(|chat| chat.think).collect();
    assert_eq!(thinks, [Some(Think::On), Some(Think::High), Some(Think::Off)]);
    assert_eq!(backend.loads, [("small".to_owned(), Some(Think::On))]);
    assert!(
        session.out.contains("Set 'think' mode to 'high'.\n")
            && session.out.contains("Set 'nothink' mode.\n")
    );
    assert!(session.out.contains("error: invalid think value: \"much\""), "{}", session.out);
    assert_eq!(session.err, "");
}

#[test]
fn a_model_that_cannot_think_is_warned_about() {
    let mut backend = FakeBackend::default();
    let session = run(&mut backend, &["a", "/set think"]);
    assert_eq!(backend.chats[0].think, None);
    assert_eq!(session.out, "A\n\nSet 'think' mode.\n");
    assert_eq!(session.err, "warning: model \"small\" does not support thinking output\n");
}

#[test]
fn show_prints_items_or_reports_them_missing() {
    let mut backend = FakeBackend::default();
    let session = run(
        &mut backend,
        &["/show license", "/show system", "/show template", "/show info", "/show x"],
    );
    let want = "\
No license was specified for this model.
No system message was specified for this model.
No prompt template was specified for this model.
Unknown command '/show x'. Type /? for help
";
    assert_eq!(session.out, want);
    assert_eq!(session.err, "  Model \n");

    backend.info.system = "model's".into();
    backend.info.template = "{{ .Prompt }}".into();
    let lines =
        ["/show system", "/set system mine", "/show system", "/show template", "/show modelfile"];
    let session = run(&mut backend, &lines);
    assert_eq!(session.out, "model's\n\nSet system message.\nmine\n\n{{ .Prompt }}\n\n");
    assert_eq!(backend.shows.last().map(|show| show.system.as_str()), Some("mine"));
}

#[test]
fn unknown_commands_point_to_help_and_help_goes_to_standard_error() {
    let mut backend = FakeBackend::default();
    let mut script =
        Script::new(&["/nope", "/set nope", "/list gem", "/?", "/set nohistory", "/bye", "never"]);
    let session = run_with(&mut backend, Options::default(), &mut script);
    let unknown = |word: &str| format!("Unknown command '{word}'. Type /? for help\n");
    assert_eq!(session.out, unknown("/nope") + &unknown("/set nope") + "NAME    gem\n");
    let help = r#"Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load a session or model
  /save <model>   Save your current session
  /clear          Clear session context
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use """ to begin a multi-line message.

"#;
    assert_eq!(session.err, help);
    assert!(backend.chats.is_empty());
    assert_eq!(script.saves, [false]);
    assert_eq!(script.recorded.last().map(String::as_str), Some("/bye"));
}

#[test]
fn files_are_attached_for_multimodal_models() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cat.png");
    std::fs::write(&path, b"\x89PNG\r\n\x1a\n").expect("written");
    let mut backend = FakeBackend::default();
    let line = format!("{} what is it?", path.display());
    let session = run(&mut backend, &[&line]);
    assert!(session.out.starts_with("Unknown command '/"), "{}", session.out);

    backend.info.capabilities = vec!["vision".into()];
    let session = run(&mut backend, &[&line]);
    assert_eq!(session.err, format!("Added image '{}'\n", path.display()));
    let message = &backend.chats[0].messages[0];
    assert_eq!((message.content.as_str(), message.images.len()), ("what is it?", 1));
}
