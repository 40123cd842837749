mod lists;
mod races;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use puna_store::{Digest, Store};

use super::plan::{Plan, plan};
use super::{Rule, retain};
use crate::history::{By, DAY, History, Times};
use crate::holding::{Holding, Shown, Whose};
use crate::library::{Library, StoreLibrary};
use crate::manifest::{Manifest, OCI_MANIFEST};
use crate::name::{Reference, Repository};

/// Seconds since 1970: some day.
const NOW: u64 = 20_000 * DAY;

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
fn rules_say_what_stays_and_are_shown_as_they_are_read() {
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
        assert!(error.contains("a rule is like"), "{error}");
    }
}

/// What is in a library: tags of repositories that were used so many days ago.
#[derive(Default)]
struct Shelf {
    shown: Vec<Shown>,
    holdings: Vec<Holding>,
    used: Vec<(Repository, Option<String>, u64)>,
    brought: bool,
}

impl Shelf {
    /// A tag that came and was used so many days ago.
    fn tag(&mut self, name: &str, tag: &str, of: &str, days: u64) -> &mut Shown {
        let (name, digest) = (named(name), digest(of));
        if !self.holdings.iter().any(|held| held.manifest == Some(digest) && held.name == name) {
            self.manifest(name.as_str(), of);
        }
        self.used.push((name.clone(), Some(tag.to_owned()), days));
        let (tag, size, whose) = (tag.to_owned(), 100, Whose::Registry);
        self.shown.push(Shown { name, tag, digest, size, completed: None, whose, written: None });
        self.shown.last_mut().unwrap()
    }

    /// A manifest with a blob of its own, and one that all have.
    fn manifest(&mut self, name: &str, of: &str) -> &mut Holding {
        let (name, manifest) = (named(name), Some(digest(of)));
        let blobs = vec![(digest(&format!("{of}'s weights")), 100), (digest("license"), 7)];
        self.holdings.push(Holding {
            name,
            manifest,
            blobs,
            is_model: false,
            children: Vec::new(),
            subject: None,
            written: None,
        });
        self.holdings.last_mut().unwrap()
    }

    fn plan(&self, texts: &[&str]) -> Plan {
        let ask = |name: &Repository, tag: Option<&str>, _: Digest| {
            let is = |known: &&(Repository, Option<String>, u64)| {
                known.0 == *name && known.1.as_deref() == tag
            };
            let days = self.used.iter().find(is).map_or(0, |known| known.2);
            Times { arrived: NOW - days * DAY, used: NOW - days * DAY, is_brought: self.brought }
        };
        plan(&rules(texts), &self.shown, &self.holdings, NOW, &ask)
    }

    /// The tags that go, and the bytes that they free.
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

/// `v1` is the oldest of seven, and `latest` stands for the newest of them.
fn seven() -> Shelf {
    let mut shelf = Shelf::default();
    for n in 1..=7 {
        shelf.tag("team/m", &format!("v{n}"), &format!("m{n}"), 80 - 10 * n);
    }
    shelf.tag("team/m", "latest", "m7", 10);
    shelf
}

#[test]
fn nothing_goes_that_no_rule_names() {
    let mut shelf = seven();
    shelf.tag("teams/m", "old", "t", 900);
    assert_eq!(shelf.gone(&[]), []);
    assert_eq!(shelf.gone(&["te=last:1", "other*=last:1"]), []);
    // The first that fits counts.
    assert_eq!(shelf.gone(&["team/m=all", "teams=last:1", "*=last:1"]), []);
    assert_eq!(shelf.gone(&["team=all", "*=pulled:30d"]), gone(&[("old", 100)]));
}

#[test]
fn the_newest_tags_stay() {
    // Both names of the newest are among the three.
    let all = [("v1", 100), ("v2", 100), ("v3", 100), ("v4", 100), ("v5", 100)];
    assert_eq!(seven().gone(&["team=last:3"]), gone(&all));
    // What is kept by its name takes no place.
    assert_eq!(seven().gone(&["team=last:3 keep:latest keep:v2"]), gone(&[all[0], all[2], all[3]]));
    assert_eq!(seven().gone(&["team=last:9"]), []);
    assert_eq!(seven().plan(&["team=last:3"]).removals[0].reason, "not among the newest 3");
    // Of what came at the same time, that stays which was written last.
    let mut shelf = Shelf::default();
    for (tag, written) in [("a", 3), ("b", 9), ("c", 5)] {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(written);
        shelf.tag("team/m", tag, tag, 2).written = Some(at);
    }
    assert_eq!(shelf.gone(&["team=last:1"]), gone(&[("a", 100), ("c", 100)]));
}

#[test]
fn what_was_pulled_stays_beside_the_newest() {
    assert_eq!(
        seven().gone(&["team=pulled:30d"]),
        gone(&[("v1", 100), ("v2", 100), ("v3", 100), ("v4", 100), ("v5", 100)])
    );
    // Five are newer than v2, which was pulled 60 days ago.
    assert_eq!(seven().gone(&["team=last:5 pulled:65d"]), gone(&[("v1", 100)]));
    let plan = seven().plan(&["team=last:5 pulled:65d"]);
    assert_eq!(plan.removals[0].reason, "not among the newest 5, not pulled for 70 days");
    // A day goes before anything does.
    let mut shelf = Shelf::default();
    for tag in ["a", "b", "c"] {
        shelf.tag("ci/m", tag, tag, 0);
    }
    assert_eq!(shelf.gone(&["ci=last:1"]), []);
}

#[test]
fn models_of_the_machines_user_stay_unless_a_rule_says_own() {
    let mut shelf = Shelf::default();
    for (tag, whose) in
        [("mine", Whose::Store), ("share", Whose::Elsewhere), ("pushed", Whose::Registry)]
    {
        shelf.tag("library/m", tag, tag, 90).whose = whose;
    }
    for held in &mut shelf.holdings {
        held.is_model = held.manifest != Some(digest("pushed"));
    }
    let plan = shelf.plan(&["library=pulled:30d"]);
    assert_eq!((plan.removals.len(), plan.own), (1, 1));
    assert_eq!(shelf.gone(&["library=pulled:30d own"]), gone(&[("mine", 100), ("pushed", 100)]));
    // Brought by a mirror it is the mirror's, unless somebody wrote it again.
    shelf.brought = true;
    assert_eq!(shelf.plan(&["library=pulled:30d"]).removals.len(), 2);
    shelf.shown[0].written = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(NOW - 80 * DAY));
    assert_eq!(shelf.plan(&["library=pulled:30d"]).own, 1);
}

#[test]
fn what_is_being_fetched_stays() {
    let mut shelf = seven();
    shelf.tag("team/m", "v1", "new", 0).completed = Some(5);
    assert_eq!(shelf.gone(&["team=last:5"]), gone(&[("v2", 100), ("v3", 100)]));
}

#[test]
fn a_manifest_goes_with_its_last_tag_unless_a_list_needs_it() {
    let mut shelf = Shelf::default();
    shelf.tag("a/m", "old", "m", 50);
    shelf.tag("a/m", "older", "m", 60);
    shelf.tag("a/m", "child", "c", 60);
    shelf.tag("a/m", "list", "l", 2);
    shelf.holdings.last_mut().unwrap().children = vec![digest("c"), digest("deep")];
    shelf.manifest("a/m", "deep");
    shelf.manifest("a/m", "signature").subject = Some(digest("deep"));
    shelf.manifest("a/m", "lost");
    shelf.manifest("a/m", "note of m").subject = Some(digest("m"));
    for digest_of in ["deep", "signature", "lost", "note of m"] {
        assert!(shelf.holdings.iter().any(|held| held.manifest == Some(digest(digest_of))));
    }
    shelf.used.push((named("a/m"), None, 40));
    let plan = shelf.plan(&["a=pulled:30d"]);
    let found: Vec<_> =
        plan.removals.iter().map(|r| (r.tag.as_deref(), r.is_last, r.bytes)).collect();
    let expected = [
        (Some("child"), false, 0),
        (Some("old"), false, 0),
        (Some("older"), true, 100),
        (None, true, 100),
        (None, true, 100),
    ];
    assert_eq!(found, expected);
    assert_eq!(plan.removals[3].reason, "no tag stands for it, not pulled for 40 days");
}

#[test]
fn a_long_chain_of_references_is_followed_once() {
    let mut shelf = Shelf::default();
    shelf.tag("a/m", "t", "0", 0);
    for n in (1..2000).rev() {
        shelf.manifest("a/m", &n.to_string()).subject = Some(digest(&(n - 1).to_string()));
    }
    shelf.used.push((named("a/m"), None, 40));
    assert_eq!(shelf.gone(&["a=pulled:30d"]), []);
}

/// A library in a folder, with a clock that a test moves.
struct Desk {
    library: Arc<StoreLibrary>,
    history: History,
    time: Arc<AtomicU64>,
}

impl Desk {
    fn open(dir: &Path, time: &Arc<AtomicU64>) -> Self {
        let library = Arc::new(StoreLibrary::new(Arc::new(Store::open(dir).unwrap())));
        let told = time.clone();
        let clock = move || SystemTime::UNIX_EPOCH + Duration::from_secs(told.load(Relaxed));
        Self { library, history: History::with_clock(Arc::new(clock)).unwrap(), time: time.clone() }
    }

    fn pass(&self, days: u64) {
        self.time.fetch_add(days * DAY, Relaxed);
    }

    async fn upload(&self, name: &Repository, content: &str) -> Digest {
        let blob = digest(content);
        let id = self.library.begin(name, "").await.unwrap();
        let bytes = bytes::Bytes::copy_from_slice(content.as_bytes());
        let body = Box::pin(futures_util::stream::iter([Ok(bytes)]));
        let part = crate::library::Part { at: None, len: None, body };
        self.library.append(name, &id, part).await.unwrap();
        self.library.finish(name, &id, blob).await.unwrap();
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
        self.library
            .put_manifest(name, &Reference::Tag(tag.into()), manifest.clone())
            .await
            .unwrap();
        self.history.arrived(name, &Reference::Tag(tag.into()), manifest.digest, By::Push, None);
        manifest
    }

    async fn retain(&self, texts: &[&str], dry_run: bool) -> Vec<(Option<String>, u64)> {
        let retained = retain(&*self.library, &self.history, &rules(texts), dry_run).await.unwrap();
        assert_eq!(retained.failed, [""; 0]);
        retained.removals.into_iter().map(|removal| (removal.tag, removal.bytes)).collect()
    }
}

/// Today: files are written by the system's clock.
fn today() -> Arc<AtomicU64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    Arc::new(AtomicU64::new(now))
}

#[tokio::test]
async fn what_nobody_pulls_goes_and_the_rest_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let desk = Desk::open(dir.path(), &time);
    let name = named("team/thing");
    let (old, used) =
        (desk.push(&name, "old", "old weights").await, desk.push(&name, "used", "weights").await);
    desk.pass(40);
    desk.history.pulled(&name, &Reference::Digest(used.digest));
    let rule = ["team=pulled:30d"];
    let expected = [(Some("old".to_owned()), 11)];
    assert_eq!(desk.retain(&rule, true).await, expected);
    assert!(desk.library.manifest(&name, &Reference::Tag("old".into())).await.unwrap().is_some());
    assert_eq!(desk.retain(&rule, false).await, expected);
    assert_eq!(desk.retain(&rule, false).await, []);
    for reference in [Reference::Tag("old".into()), Reference::Digest(old.digest)] {
        assert_eq!(desk.library.manifest(&name, &reference).await.unwrap(), None);
    }
    assert_eq!(
        desk.library.manifest(&name, &Reference::Tag("used".into())).await.unwrap(),
        Some(used)
    );
}

#[tokio::test]
async fn what_is_known_outlives_its_process_and_that_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let name = named("team/thing");
    let one = Desk::open(dir.path(), &time);
    one.push(&name, "a", "weights of a").await;
    one.push(&name, "b", "weights of b").await;
    one.history.write(one.library.notes()).await.unwrap();
    // Another one, which has seen neither come, sees one of them pulled.
    let other = Desk::open(dir.path(), &time);
    one.pass(20);
    other.history.pulled(&name, &Reference::Tag("b".into()));
    other.history.write(other.library.notes()).await.unwrap();
    one.history.pulled(&name, &Reference::Tag("c".into()));
    one.history.write(one.library.notes()).await.unwrap();
    assert_eq!(one.library.notes().list().await.unwrap().len(), 2);
    one.pass(20);
    let third = Desk::open(dir.path(), &time);
    assert_eq!(third.retain(&["team=pulled:30d"], false).await, [(Some("a".to_owned()), 12)]);
    // Nobody has seen this one come: it came now.
    let name = named("team/unknown");
    let strange = Desk::open(dir.path(), &time);
    strange.push(&name, "x", "?").await;
    assert_eq!(third.retain(&["team=pulled:10d"], false).await, [(Some("b".to_owned()), 12)]);
    third.pass(11);
    assert_eq!(third.retain(&["team=pulled:10d"], false).await, [(Some("x".to_owned()), 1)]);
}

#[tokio::test]
async fn two_runs_at_once_remove_each_thing_and_nothing_that_moved() {
    let dir = tempfile::tempdir().unwrap();
    let time = today();
    let (one, other) = (Desk::open(dir.path(), &time), Desk::open(dir.path(), &time));
    let name = named("team/thing");
    for n in 0..20 {
        one.push(&name, &format!("t{n}"), &format!("weights {n}")).await;
    }
    one.history.write(one.library.notes()).await.unwrap();
    one.pass(40);
    let rule = ["team=pulled:30d keep:t7"];
    let (a, b) = tokio::join!(one.retain(&rule, false), other.retain(&rule, false));
    assert!(a.len() + b.len() >= 19, "{a:?} {b:?}");
    assert_eq!(one.library.tags(&name).await.unwrap().unwrap(), ["t7"]);
    let moved = one.push(&name, "t7", "new weights").await;
    assert!(
        one.library.manifest(&name, &Reference::Tag("t7".into())).await.unwrap() == Some(moved)
    );
}
