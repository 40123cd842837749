use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use puna_store::{Digest, ModelRef, media};
use serde_json::{Value, json};

use crate::tests::{Bench, Model, Server, gguf, status};

/// Makes a tar archive.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, data) in files {
        entry(&mut out, name, b'0', data);
    }
    out.extend([0; 1024]);
    out
}

fn entry(out: &mut Vec<u8>, name: &str, kind: u8, data: &[u8]) {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    header[156] = kind;
    header[257..263].copy_from_slice(b"ustar\0");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend(header);
    out.extend(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// A package at a registry, from layers of (media type, file name, bytes).
fn package(config: &str, layers: &[(&str, &str, Vec<u8>)]) -> Model {
    let blob = |kind: &str, name: &str, bytes: &[u8]| {
        let mut blob = json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
        if !name.is_empty() {
            blob["annotations"] = json!({"org.cncf.model.filepath": name});
        }
        blob
    };
    let all: Vec<Value> =
        layers.iter().map(|(kind, name, bytes)| blob(kind, name, bytes)).collect();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": super::OCI_MANIFEST, "config": blob(config, "", b"{}"), "layers": all,
    });
    let of_layers = layers.iter().map(|(_, _, bytes)| Bytes::from(bytes.clone()));
    let all = of_layers.chain([Bytes::from_static(b"{}")]);
    Model {
        blobs: all.map(|bytes| (Digest::of(&bytes).to_string(), bytes)).collect(),
        manifest: manifest.to_string().into(),
        weights: Digest::of(b""),
    }
}

const DOCKER_PREFIX: &str = "application/vnd.docker.ai.model.config.v0.1+json";
const PACK: &str = "application/vnd.cncf.model.config.v1+json";

/// The weights of a stored model.
fn weights(bench: &Bench, name: &str) -> Digest {
    let entry = bench.store.get(&ModelRef::parse(name).unwrap().name).unwrap();
    entry.manifest.last(media::MODEL).unwrap().digest
}

#[tokio::test]
async fn docker_packages_become_models_and_a_second_pull_fetches_nothing() {
    let model = package(
        DOCKER_PREFIX,
        &[
            ("application/vnd.docker.ai.gguf.v3", "", gguf(1).to_vec()),
            ("application/vnd.docker.ai.license", "", b"Free for all".to_vec()),
            ("application/vnd.docker.ai.chat.template.jinja", "", b"{{ unknown }}".to_vec()),
        ],
    );
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let lines = bench.pull_ok(&server.model()).await;
    let last: Vec<_> = lines.iter().rev().take(3).map(|line| line.status.as_str()).collect();
    assert_eq!(last, ["success", "writing manifest", "verifying sha256 digest"]);
    assert_eq!(weights(&bench, &server.model()), Digest::of(&gguf(1)));
    let resolved = bench.store.resolve(&ModelRef::parse(&server.model()).unwrap().name).unwrap();
    assert_eq!(resolved.licenses, ["Free for all"]);
    assert_eq!(resolved.gguf_info.architecture, "llama");

    let before = server.blob_requests().len();
    bench.pull_ok(&server.model()).await;
    assert_eq!(server.blob_requests().len(), before);
}

#[tokio::test]
async fn an_interrupted_package_is_recorded_under_the_models_name() {
    let license = b"Free for all".to_vec();
    let model = package(
        DOCKER_PREFIX,
        &[
            ("application/vnd.docker.ai.license", "", license.clone()),
            ("application/vnd.docker.ai.gguf.v3", "", gguf(1).to_vec()),
        ],
    );
    let (served, weights) = (model.clone(), Digest::of(&gguf(1)).to_string());
    let gone = Arc::new(AtomicBool::new(true));
    let is_gone = gone.clone();
    let server = Server::start(move |seen| match seen.path.ends_with(&weights) {
        true if is_gone.load(Ordering::Relaxed) => status(501, "not now"),
        _ => served.answer(&seen),
    })
    .await;
    let bench = Bench::new();
    bench.pull_err(&server.model()).await;
    let [pull] = &bench.store.pulls().unwrap()[..] else { panic!("one pull") };
    assert_eq!(pull.name, ModelRef::parse(&server.model()).unwrap().name);
    assert_eq!(pull.completed, license.len() as u64);
    assert_eq!(pull.total, (license.len() + gguf(1).len() + b"{}".len()) as u64);
    gone.store(false, Ordering::Relaxed);
    bench.pull_ok(&server.model()).await;
    assert_eq!(bench.store.pulls().unwrap(), []);
}

#[tokio::test]
async fn model_packs_are_read_raw_archived_and_compressed() {
    let file = gguf(2);
    let files: [(&str, &[u8]); 2] = [("README.md", b"read me"), ("dir/model.gguf", &file)];
    for (kind, layer) in [
        ("raw", file.to_vec()),
        ("tar", tar(&files)),
        ("tar+gzip", gzip(&tar(&files))),
        ("tar+zstd", zstd(&tar(&files))),
    ] {
        let kind = format!("application/vnd.cncf.model.weight.v1.{kind}");
        let license = ("application/vnd.cncf.model.doc.v1.raw", "LICENSE", b"Free".to_vec());
        let readme = ("application/vnd.cncf.model.doc.v1.raw", "README.md", b"not wanted".to_vec());
        let model = package(PACK, &[(&kind, "model.gguf", layer), license, readme]);
        let server = Server::of(&model).await;
        let bench = Bench::new();
        bench.pull_ok(&server.model()).await;
        assert_eq!(weights(&bench, &server.model()), Digest::of(&file), "{kind}");
        // Weights, license, config, and the package's manifest and config. Packed layers are
        // removed.
        bench.assert_files(5);
        let before = server.blob_requests().len();
        bench.pull_ok(&server.model()).await;
        assert_eq!(server.blob_requests().len(), before, "{kind}");
    }
}

#[tokio::test]
async fn invalid_packages_are_refused_and_leave_no_model() {
    let tar_layer = "application/vnd.cncf.model.weight.v1.tar";
    let mut bomb = Vec::new();
    entry(&mut bomb, "model.gguf", b'0', &[]);
    bomb[124..136].copy_from_slice(b"77777777777\0");
    let mut cut = tar(&[("model.gguf", &gguf(3))]);
    cut.truncate(700);
    for (kind, bytes, want) in [
        (tar_layer, tar(&[("../model.gguf", b"x")]), "invalid file name \"../model.gguf\""),
        (tar_layer, tar(&[("/etc/model.gguf", b"x")]), "invalid file name \"/etc/model.gguf\""),
        (tar_layer, b"no archive at all".repeat(100), "it is not a tar archive"),
        (tar_layer, cut, "it is truncated"),
        (tar_layer, bomb, "it is not a tar archive"),
        (
            "application/vnd.cncf.model.weight.v1.tar+gzip",
            b"no gzip".to_vec(),
            "cannot unpack a layer",
        ),
        (
            "application/vnd.cncf.model.weight.v1.tar+zstd",
            b"no zstd".to_vec(),
            "cannot unpack a layer",
        ),
        (
            "application/vnd.cncf.model.weight.v1.tar+gzip",
            gzip(&tar(&[("model.gguf", &vec![0; 24 << 20])])),
            "far larger than the layer",
        ),
        ("application/vnd.cncf.model.weight.v1.raw", b"no weights".to_vec(), ""),
        (
            "application/vnd.cncf.model.code.v1.raw",
            b"print()".to_vec(),
            "a package without weights",
        ),
    ] {
        let server = Server::of(&package(PACK, &[(kind, "model.gguf", bytes)])).await;
        let bench = Bench::new();
        let text = bench.pull_err(&server.model()).await;
        assert!(text.contains(want), "{want}: {text}");
        let name = ModelRef::parse(&server.model()).unwrap().name;
        assert!(bench.store.find(&name).unwrap().is_none());
    }
}

#[test]
fn a_link_instead_of_a_file_is_named() {
    let bench = Bench::new();
    for kind in [b'1', b'2'] {
        let mut archive = Vec::new();
        entry(&mut archive, "dir/model.gguf", kind, &[]);
        archive.extend([0; 1024]);
        let digest = bench.store.add_blob(&archive).unwrap().digest;
        let size = archive.len() as u64;
        let error =
            super::unpack::unpack(&bench.store, &digest, size, super::unpack::LayerEncoding::Tar)
                .unwrap_err();
        let said = error.to_string();
        assert!(said.contains("the link \"dir/model.gguf\" instead of a file"), "{said}");
        assert!(said.ends_with(&format!("(layer {})", digest.short())), "{said}");
    }
}

#[test]
fn numbers_names_and_attributes_of_archives_are_parsed() {
    let bench = Bench::new();
    let long = format!("{}/model.gguf", "d".repeat(150));
    let mut archive = Vec::new();
    entry(&mut archive, "ignored", b'5', &[]);
    entry(&mut archive, "link", b'2', &[]);
    entry(&mut archive, "././@LongLink", b'L', format!("{long}\0").as_bytes());
    entry(&mut archive, "short", b'0', b"one");
    entry(&mut archive, "pax", b'x', b"11 mtime=1\n21 path=pax/name.bin\n");
    entry(&mut archive, "short", b'0', b"two");
    archive.extend([0; 1024]);
    let digest = bench.store.add_blob(&archive).unwrap().digest;
    let size = archive.len() as u64;
    let files =
        super::unpack::unpack(&bench.store, &digest, size, super::unpack::LayerEncoding::Tar)
            .unwrap();
    let want = [(long, Digest::of(b"one")), ("pax/name.bin".to_owned(), Digest::of(b"two"))];
    assert_eq!(files, want);
}
