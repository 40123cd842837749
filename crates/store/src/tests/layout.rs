//! Tests of listing, lookups, copying, deleting and pruning, also in stores that other programs
//! wrote or damaged.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use super::{Kit, from_model, gguf, name};
use crate::manifest::{Layer, Manifest, media};
use crate::{
    Digest, Leftover, LeftoverKind, NewBlob, PartialPath, PruneOptions, PruneOutcome, Store,
    StoreError, Weights, embedded,
};

#[test]
fn reading_an_absent_store_finds_it_empty_and_creates_nothing() {
    let kit = Kit::new();
    assert_eq!(kit.names(), ["cria:latest"]);
    assert_eq!(kit.store.find(&name("m")), Ok(None));
    assert_eq!(
        kit.store.resolve(&name("m")).unwrap_err().to_string(),
        "model 'm:latest' not found"
    );
    assert!(!kit.root().exists());
}

#[test]
fn a_store_written_by_another_program_is_read() {
    let kit = Kit::new();
    // A manifest as a registry may send it: spaces, unknown keys, another order.
    let blob = kit.upload(1);
    let text = format!(
        r#"{{ "layers": [{{"size":{}, "digest":"{}","mediaType":"{}","annotations":{{"x":"y"}}}}], "schemaVersion": 2 }}"#,
        blob.size,
        blob.digest,
        media::MODEL
    );
    let path = kit.root().join("manifests/registry.ollama.ai/library/theirs/8b");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, &text).unwrap();
    let entry = kit.store.get(&name("theirs:8b")).unwrap();
    assert_eq!((entry.digest, entry.size()), (Digest::of(text.as_bytes()), blob.size));
    let model = kit.store.resolve(&name("THEIRS:8B")).unwrap();
    assert_eq!(model.weights, Weights::File(kit.store.blob_path(&blob.digest)));
    assert_eq!(model.details().family, "llama");
    kit.store.copy(&name("theirs:8b"), &name("mine")).unwrap();
    let copy = kit.root().join("manifests/registry.ollama.ai/library/mine/latest");
    assert_eq!(fs::read_to_string(copy).unwrap(), text);
}

#[test]
fn names_are_found_in_any_case_and_keep_their_first_spelling() {
    let kit = Kit::new();
    kit.model("Up/Case:TAG", 1);
    assert_eq!(kit.store.get(&name("up/case:tag")).unwrap().name.to_string(), "Up/Case:TAG");
    kit.model("UP/case:tag", 2);
    assert_eq!(kit.names(), ["Up/Case:TAG", "cria:latest"]);
    kit.model("up/CASE:other", 3);
    assert_eq!(kit.names(), ["Up/Case:TAG", "Up/Case:other", "cria:latest"]);
    kit.store.delete(&name("up/case:tag")).unwrap();
    assert_eq!(kit.names(), ["Up/Case:other", "cria:latest"]);
}

#[test]
fn newest_models_come_first() {
    let kit = Kit::new();
    for (i, model) in ["a", "b", "c"].into_iter().enumerate() {
        kit.model(model, i as u32);
        let path =
            kit.root().join("manifests/registry.ollama.ai/library").join(model).join("latest");
        let time = SystemTime::now() - Duration::from_secs(10 * i as u64);
        File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    }
    let names: Vec<_> = kit.store.list().unwrap().iter().map(|e| e.name.to_string()).collect();
    assert_eq!(names, ["a:latest", "b:latest", "c:latest", "cria:latest"]);
}

#[test]
fn a_blob_is_removed_with_the_last_model_that_uses_it() {
    let kit = Kit::new();
    let blob = kit.model("a", 1);
    kit.store.copy(&name("a"), &name("me/b:x")).unwrap();
    kit.store.copy(&name("a"), &name("A")).unwrap();
    kit.store.delete(&name("a")).unwrap();
    assert!(kit.store.has_blob(&blob));
    kit.store.resolve(&name("me/b:x")).unwrap();
    kit.store.delete(&name("me/b:x")).unwrap();
    assert_eq!(kit.blob_count(), 0);
    assert_eq!(
        fs::read_dir(kit.root().join("manifests")).unwrap().count(),
        0,
        "empty folders go too"
    );
    assert_eq!(kit.store.delete(&name("a")), Err(StoreError::NotFound("a:latest".into())));
}

#[test]
fn broken_manifests_are_skipped_block_pruning_and_can_be_removed() {
    let kit = Kit::new();
    let blob = kit.model("a", 1);
    let broken = kit.root().join("manifests/registry.ollama.ai/library/bad/latest");
    fs::create_dir_all(broken.parent().unwrap()).unwrap();
    fs::write(&broken, "{\"layers\":[{\"digest\":\"sha256:../../../../etc/passwd\"}]}").unwrap();
    assert_eq!(kit.names(), ["a:latest", "cria:latest"]);
    let error = kit.store.resolve(&name("bad")).unwrap_err();
    assert!(matches!(&error, StoreError::Manifest { path, .. } if *path == broken), "{error}");
    kit.store.delete(&name("a")).unwrap();
    assert!(kit.store.has_blob(&blob), "the broken one might use it");
    kit.store.delete(&name("bad")).unwrap();
    assert!(!broken.exists());
}

#[test]
fn files_that_are_no_manifests_are_left_alone() {
    let kit = Kit::new();
    kit.model("a", 1);
    let library = kit.root().join("manifests/registry.ollama.ai/library");
    fs::write(library.join(".DS_Store"), "x").unwrap();
    fs::write(library.join("a/.DS_Store"), "x").unwrap();
    fs::create_dir_all(library.join("a/deep/er")).unwrap();
    fs::write(library.join("a/deep/er/file"), "x").unwrap();
    assert_eq!(kit.names(), ["a:latest", "cria:latest"]);
    assert!(kit.store.listing().unwrap().errors.is_empty());
    // A folder in place of a manifest is unknown, so blobs stay.
    let deleted = kit.store.delete(&name("a")).unwrap();
    let path = library.join("a/deep");
    assert_eq!(deleted.blocked_by, Some(StoreError::UnknownEntry { path }));
    assert!(library.join("a/.DS_Store").exists());
}

#[test]
fn a_stored_model_hides_the_embedded_model_of_its_name() {
    let kit = Kit::new();
    let entry = kit.store.get(&name("CRIA")).unwrap();
    let model = kit.store.resolve_entry(&entry).unwrap();
    assert_eq!(model.weights, Weights::Embedded);
    assert_eq!(model.capabilities(), ["completion", "tools", "insert", "thinking"]);
    assert_eq!(model.details().parameter_size, "5.77M");
    let error = kit.store.delete(&name("cria")).unwrap_err().to_string();
    assert!(error.starts_with("cria:latest is built into this program"), "{error}");
    kit.store.copy(&name("cria"), &name("mine")).unwrap();
    let mine = kit.store.resolve(&name("mine")).unwrap();
    assert_eq!(
        (mine.digest, mine.template, mine.params),
        (entry.digest, model.template, model.params)
    );
    assert_eq!(kit.store.verify_blob(&mine.weights_digest), Ok(embedded::weights().len() as u64));
    kit.model("cria", 7);
    let theirs = kit.store.resolve(&name("cria")).unwrap();
    assert!(matches!(theirs.weights, Weights::File(_)));
    assert_eq!(kit.names(), ["cria:latest", "mine:latest"]);
    kit.store.delete(&name("cria")).unwrap();
    assert_eq!(kit.store.resolve(&name("cria")).unwrap().weights, Weights::Embedded);
}

#[test]
fn a_missing_blob_is_named_with_its_model() {
    let kit = Kit::new();
    let blob = kit.model("a", 1);
    fs::remove_file(kit.store.blob_path(&blob)).unwrap();
    let error = kit.store.resolve(&name("a")).unwrap_err();
    assert_eq!(error, StoreError::Incomplete { name: "a:latest".into(), digest: blob });
    assert!(!error.is_bad_request() && error.to_string().contains("create it again"), "{error}");
    assert_eq!(kit.store.copy(&name("a"), &name("b")), Err(error));
    assert_eq!(kit.names(), ["a:latest", "cria:latest"]);
    assert_eq!(kit.store.delete(&name("a")).unwrap().blocked_by, None);
}

#[test]
fn hostile_layers_affect_only_their_model() {
    let kit = Kit::new();
    let blob = kit.upload(1);
    for (i, (media_type, bytes)) in [
        (media::PARAMS, &b"[1]"[..]),
        (media::PARAMS, b"{"),
        (media::MESSAGES, b"{}"),
        (media::TEMPLATE, b"\xff"),
        (media::CONFIG, b"[]"),
        (media::MODEL, b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f"),
    ]
    .into_iter()
    .enumerate()
    {
        let bad = kit.store.add_blob(bytes).unwrap();
        let bad = Layer::new(media_type, bad.digest, bad.size);
        let mut manifest = Manifest {
            config: None,
            layers: vec![Layer::new(media::MODEL, blob.digest, blob.size)],
        };
        match media_type {
            media::CONFIG => manifest.config = Some(bad),
            _ => manifest.layers.push(bad),
        }
        let model = name(&format!("m{i}"));
        kit.store.write_manifest(&model, &manifest.to_bytes(), false).unwrap();
        assert!(kit.store.resolve(&model).is_err(), "{i}");
    }
    assert_eq!(kit.names().len(), 7);
}

fn prune(kit: &Kit) -> PruneOutcome {
    kit.store.prune(PruneOptions::default()).unwrap()
}

#[test]
fn interrupted_downloads_are_pruned_on_request() {
    let kit = Kit::new();
    let (idle, running) = (Digest::of(b"idle"), Digest::of(b"running"));
    for digest in [&idle, &running] {
        let partial = kit.store.partial(digest).unwrap();
        fs::write(partial.data(), "x").unwrap();
        partial.write_part(0, b"{}").unwrap();
        for path in [partial.data().to_owned(), partial.part(0)] {
            let time = SystemTime::now() - Duration::from_secs(90);
            File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        }
    }
    let _lock = kit.store.lock_download(&running).unwrap();
    assert_eq!(prune(&kit).removed.len(), 0);
    let pruned =
        kit.store.prune(PruneOptions { partial: true, ..PruneOptions::default() }).unwrap();
    assert_eq!((pruned.removed.len(), pruned.in_use), (2, 2));
    assert!(!kit.store.partial(&idle).unwrap().data().exists());
    assert!(kit.store.partial(&running).unwrap().data().exists());
}

#[test]
fn secondary_and_private_downloads_are_pruned_like_interrupted_ones() {
    for path in [PartialPath::Secondary, PartialPath::Private(0xfeed)] {
        check_pruning_of(path);
    }
}

fn check_pruning_of(path: PartialPath) {
    let kit = Kit::new();
    let (idle, running) = (Digest::of(b"idle"), Digest::of(b"running"));
    let _lock = kit.store.lock_download_at(&running, path).unwrap();
    let made = |seconds: u64| {
        for digest in [&idle, &running] {
            let partial = kit.store.partial_at(digest, path).unwrap();
            fs::write(partial.data(), "x").unwrap();
            partial.write_part(0, b"{}").unwrap();
            [partial.data().to_owned(), partial.part(0)]
                .iter()
                .for_each(|path| make_old(path, seconds));
        }
    };
    let there = |digest| {
        let partial = kit.store.partial_at(digest, path).unwrap();
        (partial.data().exists(), partial.parts().unwrap().len())
    };
    let week = 7 * 24 * 3600;
    for (age, options, idle_stays) in [
        (week, PruneOptions::default(), (true, 1)),
        (90, PruneOptions { partial: true, ..PruneOptions::default() }, (false, 0)),
        (3 * week, PruneOptions::default(), (false, 0)),
    ] {
        made(age);
        kit.store.prune(options).unwrap();
        assert_eq!((there(&idle), there(&running)), (idle_stays, (true, 1)), "{age}");
    }
}

#[test]
fn leftovers_of_failed_work_are_pruned_on_request_unless_locked() {
    let kit = Kit::new();
    let blob = kit.store.blob_path(&kit.upload(1).digest);
    let temp = crate::files::TempFile::new(&kit.root()).unwrap();
    let left = kit.root().join("puna-tmp/left");
    fs::write(&left, "x").unwrap();
    let make_older = || {
        for entry in fs::read_dir(kit.root().join("puna-tmp")).unwrap() {
            let time = SystemTime::now() - Duration::from_secs(90);
            if let Ok(file) = File::options().append(true).open(entry.unwrap().path()) {
                file.set_modified(time).unwrap();
            }
        }
        let time = SystemTime::now() - Duration::from_secs(90);
        File::options().append(true).open(&blob).unwrap().set_modified(time).unwrap();
    };
    make_older();
    let partial = PruneOptions { partial: true, ..PruneOptions::default() };
    let sweep = |options| {
        kit.store.prune(options).map(|pruned| (pruned.removed.len(), pruned.young, pruned.in_use))
    };
    assert_eq!(sweep(PruneOptions::default()), Ok((0, 1, 0)));
    // Stands for another process, which has pinned nothing here.
    let other = Store::open(kit.root()).unwrap();
    let work = other.begin_work();
    assert_eq!(sweep(partial), Ok((1, 0, 1)), "what is left of a file that was being written");
    assert!(!left.exists() && blob.exists());
    drop(work);
    make_older();
    assert_eq!(sweep(partial), Ok((1, 0, 0)));
    assert!(!blob.exists() && super::temp_files(&kit.root()) == 2);
    drop(temp);
}

/// Sets a file's time to some seconds ago.
fn make_old(path: &std::path::Path, seconds: u64) {
    let time = SystemTime::now() - Duration::from_secs(seconds);
    File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

/// The lock files of running work.
fn works(kit: &Kit) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(kit.root().join("puna-tmp")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "work")).collect()
}

#[test]
fn blobs_of_running_work_stay_for_its_whole_duration() {
    let kit = Kit::new();
    let hour = 3600;
    // Another process has been importing for five hours.
    let other = Store::open(kit.root()).unwrap();
    let work = other.begin_work();
    make_old(&works(&kit)[0], 5 * hour);
    let _later = other.begin_work();
    let blobs = kit.root().join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let orphan = |bytes: &[u8], hours: u64| {
        let path = blobs.join(Digest::of(bytes).file_name());
        fs::write(&path, bytes).unwrap();
        make_old(&path, hours * hour);
        path
    };
    let (before, since) = (orphan(b"before", 7), orphan(b"since", 4));
    let pruned = prune(&kit);
    assert!(!before.exists() && since.exists());
    assert_eq!((pruned.removed.len(), pruned.in_use, pruned.young), (1, 1, 0));
    // A killed process has left its lock file; only one work is running.
    let left = kit.root().join("puna-tmp/killed.work");
    fs::write(&left, "").unwrap();
    make_old(&left, 5 * hour);
    drop(work);
    let pruned = prune(&kit);
    assert!(!since.exists() && !left.exists());
    assert_eq!((pruned.removed.len(), pruned.in_use), (2, 0));
    assert_eq!(works(&kit).len(), 1, "who works on is left alone");
}

#[test]
fn upload_notes_are_pruned_on_request_unless_locked() {
    let kit = Kit::new();
    let key = Digest::of(b"an upload");
    let record = kit.store.upload_record_file(&key).unwrap().unwrap();
    record.write(b"here").unwrap();
    let path = kit.root().join(format!("puna-tmp/{}.push", key.hex()));
    make_old(&path, 90);
    let partial = PruneOptions { partial: true, ..PruneOptions::default() };
    assert_eq!(kit.store.prune(partial).unwrap().removed, []);
    drop(record);
    assert_eq!(prune(&kit).removed, [], "it may go on");
    assert_eq!(kit.store.prune(partial).unwrap().removed.len(), 1);
    assert!(!path.exists());
}

#[test]
fn pruning_keeps_used_recent_and_foreign_files() {
    let kit = Kit::new();
    let used = kit.model("a", 1);
    let blobs = kit.root().join("blobs");
    let old = |path: &std::path::Path, hours: u64| {
        let time = SystemTime::now() - Duration::from_secs(3600 * hours);
        File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
    };
    let orphan = |bytes: &[u8]| {
        let path = blobs.join(Digest::of(bytes).file_name());
        fs::write(&path, bytes).unwrap();
        path
    };
    let (young, aged, ancient) = (
        orphan(b"young"),
        orphan(b"aged"),
        blobs.join(format!("sha256:{}", Digest::of(b"x").hex())),
    );
    let partial = blobs.join(format!("{}-partial", Digest::of(b"more").file_name()));
    let stranger = blobs.join("notes.txt");
    for path in [&ancient, &partial, &stranger] {
        fs::write(path, "x").unwrap();
    }
    for path in [&aged, &partial, &stranger, &kit.store.blob_path(&used)] {
        old(path, 2);
    }
    // An unknown entry may need any blob.
    let blocked = prune(&kit);
    assert_eq!(
        (blocked.removed, blocked.blocked_by),
        (vec![], Some(StoreError::UnknownEntry { path: stranger.clone() }))
    );
    assert!(aged.exists() && ancient.exists());
    fs::remove_file(&stranger).unwrap();
    let dry = kit.store.prune(PruneOptions { dry_run: true, ..PruneOptions::default() }).unwrap();
    assert!(aged.exists() && ancient.exists());
    let pruned = prune(&kit);
    assert_eq!(dry.removed, pruned.removed);
    let file = aged.strip_prefix(kit.root()).unwrap().to_owned();
    assert_eq!(pruned.removed, [Leftover { file, kind: LeftoverKind::Blob, bytes: 4 }]);
    assert!(!aged.exists() && young.exists() && partial.exists());
    assert!(
        kit.store.has_blob(&used)
            && blobs.join(Digest::of(b"x").file_name()).exists()
            && !ancient.exists()
    );
    old(&partial, 24 * 15);
    assert_eq!(prune(&kit).removed.len(), 1);
    // One unreadable manifest blocks pruning.
    old(&young, 2);
    fs::write(kit.root().join("manifests/registry.ollama.ai/library/a/bad"), "{").unwrap();
    assert_eq!(prune(&kit).removed.len(), 0);
    assert!(young.exists());
}

#[test]
fn finished_blobs_of_an_interrupted_pull_stay_with_it() {
    let kit = Kit::new();
    let (here, coming) = (kit.store.add_blob(b"here").unwrap().digest, Digest::of(b"to come"));
    let layers = vec![Layer::new(media::MODEL, coming, 7), Layer::new(media::PROJECTOR, here, 4)];
    kit.store.record_pull(&name("m"), &Manifest { config: None, layers }.to_bytes()).unwrap();
    let path = kit.store.blob_path(&here);
    let old = |hours: u64| {
        let time = SystemTime::now() - Duration::from_secs(3600 * hours);
        File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    old(24 * 13);
    assert_eq!(prune(&kit).removed, []);
    old(24 * 15);
    assert_eq!(prune(&kit).removed.len(), 1);
    // With `partial`, all interrupted downloads are removed.
    assert_eq!(kit.store.add_blob(b"here").unwrap().digest, here);
    old(2);
    assert_eq!(prune(&kit).removed, []);
    let all = PruneOptions { partial: true, ..PruneOptions::default() };
    assert_eq!(kit.store.prune(all).unwrap().removed.len(), 1);
}

#[test]
fn an_unusable_store_reports_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = Store::open(&file).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("cannot open the store") && error.contains("file"), "{error}");
    let full = StoreError::io("write", &file, &std::io::ErrorKind::StorageFull.into()).to_string();
    assert!(full.contains("free some space"), "{full}");
    assert!(!full.contains(dir.path().to_str().unwrap()), "clients get this message: {full}");
    let denied =
        StoreError::io("write", &file, &std::io::ErrorKind::PermissionDenied.into()).to_string();
    assert!(denied.contains("OLLAMA_MODELS"), "{denied}");
}

#[test]
fn a_blob_that_is_being_used_is_not_removed_by_a_delete() {
    let kit = Kit::new();
    let blob = kit.model("a", 1);
    // The same weights are uploaded for a new model while the only model with them is deleted.
    assert!(!kit.upload(1).is_new);
    kit.store.delete(&name("a")).unwrap();
    assert!(kit.store.has_blob(&blob));
    kit.create("b", &super::from_files(&[("m.gguf", blob)])).unwrap();
    kit.store.resolve(&name("b")).unwrap();
}

#[test]
fn a_linked_file_outside_the_store_is_a_model_and_is_not_deleted() {
    let kit = Kit::new();
    let file = kit.dir.path().join("some.gguf");
    fs::write(&file, super::gguf(1)).unwrap();
    kit.store.link_file(&name("some"), &file).unwrap();
    let model = kit.store.resolve(&name("some")).unwrap();
    assert_eq!(model.details().quantization_level, "F32");
    let Weights::File(path) = &model.weights else { panic!("not embedded") };
    assert_eq!(fs::read(path).unwrap(), super::gguf(1));
    kit.store.delete(&name("some")).unwrap();
    assert!(file.exists());
    assert!(kit.store.link_file(&name("x"), &kit.dir.path().join("absent")).is_err());
}

#[test]
fn concurrent_writers_leave_every_model_complete() {
    let kit = Kit::new();
    kit.model("base", 0);
    let root = kit.root();
    std::thread::scope(|scope| {
        for worker in 0..4u32 {
            let root = root.clone();
            scope.spawn(move || {
                // Each thread has its own store, like a process.
                let store = Store::open(root).unwrap();
                for round in 0..8u32 {
                    let own = name(&format!("own-{worker}"));
                    let mut request = from_model("base");
                    request.system = Some(format!("{}", (worker + round) % 3));
                    let shared = name("shared");
                    for target in [&own, &shared] {
                        // Another thread may have removed a blob between its upload and the
                        // manifest. The error must say so, and no model is incomplete.
                        match store.create(
                            target,
                            &request,
                            &crate::CreateHooks::default(),
                            &mut |_| {},
                        ) {
                            Ok(()) | Err(StoreError::BlobMissing(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    if round % 3 == 2 {
                        let _ = store.delete(&own);
                    }
                }
            });
        }
    });
    for entry in kit.store.list().unwrap() {
        let model = kit.store.resolve_entry(&entry).unwrap();
        for layer in entry.manifest.blobs().filter(|_| !entry.is_embedded()) {
            kit.store.verify_blob(&layer.digest).unwrap();
        }
        assert!(entry.is_embedded() || entry.name.model() == "base" || model.system.is_some());
    }
    assert_eq!(prune(&kit).removed.len(), 0);
}

#[cfg(unix)]
#[test]
fn files_that_cannot_be_manifests_are_reported_and_can_be_removed() {
    let kit = Kit::new();
    kit.model("a", 1);
    let path = kit.root().join("manifests/registry.ollama.ai/library/a/latest");
    let pipe = |path: &std::path::Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let circle = |path: &std::path::Path| std::os::unix::fs::symlink(path, path).unwrap();
    let large =
        |path: &std::path::Path| std::fs::File::create(path).unwrap().set_len(33 << 20).unwrap();
    let makes: [&dyn Fn(&std::path::Path); 3] = [&pipe, &circle, &large];
    for (make, said) in
        makes.into_iter().zip(["it is not a regular file", "symbolic link", "at most"])
    {
        let _ = std::fs::remove_file(&path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        make(&path);
        let error = kit.store.find(&name("a")).unwrap_err().to_string();
        assert!(error.contains("a/latest: bad manifest: ") && error.contains(said), "{error}");
        kit.store.delete(&name("a")).unwrap();
        assert!(std::fs::symlink_metadata(&path).is_err());
    }
}

#[test]
fn an_unreadable_manifest_that_blocks_pruning_is_reported() {
    let kit = Kit::new();
    let weights = kit.model("a", 1);
    kit.model("bad", 2);
    let path = kit.root().join("manifests/registry.ollama.ai/library/bad/latest");
    std::fs::write(&path, "{").unwrap();
    let listed = kit.store.listing().unwrap();
    let (entries, broken) = (&listed.entries, &listed.errors);
    assert_eq!((entries.len(), broken.len()), (2, 1));
    let kept = kit.store.delete(&name("a")).unwrap().blocked_by.expect("it was kept");
    assert!(kept.to_string().contains("bad/latest: bad manifest"), "{kept}");
    assert!(kit.store.has_blob(&weights));
    assert_eq!(kit.store.delete(&name("bad")).unwrap().blocked_by, None);
    assert!(kit.store.is_first_report("x") && !kit.store.is_first_report("x"));
}

#[test]
fn an_invalid_layer_is_named_without_its_path() {
    let kit = Kit::new();
    let mut weights = gguf(1);
    weights.truncate(weights.len() / 2);
    let blobs = [&gguf(2)[..], &weights, b"{}", b"\xff", b"[1]"]
        .map(|data| kit.store.add_blob(data).unwrap());
    let [good, truncated, junk, bytes, list] = &blobs;
    let file = kit.root().join("manifests/registry.ollama.ai/library/bad/latest");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    type Layers<'a> = &'a [(&'a str, &'a NewBlob)];
    let cases: [(Layers<'_>, &NewBlob, &str); 7] = [
        (&[("model", truncated)], truncated, "model layer"),
        (&[("model", junk)], junk, "model layer"),
        (&[("model", good), ("projector", junk)], junk, "projector layer"),
        (&[("model", good), ("template", bytes)], bytes, "template layer"),
        (&[("model", good), ("system", bytes)], bytes, "system layer"),
        (&[("model", good), ("params", list)], list, "params layer"),
        (&[("model", good), ("messages", junk)], junk, "messages layer"),
    ];
    for (layers, bad, wanted) in cases {
        let layers = layers.iter().map(|(kind, blob)| {
            format!(
                r#"{{"mediaType":"application/vnd.ollama.image.{kind}","digest":"{}","size":{}}}"#,
                blob.digest, blob.size
            )
        });
        let layers = layers.collect::<Vec<_>>().join(",");
        fs::write(&file, format!(r#"{{"schemaVersion":2,"layers":[{layers}]}}"#)).unwrap();
        let error = kit.store.resolve(&name("bad")).unwrap_err();
        let text = error.to_string();
        let wanted =
            format!("cannot use bad:latest: its {wanted} {} is invalid: ", bad.digest.short());
        assert!(error.is_bad_request() && text.starts_with(&wanted), "{text}");
        assert!(!text.contains(&*kit.root().to_string_lossy()), "{text}");
    }
    fs::write(&file, r#"{"schemaVersion":2,"layers":[]}"#).unwrap();
    let error = kit.store.resolve(&name("bad")).unwrap_err();
    assert!(error.is_bad_request() && error.to_string().contains("no model layer"), "{error}");
}
