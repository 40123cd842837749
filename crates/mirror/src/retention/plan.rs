//! What rules mean for what is there. Nothing is asked or removed here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::SystemTime;

use puna_store::Digest;

use super::rule::Rule;
use crate::history::{DAY, Times, seconds};
use crate::holding::{Doomed, Holding, Shown, Whose, reachable};
use crate::name::Repository;

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
    /// Whether the manifest goes, too.
    pub(super) is_last: bool,
    /// Whether it is a model of the store's.
    pub(super) is_model: bool,
    /// When it was last used, as far as was known.
    pub(super) used: u64,
    /// When the tag and the manifest were written.
    pub(super) written: [Option<SystemTime>; 2],
}

impl Removal {
    /// What the library is to remove.
    pub(super) fn doomed(&self) -> Doomed {
        let [tag_written, manifest_written] = self.written;
        Doomed {
            name: self.name.clone(),
            tag: self.tag.clone(),
            digest: self.digest,
            is_model: self.is_model,
            tag_written,
            with_manifest: self.is_last,
            manifest_written,
        }
    }
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
pub(super) fn plan(
    rules: &[Rule],
    shown: &[Shown],
    holdings: &[Holding],
    now: u64,
    ask: &Ask<'_>,
) -> Plan {
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
    /// The same as far as it was noted.
    noted: u64,
}

/// What goes, and why.
struct Going<T> {
    what: T,
    reason: String,
    used: u64,
}

impl Judge<'_> {
    fn removals(&self, contents: &Contents<'_>, needs: &mut Needs, plan: &mut Plan) {
        let doomed = self.tags(contents, &mut plan.own);
        let going: HashSet<&str> = doomed.iter().map(|going| going.what.tag.as_str()).collect();
        let staying = contents.tags.iter().filter(|shown| !going.contains(shown.tag.as_str()));
        let mut roots: HashSet<Digest> = staying.map(|shown| shown.digest).collect();
        let untagged = self.untagged(contents, &mut roots);
        let reached = reachable(roots, contents.manifests.iter().copied());
        let mut left: HashMap<Digest, usize> = HashMap::new();
        for going in &doomed {
            *left.entry(going.what.digest).or_default() += 1;
        }
        let held: HashMap<_, &Holding> = contents
            .manifests
            .iter()
            .rev()
            .map(|held| ((held.manifest, held.is_model), *held))
            .collect();
        let name = self.name;
        for Going { what: shown, reason, used } in doomed {
            let digest = shown.digest;
            let is_model = shown.whose == Whose::Store;
            let others = left.entry(digest).or_default();
            *others = others.saturating_sub(1);
            let held = held.get(&(Some(digest), is_model));
            let is_last = *others == 0 && !is_model && !reached.contains(&digest);
            let bytes = held.filter(|_| is_last || is_model).map_or(0, |held| needs.without(held));
            let written = [shown.written, held.and_then(|held| held.written)];
            let (name, tag) = (name.clone(), Some(shown.tag.clone()));
            plan.removals.push(Removal {
                name,
                tag,
                digest,
                reason,
                bytes,
                is_last,
                is_model,
                used,
                written,
            });
        }
        for Going { what: held, reason, used } in untagged {
            let Some(digest) = held.manifest.filter(|digest| !reached.contains(digest)) else {
                continue;
            };
            let (bytes, written) = (needs.without(held), [None, held.written]);
            let (name, tag, is_last, is_model) = (name.clone(), None, true, held.is_model);
            plan.removals.push(Removal {
                name,
                tag,
                digest,
                reason,
                bytes,
                is_last,
                is_model,
                used,
                written,
            });
        }
    }

    /// The manifests without a tag that go unless something needs them; the others are roots.
    fn untagged<'a>(
        &self,
        contents: &Contents<'a>,
        roots: &mut HashSet<Digest>,
    ) -> Vec<Going<&'a Holding>> {
        let tagged: HashSet<Digest> = contents.tags.iter().map(|shown| shown.digest).collect();
        let mut untagged = Vec::new();
        for held in contents.manifests.iter().copied() {
            let Some(digest) = held.manifest.filter(|digest| !tagged.contains(digest)) else {
                continue;
            };
            let used = (self.ask)(self.name, None, digest).used;
            let written = held.written.map_or(0, seconds).min(self.now);
            match self.reason(false, used.max(written)) {
                Some(reason) => untagged.push(Going { what: held, reason, used }),
                None => _ = roots.insert(digest),
            }
        }
        untagged
    }

    /// The tags that go, and why.
    fn tags<'a>(&self, contents: &Contents<'a>, own: &mut usize) -> Vec<Going<&'a Shown>> {
        let coming: HashSet<&str> = contents
            .tags
            .iter()
            .filter(|tag| tag.completed.is_some())
            .map(|tag| tag.tag.as_str())
            .collect();
        let mut candidates = Vec::new();
        for shown in
            contents.tags.iter().copied().filter(|shown| !coming.contains(shown.tag.as_str()))
        {
            let times = (self.ask)(self.name, Some(&shown.tag), shown.digest);
            let written = shown.written.map_or(0, seconds).min(self.now);
            match shown.whose {
                Whose::Elsewhere => continue,
                Whose::Store if !(self.rule.own || times.is_of_mirror(written)) => {
                    *own += 1;
                    continue;
                }
                Whose::Store | Whose::Registry => {}
            }
            if !self.rule.keeps(&shown.tag) {
                let came = (times.arrived.max(written), written);
                candidates.push(Candidate {
                    shown,
                    came,
                    used: times.used.max(written),
                    noted: times.used,
                });
            }
        }
        candidates.sort_by(|a, b| b.came.cmp(&a.came).then_with(|| b.shown.tag.cmp(&a.shown.tag)));
        let behind = candidates.into_iter().skip(self.rule.last.unwrap_or(0));
        let going = |Candidate { shown, used, noted, .. }: Candidate<'a>| {
            Some(Going { what: shown, reason: self.reason(true, used)?, used: noted })
        };
        let mut doomed: Vec<_> = behind.filter_map(going).collect();
        doomed.sort_by(|a, b| a.what.tag.cmp(&b.what.tag));
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
