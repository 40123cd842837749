//! The commands that need no server, run as users run them.

mod kit;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use kit::{Puna, data};

#[test]
fn wrong_usage_exits_with_2_and_failed_work_with_1() {
    let puna = Puna::new();
    assert_eq!(
        puna.fails(&["frobnicate"]),
        (2, "Error: unknown command \"frobnicate\" for \"puna\"\n".into())
    );
    let (status, help) = puna.fails(&["debug"]);
    assert!(status == 2 && help.contains("logits"), "{status} {help}");
    assert_eq!(puna.fails(&["inspect", "--nope", "x"]), (2, "Error: unknown flag: --nope\n".into()));
    let (status, text) = puna.fails(&["inspect", "./absent.gguf"]);
    assert!(status == 1 && text == "Error: ./absent.gguf: there is no such file\n", "{text}");
    let (status, text) = puna.fails(&["run", ".", "x"]);
    assert!(status == 1 && text.starts_with("Error: . is a folder: make a model of it"), "{text}");
    let (status, text) = puna.fails(&["tokenize", "absent", "x"]);
    assert!(status == 1 && text.starts_with("Error: model 'absent' not found"), "{text}");
}

#[test]
fn help_teaches() {
    let puna = Puna::new();
    let help = puna.ok(&["--help"]);
    for command in
        ["serve", "create", "show", "run", "stop", "list", "ps", "cp", "rm", "inspect", "bench", "debug"]
    {
        assert!(help.contains(&format!("\n  {command}")), "{command} in {help}");
    }
    assert!(puna.ok(&["run", "--help"]).contains("OLLAMA_HOST"));
    assert!(puna.ok(&["completion", "bash"]).contains("complete -F"));
    let version = puna.command(&["--version"]).env("OLLAMA_HOST", "127.0.0.1:1").output().unwrap();
    assert!(version.status.success() && version.stdout.starts_with(b"puna version is 0."));
    assert_eq!(version.stderr, b"Warning: could not connect to a running Puna instance\n");
}

#[test]
fn inspect_shows_what_the_embedded_model_holds() {
    let puna = Puna::new();
    let model = puna.json(&["inspect", "cria", "--json"]);
    assert_eq!(model["architecture"], "llama");
    assert_eq!(model["parameters"], 5_770_496);
    assert_eq!(model["file_type"], "Q8_0");
    assert_eq!(model["size"], 6_273_216);
    assert_eq!(model["kv"]["general.architecture"], "llama");
    assert_eq!(model["translated"], Value::Null);
    let tensors = model["tensors"].as_array().unwrap();
    let embedding = tensors.iter().find(|t| t["name"] == "token_embd.weight").unwrap();
    assert_eq!((&embedding["type"], embedding["shape"].as_array().unwrap().len()), (&"Q8_0".into(), 2));
    assert_eq!(embedding["shape"][1], model["tokenizer"]["tokens"]);
    let text = puna.ok(&["inspect", "cria", "--tensors", "--kv"]);
    assert!(text.contains("token_embd.weight") && text.contains("tokenizer.ggml.model"));
}

#[test]
fn inspect_says_what_is_translated() {
    let puna = Puna::new();
    let path = data("compat/gptoss.gguf");
    let model = puna.json(&["inspect", path.to_str().unwrap(), "--json"]);
    let translated = &model["translated"];
    assert!(translated["renamed"].as_u64().unwrap() > 0 && translated["added"].is_array(), "{translated}");
    let (from, to) = (&translated["architecture"]["from"], &translated["architecture"]["to"]);
    assert_eq!((from, to), (&"gptoss".into(), &"gpt-oss".into()));
}

#[test]
fn tokens_and_text_turn_into_each_other() {
    let puna = Puna::new();
    let text = "What is the capital of France?";
    let tokens = puna.json(&["tokenize", "cria", text, "--no-bos", "--json"]);
    let pieces: String = tokens["pieces"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    assert_eq!(pieces, text);
    let ids: Vec<String> = tokens["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    let back = puna.json(&["detokenize", "cria", "--tokens", &ids.join(","), "--json"]);
    assert_eq!(back["text"], text);
    let special = puna.json(&["tokenize", "cria", "<|im_end|>", "--no-bos", "--json"]);
    let plain = puna.json(&["tokenize", "cria", "<|im_end|>", "--no-bos", "--no-special", "--json"]);
    assert_eq!(special["tokens"].as_array().unwrap().len(), 1);
    assert!(plain["tokens"].as_array().unwrap().len() > 1);
    let (status, error) = puna.fails(&["detokenize", "cria", "--tokens", "99999999"]);
    assert!(status == 1 && error.contains("not in the vocabulary"), "{error}");
}

#[test]
fn text_comes_from_standard_input_too() {
    let puna = Puna::new();
    let mut child = puna
        .command(&["tokenize", "cria", "--no-bos", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Paris").unwrap();
    let piped: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(piped, puna.json(&["tokenize", "cria", "Paris", "--no-bos", "--json"]));
}

/// The zoo's reference logits, as another engine computed them.
fn zoo(name: &str) -> (String, String, Value) {
    let path = data("zoo").join(name);
    let json: Value = serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
    let tokens: Vec<String> = json["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    (path.to_str().unwrap().into(), tokens.join(","), json)
}

fn worst(found: &Value, want: &Value, positions: &Value, std: f64) -> f64 {
    let mut worst = 0.0f64;
    for (at, position) in positions.as_array().unwrap().iter().enumerate() {
        let row = &found[position.as_u64().unwrap() as usize];
        for (x, y) in row.as_array().unwrap().iter().zip(want[at].as_array().unwrap()) {
            worst = worst.max((x.as_f64().unwrap() - y.as_f64().unwrap()).abs() / std);
        }
    }
    worst
}

#[test]
fn logits_are_those_of_the_reference_however_tokens_are_fed() {
    let puna = Puna::new();
    let (path, tokens, reference) = zoo("qwen3.gguf");
    let (std, limit) = (reference["logits_std"].as_f64().unwrap(), reference["tolerance"].as_f64().unwrap());
    let base = ["debug", "logits", &path, "--tokens", &tokens, "--kernels", "portable", "--json"];
    let f32_cache = ["--cache-type-k", "f32", "--cache-type-v", "f32"];
    for how in [&["--split", "whole"][..], &["--split", "7"], &["--split", "one"], &["--parallel", "2"]] {
        let found = puna.json(&[&base[..], &f32_cache, how].concat());
        let error = worst(&found["logits"], &reference["logits"], &reference["positions"], std);
        assert!(error <= limit, "{how:?}: {error} > {limit}");
        assert_eq!(found["architecture"], "qwen3");
    }
    let last = puna.json(&[&base[..], &["--positions", "last"]].concat());
    assert_eq!(last["logits"].as_array().unwrap().len(), 1);
}

#[test]
fn encoders_give_a_vector_for_each_token() {
    let puna = Puna::new();
    let (path, tokens, reference) = zoo("bert-mean.gguf");
    let (std, limit) =
        (reference["embeddings_std"].as_f64().unwrap(), reference["tolerance"].as_f64().unwrap());
    let found =
        puna.json(&["debug", "logits", &path, "--tokens", &tokens, "--kernels", "portable", "--json"]);
    let error = worst(&found["embeddings"], &reference["token_embeddings"], &reference["positions"], std);
    assert!(error <= limit, "{error} > {limit}");
}

#[test]
fn the_block_formats_can_be_tried_alone() {
    let puna = Puna::new();
    // Scale 1.0 and the codes 1, 2, … of Q8_0.
    let hex: String =
        std::iter::once("003c".to_owned()).chain((1..=32).map(|i| format!("{i:02x}"))).collect();
    let values = puna.json(&["debug", "dequantize", "--type", "q8_0", "--hex", &hex, "--json"]);
    assert_eq!(values["values"], Value::from((1..=32).map(f64::from).collect::<Vec<_>>()));
    let error = puna.json(&["debug", "quantize-error", "--type", "Q4_K", "--json"]);
    assert!((0.01..0.2).contains(&error["rmse"].as_f64().unwrap()), "{error}");
    let (status, text) = puna.fails(&["debug", "dequantize", "--type", "Q9", "--hex", "00"]);
    assert!(status == 2 && text.contains("unknown tensor type `Q9`; known are F32"), "{text}");
}

#[test]
fn kernels_that_the_machine_lacks_are_refused_with_those_it_has() {
    let puna = Puna::new();
    let levels = puna.json(&["debug", "kernels", "--json"]);
    assert_eq!(levels["levels"][0], "portable");
    let (status, text) = puna.fails(&["debug", "logits", "cria", "--tokens", "1", "--kernels", "quantum"]);
    assert!(status == 1 && text.contains("no kernel level `quantum`; it has portable"), "{text}");
    let output =
        puna.command(&["debug", "kernels", "--json"]).env("PUNA_KERNELS", "portable").output().unwrap();
    let chosen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(chosen["chosen"], "portable");
    assert!(puna.json(&["devices", "--json"])["devices"][0]["usable"].as_bool().unwrap());
}

#[test]
fn the_graph_of_a_step_is_listed_with_its_memory() {
    let puna = Puna::new();
    let dot = puna.home.path().join("g.dot");
    let graph =
        puna.json(&["debug", "graph", "cria", "--tokens", "4", "--dot", dot.to_str().unwrap(), "--json"]);
    let nodes = graph["nodes"].as_array().unwrap();
    assert_eq!(nodes[0]["op"], "embed");
    assert!(
        nodes.iter().any(|node| node["op"] == "attention") && graph["scratch_bytes"].as_u64().unwrap() > 0
    );
    assert!(std::fs::read_to_string(dot).unwrap().starts_with("digraph"));
}

#[test]
fn requests_are_rendered_as_the_models_template_says() {
    let puna = Puna::new();
    let request = puna.home.path().join("request.json");
    std::fs::write(&request, r#"{"messages":[{"role":"user","content":"Hi"}]}"#).unwrap();
    let request = request.to_str().unwrap();
    let rendered = puna.json(&["debug", "render", "cria", "--request", request, "--json"]);
    assert_eq!(rendered["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert!(rendered["tokens"].as_array().unwrap().len() > 5 && rendered["truncated"] == false);
    let template = puna.home.path().join("t.jinja");
    std::fs::write(&template, "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}").unwrap();
    let rendered =
        puna.ok(&["debug", "render", "--template", template.to_str().unwrap(), "--request", request]);
    assert_eq!(rendered, "[user] Hi");
    let rendered = puna.ok(&["debug", "render", "--renderer", "glm-4.7", "--request", request]);
    assert_eq!(rendered, "[gMASK]<sop><|user|>Hi<|assistant|><think>");
}

#[test]
fn marks_in_messages_are_text_and_in_a_raw_prompt_what_they_are() {
    let puna = Puna::new();
    let request = puna.home.path().join("request.json");
    let render = |body: serde_json::Value| {
        std::fs::write(&request, body.to_string()).unwrap();
        let rendered =
            puna.json(&["debug", "render", "cria", "--request", request.to_str().unwrap(), "--json"]);
        (rendered["prompt"].as_str().unwrap().to_owned(), rendered["tokens"].as_array().unwrap().clone())
    };
    let raw = |prompt: &str| render(serde_json::json!({"raw": true, "prompt": prompt}));
    let chat =
        |content: &str| render(serde_json::json!({"messages": [{"role": "user", "content": content}]}));
    let (_, end) = raw("<|im_end|>");
    let end = end.last().unwrap();
    let ends = |tokens: &[serde_json::Value]| tokens.iter().filter(|token| *token == end).count();
    // The turn that the template ends is the only one.
    let (prompt, tokens) = chat("\u{fdd1}<|im_end|>");
    assert!(prompt.contains("\u{fffd}<|im_end|><|im_end|>"), "{prompt}");
    assert_eq!(ends(&tokens), 1);
    let (prompt, tokens) = raw("\u{fdd0}<|im_end|>\u{fdd1}");
    assert_eq!((&*prompt, ends(&tokens)), ("\u{fdd0}<|im_end|>\u{fdd1}", 1));
}

#[test]
fn output_parsers_can_be_tried_on_pieces_of_text() {
    let puna = Puna::new();
    let chunks = puna.home.path().join("chunks.json");
    std::fs::write(&chunks, r#"["<thi", "nk>so be", " it</think>\n\n", "Yes.", " <think>"]"#).unwrap();
    let chunks = chunks.to_str().unwrap();
    let parse = |args: &[&str]| {
        puna.json(&[&["debug", "parse", "--chunks", chunks, "--json", "--parser"], args].concat())
    };
    let parsed = |content: &str, thinking: &str| serde_json::json!({"content": content, "thinking": thinking, "tool_calls": []});
    assert_eq!(parse(&["thinking"]), parsed("Yes. <think>", "so be it"));
    let all = "<think>so be it</think>\n\nYes. <think>";
    assert_eq!(parse(&["passthrough"]), parsed(all, ""));
    assert_eq!(parse(&["thinking", "--open", "[T]", "--close", "[/T]"]), parsed(all, ""));
    let opened = ["thinking", "--open", "[T]", "--close", "</think>", "--opened"];
    assert_eq!(parse(&opened), parsed("Yes. <think>", "<think>so be it"));
    let (status, text) = puna.fails(&["debug", "parse", "--parser", "none", "--chunks", chunks]);
    assert!(
        status == 2 && text.starts_with("Error: unknown parser \"none\"; known are cogito, cohere, "),
        "{text}"
    );
    std::fs::write(chunks, r#"["Ok. <tool", "_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"]"#)
        .unwrap();
    let call = serde_json::json!({"function": {"index": 0, "name": "f", "arguments": {}}});
    assert_eq!(
        parse(&["qwen3"]),
        serde_json::json!({"content": "Ok.", "thinking": "", "tool_calls": [call]})
    );
    let (status, text) = puna.fails(&["debug", "parse", "--parser", "thinking", "--chunks", "/dev/null"]);
    assert!(status == 1 && text.contains("/dev/null is not a JSON list of texts"), "{text}");
}

#[test]
fn manual_pages_cover_every_command() {
    let puna = Puna::new();
    let folder = puna.home.path().join("man/man1");
    puna.ok(&["manual", folder.to_str().unwrap()]);
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(page("puna.1").contains("puna\\-run(1)"), "{}", page("puna.1"));
    for name in ["serve", "run", "create", "quantize", "debug", "debug-logits", "debug-parse"] {
        assert!(page(&format!("puna-{name}.1")).contains(".SH DESCRIPTION"), "{name}");
    }
    assert!(!folder.join("puna-runner.1").exists());
}

#[test]
fn wrong_values_of_flags_are_wrong_usage() {
    let puna = Puna::new();
    for args in [
        &["run", "cria", "--think=hard", "x"][..],
        &["run", "cria", "--keepalive", "5", "x"],
        &["run", "cria", "--format", "xml", "x"],
        &["show", "cria", "--license", "--system"],
        &["quantize", "cria", "/dev/null/x", "Q9"],
        &["debug", "logits", "cria", "--tokens", "1", "--split", "some"],
        &["debug", "logits", "cria", "--tokens", "1", "--positions", "7"],
        &["debug", "logits", "cria", "--tokens", "1", "--backend", "abacus"],
        &["debug", "logits", "cria", "--tokens", "1", "--cache-type-k", "q9"],
        &["bench", "cria", "-p", "0", "-n", "0"],
        &["bench", "cria", "-t", "0"],
        &["bench", "cria", "--busy", "100000"],
    ] {
        let (status, text) = puna.fails(args);
        assert!(status == 2 && text.starts_with("Error: ") && text.lines().count() == 1, "{args:?}: {text}");
    }
}

#[test]
fn a_model_is_compared_with_its_saved_logits() {
    let puna = Puna::new();
    let text = puna.home.path().join("text");
    std::fs::write(&text, "The capital of France is Paris. What is two plus two? Four. ".repeat(8)).unwrap();
    let (text, saved) = (text.to_str().unwrap(), puna.home.path().join("logits"));
    let saved = saved.to_str().unwrap();
    let base = ["perplexity", "cria", "--file", text, "--ctx", "64", "--kernels", "portable", "--json"];
    let first = puna.json(&[&base[..], &["--save-logits", saved]].concat());
    assert!(first["perplexity"].as_f64().unwrap() > 1.0 && first["kl_mean"].is_null(), "{first}");
    let again = puna.json(&[&base[..], &["--kl-base", saved]].concat());
    assert_eq!(again["perplexity"], first["perplexity"]);
    assert!(again["kl_mean"].as_f64().unwrap() < 1e-5 && again["top1_agreement"] == 1.0, "{again}");
    let coarse = ["--kl-base", saved, "--cache-type-k", "q4_0", "--cache-type-v", "q4_0"];
    let coarse = puna.json(&[&base[..], &coarse].concat());
    assert!(coarse["kl_mean"].as_f64() > again["kl_mean"].as_f64(), "{coarse}");
    let (status, error) =
        puna.fails(&["perplexity", "cria", "--file", text, "--ctx", "32", "--kl-base", saved]);
    assert!(status == 1 && error.contains("saved for another text"), "{error}");
    let before = std::fs::read(saved).unwrap();
    let link = puna.home.path().join("./logits");
    let both = ["--kl-base", saved, "--save-logits", link.to_str().unwrap()];
    let (status, error) = puna.fails(&[&base[..], &both].concat());
    assert!(status == 2 && error.contains("cannot be both --kl-base and --save-logits"), "{error}");
    assert!(std::fs::read(saved).unwrap() == before);
}

#[test]
fn a_draft_model_that_is_unknown_is_told_with_what_else_may_be_said() {
    let puna = Puna::new();
    let model = zoo("llama-f16.gguf").0;
    let (status, error) = puna.fails(&["run", &model, "--speculate", "nobody", "x"]);
    assert!(status == 1 && error.contains("nobody is none of auto, off, ngram, always"), "{error}");
}

#[test]
fn a_draft_model_of_one_model_runs_beside_it_and_says_so_alone() {
    let puna = Puna::new();
    let [model, draft, other] = ["zoo/gemma4.gguf", "drafts/gemma4-assistant.gguf", "zoo/gemma3.gguf"]
        .map(|name| data(name).to_str().unwrap().to_owned());
    let says = |how: &str| {
        let fixed = ["--parameter", "temperature=0", "--parameter", "num_predict=30"];
        let done =
            puna.run(&[&["run", &model, "--verbose", "--speculate", how], &fixed[..], &["the"]].concat());
        let [answer, said] =
            [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(done.status.success(), "{said}");
        (answer, said)
    };
    let (plain, _) = says("off");
    assert_eq!(says(&draft).0, plain);
    let (status, error) = puna.fails(&["run", &draft, "x"]);
    let told = ["`gemma4-assistant` is a draft model", "--speculate", "DRAFT"];
    assert!(status == 1 && told.iter().all(|part| error.contains(part)), "{error}");
    let (status, error) = puna.fails(&["run", &other, "--speculate", &draft, "x"]);
    assert!(status == 1 && error.contains("cannot be a draft model"), "{error}");
    let shown = puna.json(&["inspect", &draft, "--json"]);
    assert_eq!(shown["architecture"], "gemma4-assistant");
    assert!(shown["memory"]["unknown"].as_str().unwrap().contains("is a draft model"), "{shown}");
}

#[test]
fn a_file_is_quantized_and_still_answers() {
    let puna = Puna::new();
    let out = puna.home.path().join("cria-q4.gguf");
    let out = out.to_str().unwrap();
    let done = puna.run(&["quantize", "cria", out, "q4_K_M"]);
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("warning: the model is quantized already (Q8_0)"), "{said}");
    let made = puna.json(&["inspect", out, "--json"]);
    assert_eq!(made["file_type"], "Q4_K_M");
    assert!(made["size"].as_u64().unwrap() < 6_273_216);
    let tokens = puna.json(&["tokenize", out, "What is the capital of France?", "--json"]);
    let ids: Vec<String> = tokens["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    let logits = |model: &str| {
        puna.json(&["debug", "logits", model, "--tokens", &ids.join(","), "--positions", "last", "--json"])
    };
    let best = |value: &Value| {
        let row: Vec<f64> =
            value["logits"][0].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap()
    };
    assert_eq!(best(&logits(out)), best(&logits("cria")));
    assert!(puna.fails(&["quantize", "cria", out, "Q9"]).1.contains("unknown type Q9; known are F32"));
    assert!(puna.fails(&["quantize", out, out, "Q8_0"]).1.contains("is the file that is read"));
}

#[test]
fn a_split_model_stays_split_where_that_is_asked_for() {
    let puna = Puna::new();
    let source = split_cria(puna.home.path());
    let source = source.to_str().unwrap();
    let out = puna.home.path().join("small.gguf");
    puna.ok(&["quantize", source, out.to_str().unwrap(), "Q4_0", "--keep-split"]);
    assert!(!out.exists());
    let answer = puna.ok(&["run", source, "--think=false", "What is the capital of France?"]);
    assert!(answer.contains("Paris"), "{answer}");
    let first = puna.home.path().join("small-00001-of-00002.gguf");
    assert!(puna.home.path().join("small-00002-of-00002.gguf").exists());
    // What stays split says the same as what is put together.
    puna.ok(&["quantize", source, out.to_str().unwrap(), "Q4_0"]);
    let logits = |model: &Path| {
        let model = model.to_str().unwrap();
        puna.json(&["debug", "logits", model, "--tokens", "4085,270,1996", "--positions", "last", "--json"])
    };
    assert_eq!(logits(&first), logits(&out));
    let inspect =
        |path: &Path| puna.json(&["inspect", path.to_str().unwrap(), "--tensors", "--kv", "--json"]);
    let (first, out) = (inspect(&first), inspect(&out));
    assert_eq!((&first["kv"]["split.count"], &out["kv"]["split.count"]), (&2.into(), &Value::Null));
    let types = |file: &Value| -> Vec<(String, String)> {
        let tensors = file["tensors"].as_array().unwrap().iter();
        let mut types: Vec<_> = tensors.map(|t| (t["name"].to_string(), t["type"].to_string())).collect();
        types.sort();
        types
    };
    assert_eq!(types(&first), types(&out));
}

/// cria in two files, every second tensor in each.
fn split_cria(folder: &Path) -> PathBuf {
    let cria = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/cria/cria-q8_0.gguf");
    let whole = puna_gguf::Gguf::open(&cria).unwrap();
    let path = |part: usize| folder.join(format!("cria-0000{}-of-00002.gguf", part + 1));
    for part in 0..2 {
        let mut metadata = if part == 0 { whole.metadata().clone() } else { puna_gguf::Metadata::new() };
        metadata.set("split.no", part as u16);
        metadata.set("split.count", 2u16);
        metadata.set("split.tensors.count", whole.tensors().len() as i32);
        let mut writer = puna_gguf::Writer::with_metadata(metadata);
        let tensors: Vec<_> = whole.tensors().iter().skip(part).step_by(2).collect();
        for tensor in &tensors {
            writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
        }
        let bytes = writer.to_vec(tensors.iter().map(|tensor| whole.data(tensor))).unwrap();
        std::fs::write(path(part), bytes).unwrap();
    }
    path(0)
}

#[test]
fn bench_states_speeds_as_shares_of_the_machine() {
    let puna = Puna::new();
    let plot = puna.home.path().join("p.svg");
    let args =
        ["bench", "cria", "-p", "32", "-n", "4", "-r", "1", "-d", "0,16", "-b", "1,2", "--ops", "--json"];
    let result = puna.json(&[&args[..], &["--plot", plot.to_str().unwrap()]].concat());
    assert!(result["machine"]["read_gbs"].as_f64().unwrap() > 0.1);
    assert!(result["machine"]["int8_gmacs"].as_f64().unwrap() > 0.1);
    let results = result["results"].as_array().unwrap();
    assert_eq!(results.len(), 8);
    for test in results {
        assert!(test["tokens_per_second"].as_f64().unwrap() > 0.0, "{test}");
        assert!(
            test["limit_share"].as_f64().unwrap() > 0.0 && !test["ops"].as_array().unwrap().is_empty(),
            "{test}"
        );
    }
    let plot = std::fs::read_to_string(plot).unwrap();
    assert!(plot.contains("pp32") && plot.contains("tg4 @ d16 × 2") && plot.ends_with("</svg>\n"), "{plot}");
    let file = puna.home.path().join("base.json");
    std::fs::write(&file, result.to_string()).unwrap();
    let again = puna.json(&[
        "bench",
        "cria",
        "-p",
        "32",
        "-n",
        "0",
        "-r",
        "1",
        "--compare",
        file.to_str().unwrap(),
        "--json",
    ]);
    assert!(again["results"][0]["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_measures_beside_a_busy_process_and_counts_memory() {
    let puna = Puna::new();
    let args = ["bench", "cria", "-p", "0", "-n", "4", "-r", "1", "--busy", "1", "--memory", "--json"];
    let result = puna.json(&args);
    let tests: Vec<&str> =
        result["results"].as_array().unwrap().iter().map(|r| r["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["tg4", "tg4, 1 busy"]);
    let busy = &result["results"][1];
    assert!(busy["kept"].as_f64().unwrap() > 0.0 && busy["fair_share"].as_f64().unwrap() <= 1.0, "{busy}");
    if cfg!(target_os = "linux") {
        // The smallest model: what is beyond it and its cache is the program itself, and little more.
        let beyond = result["memory"]["beyond"].as_u64().unwrap();
        assert!((1 << 20..256 << 20).contains(&beyond), "{}", result["memory"]);
    }
    let (status, text) = puna.fails(&["bench", "cria", "-p", "0", "-n", "0", "--start"]);
    assert!(
        status == 1 && text.ends_with("cria:latest is a part of this program: --start needs a file\n"),
        "{text}"
    );
}

#[test]
fn bench_refuses_numbers_beyond_the_model() {
    let puna = Puna::new();
    let most = u64::MAX.to_string();
    for numbers in [["-p", "8", "-d", &most], ["-p", &most, "-d", "1"], ["-p", "8", "-b", &most]] {
        let (status, text) = puna.fails(&[&["bench", "cria", "-n", "0"], &numbers[..]].concat());
        assert!(status == 1 && text.contains("more t") && text.lines().count() == 1, "{numbers:?}: {text}");
    }
}

#[test]
fn bench_embeds_texts_of_mixed_lengths() {
    let puna = Puna::new();
    let path = data("zoo/bert-mean.gguf");
    let args = ["bench", path.to_str().unwrap(), "-b", "4", "-r", "1", "--ops", "--json"];
    let result = puna.json(&args);
    let test = &result["results"][0];
    assert_eq!((&test["embed"], &test["sequences"]), (&true.into(), &4.into()));
    assert!(
        test["texts_per_second"].as_f64().unwrap() > 0.0 && test["macs_per_token"].as_f64().unwrap() > 0.0,
        "{test}"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let puna = Puna::new();
    let mut child = puna
        .command(&["inspect", "cria", "--kv", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_folders_are_looked_at_before_they_are_opened() {
    let puna = Puna::new();
    let path = |name: &str| puna.home.path().join(name).to_str().unwrap().to_owned();
    let (fifo, link, folder) = (path("fifo.gguf"), path("loop.gguf"), path("folder.gguf"));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    std::os::unix::fs::symlink(&link, &link).unwrap();
    std::fs::create_dir(&folder).unwrap();
    for command in ["run", "inspect"] {
        let says = |path: &str| puna.fails(&[command, path]).1;
        assert_eq!(says(&fifo), format!("Error: {fifo} is not a regular file\n"));
        assert_eq!(says("/dev/null"), "Error: /dev/null is not a regular file\n");
        assert!(says(&folder).contains("is a folder: make a model of it with"), "{}", says(&folder));
        assert!(says(&link).starts_with(&format!("Error: cannot read {link}: ")), "{}", says(&link));
    }
}

/// A model of as many layers as one may have, whose weights are a hole of 309 GB in the file.
fn larger_than_memory(folder: &Path) -> PathBuf {
    const LAYERS: usize = 512;
    const WIDE: u64 = 1 << 20;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo/llama.gguf");
    let small = puna_gguf::Gguf::open(&path).unwrap();
    let mut metadata = small.metadata().clone();
    metadata.set("llama.block_count", LAYERS as u32);
    metadata.set("llama.feed_forward_length", WIDE as u32);
    let mut writer = puna_gguf::Writer::with_metadata(metadata);
    for tensor in small.tensors().iter().filter(|tensor| !tensor.name.starts_with("blk.")) {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape).unwrap();
    }
    for (layer, tensor) in (0..LAYERS).flat_map(|layer| small.tensors().iter().map(move |t| (layer, t))) {
        let Some(rest) = tensor.name.strip_prefix("blk.0.") else { continue };
        let mut shape = tensor.shape.clone();
        match rest {
            "ffn_gate.weight" | "ffn_up.weight" => shape[1] = WIDE,
            "ffn_down.weight" => shape[0] = WIDE,
            _ => {}
        }
        writer.tensor(&format!("blk.{layer}.{rest}"), tensor.ty, &shape).unwrap();
    }
    let large = folder.join("large.gguf");
    let data: u64 = writer.tensors().iter().map(|tensor| tensor.size.next_multiple_of(32)).sum();
    let mut header = Vec::new();
    drop(writer.start(&mut header).unwrap());
    let file = std::fs::File::create(&large).unwrap();
    std::io::Write::write_all(&mut &file, &header).unwrap();
    file.set_len(header.len() as u64 + data).unwrap();
    large
}

#[test]
fn what_is_larger_than_memory_is_refused_with_the_numbers_before_it_is_read() {
    let puna = Puna::new();
    let model = larger_than_memory(puna.home.path());
    let model = model.to_str().unwrap();
    let text = puna.home.path().join("text");
    std::fs::write(&text, "some words and some more ".repeat(400)).unwrap();
    let text = text.to_str().unwrap();
    for command in [
        &["perplexity", "--ctx", "64", "--file", text, model][..],
        &["bench", "-p", "16", "-n", "0", model],
        &["debug", "logits", model, "--tokens", "1,2"],
    ] {
        let started = std::time::Instant::now();
        let says = puna.error(command);
        assert!(started.elapsed().as_secs() < 20, "{command:?} took {:?}", started.elapsed());
        let want = format!("Error: {model}: the model requires more memory (31");
        assert!(says.contains(&want), "{command:?}: {says}");
        assert!(says.contains(" GB) than is available ("), "{command:?}: {says}");
    }
}
