//! Tests of the models themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::document::ManifestDocument;
use super::name::Name;
use super::{Blobs, Content, Link, Ollama017, Ollama040, Operation, Random, Row, age_blobs, alive};
use crate::Digest;

/// An empty store with both versions on it.
struct Kit {
    dir: tempfile::TempDir,
    old: Ollama017,
    new: Ollama040,
}

impl Kit {
    fn new() -> Self {
        Self::with_link(Link::Symbolic)
    }

    fn with_link(link: Link) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (Ollama017::new(dir.path()), Ollama040::new(dir.path()).with_link(link));
        Self { dir, old, new }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn v2(&self, name: &str) -> PathBuf {
        Name::parse(name).unwrap().v2_path(self.root())
    }

    fn legacy(&self, name: &str) -> PathBuf {
        Name::parse(name).unwrap().legacy_path(self.root())
    }

    fn blob_count(&self) -> usize {
        fs::read_dir(self.root().join("blobs")).unwrap().count()
    }

    fn has(&self, bytes: &[u8]) -> bool {
        Blobs::new(self.root()).read(Digest::of(bytes)).is_ok()
    }

    /// Starts both versions on blobs that are two hours old.
    fn start_both(&self) {
        age_blobs(self.root(), Duration::from_secs(7200)).unwrap();
        self.new.start().unwrap();
        self.old.start().unwrap();
    }

    fn loads_old(&self, name: &str) -> bool {
        self.old.load(name).unwrap().is_some()
    }

    fn loads_new(&self, name: &str, runner: Option<&str>) -> bool {
        self.new.load(name, runner).unwrap().is_some()
    }

    fn rows(&self) -> Vec<(String, String)> {
        self.new
            .rows()
            .unwrap()
            .into_iter()
            .map(|Row { name, runner, .. }| (name, runner))
            .collect()
    }
}

fn two_runners() -> [(&'static str, &'static str, Content); 2] {
    [("ggml", "gguf", Content::sample(1)), ("llamacpp", "gguf", Content::sample(2))]
}

fn row(name: &str, runner: &str) -> (String, String) {
    (name.to_owned(), runner.to_owned())
}

#[test]
fn the_old_version_creates_copies_replaces_and_removes_models() {
    let kit = Kit::new();
    kit.old.create("a", &Content::sample(1)).unwrap();
    kit.old.copy("a", "b:2").unwrap();
    assert_eq!(kit.blob_count(), 3);
    assert_eq!(kit.old.load("a").unwrap().unwrap().len(), 3);
    let names = ["registry.ollama.ai/library/a:latest", "registry.ollama.ai/library/b:2"];
    assert_eq!(kit.old.names().unwrap().into_iter().collect::<Vec<_>>(), names);
    assert!(fs::read_to_string(kit.legacy("a")).unwrap().ends_with("}]}\n"));
    kit.old.pull("a", &Content::sample(2)).unwrap();
    assert!(kit.loads_old("b:2") && kit.blob_count() == 6);
    kit.old.remove("b:2").unwrap();
    assert!(kit.loads_old("a") && kit.blob_count() == 3);
    kit.old.remove("a").unwrap();
    assert!(kit.blob_count() == 0 && !kit.root().join("manifests").exists());
}

#[test]
fn json_has_the_field_order_of_ollama() {
    let manifest = Content { weights: b"w".to_vec(), template: None, config: "{}".into() }
        .manifest("ggml", "gguf");
    let config = Digest::of(b"{}");
    let weights = Digest::of(b"w");
    let json = format!(
        concat!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","#,
            r#""config":{{"mediaType":"application/vnd.docker.container.image.v1+json","digest":"{}","#,
            r#""size":2}},"#,
            r#""layers":[{{"mediaType":"application/vnd.ollama.image.model","digest":"{}","size":1}}],"#,
            r#""runner":"ggml","format":"gguf"}}"#,
        ),
        config, weights
    );
    assert_eq!(manifest.to_json(), json);
    let reference = ManifestDocument::reference(weights, "mlx", "");
    let list = ManifestDocument::list(vec![reference]).to_json();
    let expected = format!(
        concat!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.ollama.manifest.list.v2+json","#,
            r#""manifests":[{{"mediaType":"application/vnd.docker.distribution.manifest.v2+json","#,
            r#""digest":"{}","runner":"mlx"}}]}}"#,
        ),
        weights
    );
    assert_eq!(list, expected);
    assert_eq!(ManifestDocument::parse(list.as_bytes()).unwrap().to_json(), list);
}

#[test]
fn an_anchor_survives_the_start_of_the_old_version() {
    let kit = Kit::new();
    kit.new.pull_plain("plain", &Content::sample(1)).unwrap();
    kit.new.pull_list("list", &two_runners(), &[1]).unwrap();
    kit.start_both();
    for name in ["plain", "list"] {
        assert!(kit.loads_old(name) && kit.loads_new(name, None), "{name}");
    }
    assert!(
        fs::read_to_string(kit.legacy("list"))
            .unwrap()
            .contains("vnd.ollama.manifest.list.v2+json")
    );
}

#[test]
fn the_old_version_loses_a_model_without_an_anchor() {
    let kit = Kit::new();
    kit.old.create("a", &Content::sample(1)).unwrap();
    kit.new.create("a", &Content::sample(2)).unwrap();
    assert!(!kit.legacy("a").exists() && !kit.has(&Content::sample(1).weights));
    assert!(
        kit.loads_new("a", None)
            && kit.loads_new("a", Some("ggml"))
            && !kit.loads_new("a", Some("mlx"))
    );
    kit.old.start().unwrap();
    assert_eq!(kit.blob_count(), 0);
    assert!(kit.new.names().unwrap().is_empty() && !kit.loads_new("a", None));
}

#[test]
fn an_unreadable_entry_stops_only_the_start_of_the_old_version() {
    let kit = Kit::new();
    kit.new.create("a", &Content::sample(1)).unwrap();
    let count = kit.blob_count();
    fs::create_dir_all(kit.legacy("x").parent().unwrap()).unwrap();
    fs::write(kit.legacy("x"), "no manifest").unwrap();
    kit.old.start().unwrap();
    assert_eq!(kit.blob_count(), count);
    kit.old.prune().unwrap();
    assert_eq!(kit.blob_count(), 0);
}

#[test]
fn the_new_version_leaves_young_files_alone() {
    let kit = Kit::new();
    let partial = kit.root().join(format!("blobs/sha256-{}-partial", "0".repeat(64)));
    kit.new.create("a", &Content::sample(1)).unwrap();
    let blobs = Blobs::new(kit.root());
    blobs.write(b"unused").unwrap();
    fs::write(&partial, "part").unwrap();
    kit.new.start().unwrap();
    assert!(kit.has(b"unused") && partial.exists());
    age_blobs(kit.root(), Duration::from_secs(7200)).unwrap();
    kit.new.start().unwrap();
    assert!(!kit.has(b"unused") && !partial.exists() && kit.loads_new("a", None));
}

#[test]
fn a_partial_list_shows_only_its_local_children() {
    let kit = Kit::new();
    let children = two_runners();
    kit.new.pull_list("a", &children, &[0]).unwrap();
    assert_eq!(kit.rows(), [row("a:latest", "ggml")]);
    assert!(
        kit.loads_new("a", None)
            && kit.loads_new("a", Some("GGML"))
            && !kit.loads_new("a", Some("llamacpp"))
    );
    let missing = Digest::of(children[1].2.manifest("llamacpp", "gguf").to_json().as_bytes());
    let alive = alive(kit.root()).unwrap();
    assert!(alive.contains(&missing) && !alive.contains(&Digest::of(&children[1].2.weights)));
    kit.new.pull_list("a", &children, &[1]).unwrap();
    assert_eq!(kit.rows().len(), 2);
    kit.start_both();
    // The anchor names only the preferred child: llamacpp.
    assert!(kit.loads_new("a", Some("llamacpp")) && !kit.loads_new("a", Some("ggml")));
    assert!(kit.loads_old("a"));
}

#[test]
fn a_list_without_local_children_is_no_model() {
    let kit = Kit::new();
    kit.new.pull_list("a", &two_runners(), &[]).unwrap();
    assert!(kit.new.names().unwrap().is_empty() && kit.rows().is_empty());
    assert!(kit.v2("a").exists() && !kit.legacy("a").exists());
}

#[test]
fn an_inline_child_has_the_digest_of_its_canonical_json() {
    let kit = Kit::new();
    let children = two_runners();
    kit.new.pull_inline_list("a", &children).unwrap();
    let rows = kit.new.rows().unwrap();
    assert_eq!(rows.len(), 2);
    for (runner, format, content) in &children {
        let manifest = content.manifest(runner, format);
        let digest = Digest::of(manifest.to_json().as_bytes());
        let row = rows.iter().find(|row| row.runner == *runner).unwrap();
        assert_eq!((row.digest, row.size), (digest, manifest.size()));
        assert!(kit.loads_new("a", Some(runner)));
    }
    kit.new.remove("a").unwrap();
    assert_eq!(kit.blob_count(), 0);
}

#[test]
fn a_migration_writes_a_list_an_anchor_and_a_shadow() {
    let kit = Kit::new();
    let source = Content::sample(1);
    kit.old.pull("a", &source).unwrap();
    assert!(kit.new.migrate("a").unwrap());
    let mut rows = kit.rows();
    rows.sort();
    assert_eq!(rows, [row("a:latest", "ggml"), row("a:latest", "llamacpp")]);
    let converted = source.converted().manifest("llamacpp", "gguf").to_json();
    let shadow = kit.legacy(&format!("llamacpp:{}", Digest::of(converted.as_bytes()).hex()));
    assert_eq!(fs::read_to_string(&shadow).unwrap(), converted);
    assert_eq!(kit.new.names().unwrap().len(), 1);
    assert_eq!(kit.old.names().unwrap().len(), 2);
    kit.start_both();
    assert!(
        kit.loads_old("a")
            && kit.loads_new("a", Some("ggml"))
            && kit.loads_new("a", Some("llamacpp"))
    );
    assert!(kit.new.migrate("a").unwrap());
    kit.new.remove("a").unwrap();
    assert!(shadow.exists() && kit.has(&source.converted().weights) && !kit.has(&source.weights));
    assert!(kit.new.names().unwrap().is_empty());
}

#[test]
fn hard_links_and_copies_are_valid_entries() {
    for link in [Link::Symbolic, Link::Hard, Link::Copy] {
        let kit = Kit::with_link(link);
        kit.new.create("a", &Content::sample(1)).unwrap();
        kit.new.copy("a", "b").unwrap();
        assert!(kit.loads_new("a", None) && kit.loads_new("b", None), "{link:?}");
        assert_eq!(
            fs::symlink_metadata(kit.v2("a")).unwrap().is_symlink(),
            cfg!(unix) && link == Link::Symbolic
        );
        assert_eq!(fs::read_dir(kit.v2("a").parent().unwrap()).unwrap().count(), 1);
        let count = kit.blob_count();
        kit.new.remove("a").unwrap();
        assert!(kit.loads_new("b", None) && kit.blob_count() == count);
        kit.new.remove("b").unwrap();
        assert!(kit.blob_count() == 0 && !kit.root().join("manifests-v2").exists());
    }
}

#[test]
#[cfg(unix)]
fn a_dangling_entry_falls_back_to_the_legacy_one() {
    let kit = Kit::new();
    kit.new.pull_plain("a", &Content::sample(1)).unwrap();
    fs::remove_file(fs::canonicalize(kit.v2("a")).unwrap()).unwrap();
    assert!(!kit.v2("a").exists() && kit.loads_new("a", None));
    assert_eq!(kit.rows(), [row("a:latest", "ggml")]);
    kit.start_both();
    assert!(kit.loads_new("a", None));
    kit.new.remove("a").unwrap();
    assert!(fs::symlink_metadata(kit.v2("a")).is_err() && kit.blob_count() == 0);
}

#[test]
#[cfg(unix)]
fn an_entry_linked_to_changed_bytes_is_invalid() {
    let kit = Kit::new();
    kit.new.pull_plain("a", &Content::sample(1)).unwrap();
    fs::write(fs::canonicalize(kit.v2("a")).unwrap(), "{}").unwrap();
    assert!(!kit.loads_new("a", None) && kit.loads_old("a"));
    assert!(kit.new.names().unwrap().is_empty());
}

#[test]
#[cfg(unix)]
fn the_colon_of_a_port_is_escaped_in_v2_entries() {
    let kit = Kit::new();
    let name = "localhost:5000/n/a:1";
    kit.new.pull_plain(name, &Content::sample(1)).unwrap();
    assert!(kit.root().join("manifests-v2/localhost%3A5000/n/a/1").exists());
    assert!(kit.root().join("manifests/localhost:5000/n/a/1").exists());
    assert_eq!(kit.new.names().unwrap().into_iter().collect::<Vec<_>>(), [name]);
    assert_eq!(kit.rows(), [row(name, "ggml")]);
    assert!(kit.loads_new(name, None) && kit.loads_old(name));
}

#[test]
fn both_spellings_of_the_public_host_are_one_name() {
    let kit = Kit::new();
    kit.new.pull_plain("ollama.com/library/a:latest", &Content::sample(1)).unwrap();
    assert!(kit.root().join("manifests-v2/ollama.com/library/a/latest").exists());
    assert_eq!(
        kit.new.names().unwrap().into_iter().collect::<Vec<_>>(),
        ["registry.ollama.ai/library/a:latest"]
    );
    assert!(
        kit.loads_new("a", None) && kit.loads_old("ollama.com/library/a") && !kit.loads_old("a")
    );
    kit.new.create("a", &Content::sample(2)).unwrap();
    assert!(!kit.root().join("manifests").exists());
    kit.new.remove("ollama.com/library/a").unwrap();
    assert_eq!(kit.blob_count(), 0);
}

#[test]
fn alive_digests_include_those_of_overridden_entries() {
    let kit = Kit::new();
    kit.new.create("a", &Content::sample(1)).unwrap();
    kit.old.create("a", &Content::sample(2)).unwrap();
    let alive = alive(kit.root()).unwrap();
    for seed in [1, 2] {
        assert!(alive.contains(&Digest::of(&Content::sample(seed).weights)));
    }
    assert!(alive.contains(&Digest::of(&fs::read(kit.v2("a")).unwrap())));
}

/// The names that each version loads.
fn loaded(kit: &Kit) -> [Vec<String>; 2] {
    let loads_old = |name: &String| kit.loads_old(name);
    let loads_new = |name: &String| kit.loads_new(name, None);
    [
        kit.old.names().unwrap().into_iter().filter(loads_old).collect(),
        kit.new.names().unwrap().into_iter().filter(loads_new).collect(),
    ]
}

#[test]
fn random_operations_are_reproducible_and_starts_lose_no_model_of_their_version() {
    for seed in 0..8 {
        let (mut random, mut again) = (Random::new(seed), Random::new(seed));
        let kit = Kit::new();
        let link = *random.pick(&[Link::Symbolic, Link::Hard, Link::Copy]);
        again.pick(&[0; 3]);
        for _ in 0..30 {
            let operation = random.operation();
            assert_eq!(format!("{operation:?}"), format!("{:?}", again.operation()));
            let before = loaded(&kit);
            operation
                .apply(kit.root(), link)
                .unwrap_or_else(|error| panic!("{operation:?}: {error}"));
            match operation {
                Operation::Start017 => assert_eq!(loaded(&kit)[0], before[0], "seed {seed}"),
                Operation::Start040(_) => assert_eq!(loaded(&kit)[1], before[1], "seed {seed}"),
                _ => {}
            }
        }
    }
}
