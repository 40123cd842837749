//! Tests of creating models, and of the Modelfiles that `show` prints.

use std::fs;

use serde_json::json;

use super::{Kit, from_files, from_model, gguf, name};
use crate::manifest::media;
use crate::{
    CreateHooks, CreateRequest, Digest, FileTemplate, Modelfile, NamedTemplate, StoreError,
    embedded, plan_local,
};

#[test]
fn a_gguf_file_becomes_a_model_whose_layer_is_the_uploaded_blob() {
    let kit = Kit::new();
    let blob = kit.upload(1);
    let lines = kit.create("tiny", &from_files(&[("t.gguf", blob.digest)])).unwrap();
    let layer = format!("using existing layer {}", blob.digest);
    assert_eq!(lines, ["parsing GGUF", &layer, "writing manifest", "success"]);
    let model = kit.store.resolve(&name("tiny")).unwrap();
    assert_eq!(model.weights_digest, blob.digest);
    let details = model.details();
    assert_eq!((details.format.as_str(), details.family.as_str()), ("gguf", "llama"));
    assert_eq!(
        (details.parameter_size.as_str(), details.quantization_level.as_str()),
        ("2", "F32")
    );
    assert_eq!(model.capabilities(), ["completion"]);
}

#[test]
fn texts_and_parameters_are_layers_in_the_order_of_ollama() {
    let kit = Kit::new();
    kit.model("base", 1);
    let mut request = from_model("base");
    request.system = Some("You are terse.".into());
    request.template = Some("{{ .Prompt }}".into());
    request.license = vec!["MIT".into(), "Second licence".into()];
    request.parameters =
        json!({"temperature": 0, "stop": ["<|im_end|>"]}).as_object().unwrap().clone();
    request.messages = vec![json!({"role": "user", "content": "ping"})];
    kit.create("chat", &request).unwrap();
    let entry = kit.store.get(&name("chat")).unwrap();
    let types: Vec<_> = entry.manifest.layers.iter().map(|l| l.media_type.as_str()).collect();
    let want = [
        media::MODEL,
        media::TEMPLATE,
        media::SYSTEM,
        media::LICENSE,
        media::LICENSE,
        media::PARAMS,
        media::MESSAGES,
    ];
    assert_eq!(types, want);
    assert_eq!(entry.manifest.layers[0].from.as_deref(), Some("base:latest"));
    let model = kit.store.resolve(&name("chat")).unwrap();
    assert_eq!(model.parent, "base:latest");
    assert_eq!(model.licenses, ["MIT", "Second licence"]);

    // A second model from the first: parameters merge, the system message is replaced, licences add
    // up.
    let mut request = from_model("chat");
    request.system = Some("Be kind.".into());
    request.license = vec!["Third".into()];
    request.parameters = json!({"temperature": 0.5, "num_ctx": 64}).as_object().unwrap().clone();
    kit.create("chat2", &request).unwrap();
    let model = kit.store.resolve(&name("chat2")).unwrap();
    let params = json!({"temperature": 0.5, "num_ctx": 64, "stop": ["<|im_end|>"]});
    assert_eq!(serde_json::Value::Object(model.params), params);
    assert_eq!(
        (model.system.as_deref(), model.licenses.len(), model.messages.len()),
        (Some("Be kind."), 3, 1)
    );
}

#[test]
fn digests_of_created_layers_are_those_that_ollama_recorded() {
    let kit = Kit::new();
    kit.model("base", 1);
    let mut request = from_model("base");
    request.system = Some("S".into());
    request.license = vec!["A".into(), "B".into()];
    request.messages = vec![json!({"role": "user", "content": "x"})];
    let lines = kit.create("m", &request).unwrap();
    for recorded in [
        "8de0b3c47f112c59745f717a626932264c422a7563954872e237b223af4ad643",
        "559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd",
        "df7e70e5021544f4834bbee64a9e3789febc4be81470df629cad6ddb03320a5c",
        "0da621fe6569812e79237db059f707cd5e2cc2f99c572ef574491e4cd9a59c0a",
    ] {
        assert!(
            lines.contains(&format!("creating new layer sha256:{recorded}")),
            "{recorded} in {lines:#?}"
        );
    }
    request = from_model("base");
    // Recorded with the stop strings of the template that Ollama had detected before.
    request.parameters =
        json!({"temperature": 0.5, "stop": ["a", "b"]}).as_object().unwrap().clone();
    let lines = kit.create("m", &request).unwrap();
    let recorded = "sha256:7e91c8ceb6d93d477c35f33b1a3c7a4905205763fa39ec908d2b576e5a006449";
    assert!(lines.contains(&format!("creating new layer {recorded}")), "{lines:#?}");
}

#[test]
fn weights_are_quantized_during_creation() {
    let kit = Kit::new();
    let zoo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let blob = kit.store.add_file(&zoo.join("llama-f16.gguf")).unwrap();
    let mut request = from_files(&[("m.gguf", blob.digest)]);
    request.quantize = Some("q8_0".into());
    let lines = kit.create("small", &request).unwrap();
    assert!(lines.contains(&"quantizing F16 model to Q8_0".to_owned()), "{lines:?}");
    let model = kit.store.resolve(&name("small")).unwrap();
    assert_eq!(model.details().quantization_level, "Q8_0");
    assert_ne!(model.weights_digest, blob.digest);
    for (kind, level) in
        [("q3_k", "Q3_K_M"), ("iq4_xs", "IQ4_XS"), ("mxfp4", "MXFP4_MOE"), ("Q5_1", "Q5_1")]
    {
        request.quantize = Some(kind.into());
        kit.create("other", &request).unwrap();
        assert_eq!(kit.store.resolve(&name("other")).unwrap().details().quantization_level, level);
    }
    let again = CreateRequest { quantize: Some("q4_K_M".into()), ..from_model("small") };
    assert_eq!(kit.create("x", &again), Err(StoreError::QuantizeSource));
    let unknown = CreateRequest { quantize: Some("zz".into()), ..from_model("small") };
    assert_eq!(kit.create("x", &unknown), Err(StoreError::QuantizeType("ZZ".into())));
}

#[test]
fn replacing_a_model_removes_blobs_that_only_the_old_one_used() {
    let kit = Kit::new();
    let old = kit.model("m", 1);
    let new = kit.model("m", 2);
    assert!(!kit.store.has_blob(&old) && kit.store.has_blob(&new));
    let blob = kit.upload(3);
    let hooks = CreateHooks { keep_unused: true, ..CreateHooks::default() };
    kit.store
        .create(&name("m"), &from_files(&[("m.gguf", blob.digest)]), &hooks, &mut |_| {})
        .unwrap();
    assert!(kit.store.has_blob(&new));
}

#[test]
fn a_model_is_created_from_the_embedded_one() {
    let kit = Kit::new();
    let mut request = from_model("cria");
    request.system = Some("You are a pirate.".into());
    kit.create("pirate", &request).unwrap();
    let model = kit.store.resolve(&name("pirate")).unwrap();
    assert_eq!(model.parent, "cria:latest");
    assert!(model.template.is_some() && model.params.contains_key("stop"));
    kit.store.delete(&name("pirate")).unwrap();
    assert_eq!(kit.blob_count(), 0);
}

#[test]
fn a_known_chat_template_adds_its_go_template() {
    let kit = Kit::new();
    let blob = kit.upload(1);
    let named = NamedTemplate {
        name: "chatml".into(),
        template: "{{ .Prompt }}".into(),
        stop: vec!["<|im_end|>".into()],
    };
    let detect = |file: &FileTemplate| {
        (file.source.contains("messages") && (&*file.bos, &*file.eos) == ("<s>", "</s>"))
            .then(|| named.clone())
    };
    let hooks = CreateHooks { detect_template: Some(&detect), ..CreateHooks::default() };
    let mut lines = Vec::new();
    let request = from_files(&[("m.gguf", blob.digest)]);
    kit.store.create(&name("m"), &request, &hooks, &mut |p| lines.push(p.status)).unwrap();
    assert!(lines.contains(&"using autodetected template chatml".to_owned()), "{lines:?}");
    let model = kit.store.resolve(&name("m")).unwrap();
    assert_eq!(model.template.as_deref(), Some("{{ .Prompt }}"));
    assert_eq!(model.params["stop"], json!(["<|im_end|>"]));
}

#[test]
fn invalid_requests_fail_before_any_work() {
    let kit = Kit::new();
    let blob = kit.upload(1).digest;
    let text = kit.store.add_blob(b"hello blob").unwrap().digest;
    let empty = CreateRequest::default();
    let with_files = |name: &str, digest: &str| CreateRequest {
        files: Some([(name.to_owned(), digest.to_owned())].into()),
        ..CreateRequest::default()
    };
    let mut writer = puna_gguf::Writer::new();
    writer.set("general.architecture", "llama");
    let vocabulary = kit.store.add_blob(&writer.to_vec([]).unwrap()).unwrap().digest;
    let other = kit.upload(2).digest;
    let two = from_files(&[("a.gguf", blob), ("b.gguf", other)]);
    let named = |renderer: Option<&str>, parser: Option<&str>| CreateRequest {
        renderer: renderer.map(str::to_owned),
        parser: parser.map(str::to_owned),
        ..from_model("cria")
    };
    let requires =
        |version: &str| CreateRequest { requires: Some(version.into()), ..from_model("cria") };
    let template = CreateRequest { template: Some("{{ if".into()), ..from_model("cria") };
    let hooks = CreateHooks {
        check_template: Some(&|_| Err("template: :1: unclosed action".into())),
        version: Some("0.34.2"),
        ..CreateHooks::default()
    };
    for (request, want) in [
        (empty.clone(), "neither 'from' or 'files' was specified"),
        (CreateRequest { files: Some([].into()), ..empty.clone() }, "unknown type"),
        (with_files("/abs.gguf", &blob.to_string()), "file path must be relative"),
        (with_files("../x.gguf", &blob.to_string()), "file path must be relative"),
        (with_files("a.gguf", ""), "invalid digest format"),
        (
            with_files("a.txt", &text.to_string()),
            "unknown type: a.txt is neither a GGUF nor a safetensors file",
        ),
        (with_files("a.gguf", "sha256:bad"), "invalid digest format"),
        (
            with_files("a.gguf", &text.to_string()),
            "supplied file was not in GGUF format: a.gguf: not a GGUF file: it starts with `hell`",
        ),
        (from_files(&[("vocab.gguf", vocabulary)]), "vocab.gguf has no tensors"),
        (with_files("a.gguf", &Digest::of(b"absent").to_string()), "is not in the store"),
        (from_model("no such"), "invalid model name `no such`"),
        (from_model("nope"), "model 'nope:latest' not found"),
        (two, "FROM names a.gguf and b.gguf, the weights of several models"),
        (named(Some("nope"), None), "unknown renderer \"nope\"; supported: cogito, cohere, "),
        (named(None, Some("nope")), "unknown parser \"nope\"; supported: cogito, cohere, "),
        (
            requires("99.0.0"),
            "the model requires version 99.0.0, but this program is compatible with 0.34.2",
        ),
        (requires("v0.34.3"), "requires version v0.34.3"),
        (template, "template error: template: :1: unclosed action"),
        (
            CreateRequest { requires: Some("1".into()), ..from_model("cria") },
            "requires must be a valid semver",
        ),
    ] {
        let error =
            kit.store.create(&name("m"), &request, &hooks, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(want), "{want}: {error}");
    }
    assert_eq!(kit.names(), ["cria:latest"]);
}

#[test]
fn new_weights_and_adapters_must_be_loadable() {
    let kit = Kit::new();
    let (asked, pairs) = (std::cell::RefCell::new(Vec::new()), std::cell::RefCell::new(Vec::new()));
    let check = |weights: &std::path::Path, adapters: &[std::path::PathBuf]| {
        asked.borrow_mut().push((weights.to_owned(), adapters.len()));
        Ok(Some("warning: not for us".to_owned()))
    };
    let create = |request: &CreateRequest, check: crate::CheckModel<'_>| {
        let check_draft = |weights: &std::path::Path, draft: &std::path::Path| {
            pairs.borrow_mut().push((weights.to_owned(), draft.to_owned()));
            if pairs.borrow().len() == 1 { Ok(()) } else { Err("they differ".to_owned()) }
        };
        let hooks = CreateHooks {
            check_model: Some(check),
            check_draft: Some(&check_draft),
            ..CreateHooks::default()
        };
        let mut lines = Vec::new();
        kit.store.create(&name("m"), request, &hooks, &mut |p| lines.push(p.status)).map(|()| lines)
    };
    let weights = kit.upload(1).digest;
    let lines = create(&from_files(&[("m.gguf", weights)]), &check).unwrap();
    assert!(lines.contains(&"warning: not for us".to_owned()), "{lines:?}");
    assert_eq!(asked.take(), [(kit.store.blob_path(&weights), 0)]);
    // Stored weights were checked before, or another program made them.
    create(&CreateRequest { system: Some("x".into()), ..from_model("m") }, &check).unwrap();
    assert_eq!(asked.take(), []);
    assert_eq!(pairs.take(), []);
    let small = kit.upload(2).digest;
    let draft_files = std::collections::BTreeMap::from([("d.gguf".to_owned(), small.to_string())]);
    create(&CreateRequest { draft_files: draft_files.clone(), ..from_model("m") }, &check).unwrap();
    let pair = (kit.store.blob_path(&weights), kit.store.blob_path(&small));
    assert_eq!((asked.take(), pairs.borrow().clone()), (Vec::new(), vec![pair]));
    let error = create(&CreateRequest { draft_files, ..from_model("cria") }, &check).unwrap_err();
    assert!(
        error.is_bad_request() && error.to_string().ends_with("DRAFT does not fit: they differ"),
        "{error}"
    );
    let other = kit.upload(3).digest;
    let error =
        create(&from_files(&[("m.gguf", other)]), &|_, _| Err("tensor `a` is missing".into()));
    let error = error.unwrap_err();
    assert!(
        error.is_bad_request() && error.to_string().ends_with("tensor `a` is missing"),
        "{error}"
    );
    assert_eq!(kit.store.resolve(&name("m")).unwrap().weights_digest, weights);
}

#[test]
fn known_renderers_parsers_and_supported_versions_are_stored() {
    let kit = Kit::new();
    let request = CreateRequest {
        renderer: Some("deepseek3".into()),
        parser: Some("harmony".into()),
        requires: Some("v0.34.2-rc1".into()),
        ..from_model("cria")
    };
    let hooks = CreateHooks { version: Some("0.34.2"), ..CreateHooks::default() };
    kit.store.create(&name("m"), &request, &hooks, &mut |_| {}).unwrap();
    let config = kit.store.resolve(&name("m")).unwrap().config;
    let stored = (config.renderer.as_str(), config.parser.as_str(), config.requires.as_str());
    assert_eq!(stored, ("deepseek3", "harmony", "0.34.2-rc1"));
}

/// Creates a model of an architecture.
fn of_architecture(architecture: &str, change: impl FnOnce(&mut CreateRequest)) -> crate::Model {
    let kit = Kit::new();
    let mut writer = puna_gguf::Writer::new();
    writer.set("general.architecture", architecture);
    writer.tensor("output_norm.weight", puna_quant::TensorType::F32, &[2]).unwrap();
    let file = kit.store.add_blob(&writer.to_vec([&[0u8; 8][..]]).unwrap()).unwrap();
    let mut request = from_files(&[("m.gguf", file.digest)]);
    change(&mut request);
    kit.create("m", &request).unwrap();
    kit.store.resolve(&name("m")).unwrap()
}

#[test]
fn architectures_with_a_built_in_format_get_it_unless_another_is_given() {
    let formats =
        |model: &crate::Model| (model.config.renderer.clone(), model.config.parser.clone());
    let pair = |renderer: &str, parser: &str| (renderer.to_owned(), parser.to_owned());
    let gemma = of_architecture("gemma4", |_| {});
    assert_eq!(formats(&gemma), pair("gemma4", "gemma4"));
    assert_eq!(gemma.params["stop"], json!(["<turn|>"]));
    assert_eq!(gemma.capabilities(), ["completion", "tools", "thinking"]);
    for (architecture, name) in [
        ("laguna", "laguna"),
        ("nemotron_h", "nemotron-3-nano"),
        ("nemotron_h_moe", "nemotron-3-nano"),
        ("nemotron_h_omni", "nemotron-3-nano"),
        ("llama", ""),
    ] {
        let model = of_architecture(architecture, |_| {});
        assert_eq!((formats(&model), model.params.get("stop")), (pair(name, name), None));
    }
    let own = of_architecture("gemma4", |request| {
        request.parser = Some("gemma4-no-thinking".into());
        request.parameters = json!({"stop": ["END"]}).as_object().unwrap().clone();
    });
    assert_eq!(formats(&own), pair("gemma4", "gemma4-no-thinking"));
    assert_eq!(own.params["stop"], json!(["END"]));
    assert_eq!(own.capabilities(), ["completion", "tools"]);
    let both = of_architecture("gemma4", |request| {
        (request.renderer, request.parser) = (Some("qwen3.5".into()), Some("passthrough".into()));
    });
    assert_eq!((formats(&both), both.params.get("stop")), (pair("qwen3.5", "passthrough"), None));
}

#[test]
fn renderers_and_parsers_determine_capabilities() {
    let kit = Kit::new();
    let able = |renderer: &str, parser: &str| {
        let text = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        let request =
            CreateRequest { renderer: text(renderer), parser: text(parser), ..from_model("cria") };
        kit.create("m", &request).unwrap();
        kit.store.resolve(&name("m")).unwrap().capabilities().join(" ")
    };
    // Only a Go template can support `insert`.
    assert_eq!(able("", ""), "completion tools insert thinking");
    assert_eq!(able("qwen3-coder", ""), "completion tools insert");
    assert_eq!(able("olmo3-think", "olmo3-think"), "completion insert thinking");
    assert_eq!(able("gemma4", "gemma4-no-thinking"), "completion tools insert");
    assert_eq!(able("qwen3-vl-instruct", "qwen3-vl-thinking"), "completion tools insert thinking");
    // A parser alone does not remove capabilities of the template.
    assert_eq!(able("", "qwen3"), "completion tools insert thinking");
}

#[test]
fn blobs_of_a_failed_create_are_unpinned() {
    let kit = Kit::new();
    let weights = kit.model("m", 1);
    let other = kit.upload(2).digest;
    let fails = from_files(&[("a-00001-of-00002.gguf", weights), ("b.gguf", other)]);
    assert!(kit.create("n", &fails).is_err());
    kit.store.delete(&name("m")).unwrap();
    assert!(!kit.store.has_blob(&weights), "a pin was left");
    assert!(!kit.store.pins.lock().contains(&other));
    // The source of a quantized model is not part of it.
    let zoo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/zoo");
    let source = kit.store.add_file(&zoo.join("llama-f16.gguf")).unwrap().digest;
    let request =
        CreateRequest { quantize: Some("q8_0".into()), ..from_files(&[("m.gguf", source)]) };
    kit.create("small", &request).unwrap();
    assert!(!kit.store.pins.lock().contains(&source));
}

#[test]
fn parts_of_a_split_model_are_merged() {
    let kit = Kit::new();
    let part = |no: u16, tensor: &str| {
        let mut writer = puna_gguf::Writer::new();
        if no == 0 {
            writer.set("general.architecture", "llama");
        }
        writer.set("split.no", no).set("split.count", 2u16).set("split.tensors.count", 2i32);
        writer.tensor(tensor, puna_quant::TensorType::F32, &[1]).unwrap();
        let bytes = writer.to_vec([&f32::from(no).to_le_bytes()[..]]).unwrap();
        kit.store.add_blob(&bytes).unwrap().digest
    };
    let (a, b) = (part(0, "a"), part(1, "b"));
    kit.create("m", &from_files(&[("x-00001-of-00002.gguf", a), ("x-00002-of-00002.gguf", b)]))
        .unwrap();
    let model = kit.store.resolve(&name("m")).unwrap();
    let merged = puna_gguf::Gguf::open(&kit.store.blob_path(&model.weights_digest)).unwrap();
    assert_eq!(merged.data(merged.tensor("b").unwrap()), 1f32.to_le_bytes());
    assert!(!merged.metadata().contains("split.count"));
    let error = kit.create("n", &from_files(&[("x-00001-of-00002.gguf", a)])).unwrap_err();
    assert_eq!(error.to_string(), "split GGUF: split GGUF x has 1 shards, expected 2");
    let error = kit.create("n", &from_files(&[("x-00002-of-00002.gguf", b)])).unwrap_err();
    assert_eq!(error.to_string(), "split GGUF: split GGUF x is missing first shard");
}

#[test]
fn one_part_of_a_split_model_selects_all_parts() {
    let kit = Kit::new();
    let dir = kit.dir.path();
    let part = |number: usize| format!("x-{number:05}-of-00003.gguf");
    let plan = |text: &str| {
        plan_local(&Modelfile::parse(text).unwrap(), dir, None, &mut |_| {})
            .map_err(|e| e.to_string())
    };
    fs::create_dir(dir.join("cache")).unwrap();
    for number in 1..=3 {
        fs::write(dir.join(format!("cache/{number}")), gguf(number as u32)).unwrap();
        // Links as in the Hugging Face cache: their names identify parts, those of their targets do
        // not.
        #[cfg(unix)]
        std::os::unix::fs::symlink(dir.join(format!("cache/{number}")), dir.join(part(number)))
            .unwrap();
        #[cfg(not(unix))]
        fs::copy(dir.join(format!("cache/{number}")), dir.join(part(number))).unwrap();
    }
    for from in [format!("./{}", part(1)), part(2)] {
        let files = plan(&format!("FROM {from}")).unwrap().request.files.unwrap();
        assert_eq!(files.keys().cloned().collect::<Vec<_>>(), [1, 2, 3].map(part));
    }
    let draft = plan(&format!("FROM cria\nDRAFT ./{}", part(1))).unwrap();
    assert_eq!(draft.request.draft_files.len(), 3);
    fs::remove_file(dir.join(part(2))).unwrap();
    let error = plan(&format!("FROM ./{}", part(1))).unwrap_err();
    let want = "split GGUF: x-00001-of-00003.gguf needs x-00002-of-00003.gguf in ";
    assert!(error.starts_with(want), "{error}");
    fs::remove_file(dir.join(part(1))).unwrap();
    let error = plan(&format!("FROM ./{}", part(3))).unwrap_err();
    let want = "split GGUF: x-00003-of-00003.gguf needs x-00001-of-00003.gguf and 1 more of the 3 parts in";
    assert!(error.starts_with(want), "{error}");
}

#[test]
fn a_modelfile_refers_to_at_most_one_stored_model() {
    let plan = |text: &str| {
        let modelfile = Modelfile::parse(text).unwrap();
        plan_local(&modelfile, std::path::Path::new("/"), None, &mut |_| {})
            .map_err(|e| e.to_string())
    };
    let error = plan("FROM cria\nFROM smol").unwrap_err();
    assert!(error.contains("FROM names cria and smol, the weights of several models"), "{error}");
    assert!(plan("FROM cria\nFROM https://h/v1/m").is_err());
    let servers = plan("FROM https://a/v1/m\nFROM https://b/v1/m").unwrap();
    assert_eq!(servers.request.from.as_deref(), Some("https://a/v1/m,https://b/v1/m"));
}

#[test]
fn several_from_lines_are_files_of_one_model() {
    let kit = Kit::new();
    let dir = kit.dir.path();
    let mut projector = puna_gguf::Writer::new();
    projector.set("general.architecture", "clip").set("clip.has_vision_encoder", true);
    projector.tensor("v.a", puna_quant::TensorType::F32, &[1]).unwrap();
    let projector = projector.to_vec([&[0u8; 4][..]]).unwrap();
    fs::write(dir.join("m.gguf"), gguf(1)).unwrap();
    fs::write(dir.join("mmproj.gguf"), &projector).unwrap();
    let plan = |text: &str| {
        plan_local(&Modelfile::parse(text).unwrap(), dir, None, &mut |_| {})
            .map_err(|e| e.to_string())
    };
    let types = |name_: &str| -> Vec<String> {
        let entry = kit.store.get(&name(name_)).unwrap();
        entry.manifest.layers.iter().map(|l| l.media_type.clone()).collect()
    };
    let both = plan("FROM ./m.gguf\nFROM ./mmproj.gguf").unwrap();
    for file in &both.files {
        kit.store.add_file(&file.path).unwrap();
    }
    kit.create("seeing", &both.request).unwrap();
    assert_eq!(types("seeing"), [media::MODEL, media::PROJECTOR]);
    // Digests of blobs that the server has.
    let (a, b) = (Digest::of(&gguf(1)), Digest::of(&projector));
    kit.create("again", &plan(&format!("FROM {a}\nFROM @{b}")).unwrap().request).unwrap();
    let mut again = types("again");
    again.sort();
    assert_eq!(again, [media::MODEL, media::PROJECTOR]);
    let error = plan("FROM cria\nFROM ./mmproj.gguf").unwrap_err();
    assert!(
        error.starts_with("FROM cria is a stored model and FROM /")
            && error.contains("mmproj.gguf"),
        "{error}"
    );
}

#[test]
fn show_prints_a_modelfile_that_recreates_the_model() {
    let kit = Kit::new();
    kit.store.copy(&name("cria"), &name("m")).unwrap();
    let model = kit.store.resolve(&name("m")).unwrap();
    let printed = model.modelfile(None, &serde_json::Map::new());
    let path = kit.store.blob_path(&model.weights_digest);
    assert!(
        printed
            .to_string()
            .starts_with(&format!("FROM {}\nTEMPLATE \"\"\"{{{{- if .Suffix", path.display()))
    );
    let again = Modelfile::parse(&printed.to_string()).unwrap();
    assert_eq!(again, printed);
    let plan = plan_local(&again, kit.dir.path(), None, &mut |_| {}).unwrap();
    for file in &plan.files {
        kit.store.add_file(&file.path).unwrap();
    }
    kit.create("n", &plan.request).unwrap();
    let made = kit.store.resolve(&name("n")).unwrap();
    assert_eq!(
        (made.template, made.params, made.licenses),
        (model.template, model.params, model.licenses)
    );
    assert_eq!(made.weights_digest, model.weights_digest);
}

#[test]
fn a_local_modelfile_becomes_a_request_and_uploads() {
    let kit = Kit::new();
    let dir = kit.dir.path().join("work");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/tiny.gguf"), gguf(1)).unwrap();
    let plan = |text: &str| {
        let modelfile = Modelfile::parse(text).unwrap();
        plan_local(&modelfile, &dir, Some(&dir.join("sub")), &mut |_| {}).map_err(|e| e.to_string())
    };
    let digest = Digest::of(&gguf(1));
    for from in ["./sub/tiny.gguf", "sub/tiny.gguf", "~/tiny.gguf", "sub"] {
        let plan =
            plan(&format!("FROM {from}\nPARAMETER stop a\nPARAMETER stop b\nPARAMETER mirostat 1"))
                .unwrap();
        assert_eq!(
            plan.request.files,
            Some([("tiny.gguf".to_owned(), digest.to_string())].into()),
            "{from}"
        );
        assert_eq!((plan.files.len(), plan.files[0].digest), (1, digest));
        assert_eq!(plan.request.parameters["stop"], json!(["a", "b"]));
        assert_eq!(plan.deprecated, ["mirostat"]);
    }
    let named = plan("FROM llama3:8b\nMESSAGE user hi").unwrap();
    assert_eq!((named.request.from.as_deref(), named.files.len()), (Some("llama3:8b"), 0));
    assert_eq!(named.request.messages, [json!({"role": "user", "content": "hi"})]);
    let blob = plan(&format!("FROM {digest}")).unwrap();
    assert_eq!(
        blob.request.files.unwrap()[&format!("{}.gguf", digest.short())],
        digest.to_string()
    );
    fs::write(dir.join("Modelfile"), "FROM ./Modelfile").unwrap();
    for (text, want) in [
        ("FROM .", "(line 1): no Modelfile or safetensors files found in "),
        ("FROM x\nPARAMETER foo 1", "(line 2): unknown parameter 'foo'"),
        (
            "FROM x\n\nPARAMETER num_ctx -5\nSYSTEM x",
            "(line 3): parameter 'num_ctx' must be at least 1",
        ),
        ("FROM x\nREQUIRES soon", "(line 2): requires must be a valid semver"),
        ("FROM ./absent.gguf", "(line 1): ./absent.gguf: no such file"),
        ("FROM absent.gguf", "(line 1): absent.gguf: no such file"),
        (
            "FROM ./Modelfile",
            "(line 1): ./Modelfile is not a model: not a GGUF file: it starts with `FROM`",
        ),
        ("FROM x\nADAPTER Modelfile", "(line 2): Modelfile is not a model: "),
    ] {
        let error = plan(text).unwrap_err();
        assert!(error.starts_with(want), "{text}: {error}");
    }
    if cfg!(unix) {
        assert_eq!(
            plan("FROM /dev/zero").unwrap_err(),
            "(line 1): /dev/zero is not a regular file"
        );
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/hostname", dir.join("config.json")).unwrap();
        fs::write(dir.join("model.safetensors"), "x").unwrap();
        assert_eq!(plan("FROM .").unwrap_err(), "(line 1): insecure path: config.json");
    }
}

#[test]
fn git_lfs_pointers_are_not_weights() {
    let kit = Kit::new();
    let dir = kit.dir.path();
    fs::write(dir.join("m.gguf"), "version https://git-lfs.github.com/spec/v1").unwrap();
    let modelfile = Modelfile::parse("FROM .").unwrap();
    let error = plan_local(&modelfile, dir, None, &mut |_| {}).unwrap_err();
    let StoreError::Line { line: 1, error } = error else { panic!("{error}") };
    assert!(matches!(*error, StoreError::NoModel { .. }), "{error}");
}

#[test]
fn the_embedded_model_has_a_digest_that_does_not_change() {
    let first = embedded::entry();
    assert_eq!(first, embedded::entry());
    assert_eq!(first.digest, Digest::of(&embedded::manifest_bytes()));
}
