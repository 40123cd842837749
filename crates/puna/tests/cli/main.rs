//! Commands without a server, run as users run them.

mod bench;
mod debug;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::kit::{Puna, data};

#[test]
fn wrong_usage_exits_with_2_and_failed_work_with_1() {
    let puna = Puna::new();
    assert_eq!(
        puna.fails(&["frobnicate"]),
        (2, "Error: unknown command \"frobnicate\" for \"puna\"\n".into())
    );
    let (status, help) = puna.fails(&["debug"]);
    assert!(status == 2 && help.contains("logits"), "{status} {help}");
    assert_eq!(
        puna.fails(&["inspect", "--nope", "x"]),
        (2, "Error: unknown flag: --nope\n".into())
    );
    let (status, text) = puna.fails(&["inspect", "./absent.gguf"]);
    assert!(status == 1 && text == "Error: ./absent.gguf: no such file\n", "{text}");
    let (status, text) = puna.fails(&["run", ".", "x"]);
    assert!(status == 1 && text.starts_with("Error: . is a folder: create a model"), "{text}");
    let (status, text) = puna.fails(&["tokenize", "absent", "x"]);
    assert!(status == 1 && text.starts_with("Error: model 'absent' not found"), "{text}");
}

#[test]
fn help_lists_commands_and_variables() {
    let puna = Puna::new();
    let help = puna.ok(&["--help"]);
    for command in [
        "serve", "create", "show", "run", "stop", "list", "ps", "cp", "rm", "inspect", "bench",
        "debug",
    ] {
        assert!(help.contains(&format!("\n  {command}")), "{command} in {help}");
    }
    assert!(puna.ok(&["run", "--help"]).contains("OLLAMA_HOST"));
    assert!(puna.ok(&["completion", "bash"]).contains("complete -F"));
    let version = puna.command(&["--version"]).env("OLLAMA_HOST", "127.0.0.1:1").output().unwrap();
    assert!(version.status.success() && version.stdout.starts_with(b"puna version is 0."));
    assert_eq!(version.stderr, b"Warning: could not connect to a running Puna instance\n");
}

#[test]
fn inspect_shows_metadata_and_tensors_of_the_embedded_model() {
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
    assert_eq!(
        (&embedding["type"], embedding["shape"].as_array().unwrap().len()),
        (&"Q8_0".into(), 2)
    );
    assert_eq!(embedding["shape"][1], model["tokenizer"]["tokens"]);
    let text = puna.ok(&["inspect", "cria", "--tensors", "--kv"]);
    assert!(text.contains("token_embd.weight") && text.contains("tokenizer.ggml.model"));
}

#[test]
fn inspect_lists_translated_names() {
    let puna = Puna::new();
    let path = data("compat/gptoss.gguf");
    let model = puna.json(&["inspect", path.to_str().unwrap(), "--json"]);
    let translated = &model["translated"];
    assert!(
        translated["renamed"].as_u64().unwrap() > 0 && translated["added"].is_array(),
        "{translated}"
    );
    let (from, to) = (&translated["architecture"]["from"], &translated["architecture"]["to"]);
    assert_eq!((from, to), (&"gptoss".into(), &"gpt-oss".into()));
}

#[test]
fn tokenize_and_detokenize_round_trip() {
    let puna = Puna::new();
    let text = "What is the capital of France?";
    let tokens = puna.json(&["tokenize", "cria", text, "--no-bos", "--json"]);
    let pieces: String =
        tokens["pieces"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    assert_eq!(pieces, text);
    let ids: Vec<String> =
        tokens["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    let back = puna.json(&["detokenize", "cria", "--tokens", &ids.join(","), "--json"]);
    assert_eq!(back["text"], text);
    let special = puna.json(&["tokenize", "cria", "<|im_end|>", "--no-bos", "--json"]);
    let plain =
        puna.json(&["tokenize", "cria", "<|im_end|>", "--no-bos", "--no-special", "--json"]);
    assert_eq!(special["tokens"].as_array().unwrap().len(), 1);
    assert!(plain["tokens"].as_array().unwrap().len() > 1);
    let (status, error) = puna.fails(&["detokenize", "cria", "--tokens", "99999999"]);
    assert!(status == 1 && error.contains("not in the vocabulary"), "{error}");
}

#[test]
fn tokenize_reads_standard_input() {
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
        assert!(
            status == 2 && text.starts_with("Error: ") && text.lines().count() == 1,
            "{args:?}: {text}"
        );
    }
}

#[test]
fn a_model_is_compared_with_its_saved_logits() {
    let puna = Puna::new();
    let text = puna.home.path().join("text");
    std::fs::write(&text, "The capital of France is Paris. What is two plus two? Four. ".repeat(8))
        .unwrap();
    let (text, saved) = (text.to_str().unwrap(), puna.home.path().join("logits"));
    let saved = saved.to_str().unwrap();
    let base =
        ["perplexity", "cria", "--file", text, "--ctx", "64", "--kernels", "portable", "--json"];
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
fn an_unknown_draft_model_error_lists_the_modes() {
    let puna = Puna::new();
    let model = debug::test_model("llama-f16.gguf").0;
    let (status, error) = puna.fails(&["run", &model, "--speculate", "nobody", "x"]);
    assert!(
        status == 1 && error.contains("--speculate nobody: use one of auto, off, ngram, always"),
        "{error}"
    );
}

#[test]
fn a_companion_draft_runs_only_with_its_target_model() {
    let puna = Puna::new();
    let [model, draft, other] =
        ["zoo/gemma4.gguf", "drafts/gemma4-assistant.gguf", "zoo/gemma3.gguf"]
            .map(|name| data(name).to_str().unwrap().to_owned());
    let says = |how: &str| {
        let fixed = ["--parameter", "temperature=0", "--parameter", "num_predict=30"];
        let done = puna.run(
            &[&["run", &model, "--verbose", "--speculate", how], &fixed[..], &["the"]].concat(),
        );
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
    assert!(
        status == 1 && error.contains("gemma4-assistant:latest cannot be a draft model"),
        "{error}"
    );
    // A parameter sets the speculation mode next to `--speculate`. A model's own file is a valid
    // draft model too.
    let count = |said: &str| said.lines().any(|line| line.starts_with("model drafts:"));
    let always = |draft: &str| {
        let fixed = ["-p", "speculate=always", "-p", "temperature=0", "-p", "num_predict=30"];
        let done = puna.run(
            &[&["run", &model, "--verbose", "--speculate", draft], &fixed[..], &["the"]].concat(),
        );
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() && count(&said), "{said}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    [&draft, &model].into_iter().for_each(|draft| assert_eq!(always(draft), plain));
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
    let ids: Vec<String> =
        tokens["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
    let logits = |model: &str| {
        puna.json(&[
            "debug",
            "logits",
            model,
            "--tokens",
            &ids.join(","),
            "--positions",
            "last",
            "--json",
        ])
    };
    let best = |value: &Value| {
        let row: Vec<f64> =
            value["logits"][0].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap()
    };
    assert_eq!(best(&logits(out)), best(&logits("cria")));
    assert!(
        puna.fails(&["quantize", "cria", out, "Q9"]).1.contains("unknown type Q9: use one of F32")
    );
    assert!(puna.fails(&["quantize", out, out, "Q8_0"]).1.contains("is the input file"));
}

#[test]
fn keep_split_preserves_the_split() {
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
    // The split output has the same content as the merged one.
    puna.ok(&["quantize", source, out.to_str().unwrap(), "Q4_0"]);
    let logits = |model: &Path| {
        let model = model.to_str().unwrap();
        puna.json(&[
            "debug",
            "logits",
            model,
            "--tokens",
            "4085,270,1996",
            "--positions",
            "last",
            "--json",
        ])
    };
    assert_eq!(logits(&first), logits(&out));
    let inspect = |path: &Path| {
        puna.json(&["inspect", path.to_str().unwrap(), "--tensors", "--kv", "--json"])
    };
    let (first, out) = (inspect(&first), inspect(&out));
    assert_eq!((&first["kv"]["split.count"], &out["kv"]["split.count"]), (&2.into(), &Value::Null));
    let types = |file: &Value| -> Vec<(String, String)> {
        let tensors = file["tensors"].as_array().unwrap().iter();
        let mut types: Vec<_> =
            tensors.map(|t| (t["name"].to_string(), t["type"].to_string())).collect();
        types.sort();
        types
    };
    assert_eq!(types(&first), types(&out));
}

/// The model cria in two files, with alternate tensors in each.
fn split_cria(folder: &Path) -> PathBuf {
    let cria = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/cria/cria-q8_0.gguf");
    let whole = puna_gguf::Gguf::open(&cria).unwrap();
    let path = |part: usize| folder.join(format!("cria-0000{}-of-00002.gguf", part + 1));
    for part in 0..2 {
        let mut metadata =
            if part == 0 { whole.metadata().clone() } else { puna_gguf::Metadata::new() };
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
fn a_closed_standard_output_is_no_error() {
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
fn pipes_devices_and_folders_are_refused_before_opening() {
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
        assert!(says(&folder).contains("is a folder: create a model with"), "{}", says(&folder));
        assert!(
            says(&link).starts_with(&format!("Error: cannot read {link}: ")),
            "{}",
            says(&link)
        );
    }
}

/// A model with the maximum number of layers. Its weights are a sparse region of 309 GB in the
/// file.
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
    for (layer, tensor) in
        (0..LAYERS).flat_map(|layer| small.tensors().iter().map(move |t| (layer, t)))
    {
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
fn a_model_larger_than_memory_is_refused_before_it_is_read() {
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
        // Reading the file would take minutes. Planning takes a few seconds on an idle machine.
        let started = std::time::Instant::now();
        let says = puna.error(command);
        assert!(started.elapsed().as_secs() < 100, "{command:?} took {:?}", started.elapsed());
        let want = format!("Error: {model}: the model requires more memory (31");
        assert!(says.contains(&want), "{command:?}: {says}");
        assert!(says.contains(" GB) than is available ("), "{command:?}: {says}");
    }
}

#[test]
fn errors_are_the_same_with_backtraces() {
    let puna = Puna::new();
    let bad_model = puna.write("bad.gguf", "xx");
    let bad_modelfile = puna.write("Modelfile", "FROM ./absent.gguf\n");
    let unknown_command = puna.write("Other", "FROM x\nFOO bar\n");
    for command in [
        &["frobnicate"][..],
        &["show", "nope"],
        &["rm", "nope"],
        &["inspect", &bad_model],
        &["bench", &bad_model],
        &["quantize", &bad_model, "out.gguf", "q4_0"],
        &["create", "a", "-f", &bad_modelfile],
        &["create", "a", "-f", &unknown_command],
        &["import", "/absent"],
        &["pull", "127.0.0.1:9/a/b"],
        &["verify", "nope"],
        &["serve", "--set", "port=x"],
        &["debug", "script", "absent"],
    ] {
        let run = |backtrace: Option<&str>| {
            let mut command = puna.command(command);
            command.envs(backtrace.map(|value| ("RUST_BACKTRACE", value)));
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stderr).unwrap();
            (output.status.code().unwrap(), text)
        };
        let plain = run(None);
        assert!(plain.0 > 0 && plain.1.contains("Error: "), "{command:?}: {plain:?}");
        assert_eq!(run(Some("1")), plain, "{command:?}");
        assert_eq!(run(Some("full")), plain, "{command:?}");
    }
}

#[test]
fn wrong_values_of_flags_exit_with_2() {
    let puna = Puna::new();
    let modelfile = puna.write("Modelfile", "FROM cria\n");
    let address = "https://h.invalid/m.gguf";
    let cases: [(&[&str], &str); 15] = [
        (&["serve", "--set", "a"], "--set a: use KEY=VALUE"),
        (&["serve", "--set", "a=b"], "--set a=b: unknown setting"),
        (&["serve", "--host", "x:y"], "has the port \"y\""),
        (&["config", "--set", "host=["], "must begin with a host name"),
        (&["pull", "--digest", "abc", "x"], "--digest needs the address of a file"),
        (&["pull", "--digest", "sha256:abc", address], "it must be sha256: and 64 hexadecimal"),
        (&["key", "add", "a", "--scope", "bogus"], "unknown scope \"bogus\""),
        (&["key", "add", ""], "invalid key name \"\""),
        (&["key", "add", "a", "--group", ""], "--group is empty"),
        (&["key", "add", "a", "--namespace", ""], "namespace"),
        (&["create", "m", "-q", "bogus", "-f", &modelfile], "BOGUS"),
        (&["debug", "logits", "cria", "--tokens", "1", "--kernels", "bogus"], "--kernels bogus: "),
        (&["import", "--name", "a b", "absent.tar"], "--name: "),
        (&["launch", ""], "the name of the agent is empty"),
        (&["help", "debug", "bogus"], "unknown command \"bogus\" for \"puna debug\""),
    ];
    for (args, text) in cases {
        let (status, error) = puna.fails(args);
        assert!(status == 2 && error.contains(text), "{args:?}: {status} {error}");
    }
}

#[test]
fn files_of_other_kinds_are_refused_by_name() {
    let puna = Puna::new();
    let text = puna.write("text.tar", "no bundle");
    assert!(puna.error(&["import", &text]).ends_with("it is not a tar archive"));
    let list = puna.write("list.json", "[]");
    let error = puna.error(&["debug", "render", "cria", "--request", &list]);
    assert!(error.ends_with("it must be a JSON object, as for /api/chat"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_output_is_an_error_with_its_cause() {
    let puna = Puna::new();
    for args in [&["--help"][..], &["run", "--help"], &["devices"], &["config", "--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = puna.command(args).stdout(full).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1)
                && error.starts_with("Error: cannot write the output: "),
            "{args:?}: {error}"
        );
    }
}
