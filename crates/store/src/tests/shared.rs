//! Tests of stores that Puna shares with Ollama 0.17 and 0.40: each program keeps the models of the
//! others and lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::name;
use super::ollama::{Content, Link, Ollama017, Ollama040, Operation, Random, age_blobs, alive};
use crate::manifest_list::{Child, ManifestList};
use crate::name_files::{NameFolder, is_shadow};
use crate::{
    Digest, Entry, Manifest, ManifestDocument, ModelName, PruneOptions, Store, StoreError, media,
};

pub(super) const DAYS: Duration = Duration::from_secs(40 * 24 * 60 * 60);

/// A temporary folder, in memory if the system has such a folder: these tests write and flush a
/// lot.
pub(super) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::Builder::new()
        .tempdir_in(if memory.is_dir() { memory } else { Path::new("/tmp") })
        .unwrap()
}

/// A store with a name in every state that Ollama can leave.
fn every_state(root: &Path) {
    let content = Content::sample;
    let (old, new) = (Ollama017::new(root), Ollama040::new(root));
    old.create("old", &content(1)).unwrap();
    old.pull("example.org:5000/me/old:2", &content(2)).unwrap();
    new.create("created", &content(3)).unwrap();
    new.copy("created", "me/copied:x").unwrap();
    new.pull_plain("plain", &content(4)).unwrap();
    let children = [
        ("ggml", "gguf", content(5)),
        ("llamacpp", "gguf", content(6)),
        ("mlx", "safetensors", content(7)),
    ];
    let others = [
        ("ggml", "gguf", content(15)),
        ("llamacpp", "gguf", content(16)),
        ("mlx", "safetensors", content(17)),
    ];
    new.pull_list("list", &others, &[1]).unwrap();
    new.pull_list("whole-list", &children, &[0, 1, 2]).unwrap();
    new.pull_inline_list("inline", &children[..2]).unwrap();
    new.pull_plain("example.org:5000/me/ported", &content(8)).unwrap();
    old.create("migrated", &content(9)).unwrap();
    assert!(new.migrate("migrated").unwrap());
    for (link, model, seed) in [(Link::Hard, "hard", 10), (Link::Copy, "copied-file", 11)] {
        Ollama040::new(root).with_link(link).create(model, &content(seed)).unwrap();
    }
    // A name in both folders, as after a pull by an older version.
    new.create("both", &content(12)).unwrap();
    old.pull("both", &content(13)).unwrap();
    // A running download, and another file next to a blob.
    let blobs = root.join("blobs");
    fs::write(blobs.join(format!("{}-partial", Digest::of(b"x").file_name())), "part").unwrap();
    fs::write(blobs.join(format!("{}-partial-0", Digest::of(b"x").file_name())), "{}").unwrap();
    fs::write(blobs.join("sha256-123456789"), "temporary").unwrap();
}

/// The digests of the blobs on disk.
pub(super) fn on_disk(root: &Path) -> BTreeSet<Digest> {
    let entries = fs::read_dir(root.join("blobs")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

pub(super) fn short(name: &str) -> ModelName {
    ModelName::parse(name).unwrap()
}

#[test]
fn puna_preserves_every_state_of_ollamas_stores() {
    let dir = folder();
    let root = dir.path();
    every_state(root);
    age_blobs(root, DAYS).unwrap();
    let before: BTreeSet<Digest> = &alive(root).unwrap() & &on_disk(root);
    let store = Store::open(root).unwrap();
    let listed: BTreeSet<String> =
        store.list().unwrap().iter().map(|entry| entry.name.to_string()).collect();
    for model in [
        "old",
        "created",
        "me/copied:x",
        "plain",
        "list",
        "whole-list",
        "inline",
        "migrated",
        "hard",
        "both",
    ] {
        assert!(listed.contains(&short(model).to_string()), "{model} of {listed:?}");
        assert!(store.resolve(&short(model)).is_ok(), "{model}");
    }
    assert!(!listed.iter().any(|name| name.starts_with("llamacpp:")), "{listed:?}");
    assert_eq!(store.clean_up().unwrap().removed, []);
    let pruned = store.prune(PruneOptions { partial: true, dry_run: false }).unwrap();
    assert_eq!(pruned.blocked_by, None);
    // Files of Ollama that belong to no name and no download.
    let kinds: Vec<_> = pruned.removed.iter().map(|leftover| leftover.kind).collect();
    assert_eq!(kinds, [crate::LeftoverKind::Download; 2]);
    store.store_manifest(&short("pulled"), &manifest_of(&store, 20), false, &mut || ()).unwrap();
    store.copy(&short("list"), &short("list-copy")).unwrap();
    store.delete(&short("pulled")).unwrap();
    store.delete(&short("list-copy")).unwrap();
    let lost: Vec<_> = (&before - &on_disk(root)).into_iter().collect();
    assert_eq!(lost, []);
    // Removing a name frees only the blobs that it alone needs.
    store.delete(&short("whole-list")).unwrap();
    assert_eq!(&alive(root).unwrap() & &before, &before & &on_disk(root));
}

/// The manifest of a model whose blobs are now in the store.
pub(super) fn manifest_of(store: &Store, seed: u32) -> Vec<u8> {
    let content = Content::sample(seed);
    let layer = |kind: &str, bytes: &[u8]| {
        let blob = store.add_blob(bytes).unwrap();
        crate::Layer::new(kind, blob.digest, blob.size)
    };
    let mut layers = vec![layer(media::MODEL, &content.weights)];
    layers.extend(content.template.as_ref().map(|text| layer(media::TEMPLATE, text)));
    Manifest { config: Some(layer(media::CONFIG, content.config.as_bytes())), layers }.to_bytes()
}

/// The manifest list of some seeds. Those with a set bit in `present` are in the store.
pub(super) fn list_of(store: &Store, seeds: &[u32], present: usize) -> Vec<u8> {
    let runners = [("llamacpp", "gguf"), ("ggml", "gguf"), ("mlx", "safetensors")];
    let child = |(at, seed): (usize, &u32)| {
        let text = match present >> at & 1 {
            1 => manifest_of(store, *seed),
            _ => format!("{{\"absent\":{seed}}}").into_bytes(),
        };
        let digest = Digest::of(&text);
        if present >> at & 1 == 1 {
            store.add_blob(&text).unwrap();
        }
        Child { digest, runner: runners[at].0.into(), format: runners[at].1.into(), inline: None }
    };
    ManifestList { children: seeds.iter().enumerate().map(child).collect() }.to_bytes()
}

/// An unknown entry of a store, which may need any blob.
type Unknown = (&'static str, fn(&Path));

fn v2(root: &Path, model: &str) -> PathBuf {
    let dir = root.join("manifests-v2/ollama.com/library").join(model);
    fs::create_dir_all(&dir).unwrap();
    dir.join("latest")
}

#[cfg(unix)]
const UNKNOWN: [Unknown; 14] = [
    ("manifests-v3", |root| fs::create_dir_all(root.join("manifests-v3/x")).unwrap()),
    ("index.db", |root| fs::write(root.join("index.db"), "x").unwrap()),
    ("folders", |root| fs::create_dir_all(root.join("blobs/folders")).unwrap()),
    ("notes.txt", |root| fs::write(root.join("blobs/notes.txt"), "x").unwrap()),
    ("manifest type", |root| {
        fs::write(
            v2(root, "u"),
            r#"{"schemaVersion":2,"mediaType":"application/vnd.ollama.shards.v1+json"}"#,
        )
        .unwrap();
    }),
    ("schema", |root| fs::write(v2(root, "u"), r#"{"schemaVersion":3,"layers":[]}"#).unwrap()),
    ("nested list", |root| {
        let list = |children: String| {
            format!(
                r#"{{"schemaVersion":2,"mediaType":"{}","manifests":[{children}]}}"#,
                media::MANIFEST_LIST
            )
        };
        let digest = format!("\"digest\":\"{}\"", Digest::of(b"c"));
        let inner = list(format!("{{\"runner\":\"ggml\",{digest}}}"));
        fs::write(v2(root, "u"), list(inner)).unwrap();
    }),
    ("list without a child here", |root| {
        let child = format!(
            r#"{{"mediaType":"{}","digest":"{}","runner":"ggml"}}"#,
            media::MANIFEST,
            Digest::of(b"c")
        );
        let list = format!(
            r#"{{"schemaVersion":2,"mediaType":"{}","manifests":[{child}]}}"#,
            media::MANIFEST_LIST
        );
        fs::write(v2(root, "u"), list).unwrap();
    }),
    ("dangling link", |root| {
        std::os::unix::fs::symlink("../../../../blobs/sha256-00", v2(root, "u")).unwrap()
    }),
    ("link out of the store", |root| {
        std::os::unix::fs::symlink("/etc/hostname", v2(root, "u")).unwrap()
    }),
    ("link in a circle", |root| std::os::unix::fs::symlink("latest", v2(root, "u")).unwrap()),
    ("unreadable manifest", |root| fs::write(v2(root, "u"), "{").unwrap()),
    ("damaged child", |root| {
        let digest = Digest::of(b"what it should be");
        fs::write(root.join("blobs").join(digest.file_name()), "{}").unwrap();
        let child =
            format!(r#"{{"mediaType":"{}","digest":"{digest}","runner":"ggml"}}"#, media::MANIFEST);
        let list = format!(
            r#"{{"schemaVersion":2,"mediaType":"{}","manifests":[{child}]}}"#,
            media::MANIFEST_LIST
        );
        fs::write(v2(root, "u"), list).unwrap();
    }),
    ("folder in the place of a manifest", |root| fs::create_dir_all(v2(root, "u")).unwrap()),
];

#[cfg(unix)]
#[test]
fn nothing_is_removed_while_an_entry_is_unknown() {
    for (what, make) in UNKNOWN {
        let dir = folder();
        let root = dir.path();
        every_state(root);
        let store = Store::open(root).unwrap();
        // A blob noted by Puna, an unreferenced one, and a name that is removed.
        store.add_blob(b"begun").unwrap();
        fs::write(root.join("blobs").join(Digest::of(b"orphan").file_name()), "orphan").unwrap();
        make(root);
        age_blobs(root, DAYS).unwrap();
        let before = on_disk(root);
        let blocked = |kept: Option<StoreError>| {
            let error = kept.unwrap_or_else(|| panic!("{what} is understood")).to_string();
            assert!(error.contains(&root.display().to_string()), "{what}: {error}");
        };
        blocked(store.clean_up().unwrap().blocked_by);
        let pruned = store.prune(PruneOptions { partial: true, dry_run: false }).unwrap();
        assert_eq!(pruned.removed, [], "{what}");
        blocked(pruned.blocked_by);
        blocked(store.delete(&short("old")).unwrap().blocked_by);
        store
            .store_manifest(&short("created"), &manifest_of(&store, 30), false, &mut || ())
            .unwrap();
        store.delete_unchanged(&[]).unwrap();
        let lost: Vec<_> = before.difference(&on_disk(root)).copied().collect();
        assert_eq!(lost, [], "{what}");
        // Models that could be read before can still be read.
        assert!(store.resolve(&short("list")).is_ok(), "{what}");
        // The unknown name can be removed, and then blocks nothing.
        if v2(root, "u").symlink_metadata().is_ok_and(|meta| !meta.is_dir()) {
            store.delete(&short("u")).unwrap();
            assert_eq!(store.prune(PruneOptions::default()).unwrap().blocked_by, None, "{what}");
        }
    }
}

#[test]
fn listings_match_those_of_ollama() {
    let dir = folder();
    let root = dir.path();
    every_state(root);
    assert_eq!(rows(&Store::open(root).unwrap()), ollamas_rows(root));
}

/// Names, digests and runners as Puna lists them. Ollama has a default for manifests without a
/// runner.
fn rows(store: &Store) -> BTreeSet<(String, Digest, String)> {
    let entries = store.list().unwrap().into_iter().filter(|entry| !entry.is_embedded());
    // Ollama does not list a name whose config is missing.
    let has_config =
        |row: &Entry| row.manifest.config.iter().all(|config| store.has_blob(&config.digest));
    let whole = entries.filter(|entry| entry.rows().iter().all(has_config));
    let row = |row: Entry| {
        let runner = if row.list.is_some() { row.runner.clone() } else { String::new() };
        (row.name.to_string(), row.shown_digest(), runner)
    };
    whole
        .flat_map(|entry| entry.rows())
        .map(row)
        .filter(|row| !is_ambiguous(store.root(), &short(&row.0)))
        .collect()
}

/// Whether `manifests` has a name under both spellings of the public host. Ollama 0.40 lists one
/// and runs the other.
fn is_ambiguous(root: &Path, name: &ModelName) -> bool {
    let dir =
        |host: &str| root.join("manifests").join(host).join(name.namespace()).join(name.model());
    let is_plain =
        ["registry.ollama.ai", "ollama.com"].iter().all(|host| dir(host).join(name.tag()).exists());
    is_plain && !NameFolder::ManifestsV2.path(root, name).exists()
}

fn ollamas_rows(root: &Path) -> BTreeSet<(String, Digest, String)> {
    let mut rows = BTreeSet::new();
    for row in Ollama040::new(root).rows().unwrap() {
        let name = short(&row.name);
        // Ollama 0.40.0 wrongly lists shadow tags, which only keep blobs for older versions, as
        // models.
        if is_shadow(&name) || is_ambiguous(root, &name) {
            continue;
        }
        let entry = fs::read(NameFolder::ManifestsV2.path(root, &name)).unwrap_or_default();
        let is_list = matches!(ManifestDocument::parse(&entry), Ok(ManifestDocument::List(_)));
        rows.insert((
            name.to_string(),
            row.digest,
            if is_list { row.runner } else { String::new() },
        ));
    }
    rows
}

/// An operation of Puna.
#[derive(Debug, Clone)]
enum Own {
    Pull(String, u32),
    PullList(String, [u32; 3], usize),
    Copy(String, String),
    Delete(String),
    Prune,
    CleanUp,
    Undo,
}

impl Own {
    fn pick(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Pull(random.name(), random.below(6) as u32),
            1 | 2 => Self::PullList(
                random.name(),
                [(); 3].map(|()| random.below(6) as u32),
                1 + random.below(7),
            ),
            3 => Self::Copy(random.name(), random.name()),
            4 => Self::Delete(random.name()),
            5 => Self::Prune,
            6 => Self::CleanUp,
            _ => Self::Undo,
        }
    }

    /// The names that the operation writes or removes.
    fn targets(&self) -> Vec<ModelName> {
        match self {
            Self::Pull(name, _)
            | Self::PullList(name, ..)
            | Self::Copy(_, name)
            | Self::Delete(name) => {
                vec![short(name)]
            }
            Self::Prune | Self::CleanUp | Self::Undo => vec![],
        }
    }

    /// Whether the operation copies a model to itself, which changes nothing.
    fn is_idle(&self) -> bool {
        matches!(self, Self::Copy(from, to) if short(from) == short(to))
    }

    fn apply(&self, store: &Store) -> Result<(), StoreError> {
        match self {
            Self::Pull(to, seed) => store
                .store_manifest(&short(to), &manifest_of(store, *seed), false, &mut || ())
                .map(drop),
            Self::PullList(to, seeds, present) => {
                let list = list_of(store, &distinct(seeds), *present);
                let done = store.store_manifest(&short(to), &list, false, &mut || ());
                // A failed pull unpins the blobs that it has fetched.
                if done.is_err() {
                    store.unpin_blobs(on_disk(store.root()));
                }
                done.map(drop)
            }
            Self::Copy(from, to) => store.copy(&short(from), &short(to)),
            Self::Delete(of) => store.delete(&short(of)).map(drop),
            Self::Prune => store.prune(PruneOptions { partial: true, dry_run: false }).map(drop),
            Self::CleanUp => store.clean_up().map(drop),
            Self::Undo => store.restore_trash(false).map(drop),
        }
    }
}

/// Manifests of different seeds: a list must not contain a manifest twice.
fn distinct(seeds: &[u32; 3]) -> Vec<u32> {
    let mut found = Vec::new();
    seeds.iter().for_each(|seed| found.extend((!found.contains(seed)).then_some(*seed)));
    found
}

/// The names that an operation of Ollama writes or removes.
fn targets(operation: &Operation) -> Vec<ModelName> {
    use Operation::*;
    match operation {
        Create017(to, _)
        | Pull017(to, _)
        | Copy017(_, to)
        | Remove017(to)
        | Create040(to, _)
        | PullPlain040(to, _)
        | PullList040(to, ..)
        | PullInlineList040(to, _)
        | Copy040(_, to)
        | Remove040(to)
        | Migrate040(to) => vec![short(to)],
        Start017 | Start040(_) => vec![],
    }
}

/// Runs a sequence of operations of all three programs on one store.
fn run_sequence(seed: u64) {
    let dir = folder();
    let root = dir.path();
    let mut random = Random::new(seed);
    let link = *random.pick(&[Link::Symbolic, Link::Hard, Link::Copy]);
    if random.below(4) > 0 {
        fs::create_dir_all(root.join("manifests-v2")).unwrap();
    }
    let store = Store::open(root).unwrap();
    // Names that Puna wrote last: every program must be able to load them.
    let mut written: BTreeMap<String, (Option<String>, Vec<Digest>)> = BTreeMap::new();
    let mut log = Vec::new();
    for _ in 0..14 {
        if random.below(2) == 0 {
            let operation = random.operation();
            log.push(format!("{operation:?}"));
            operation.apply(root, link).unwrap();
            targets(&operation).iter().for_each(|name| _ = written.remove(&name.full()));
        } else {
            let own = Own::pick(&mut random);
            log.push(format!("{own:?}"));
            if root.join("blobs").is_dir() && matches!(own, Own::Prune | Own::CleanUp) {
                age_blobs(root, DAYS).unwrap();
            }
            let before = on_disk(root);
            let done = own.apply(&store);
            let lost: Vec<_> =
                (&(&alive(root).unwrap() & &before) - &on_disk(root)).into_iter().collect();
            assert_eq!(lost, [], "seed {seed}: {own:?} lost what a name needs, after {log:#?}");
            for name in own.targets().into_iter().filter(|_| !own.is_idle()) {
                written.remove(&name.full());
                if done.is_ok() && !matches!(own, Own::Delete(_)) {
                    let entry = store.get(&name).unwrap();
                    let weights =
                        entry.manifest.all(media::MODEL).map(|layer| layer.digest).collect();
                    written.insert(
                        name.full(),
                        (entry.list.as_ref().map(|_| entry.runner.clone()), weights),
                    );
                }
            }
        }
        check_written(root, &store, &written, seed, &log);
    }
    check_prune_leaves_only_referenced_files(root, &store, seed, &log);
}

fn check_written(
    root: &Path,
    store: &Store,
    written: &BTreeMap<String, (Option<String>, Vec<Digest>)>,
    seed: u64,
    log: &[String],
) {
    for (name, (runner, weights)) in written {
        let context = || format!("seed {seed}: {name} after {log:#?}");
        let model =
            store.resolve(&short(name)).unwrap_or_else(|error| panic!("{error}: {}", context()));
        assert!(weights.contains(&model.weights_digest), "{}", context());
        let files = Ollama017::new(root)
            .load(name)
            .unwrap()
            .unwrap_or_else(|| panic!("0.17: {}", context()));
        assert!(
            files.iter().any(|file| *file == store.blob_path(&weights[0])),
            "0.17: {}",
            context()
        );
        assert!(
            Ollama040::new(root).load(name, runner.as_deref()).unwrap().is_some(),
            "0.40: {}",
            context()
        );
    }
}

/// If no entry is unknown, [`Store::prune`] leaves exactly the referenced blobs.
fn check_prune_leaves_only_referenced_files(root: &Path, store: &Store, seed: u64, log: &[String]) {
    if !root.join("blobs").is_dir() {
        return;
    }
    store.unpin_blobs(on_disk(root));
    // A second link to a blob in the trash would make the blob look young.
    store.empty_trash(Duration::ZERO);
    age_blobs(root, DAYS).unwrap();
    let pruned = store.prune(PruneOptions { partial: true, dry_run: false }).unwrap();
    if pruned.blocked_by.is_none() {
        let left: Vec<_> = (&on_disk(root) - &alive(root).unwrap()).into_iter().collect();
        assert_eq!(left, [], "seed {seed}: left over after {log:#?}");
    }
    // In a store without `manifests-v2`, an anchor stands for a manifest list, and 0.40 would take
    // it for one manifest.
    if store.listing().unwrap().errors.is_empty() && root.join("manifests-v2").is_dir() {
        assert_eq!(rows(store), ollamas_rows(root), "seed {seed}: after {log:#?}");
    }
}

/// `PUNA_SEQUENCES=2500` runs 10,000 sequences in all, which takes minutes.
fn sequences() -> u64 {
    std::env::var("PUNA_SEQUENCES").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

#[test]
fn random_operations_of_three_programs_lose_nothing_1() {
    (0..sequences()).for_each(run_sequence);
}

#[test]
fn random_operations_of_three_programs_lose_nothing_2() {
    (0..sequences()).for_each(|seed| run_sequence(1 << 32 | seed));
}

#[test]
fn random_operations_of_three_programs_lose_nothing_3() {
    (0..sequences()).for_each(|seed| run_sequence(2 << 32 | seed));
}

#[test]
fn random_operations_of_three_programs_lose_nothing_4() {
    (0..sequences()).for_each(|seed| run_sequence(3 << 32 | seed));
}

#[test]
fn a_manifest_list_of_a_read_only_folder_can_be_copied() {
    for is_linked in [true, false] {
        let [own, theirs] = [folder(), folder()];
        every_state(theirs.path());
        if is_linked {
            fs::create_dir_all(own.path().join("manifests-v2")).unwrap();
        }
        let store =
            Store::open(own.path()).unwrap().with_read_only_dirs([theirs.path().to_owned()]);
        store.copy(&short("whole-list"), &short("copy")).unwrap();
        let (of, copy) =
            (store.get(&short("whole-list")).unwrap(), store.get(&short("copy")).unwrap());
        assert_eq!((of.digest, of.rows().len()), (copy.digest, copy.rows().len()));
        assert!(store.resolve(&short("copy")).is_ok());
        store.copy_for(&short("whole-list"), Some("ggml"), &short("one")).unwrap();
        let one = store.get(&short("one")).unwrap();
        assert_eq!((one.list, one.runner.as_str()), (None, "ggml"));
        assert_eq!(store.prune(PruneOptions::default()).unwrap().blocked_by, None);
    }
}

#[test]
fn files_that_are_not_restored_stay_in_the_trash() {
    for is_linked in [true, false] {
        let dir = folder();
        let root = dir.path();
        if is_linked {
            fs::create_dir_all(root.join("manifests-v2")).unwrap();
        }
        let store = Store::open(root).unwrap();
        let put = |seed: u32| {
            store
                .store_manifest(&short("m"), &manifest_of(&store, seed), false, &mut || ())
                .unwrap()
        };
        let weights = || store.resolve(&short("m")).unwrap().weights_digest;
        put(1);
        let old = weights();
        store.delete(&short("m")).unwrap();
        put(2);
        let new = weights();
        let taken = store.restore_trash(false).unwrap().skipped_names;
        assert_eq!((taken.len(), weights()), (if is_linked { 2 } else { 1 }, new));
        // The newest removal wins, even within one second.
        store.delete(&short("m")).unwrap();
        store.restore_trash(false).unwrap();
        assert_eq!(weights(), new);
        fs::remove_dir_all(root.join("manifests")).unwrap();
        fs::remove_dir_all(root.join("manifests-v2")).unwrap_or_default();
        store.restore_trash(false).unwrap();
        assert_eq!(weights(), old);
    }
}

#[test]
fn a_name_in_two_spellings_is_one_name() {
    let dir = folder();
    let root = dir.path();
    let new = Ollama040::new(root);
    new.create("h:5000/n/m", &Content::sample(1)).unwrap();
    let store = Store::open(root).unwrap();
    let [coded, plain] =
        ["h%3A5000", "h:5000"].map(|host| root.join("manifests-v2").join(host).join("n/m/latest"));
    fs::create_dir_all(plain.parent().unwrap()).unwrap();
    fs::copy(&coded, &plain).unwrap();
    assert_eq!(store.list().unwrap().iter().filter(|entry| !entry.is_embedded()).count(), 1);
    store.delete(&short("h:5000/n/m")).unwrap();
    assert!(!coded.exists() && !plain.exists());
    assert_eq!(store.find(&short("h:5000/n/m")), Ok(None));
}

#[test]
fn shadow_names_are_neither_created_nor_removed() {
    let dir = folder();
    let root = dir.path();
    every_state(root);
    let store = Store::open(root).unwrap();
    let scan = crate::name_files::NameScan::of(root).unwrap();
    let shadow = scan.files.into_iter().find(|file| is_shadow(&file.name)).unwrap();
    assert!(matches!(store.delete(&shadow.name), Err(StoreError::NotFound(_))));
    assert!(shadow.path.exists());
    let name = short(&format!("mlx:{}", "c".repeat(64)));
    assert!(matches!(store.copy(&short("old"), &name), Err(StoreError::ShadowName { .. })));
}

#[cfg(unix)]
#[test]
fn models_in_symlinked_folders_load() {
    let [dir, elsewhere] = [folder(), folder()];
    let root = dir.path();
    for part in ["manifests-v2", "blobs"] {
        let target = elsewhere.path().join("far").join(part);
        fs::create_dir_all(&target).unwrap();
        std::os::unix::fs::symlink(&target, root.join(part)).unwrap();
    }
    let store = Store::open(root).unwrap();
    store.store_manifest(&short("m"), &list_of(&store, &[1, 2], 3), false, &mut || ()).unwrap();
    assert_eq!(store.get(&short("m")).unwrap().rows().len(), 2);
    assert!(Ollama040::new(root).load("m", None).unwrap().is_some());
    assert_eq!(store.prune(PruneOptions::default()).unwrap().blocked_by, None);
    store.delete(&short("m")).unwrap();
    store.restore_trash(false).unwrap();
    assert!(store.resolve(&short("m")).is_ok());
}

#[test]
fn a_manifest_is_selected_by_runner() {
    let dir = folder();
    let root = dir.path();
    every_state(root);
    let store = Store::open(root).unwrap();
    let runner =
        |of: Option<&str>| store.get_for(&short("whole-list"), of).map(|entry| entry.runner);
    assert_eq!(runner(None).unwrap(), "llamacpp");
    assert_eq!(runner(Some("GGML")).unwrap(), "ggml");
    let error = runner(Some("vulkan")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no compatible manifest found for runners: vulkan: whole-list:latest has ggml, llamacpp, mlx"
    );
    let error = store.resolve_for(&short("list"), Some("mlx")).unwrap_err().to_string();
    assert!(error.contains("pull list:latest@mlx"), "{error}");
    let ggml = Store::open(root).unwrap().with_runner(Some("ggml".into()));
    assert_eq!(ggml.get(&short("whole-list")).unwrap().runner, "ggml");
    // A child that is not in the store is not preferred to one that is.
    assert_eq!(ggml.get(&short("list")).unwrap().runner, "llamacpp");
    let listed = ggml.list().unwrap();
    let entry = listed.iter().find(|entry| entry.name == name("whole-list")).unwrap();
    assert_eq!((entry.runner.as_str(), entry.rows().len()), ("ggml", 3));
}

#[test]
fn content_that_is_no_manifest_blocks_nothing_as_the_child_of_a_list() {
    for text in
        [&b"not json"[..], br#"{"mediaType":"text/x"}"#, br#"{"schemaVersion":7,"layers":[]}"#]
    {
        let dir = folder();
        let store = Store::open(dir.path()).unwrap();
        let child = |text: &[u8], runner: &str| Child {
            digest: Digest::of(text),
            runner: runner.into(),
            format: "gguf".into(),
            inline: None,
        };
        let present = manifest_of(&store, 1);
        store.add_manifest(&present).unwrap();
        let children = vec![child(&present, "ggml"), child(text, "mlx")];
        let list = ManifestList { children }.to_bytes();
        store.store_manifest(&short("list"), &list, false, &mut || ()).unwrap();
        // A client uploads the content of the absent child.
        store.add_blob(text).unwrap();
        age_blobs(dir.path(), DAYS).unwrap();
        assert_eq!(store.clean_up().unwrap().blocked_by, None);
        assert!(store.has_blob(&Digest::of(text)), "the list keeps it");
    }
}

#[test]
fn a_name_that_garbage_collection_cannot_read_is_not_written() {
    let dir = folder();
    let store = Store::open(dir.path()).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest_of(&store, 1)).unwrap();
    for (key, value) in [
        ("manifests", serde_json::Value::Null),
        ("schemaVersion", "x".into()),
        ("schemaVersion", 7.into()),
        ("mediaType", "application/vnd.new.v1+json".into()),
    ] {
        let mut spoiled = manifest.clone();
        spoiled[key] = value;
        let text = spoiled.to_string();
        let written = store.store_manifest(&short("spoiled"), text.as_bytes(), false, &mut || ());
        assert!(matches!(written, Err(StoreError::Manifest { .. })), "{text}: {written:?}");
        assert!(store.find(&short("spoiled")).unwrap().is_none());
    }
    assert_eq!(store.clean_up().unwrap().blocked_by, None);
}
