mod manifest_lists;
mod races;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Store};

use super::plan::{Plan, plan};
use super::{Rule, apply_retention};
use crate::retention::usage_log::{ChangeSource, SECONDS_PER_DAY, UsageLog, UsageTimes};
use crate::storage::{FileStorage, Storage};
use crate::types::manifest::{Manifest, OCI_MANIFEST};
use crate::types::repository::{Reference, Repository};
use crate::types::stored_object::{Owner, StoredObject, TagEntry};

/// An arbitrary day, in seconds since 1970.
const NOW: u64 = 20_000 * SECONDS_PER_DAY;

fn named(name: &str) -> Repository {
    Repository::parse(name).unwrap()
}

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn digest(of: &str) -> Digest {
    Digest::of(of.as_bytes())
}

#[test]
fn rules_round_trip_through_text() {
    for text in
        ["team-*=last:5 pulled:30d keep:latest keep:v* own", "anna=all", "hf.co/u/r*=last:1"]
    {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
    }
    assert_eq!("*=pulled:2w".parse::<Rule>().unwrap().pulled, Some(14));
    for bad in [
        "",
        "last:5",
        "=last:5",
        "a b=last:5",
        "a**=last:5",
        "a=",
        "a=keep:latest",
        "a=own",
        "a=last:0",
        "a=last:-1",
        "a=last:x",
        "a=pulled:30",
        "a=pulled:0d",
        "a=pulled:99999d",
        "a=pulled:99999999999999999999w",
        "a=pulled:3h",
        "a=all last:5",
        "a=all own",
        "a=last:5 keep:",
        "a=last:5 keep:a/b",
        "a=last:5 newest:3",
    ] {
        let error = bad.parse::<Rule>().expect_err(bad);
        assert!(error.contains("write rules such as"), "{error}");
    }
}

/// Contents of a storage: tags that were used a number of days ago.
#[derive(Default)]
struct Contents {
    entries: Vec<TagEntry>,
    stored_objects: Vec<StoredObject>,
    last_used: Vec<(Repository, Option<String>, u64)>,
    brought: bool,
}

impl Contents {
    /// Adds a tag that arrived and was used `days` days ago.
    fn tag(&mut self, name: &str, tag: &str, of: &str, days: u64) -> &mut TagEntry {
        let (name, digest) = (named(name), digest(of));
        if !self
            .stored_objects
            .iter()
            .any(|held| held.manifest == Some(digest) && held.name == name)
        {
            self.manifest(name.as_str(), of);
        }
        self.last_used.push((name.clone(), Some(tag.to_owned()), days));
        let (tag, size, owner) = (tag.to_owned(), 100, Owner::Registry);
        self.entries.push(TagEntry {
            name,
            tag,
            digest,
            size,
            completed: None,
            owner,
            written: None,
        });
        self.entries.last_mut().unwrap()
    }

    /// Adds a manifest with one blob of its own and one shared blob.
    fn manifest(&mut self, name: &str, of: &str) -> &mut StoredObject {
        let (name, manifest) = (named(name), Some(digest(of)));
        let blobs = vec![(digest(&format!("{of}'s weights")), 100), (digest("license"), 7)];
        self.stored_objects.push(StoredObject {
            name,
            manifest,
            blobs,
            is_model: false,
            children: Vec::new(),
            subject: None,
            written: None,
        });
        self.stored_objects.last_mut().unwrap()
    }

    fn plan(&self, texts: &[&str]) -> Plan {
        let ask = |name: &Repository, tag: Option<&str>, _: Digest| {
            let is = |known: &&(Repository, Option<String>, u64)| {
                known.0 == *name && known.1.as_deref() == tag
            };
            let days = self.last_used.iter().find(is).map_or(0, |known| known.2);
            UsageTimes {
                arrived: NOW - days * SECONDS_PER_DAY,
                last_used: NOW - days * SECONDS_PER_DAY,
                is_from_mirror: self.brought,
            }
        };
        plan(&rules(texts), &self.entries, &self.stored_objects, NOW, &ask)
    }

    /// Tags that the rules remove, and the bytes each frees.
    fn gone(&self, texts: &[&str]) -> Vec<(String, u64)> {
        let removals = self.plan(texts).removals;
        removals
            .into_iter()
            .map(|removal| (removal.tag.unwrap_or("-".into()), removal.bytes))
            .collect()
    }
}

fn gone(tags: &[(&str, u64)]) -> Vec<(String, u64)> {
    tags.iter().map(|(tag, bytes)| ((*tag).to_owned(), *bytes)).collect()
}

/// `v1` is the oldest of seven tags, and `latest` points to the manifest of the newest one.
fn seven() -> Contents {
    let mut contents = Contents::default();
    for n in 1..=7 {
        contents.tag("team/m", &format!("v{n}"), &format!("m{n}"), 80 - 10 * n);
    }
    contents.tag("team/m", "latest", "m7", 10);
    contents
}

#[test]
fn repositories_without_a_rule_keep_everything() {
    let mut contents = seven();
    contents.tag("teams/m", "old", "t", 900);
    assert_eq!(contents.gone(&[]), []);
    assert_eq!(contents.gone(&["te=last:1", "other*=last:1"]), []);
    // The first matching rule applies.
    assert_eq!(contents.gone(&["team/m=all", "teams=last:1", "*=last:1"]), []);
    assert_eq!(contents.gone(&["team=all", "*=pulled:30d"]), gone(&[("old", 100)]));
}

#[test]
fn the_newest_tags_stay() {
    // Both tags of the newest manifest count among the three.
    let all = [("v1", 100), ("v2", 100), ("v3", 100), ("v4", 100), ("v5", 100)];
    assert_eq!(seven().gone(&["team=last:3"]), gone(&all));
    // A tag that is kept by its name does not count among the newest.
    assert_eq!(seven().gone(&["team=last:3 keep:latest keep:v2"]), gone(&[all[0], all[2], all[3]]));
    assert_eq!(seven().gone(&["team=last:9"]), []);
    assert_eq!(seven().plan(&["team=last:3"]).removals[0].reason, "not among the newest 3");
    // Of tags that arrived at the same time, the one written last stays.
    let mut contents = Contents::default();
    for (tag, written) in [("a", 3), ("b", 9), ("c", 5)] {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(written);
        contents.tag("team/m", tag, tag, 2).written = Some(at);
    }
    assert_eq!(contents.gone(&["team=last:1"]), gone(&[("a", 100), ("c", 100)]));
}

#[test]
fn recently_pulled_tags_stay_in_addition_to_the_newest() {
    assert_eq!(
        seven().gone(&["team=pulled:30d"]),
        gone(&[("v1", 100), ("v2", 100), ("v3", 100), ("v4", 100), ("v5", 100)])
    );
    // Five tags are newer than v2, which was pulled 60 days ago.
    assert_eq!(seven().gone(&["team=last:5 pulled:65d"]), gone(&[("v1", 100)]));
    let plan = seven().plan(&["team=last:5 pulled:65d"]);
    assert_eq!(plan.removals[0].reason, "not among the newest 5, not pulled for 70 days");
    // Nothing is removed within its first day.
    let mut contents = Contents::default();
    for tag in ["a", "b", "c"] {
        contents.tag("ci/m", tag, tag, 0);
    }
    assert_eq!(contents.gone(&["ci=last:1"]), []);
}

#[test]
fn user_models_stay_unless_a_rule_has_own() {
    let mut contents = Contents::default();
    for (tag, owner) in
        [("mine", Owner::Store), ("share", Owner::ReadOnly), ("pushed", Owner::Registry)]
    {
        contents.tag("library/m", tag, tag, 90).owner = owner;
    }
    for held in &mut contents.stored_objects {
        held.is_model = held.manifest != Some(digest("pushed"));
    }
    let plan = contents.plan(&["library=pulled:30d"]);
    assert_eq!((plan.removals.len(), plan.kept_local_models), (1, 1));
    assert_eq!(contents.gone(&["library=pulled:30d own"]), gone(&[("mine", 100), ("pushed", 100)]));
    // A model that a mirror has fetched is the mirror's, unless another program wrote it later.
    contents.brought = true;
    assert_eq!(contents.plan(&["library=pulled:30d"]).removals.len(), 2);
    contents.entries[0].written =
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(NOW - 80 * SECONDS_PER_DAY));
    assert_eq!(contents.plan(&["library=pulled:30d"]).kept_local_models, 1);
}

#[test]
fn tags_in_flight_stay() {
    let mut contents = seven();
    contents.tag("team/m", "v1", "new", 0).completed = Some(5);
    assert_eq!(contents.gone(&["team=last:5"]), gone(&[("v2", 100), ("v3", 100)]));
}

#[test]
fn manifests_are_removed_with_their_last_tag_unless_a_list_needs_them() {
    let mut contents = Contents::default();
    contents.tag("a/m", "old", "m", 50);
    contents.tag("a/m", "older", "m", 60);
    contents.tag("a/m", "child", "c", 60);
    contents.tag("a/m", "list", "l", 2);
    contents.stored_objects.last_mut().unwrap().children = vec![digest("c"), digest("deep")];
    contents.manifest("a/m", "deep");
    contents.manifest("a/m", "signature").subject = Some(digest("deep"));
    contents.manifest("a/m", "lost");
    contents.manifest("a/m", "note of m").subject = Some(digest("m"));
    for digest_of in ["deep", "signature", "lost", "note of m"] {
        assert!(
            contents.stored_objects.iter().any(|held| held.manifest == Some(digest(digest_of)))
        );
    }
    contents.last_used.push((named("a/m"), None, 40));
    let plan = contents.plan(&["a=pulled:30d"]);
    let found: Vec<_> =
        plan.removals.iter().map(|r| (r.tag.as_deref(), r.removes_manifest, r.bytes)).collect();
    let expected = [
        (Some("child"), false, 0),
        (Some("old"), false, 0),
        (Some("older"), true, 100),
        (None, true, 100),
        (None, true, 100),
    ];
    assert_eq!(found, expected);
    assert_eq!(plan.removals[3].reason, "no tag, not pulled for 40 days");
}

#[test]
fn a_long_chain_of_references_is_followed_once() {
    let mut contents = Contents::default();
    contents.tag("a/m", "t", "0", 0);
    for n in (1..2000).rev() {
        contents.manifest("a/m", &n.to_string()).subject = Some(digest(&(n - 1).to_string()));
    }
    contents.last_used.push((named("a/m"), None, 40));
    assert_eq!(contents.gone(&["a=pulled:30d"]), []);
}

/// File storage with a clock that the test controls.
struct TestStorage {
    storage: Storage,
    usage_log: UsageLog,
    time: Arc<AtomicU64>,
}

impl TestStorage {
    fn open(dir: &Path, time: &Arc<AtomicU64>) -> Self {
        let storage = FileStorage::new(Arc::new(Store::open(dir).unwrap())).into();
        let told = time.clone();
        let clock = move || SystemTime::UNIX_EPOCH + Duration::from_secs(told.load(Relaxed));
        Self {
            storage,
            usage_log: UsageLog::with_clock(Arc::new(clock)).unwrap(),
            time: time.clone(),
        }
    }

    fn pass(&self, days: u64) {
        self.time.fetch_add(days * SECONDS_PER_DAY, Relaxed);
    }

    async fn upload(&self, name: &Repository, content: &str) -> Digest {
        let blob = digest(content);
        let id = self.storage.uploads.begin(name, "").await.unwrap();
        let bytes = bytes::Bytes::copy_from_slice(content.as_bytes());
        let body = Box::pin(futures_util::stream::iter([Ok(bytes)]));
        let part = crate::storage::UploadPart { at: None, len: None, body };
        self.storage.uploads.append(name, &id, part).await.unwrap();
        self.storage.uploads.finish(name, &id, blob).await.unwrap();
        blob
    }

    /// Pushes a manifest with a blob of its own.
    async fn push(&self, name: &Repository, tag: &str, content: &str) -> Manifest {
        let blob = self.upload(name, content).await;
        let size = content.len();
        let text = format!(
            r#"{{"mediaType":"{OCI_MANIFEST}","layers":[{{"mediaType":"x","digest":"{blob}","size":{size}}}]}}"#
        );
        let manifest = Manifest::parse(text.into_bytes().into(), None).unwrap();
        self.storage
            .manifests
            .put_manifest(name, &Reference::Tag(tag.into()), manifest.clone())
            .await
            .unwrap();
        self.usage_log.record_arrival(
            name,
            &Reference::Tag(tag.into()),
            manifest.digest,
            ChangeSource::Push,
            None,
        );
        manifest
    }

    async fn apply_retention(&self, texts: &[&str], dry_run: bool) -> Vec<(Option<String>, u64)> {
        let retained =
            apply_retention(&self.storage, &self.usage_log, &rules(texts), dry_run).await.unwrap();
        assert_eq!(retained.failed, [""; 0]);
        retained.removals.into_iter().map(|removal| (removal.tag, removal.bytes)).collect()
    }
}

/// The current time, because the system clock dates files.
fn today() -> Arc<AtomicU64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    Arc::new(AtomicU64::new(now))
}

#[tokio::test]
async fn unused_tags_are_removed_and_others_stay_served() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let test = TestStorage::open(dir.path(), &time);
    let name = named("team/thing");
    let (old, last_used) =
        (test.push(&name, "old", "old weights").await, test.push(&name, "used", "weights").await);
    test.pass(40);
    test.usage_log.record_pull(&name, &Reference::Digest(last_used.digest));
    let rule = ["team=pulled:30d"];
    let expected = [(Some("old".to_owned()), 11)];
    assert_eq!(test.apply_retention(&rule, true).await, expected);
    assert!(
        test.storage
            .manifests
            .manifest(&name, &Reference::Tag("old".into()))
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(test.apply_retention(&rule, false).await, expected);
    assert_eq!(test.apply_retention(&rule, false).await, []);
    for reference in [Reference::Tag("old".into()), Reference::Digest(old.digest)] {
        assert_eq!(test.storage.manifests.manifest(&name, &reference).await.unwrap(), None);
    }
    assert_eq!(
        test.storage.manifests.manifest(&name, &Reference::Tag("used".into())).await.unwrap(),
        Some(last_used)
    );
}

#[tokio::test]
async fn usage_records_survive_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let name = named("team/thing");
    let one = TestStorage::open(dir.path(), &time);
    one.push(&name, "a", "weights of a").await;
    one.push(&name, "b", "weights of b").await;
    one.usage_log.write(one.storage.inventory.usage_notes()).await.unwrap();
    // Another mirror saw neither arrival, but one pull.
    let other = TestStorage::open(dir.path(), &time);
    one.pass(20);
    other.usage_log.record_pull(&name, &Reference::Tag("b".into()));
    other.usage_log.write(other.storage.inventory.usage_notes()).await.unwrap();
    one.usage_log.record_pull(&name, &Reference::Tag("c".into()));
    one.usage_log.write(one.storage.inventory.usage_notes()).await.unwrap();
    assert_eq!(one.storage.inventory.usage_notes().list().await.unwrap().len(), 2);
    one.pass(20);
    let third = TestStorage::open(dir.path(), &time);
    assert_eq!(
        third.apply_retention(&["team=pulled:30d"], false).await,
        [(Some("a".to_owned()), 12)]
    );
    // No mirror saw this arrival, so it counts as now.
    let name = named("team/unknown");
    let strange = TestStorage::open(dir.path(), &time);
    strange.push(&name, "x", "?").await;
    assert_eq!(
        third.apply_retention(&["team=pulled:10d"], false).await,
        [(Some("b".to_owned()), 12)]
    );
    third.pass(11);
    assert_eq!(
        third.apply_retention(&["team=pulled:10d"], false).await,
        [(Some("x".to_owned()), 1)]
    );
}

#[tokio::test]
async fn concurrent_runs_remove_each_tag_and_keep_moved_ones() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let (one, other) = (TestStorage::open(dir.path(), &time), TestStorage::open(dir.path(), &time));
    let name = named("team/thing");
    for n in 0..20 {
        one.push(&name, &format!("t{n}"), &format!("weights {n}")).await;
    }
    one.usage_log.write(one.storage.inventory.usage_notes()).await.unwrap();
    one.pass(40);
    let rule = ["team=pulled:30d keep:t7"];
    let (a, b) =
        tokio::join!(one.apply_retention(&rule, false), other.apply_retention(&rule, false));
    assert!(a.len() + b.len() >= 19, "{a:?} {b:?}");
    assert_eq!(one.storage.manifests.tags(&name).await.unwrap().unwrap(), ["t7"]);
    let moved = one.push(&name, "t7", "new weights").await;
    assert!(
        one.storage.manifests.manifest(&name, &Reference::Tag("t7".into())).await.unwrap()
            == Some(moved)
    );
}
