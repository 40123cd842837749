//! Tests of commands that use a server, with a running one, a started one, and none.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::kit::{Puna, data};

#[test]
fn a_fresh_machine_lists_and_shows_the_embedded_model_without_a_server() {
    let puna = Puna::new();
    let list = puna.ok(&["list"]);
    assert!(
        list.starts_with("NAME           ID              SIZE") && list.contains("cria:latest    "),
        "{list}"
    );
    let show = puna.ok(&["show", "cria"]);
    assert!(show.starts_with("  Model\n    architecture        llama"), "{show}");
    assert!(show.contains("completion") && show.contains("temperature    0"), "{show}");
    assert!(puna.ok(&["show", "cria", "--modelfile"]).contains("\nTEMPLATE \"\"\"{{- if .Suffix"));
    assert!(puna.error(&["show", "absent"]).contains("model 'absent:latest' not found"));
}

#[test]
fn models_are_created_copied_and_removed() {
    let puna = Puna::new();
    let modelfile =
        puna.write("Modelfile", "FROM cria\nSYSTEM You are a pirate.\nPARAMETER temperature 0.5\n");
    puna.ok(&["create", "pirate", "-f", &modelfile]);
    assert_eq!(puna.ok(&["show", "pirate", "--system"]), "You are a pirate.");
    assert_eq!(
        puna.ok(&["cp", "pirate", "me/buccaneer:v1"]),
        "copied 'pirate' to 'me/buccaneer:v1'\n"
    );
    assert!(puna.ok(&["list", "ME/"]).contains("me/buccaneer:v1"));
    assert_eq!(
        puna.ok(&["rm", "pirate", "me/buccaneer:v1"]),
        "deleted 'pirate'\ndeleted 'me/buccaneer:v1'\n"
    );
    assert!(puna.error(&["rm", "pirate"]).contains("model 'pirate' not found"));
    assert!(puna.error(&["rm", "cria"]).contains("built into this program"));
    assert!(puna.error(&["cp", "absent", "x"]).contains("model \"absent\" not found"));
    assert!(puna.error(&["create", "a b"]).contains("invalid model name: a b"));
    assert!(puna.error(&["create", "x", "-f", "absent"]).contains("cannot read absent"));
    let bad = puna.write("Bad", "FROM cria\nPARAMETER num_ctx many\n");
    let text = puna.error(&["create", "x", "-f", &bad]);
    assert_eq!(text, format!("Error: {bad}: (line 2): invalid int value [many]"));
}

#[test]
fn a_model_is_created_from_a_gguf_file_by_a_server() {
    let puna = Puna::with_server();
    let gguf = data("zoo/llama-q4_k_m.gguf");
    let mut child = puna
        .command(&["create", "zoo", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let modelfile = format!("FROM {}\n", gguf.display());
    child.stdin.take().unwrap().write_all(modelfile.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && text.contains("writing manifest\nsuccess\n"), "{text}");
    assert!(puna.ok(&["show", "zoo"]).contains("quantization        Q4_K_M"));
    let tokens = puna.ok(&["inspect", "zoo", "--json"]);
    let model: Value = serde_json::from_str(&tokens).unwrap();
    assert_eq!(model["architecture"], "llama");
}

#[test]
fn a_model_answers_and_is_listed_while_it_is_loaded() {
    let puna = Puna::with_server();
    let output =
        puna.run(&["run", "cria", "What is the capital of France?", "--verbose", "--think=false"]);
    let (answer, stats) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(answer.contains("Paris") && answer.ends_with("\n\n"), "{answer:?} {stats}");
    assert!(stats.contains("eval rate:") && stats.contains("prompt eval count:"), "{stats}");
    let ps = puna.ok(&["ps"]);
    assert!(
        ps.contains("cria:latest") && ps.contains("100% CPU") && ps.contains("from now"),
        "{ps}"
    );
    assert_eq!(puna.ok(&["stop", "cria"]), "");
    assert!(puna.error(&["stop", "absent"]).contains("couldn't find model \"absent\" to stop"));
    let start = Instant::now();
    while puna.ok(&["ps"]).contains("cria") {
        assert!(start.elapsed() < Duration::from_secs(10), "the model stays");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_prompt_is_read_from_a_pipe() {
    let puna = Puna::with_server();
    let mut child = puna
        .command(&["run", "cria", "--think=false"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"What is the capital of France?").unwrap();
    let answer = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(answer.contains("Paris"), "{answer:?}");
    assert!(!answer.contains('\x1b'), "{answer:?}");
}

#[test]
fn a_file_outside_the_store_runs() {
    let puna = Puna::new();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/cria/cria-q8_0.gguf");
    let answer = puna.ok(&[
        "run",
        file.to_str().unwrap(),
        "What is the capital of France?",
        "--think=false",
    ]);
    assert!(answer.contains("Paris"), "{answer:?}");
    assert!(!puna.home.path().join(".ollama").exists(), "nothing is left behind");
    let absent = puna.error(&["run", "./absent.gguf", "x"]);
    assert!(absent.contains("./absent.gguf: no such file"), "{absent}");
    let garbage = puna.write("garbage.gguf", "this is no model, whatever its name says");
    assert!(puna.error(&["run", &garbage, "x"]).contains("not a GGUF file"));
}

#[test]
fn ps_and_stop_without_a_server_say_how_to_start_one() {
    let puna = Puna::without_server();
    assert!(puna.error(&["ps"]).contains("run 'puna serve' to start it"));
    assert!(puna.error(&["stop", "cria"]).contains("run 'puna serve' to start it"));
    let any_port = Puna::new();
    for command in [&["ps"][..], &["stop", "cria"], &["launch", "codex", "--print"]] {
        let error = any_port.error(command);
        assert!(error.contains("the port 0, at which no server can be reached"), "{error}");
    }
}

#[test]
fn an_occupied_port_is_reported_with_the_program_that_uses_it() {
    let puna = Puna::with_server();
    let output = puna.run(&["serve"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1)
            && text.contains("address already in use: Puna")
            && text.contains("Puna"),
        "{text}"
    );
}

#[test]
fn run_starts_a_server_that_keeps_running() {
    let puna = Puna::without_server();
    let answer = puna.ok(&["run", "cria", "What is the capital of France?", "--think=false"]);
    assert!(answer.contains("Paris"), "{answer:?}");
    assert!(puna.ok(&["ps"]).contains("cria:latest"));
    let log = std::fs::read_to_string(puna.home.path().join(".ollama/logs/puna.log")).unwrap();
    assert!(log.contains("listening"), "{log}");
}

#[test]
fn silent_and_unrelated_servers_have_different_errors() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = silent.local_addr().unwrap().to_string();
    let fails = |host: &str, args: &[&str]| {
        let start = Instant::now();
        let puna = Puna::new();
        let output = puna.command(args).env("OLLAMA_HOST", host).output().unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "{args:?}");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for args in [&["list"][..], &["run", "cria", "x"]] {
        let text = fails(&host, args);
        assert!(
            text.contains("does not speak HTTP is running at") && text.contains("OLLAMA_HOST"),
            "{text}"
        );
    }
    let page = "<!DOCTYPE html><html><body>404</body></html>";
    let wrong = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = wrong.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in wrong.incoming() {
            let mut stream = stream.unwrap();
            let _ = std::io::Read::read(&mut stream, &mut [0; 1024]);
            let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n", page.len());
            let _ = stream.write_all((head + page).as_bytes());
        }
    });
    let text = fails(&host, &["list"]);
    assert!(
        text.contains(&format!("the server at http://{host} is not a Puna or Ollama")),
        "{text}"
    );
    assert!(!text.contains('<'), "{text}");
    let text = fails("ftp://127.0.0.1:1", &["list"]);
    assert!(text.contains("it must be http:// or https://"), "{text}");
}

#[test]
fn an_invalid_port_gives_a_warning() {
    let output = Puna::new().command(&["ps"]).env("OLLAMA_HOST", "127.0.0.2:x").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with("warning: OLLAMA_HOST has the port \"x\": it must be a number"),
        "{text}"
    );
}

#[test]
fn the_version_says_whether_a_server_runs() {
    let puna = Puna::new();
    let output = puna.run(&["-v"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "Warning: could not connect to a running Puna instance\n");
    let serving = Puna::with_server();
    let output = serving.run(&["-v"]);
    let (out, text) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(
        out.starts_with("puna version is ") && out.lines().count() == 1 && text.is_empty(),
        "{out}{text}"
    );
}

#[test]
fn wrong_names_in_a_modelfile_are_reported_with_the_file() {
    let puna = Puna::new();
    let create = |from: &str| {
        let file = puna.write("Modelfile", &format!("FROM {from}\n"));
        puna.error(&["create", "x", "-f", &file]).replace(&format!("{file}: "), "")
    };
    assert_eq!(create("./nope.gguf"), "Error: (line 1): ./nope.gguf: no such file");
    assert!(
        create("./Modelfile")
            .starts_with("Error: (line 1): ./Modelfile is not a model: not a GGUF file")
    );
    // No server listens at this port.
    let text = create("http://127.0.0.1:1/x/nope");
    let last = text.lines().last().unwrap();
    let want = "Error: cannot pull FROM http://127.0.0.1:1/x/nope: pull model manifest: Get ";
    assert!(last.starts_with(want), "{text}");
    assert_eq!(create("/dev/zero"), "Error: (line 1): /dev/zero is not a regular file");
    assert!(
        create(&puna.write("text.gguf", "no model"))
            .contains("text.gguf is not a model: not a GGUF file")
    );
    let empty = puna.home.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let output = puna.command(&["create", "x"]).current_dir(&empty).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("Error: no Modelfile or safetensors files found in ")
            && text.contains("FROM"),
        "{text}"
    );
    let gguf = data("zoo/llama-q4_k_m.gguf").display().to_string();
    let text = puna.error(&["create", "x", "-f", &gguf]);
    assert_eq!(
        text,
        format!(
            "Error: {gguf} is a GGUF file, not a Modelfile: write `FROM {gguf}` in a Modelfile"
        )
    );
    assert!(puna.error(&["show", &gguf]).contains(&format!("use `puna inspect {gguf}`")));
    assert_eq!(puna.error(&["show", "./nope.gguf"]), "Error: ./nope.gguf: no such file");
}

#[cfg(unix)]
#[test]
fn an_empty_home_variable_puts_no_models_in_the_working_folder() {
    let puna = Puna::new();
    let output =
        puna.command(&["list"]).env("HOME", "").current_dir(puna.home.path()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() || text.contains("set HOME, or OLLAMA_MODELS"), "{text}");
    assert!(!puna.home.path().join(".ollama").exists());
}

#[test]
fn list_and_rm_report_a_broken_manifest() {
    let puna = Puna::new();
    puna.ok(&["cp", "cria", "mine"]);
    let bad =
        puna.home.path().join(".ollama/models/manifests/registry.ollama.ai/library/bad/latest");
    std::fs::create_dir_all(bad.parent().unwrap()).unwrap();
    std::fs::write(&bad, "{").unwrap();
    let warned = |args: &[&str]| {
        let output = puna.run(args);
        assert!(output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let list = warned(&["list"]);
    assert!(list.contains("Warning: ") && list.contains("bad/latest: bad manifest"), "{list}");
    let rm = warned(&["rm", "mine"]);
    assert!(
        rm.contains("the space of the model was not freed") && !rm.contains("unable to stop"),
        "{rm}"
    );
    let rm = warned(&["rm", "bad"]);
    assert!(!rm.contains("Warning"), "{rm}");
    assert!(!warned(&["list"]).contains("Warning"));
}
