//! `puna debug`.

use serde_json::Value;

use crate::kit::{Puna, data};

/// Input and reference logits of a small test model, computed by another engine.
pub fn test_model(name: &str) -> (String, String, Value) {
    let path = data("zoo").join(name);
    let json: Value =
        serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
    let tokens: Vec<String> =
        json["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    (path.to_str().unwrap().into(), tokens.join(","), json)
}

fn largest_deviation(found: &Value, want: &Value, positions: &Value, std: f64) -> f64 {
    let mut largest_deviation = 0.0f64;
    for (at, position) in positions.as_array().unwrap().iter().enumerate() {
        let row = &found[position.as_u64().unwrap() as usize];
        for (x, y) in row.as_array().unwrap().iter().zip(want[at].as_array().unwrap()) {
            largest_deviation =
                largest_deviation.max((x.as_f64().unwrap() - y.as_f64().unwrap()).abs() / std);
        }
    }
    largest_deviation
}

#[test]
fn logits_match_the_reference_for_any_chunking() {
    let puna = Puna::new();
    let (path, tokens, reference) = test_model("qwen3.gguf");
    let (std, limit) =
        (reference["logits_std"].as_f64().unwrap(), reference["tolerance"].as_f64().unwrap());
    let base = ["debug", "logits", &path, "--tokens", &tokens, "--kernels", "portable", "--json"];
    let f32_cache = ["--cache-type-k", "f32", "--cache-type-v", "f32"];
    for how in
        [&["--split", "whole"][..], &["--split", "7"], &["--split", "one"], &["--parallel", "2"]]
    {
        let found = puna.json(&[&base[..], &f32_cache, how].concat());
        let error =
            largest_deviation(&found["logits"], &reference["logits"], &reference["positions"], std);
        assert!(error <= limit, "{how:?}: {error} > {limit}");
        assert_eq!(found["architecture"], "qwen3");
    }
    let last = puna.json(&[&base[..], &["--positions", "last"]].concat());
    assert_eq!(last["logits"].as_array().unwrap().len(), 1);
}

#[test]
fn encoders_give_one_vector_per_token() {
    let puna = Puna::new();
    let (path, tokens, reference) = test_model("bert-mean.gguf");
    let (std, limit) =
        (reference["embeddings_std"].as_f64().unwrap(), reference["tolerance"].as_f64().unwrap());
    let found = puna.json(&[
        "debug",
        "logits",
        &path,
        "--tokens",
        &tokens,
        "--kernels",
        "portable",
        "--json",
    ]);
    let error = largest_deviation(
        &found["embeddings"],
        &reference["token_embeddings"],
        &reference["positions"],
        std,
    );
    assert!(error <= limit, "{error} > {limit}");
}

#[test]
fn block_formats_can_be_tested_alone() {
    let puna = Puna::new();
    // Scale 1.0 and the codes 1, 2, … of Q8_0.
    let hex: String =
        std::iter::once("003c".to_owned()).chain((1..=32).map(|i| format!("{i:02x}"))).collect();
    let values = puna.json(&["debug", "dequantize", "--type", "q8_0", "--hex", &hex, "--json"]);
    assert_eq!(values["values"], Value::from((1..=32).map(f64::from).collect::<Vec<_>>()));
    let error = puna.json(&["debug", "quantize-error", "--type", "Q4_K", "--json"]);
    assert!((0.01..0.2).contains(&error["rmse"].as_f64().unwrap()), "{error}");
    let (status, text) = puna.fails(&["debug", "dequantize", "--type", "Q9", "--hex", "00"]);
    assert!(status == 2 && text.contains("unknown tensor type `Q9`: use one of F32"), "{text}");
}

#[test]
fn unavailable_kernels_are_refused_with_a_list() {
    let puna = Puna::new();
    let levels = puna.json(&["debug", "kernels", "--json"]);
    assert_eq!(levels["levels"][0], "portable");
    let (status, text) =
        puna.fails(&["debug", "logits", "cria", "--tokens", "1", "--kernels", "quantum"]);
    assert!(status == 2 && text.contains("no kernel level `quantum`; it has portable"), "{text}");
    let output = puna
        .command(&["debug", "kernels", "--json"])
        .env("PUNA_KERNELS", "portable")
        .output()
        .unwrap();
    let chosen: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(chosen["chosen"], "portable");
    assert!(puna.json(&["devices", "--json"])["devices"][0]["usable"].as_bool().unwrap());
}

#[test]
fn the_graph_of_a_step_is_listed_with_its_memory() {
    let puna = Puna::new();
    let dot = puna.home.path().join("g.dot");
    let graph = puna.json(&[
        "debug",
        "graph",
        "cria",
        "--tokens",
        "4",
        "--dot",
        dot.to_str().unwrap(),
        "--json",
    ]);
    let nodes = graph["nodes"].as_array().unwrap();
    assert_eq!(nodes[0]["op"], "embed");
    assert!(
        nodes.iter().any(|node| node["op"] == "attention")
            && graph["scratch_bytes"].as_u64().unwrap() > 0
    );
    assert!(std::fs::read_to_string(dot).unwrap().starts_with("digraph"));
}

#[test]
fn requests_are_rendered_by_the_models_template() {
    let puna = Puna::new();
    let request = puna.home.path().join("request.json");
    std::fs::write(&request, r#"{"messages":[{"role":"user","content":"Hi"}]}"#).unwrap();
    let request = request.to_str().unwrap();
    let rendered = puna.json(&["debug", "render", "cria", "--request", request, "--json"]);
    assert_eq!(rendered["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert!(rendered["tokens"].as_array().unwrap().len() > 5 && rendered["truncated"] == false);
    let template = puna.home.path().join("t.jinja");
    std::fs::write(&template, "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")
        .unwrap();
    let rendered = puna.ok(&[
        "debug",
        "render",
        "--template",
        template.to_str().unwrap(),
        "--request",
        request,
    ]);
    assert_eq!(rendered, "[user] Hi");
    let rendered = puna.ok(&["debug", "render", "--renderer", "glm-4.7", "--request", request]);
    assert_eq!(rendered, "[gMASK]<sop><|user|>Hi<|assistant|><think>");
}

#[test]
fn marks_in_messages_are_replaced_and_in_raw_prompts_kept() {
    let puna = Puna::new();
    let request = puna.home.path().join("request.json");
    let render = |body: serde_json::Value| {
        std::fs::write(&request, body.to_string()).unwrap();
        let rendered = puna.json(&[
            "debug",
            "render",
            "cria",
            "--request",
            request.to_str().unwrap(),
            "--json",
        ]);
        (
            rendered["prompt"].as_str().unwrap().to_owned(),
            rendered["tokens"].as_array().unwrap().clone(),
        )
    };
    let raw = |prompt: &str| render(serde_json::json!({"raw": true, "prompt": prompt}));
    let chat = |content: &str| {
        render(serde_json::json!({"messages": [{"role": "user", "content": content}]}))
    };
    let (_, end) = raw("<|im_end|>");
    let end = end.last().unwrap();
    let ends = |tokens: &[serde_json::Value]| tokens.iter().filter(|token| *token == end).count();
    // Only the end of turn that the template writes is a control token.
    let (prompt, tokens) = chat("\u{fdd1}<|im_end|>");
    assert!(prompt.contains("\u{fffd}<|im_end|><|im_end|>"), "{prompt}");
    assert_eq!(ends(&tokens), 1);
    let (prompt, tokens) = raw("\u{fdd0}<|im_end|>\u{fdd1}");
    assert_eq!((&*prompt, ends(&tokens)), ("\u{fdd0}<|im_end|>\u{fdd1}", 1));
}

#[test]
fn output_parsers_can_be_tested_on_pieces_of_text() {
    let puna = Puna::new();
    let chunks = puna.home.path().join("chunks.json");
    std::fs::write(&chunks, r#"["<thi", "nk>so be", " it</think>\n\n", "Yes.", " <think>"]"#)
        .unwrap();
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
        status == 2
            && text.starts_with("Error: unknown parser \"none\": use one of cogito, cohere, "),
        "{text}"
    );
    std::fs::write(
        chunks,
        r#"["Ok. <tool", "_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"]"#,
    )
    .unwrap();
    let call = serde_json::json!({"function": {"index": 0, "name": "f", "arguments": {}}});
    assert_eq!(
        parse(&["qwen3"]),
        serde_json::json!({"content": "Ok.", "thinking": "", "tool_calls": [call]})
    );
    let (status, text) =
        puna.fails(&["debug", "parse", "--parser", "thinking", "--chunks", "/dev/null"]);
    assert!(status == 1 && text.contains("/dev/null is not a JSON list of texts"), "{text}");
}
