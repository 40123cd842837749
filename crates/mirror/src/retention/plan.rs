//! What rules mean for what is there. Nothing is asked or removed here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, SystemTime};

use puna_store::Digest;

use super::rule::Rule;
use crate::history::{DAY, Times};
use crate::library::{Holding, Shown, Whose};
use crate::name::Repository;

/// How much later than it is noted a mirror may have written a model. What was written behind that was written by somebody else.
const SLACK: u64 = 60;

/// A tag or manifest that no rule keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The repository.
    pub name: Repository,
    /// The tag; `None` of a manifest that no tag stands for.
    pub tag: Option<String>,
    /// Of the manifest.
    pub digest: Digest,
    /// Why it does not stay.
    pub reason: String,
    /// Bytes of the blobs that nothing else needs once it is gone.
    pub bytes: u64,
    /// Whether the manifest goes with the tag.
    pub(super) is_last: bool,
}

/// What a run would do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) removals: Vec<Removal>,
    /// Models that a rule speaks of, but that no mirror has brought.
    pub(super) own: usize,
}

/// Asks when something came and was used.
pub(super) type Ask<'a> = dyn Fn(&Repository, Option<&str>, Digest) -> Times + 'a;

/// What rules remove of all tags and manifests that there are.
pub(super) fn plan(rules: &[Rule], shown: &[Shown], holdings: &[Holding], now: u64, ask: &Ask<'_>) -> Plan {
    let mut repositories: BTreeMap<&Repository, Contents<'_>> = BTreeMap::new();
    for tag in shown {
        repositories.entry(&tag.name).or_default().tags.push(tag);
    }
    for held in holdings.iter().filter(|held| held.manifest.is_some()) {
        repositories.entry(&held.name).or_default().manifests.push(held);
    }
    let mut needs = Needs::of(holdings);
    let mut plan = Plan::default();
    for (name, contents) in repositories {
        if let Some(rule) = rules.iter().find(|rule| rule.fits(name)).filter(|rule| !rule.all) {
            let judge = Judge { rule, name, now, ask };
            judge.removals(&contents, &mut needs, &mut plan);
        }
    }
    plan
}

/// What a repository has.
#[derive(Default)]
struct Contents<'a> {
    tags: Vec<&'a Shown>,
    manifests: Vec<&'a Holding>,
}

/// Judges what a repository has.
struct Judge<'a> {
    rule: &'a Rule,
    name: &'a Repository,
    now: u64,
    ask: &'a Ask<'a>,
}

/// A tag that may go.
struct Candidate<'a> {
    shown: &'a Shown,
    /// When it came, and was written: the newest first.
    came: (u64, u64),
    used: u64,
}

impl Judge<'_> {
    fn removals(&self, contents: &Contents<'_>, needs: &mut Needs, plan: &mut Plan) {
        let doomed = self.tags(contents, &mut plan.own);
        let going: HashSet<&str> = doomed.iter().map(|(shown, _)| shown.tag.as_str()).collect();
        let staying = contents.tags.iter().filter(|shown| !going.contains(shown.tag.as_str()));
        let mut roots: HashSet<Digest> = staying.map(|shown| shown.digest).collect();
        let tagged: HashSet<Digest> = contents.tags.iter().map(|shown| shown.digest).collect();
        let mut untagged = Vec::new();
        for digest in contents.manifests.iter().filter_map(|held| held.manifest) {
            if tagged.contains(&digest) {
                continue;
            }
            match self.reason(false, (self.ask)(self.name, None, digest).used) {
                Some(reason) => untagged.push((digest, reason)),
                None => _ = roots.insert(digest),
            }
        }
        let reached = reachable(roots, &contents.manifests);
        let mut left: HashMap<Digest, usize> = HashMap::new();
        for (shown, _) in &doomed {
            *left.entry(shown.digest).or_default() += 1;
        }
        let find = |digest, is_model| {
            let is = |held: &&&Holding| held.manifest == Some(digest) && held.is_model == is_model;
            contents.manifests.iter().find(is).copied()
        };
        for (shown, reason) in doomed {
            let digest = shown.digest;
            let is_model = shown.whose == Whose::Store;
            let others = left.entry(digest).or_default();
            *others = others.saturating_sub(1);
            let is_last = *others == 0 && !is_model && !reached.contains(&digest);
            let freed = find(digest, is_model).filter(|_| is_last || is_model);
            let bytes = freed.map_or(0, |held| needs.without(held));
            let (name, tag) = (self.name.clone(), Some(shown.tag.clone()));
            plan.removals.push(Removal { name, tag, digest, reason, bytes, is_last });
        }
        for (digest, reason) in untagged.into_iter().filter(|(digest, _)| !reached.contains(digest)) {
            let bytes = find(digest, false).map_or(0, |held| needs.without(held));
            let (name, tag, is_last) = (self.name.clone(), None, true);
            plan.removals.push(Removal { name, tag, digest, reason, bytes, is_last });
        }
    }

    /// The tags that go, and why.
    fn tags<'a>(&self, contents: &Contents<'a>, own: &mut usize) -> Vec<(&'a Shown, String)> {
        let coming: HashSet<&str> =
            contents.tags.iter().filter(|tag| tag.completed.is_some()).map(|tag| tag.tag.as_str()).collect();
        let mut candidates = Vec::new();
        for shown in contents.tags.iter().copied().filter(|shown| !coming.contains(shown.tag.as_str())) {
            let times = (self.ask)(self.name, Some(&shown.tag), shown.digest);
            let written = shown.written.map_or(0, seconds).min(self.now);
            let is_brought = times.is_brought && written <= times.arrived + SLACK;
            match shown.whose {
                Whose::Elsewhere => continue,
                Whose::Store if !(self.rule.own || is_brought) => {
                    *own += 1;
                    continue;
                }
                Whose::Store | Whose::Registry => {}
            }
            if !self.rule.keeps(&shown.tag) {
                let came = (times.arrived.max(written), written);
                candidates.push(Candidate { shown, came, used: times.used.max(written) });
            }
        }
        candidates.sort_by(|a, b| b.came.cmp(&a.came).then_with(|| b.shown.tag.cmp(&a.shown.tag)));
        let behind = candidates.into_iter().skip(self.rule.last.unwrap_or(0));
        let mut doomed: Vec<_> = behind
            .filter_map(|candidate| Some((candidate.shown, self.reason(true, candidate.used)?)))
            .collect();
        doomed.sort_by(|a, b| a.0.tag.cmp(&b.0.tag));
        doomed
    }

    /// Why something goes that is no newest tag; `None` if it stays. What somebody pulls just now stays whatever a rule says.
    fn reason(&self, is_tag: bool, used: u64) -> Option<String> {
        let days = self.now.saturating_sub(used) / DAY;
        if days < self.rule.pulled.unwrap_or(1) {
            return None;
        }
        let mut reasons = Vec::new();
        match (is_tag, self.rule.last) {
            (false, _) => reasons.push("no tag stands for it".to_owned()),
            (true, Some(last)) => reasons.push(format!("not among the newest {last}")),
            (true, None) => {}
        }
        if self.rule.pulled.is_some() {
            reasons.push(format!("not pulled for {days} days"));
        }
        Some(reasons.join(", "))
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}

/// Manifests that are kept, those that they list, and those that are about one of them.
fn reachable(roots: HashSet<Digest>, manifests: &[&Holding]) -> HashSet<Digest> {
    let mut beside: HashMap<Digest, Vec<Digest>> = HashMap::new();
    for held in manifests {
        let Some(digest) = held.manifest else { continue };
        beside.entry(digest).or_default().extend(&held.children);
        if let Some(subject) = held.subject {
            beside.entry(subject).or_default().push(digest);
        }
    }
    let mut open: Vec<Digest> = roots.iter().copied().collect();
    let mut reached = roots;
    while let Some(digest) = open.pop() {
        open.extend(beside.remove(&digest).into_iter().flatten().filter(|next| reached.insert(*next)));
    }
    reached
}

/// How many need each blob.
struct Needs(HashMap<Digest, usize>);

impl Needs {
    fn of(holdings: &[Holding]) -> Self {
        let mut needs: HashMap<Digest, usize> = HashMap::new();
        // What was pushed and is no manifest's is in nobody's way: it goes by itself.
        for blob in holdings.iter().filter(|held| held.manifest.is_some()).flat_map(blobs) {
            *needs.entry(blob.0).or_default() += 1;
        }
        Self(needs)
    }

    /// Bytes that nobody needs any more without this one.
    fn without(&mut self, held: &Holding) -> u64 {
        let mut freed = 0u64;
        for (digest, size) in blobs(held) {
            let needs = self.0.entry(digest).or_default();
            *needs = needs.saturating_sub(1);
            if *needs == 0 {
                freed = freed.saturating_add(size);
            }
        }
        freed
    }
}

/// The blobs of one, each once.
fn blobs(held: &Holding) -> HashMap<Digest, u64> {
    held.blobs.iter().copied().collect()
}
