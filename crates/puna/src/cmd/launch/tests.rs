//! Tests of the printed plan of each agent, and of warnings about small windows.

use std::path::Path;

use puna_api::ollama::ShowResponse;
use puna_api::openai::ModelMeta;
use serde_json::{Value, json};

use super::agent::{Setup, Target};
use super::agents::{AGENTS, agent};
use super::{plan, warnings};

/// A model on a server that requires a key.
pub(super) fn target(window: Option<u64>) -> Target {
    Target {
        url: "http://127.0.0.1:11434".into(),
        key: "sk-secret".into(),
        model: "qwen3".into(),
        window,
        thinks: true,
        accepts_images: false,
    }
}

fn setup(name: &str, window: Option<u64>) -> Setup {
    agent(name).unwrap().setup(&target(window), Path::new("/tmp/puna-launch")).unwrap()
}

fn variable<'a>(setup: &'a Setup, name: &str) -> Option<&'a str> {
    setup.set.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

fn printed(name: &str, window: Option<u64>, arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let agent = agent(name).unwrap();
    plan::plan(
        agent,
        &target(window),
        &setup(name, window),
        &arguments,
        Path::new("/tmp/puna-launch"),
    )
}

#[test]
fn claude_code_is_configured_by_variables() {
    let expected = "\
env -u ANTHROPIC_API_KEY -u CLAUDE_CODE_OAUTH_TOKEN -u CLAUDE_CODE_USE_BEDROCK -u CLAUDE_CODE_USE_VERTEX -u CLAUDE_CODE_USE_FOUNDRY \\
  ANTHROPIC_BASE_URL=http://127.0.0.1:11434 \\
  ANTHROPIC_AUTH_TOKEN=\"$PUNA_API_KEY\" \\
  ANTHROPIC_MODEL=qwen3 \\
  ANTHROPIC_SMALL_FAST_MODEL=qwen3 \\
  ANTHROPIC_DEFAULT_OPUS_MODEL=qwen3 \\
  ANTHROPIC_DEFAULT_SONNET_MODEL=qwen3 \\
  ANTHROPIC_DEFAULT_HAIKU_MODEL=qwen3 \\
  CLAUDE_CODE_SUBAGENT_MODEL=qwen3 \\
  CLAUDE_CODE_MAX_CONTEXT_TOKENS=65536 \\
  CLAUDE_CODE_MAX_OUTPUT_TOKENS=8192 \\
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \\
  API_TIMEOUT_MS=3600000 \\
  claude --settings /tmp/puna-launch/claude-settings.json -p 'What is this?'
";
    let text = printed("claude", Some(65_536), &["-p", "What is this?"]);
    assert!(text.starts_with("# server http://127.0.0.1:11434, model qwen3, context window 65536 tokens\n\n# /tmp/puna-launch/claude-settings.json"), "{text}");
    assert!(text.ends_with(expected), "{text}");
    let claude = setup("claude", Some(65_536));
    let settings: Value = serde_json::from_str(&claude.files[0].1).unwrap();
    assert_eq!(settings["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"], "65536");
    assert_eq!(
        settings["env"]["ANTHROPIC_API_KEY"], "",
        "a key in the user's settings is not sent either"
    );
    assert_eq!(variable(&setup("claude", None), "CLAUDE_CODE_MAX_CONTEXT_TOKENS"), None);
}

#[test]
fn codex_is_configured_on_its_command_line() {
    let expected = "\
# server http://127.0.0.1:11434, model qwen3, context window 32768 tokens

env \\
  PUNA_LAUNCH_KEY=\"$PUNA_API_KEY\" \\
  codex -c 'model=\"qwen3\"' -c 'model_provider=\"puna\"' -c 'model_providers.puna.name=\"Puna\"' \
-c 'model_providers.puna.base_url=\"http://127.0.0.1:11434/v1\"' -c 'model_providers.puna.env_key=\"PUNA_LAUNCH_KEY\"' \
-c 'model_providers.puna.wire_api=\"responses\"' -c model_providers.puna.stream_idle_timeout_ms=3600000 \
-c model_context_window=32768 -c model_auto_compact_token_limit=28672 exec hi
";
    assert_eq!(printed("codex", Some(32_768), &["exec", "hi"]), expected);
    assert!(!printed("codex", None, &[]).contains("model_context_window"));
}

#[test]
fn opencode_is_configured_by_a_variable() {
    let config = |window| -> Value {
        serde_json::from_str(
            variable(&setup("opencode", window), "OPENCODE_CONFIG_CONTENT").unwrap(),
        )
        .unwrap()
    };
    let told = config(Some(131_072));
    assert_eq!(
        (&told["model"], &told["small_model"]),
        (&json!("puna/qwen3"), &json!("puna/qwen3"))
    );
    let provider = &told["provider"]["puna"];
    assert_eq!(provider["options"]["baseURL"], "http://127.0.0.1:11434/v1");
    assert_eq!(provider["options"]["apiKey"], "sk-secret");
    assert_eq!(provider["models"]["qwen3"]["limit"], json!({"context": 131_072, "output": 16_384}));
    assert_eq!(config(None)["provider"]["puna"]["models"]["qwen3"]["limit"], Value::Null);
}

#[test]
fn qwen_code_is_configured_by_variables_and_a_settings_file() {
    let setup = setup("qwen", Some(65_536));
    assert_eq!(variable(&setup, "OPENAI_BASE_URL"), Some("http://127.0.0.1:11434/v1"));
    assert_eq!(variable(&setup, "OPENAI_API_KEY"), Some("sk-secret"));
    assert_eq!(
        variable(&setup, "QWEN_CODE_SYSTEM_SETTINGS_PATH"),
        Some("/tmp/puna-launch/qwen-settings.json")
    );
    assert_eq!(setup.arguments, ["--auth-type", "openai", "--model", "qwen3"]);
    let [(name, content)] = &setup.files[..] else { panic!("{:?}", setup.files) };
    let settings: Value = serde_json::from_str(content).unwrap();
    let generation = &settings["modelProviders"]["openai"][0]["generationConfig"];
    assert_eq!(
        (name.as_str(), &generation["contextWindowSize"]),
        ("qwen-settings.json", &json!(65_536))
    );
    assert!(!content.contains("sk-secret"), "the key stands in a variable alone");
}

#[test]
fn pi_is_configured_by_an_extension() {
    let setup = setup("pi", Some(65_536));
    let path = "/tmp/puna-launch/pi-puna.js";
    assert_eq!(setup.arguments, ["--extension", path, "--provider", "puna", "--model", "qwen3"]);
    let (_, content) = &setup.files[0];
    let provider =
        content.strip_prefix("export default (pi) => pi.registerProvider(\"puna\", ").unwrap();
    let provider: Value = serde_json::from_str(provider.strip_suffix(");\n").unwrap()).unwrap();
    assert_eq!(provider["models"][0]["contextWindow"], 65_536);
    assert_eq!(
        (&provider["apiKey"], &provider["models"][0]["reasoning"]),
        (&json!("PUNA_LAUNCH_KEY"), &json!(true))
    );
}

#[test]
fn plans_omit_an_unknown_window_and_the_key() {
    for agent in AGENTS {
        let text = printed(agent.name(), Some(98_304), &[]);
        assert!(text.contains("98304") && text.contains("\"$PUNA_API_KEY\""), "{text}");
        assert!(!text.contains("sk-secret"), "{text}");
        let text = printed(agent.name(), None, &[]);
        assert!(!text.contains("000000") && text.contains("context window unknown"), "{text}");
    }
}

#[test]
fn plans_hide_escaped_keys_and_secrets_in_user_settings() {
    let key = "sk-\"quoted\\secret";
    let target = Target { key: key.into(), ..target(Some(65_536)) };
    let folder = Path::new("/tmp/puna-launch");
    for agent in AGENTS {
        let mut setup = agent.setup(&target, folder).unwrap();
        let own = json!({"mcp": [{"headers": {"Authorization": "Bearer \"own"}, "envKey": "OWN_VARIABLE"}],
            "apiKey": "sk-own", "maxTokens": 5, "args": ["--pat", "ghp-own"], "reference": {"apiKey": "{env:OWN_KEY}"},
            "env": {"CREDENTIALS": "{\"private\": \"pem-own\"}"}, "httpUrl": "https://x.test/mcp?k=query-own", "cookie": "c-own"});
        setup.hide(&own);
        setup.files.push(("own.json".into(), format!("{own:#}")));
        let text =
            plan::plan(agent, &target, &setup, &["--api-key".to_owned(), key.to_owned()], folder);
        assert!(
            text.contains("$PUNA_API_KEY")
                && text.contains("OWN_VARIABLE")
                && text.contains("{env:OWN_KEY}"),
            "{text}"
        );
        for part in
            ["secret", "quoted", "sk-own", "ghp-own", "Bearer", "pem-own", "query-own", "c-own"]
        {
            assert!(!text.contains(part), "{}: {text}", agent.name());
        }
        let arguments = text.lines().last().unwrap();
        assert!(arguments.ends_with("--api-key \"$PUNA_API_KEY\""), "{arguments}");
    }
    assert!(!plan::instructions("zed", &target).contains("secret"));
}

#[test]
fn other_clients_get_instructions() {
    let text = plan::instructions("zed", &target(Some(40_960)));
    for part in [
        "zed is not started by puna",
        "http://127.0.0.1:11434/v1",
        "model               qwen3",
        "context window      40960",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("sk-secret"), "{text}");
}

#[test]
fn a_small_window_is_reported_with_the_setting_to_change() {
    let info = |parameters: &str| ShowResponse {
        parameters: parameters.into(),
        capabilities: vec!["completion".into(), "tools".into()],
        ..ShowResponse::default()
    };
    let trained = |tokens| ModelMeta { n_ctx_train: Some(tokens), ..ModelMeta::default() };
    let said = |window, trained, parameters: &str| {
        warnings("Claude Code", 49_152, &target(window), &trained, &info(parameters)).join("\n")
    };
    assert_eq!(said(Some(49_152), trained(131_072), ""), "");
    let small = said(Some(4096), trained(131_072), "");
    assert!(small.starts_with("Claude Code needs a context window of 49152 tokens, and qwen3 has 4096 here: set OLLAMA_CONTEXT_LENGTH=98304"), "{small}");
    assert!(
        said(Some(4096), trained(131_072), "num_ctx    4096").contains("`PARAMETER num_ctx 98304`")
    );
    assert!(
        said(Some(40_960), trained(40_960), "")
            .ends_with("it was trained for 40960, so choose another model with --model")
    );
    assert!(said(None, trained(40_960), "").contains("is unknown"));
    let plain = warnings("pi", 1, &target(Some(9)), &trained(9), &ShowResponse::default());
    assert_eq!(
        plain,
        [
            "the model qwen3 cannot call tools, so the server will refuse requests of pi: choose another with --model"
        ]
    );
}
