//! Computes which tags and manifests the retention rules remove. This module does no input or
//! output.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::SystemTime;

use puna_store::Digest;

use super::rule::Rule;
use crate::retention::usage_log::{SECONDS_PER_DAY, UsageTimes, unix_seconds};
use crate::types::repository::Repository;
use crate::types::stored_object::{ConditionalRemoval, Owner, StoredObject, TagEntry, reachable};

/// Tag or manifest that no rule keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Repository of the tag or manifest.
    pub name: Repository,
    /// The tag; `None` for a manifest without tags.
    pub tag: Option<String>,
    /// Digest of the manifest.
    pub digest: Digest,
    /// Why it is removed.
    pub reason: String,
    /// Bytes of the blobs that become unreferenced.
    pub bytes: u64,
    /// Whether the manifest is removed as well.
    pub(super) removes_manifest: bool,
    /// Whether the manifest is a model of the store.
    pub(super) is_model: bool,
    /// Time of the last use in the usage log, in seconds since 1970.
    pub(super) last_used: u64,
    /// Write times of the tag and of the manifest.
    pub(super) written: [Option<SystemTime>; 2],
}

impl Removal {
    /// Removal for the storage, which applies it only if nothing has changed.
    pub(super) fn to_conditional(&self) -> ConditionalRemoval {
        let [tag_written, manifest_written] = self.written;
        ConditionalRemoval {
            name: self.name.clone(),
            tag: self.tag.clone(),
            digest: self.digest,
            is_model: self.is_model,
            tag_written,
            with_manifest: self.removes_manifest,
            manifest_written,
        }
    }
}

/// Result of planning.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) removals: Vec<Removal>,
    /// Number of models that a rule matches but keeps, because no mirror has fetched or received
    /// them.
    pub(super) kept_local_models: usize,
}

/// Returns arrival and last use of a tag or manifest.
pub(super) type UsageLookup<'a> = dyn Fn(&Repository, Option<&str>, Digest) -> UsageTimes + 'a;

/// Plans which of all tags and manifests the rules remove at time `now`.
pub(super) fn plan(
    rules: &[Rule],
    tag_entries: &[TagEntry],
    stored_objects: &[StoredObject],
    now: u64,
    look_up_usage: &UsageLookup<'_>,
) -> Plan {
    let mut repositories: BTreeMap<&Repository, RepositoryContents<'_>> = BTreeMap::new();
    for tag in tag_entries {
        repositories.entry(&tag.name).or_default().tags.push(tag);
    }
    for object in stored_objects.iter().filter(|object| object.manifest.is_some()) {
        repositories.entry(&object.name).or_default().manifests.push(object);
    }
    let mut references = BlobReferenceCounts::of(stored_objects);
    let mut plan = Plan::default();
    for (name, contents) in repositories {
        if let Some(rule) = rules.iter().find(|rule| rule.matches(name)).filter(|rule| !rule.all) {
            let planner = RetentionPlanner { rule, name, now, look_up_usage };
            planner.add_removals(&contents, &mut references, &mut plan);
        }
    }
    plan
}

/// Tags and manifests of a repository.
#[derive(Default)]
struct RepositoryContents<'a> {
    tags: Vec<&'a TagEntry>,
    manifests: Vec<&'a StoredObject>,
}

/// Applies a rule to one repository.
struct RetentionPlanner<'a> {
    rule: &'a Rule,
    name: &'a Repository,
    now: u64,
    look_up_usage: &'a UsageLookup<'a>,
}

/// Tag that the rule does not keep by its name.
struct Candidate<'a> {
    entry: &'a TagEntry,
    /// Arrival time and write time; the newest come first.
    sort_key: (u64, u64),
    last_used: u64,
    /// Last use in the usage log alone.
    logged_use: u64,
}

/// Item to remove, with the reason.
struct PlannedRemoval<T> {
    item: T,
    reason: String,
    last_used: u64,
}

impl RetentionPlanner<'_> {
    fn add_removals(
        &self,
        contents: &RepositoryContents<'_>,
        references: &mut BlobReferenceCounts,
        plan: &mut Plan,
    ) {
        let planned_tags = self.expired_tags(contents, &mut plan.kept_local_models);
        let planned: HashSet<&str> =
            planned_tags.iter().map(|planned| planned.item.tag.as_str()).collect();
        let kept = contents.tags.iter().filter(|entry| !planned.contains(entry.tag.as_str()));
        let mut roots: HashSet<Digest> = kept.map(|entry| entry.digest).collect();
        let untagged = self.expired_untagged_manifests(contents, &mut roots);
        let reached = reachable(roots, contents.manifests.iter().copied());
        let mut tags_left: HashMap<Digest, usize> = HashMap::new();
        for planned in &planned_tags {
            *tags_left.entry(planned.item.digest).or_default() += 1;
        }
        let objects: HashMap<_, &StoredObject> = contents
            .manifests
            .iter()
            .rev()
            .map(|object| ((object.manifest, object.is_model), *object))
            .collect();
        let name = self.name;
        for PlannedRemoval { item: entry, reason, last_used } in planned_tags {
            let digest = entry.digest;
            let is_model = entry.owner == Owner::Store;
            let others = tags_left.entry(digest).or_default();
            *others = others.saturating_sub(1);
            let object = objects.get(&(Some(digest), is_model));
            let removes_manifest = *others == 0 && !is_model && !reached.contains(&digest);
            let bytes = object
                .filter(|_| removes_manifest || is_model)
                .map_or(0, |object| references.release(object));
            let written = [entry.written, object.and_then(|object| object.written)];
            let (name, tag) = (name.clone(), Some(entry.tag.clone()));
            plan.removals.push(Removal {
                name,
                tag,
                digest,
                reason,
                bytes,
                removes_manifest,
                is_model,
                last_used,
                written,
            });
        }
        for PlannedRemoval { item: object, reason, last_used } in untagged {
            let Some(digest) = object.manifest.filter(|digest| !reached.contains(digest)) else {
                continue;
            };
            let (bytes, written) = (references.release(object), [None, object.written]);
            let (name, tag, removes_manifest, is_model) =
                (name.clone(), None, true, object.is_model);
            plan.removals.push(Removal {
                name,
                tag,
                digest,
                reason,
                bytes,
                removes_manifest,
                is_model,
                last_used,
                written,
            });
        }
    }

    /// Returns the untagged manifests to remove unless a kept manifest needs them. Others become
    /// roots.
    fn expired_untagged_manifests<'a>(
        &self,
        contents: &RepositoryContents<'a>,
        roots: &mut HashSet<Digest>,
    ) -> Vec<PlannedRemoval<&'a StoredObject>> {
        let tagged: HashSet<Digest> = contents.tags.iter().map(|entry| entry.digest).collect();
        let mut untagged = Vec::new();
        for object in contents.manifests.iter().copied() {
            let Some(digest) = object.manifest.filter(|digest| !tagged.contains(digest)) else {
                continue;
            };
            let last_used = (self.look_up_usage)(self.name, None, digest).last_used;
            let written = object.written.map_or(0, unix_seconds).min(self.now);
            match self.reason(false, last_used.max(written)) {
                Some(reason) => untagged.push(PlannedRemoval { item: object, reason, last_used }),
                None => _ = roots.insert(digest),
            }
        }
        untagged
    }

    /// Returns the tags to remove.
    fn expired_tags<'a>(
        &self,
        contents: &RepositoryContents<'a>,
        kept_local_models: &mut usize,
    ) -> Vec<PlannedRemoval<&'a TagEntry>> {
        let in_flight: HashSet<&str> = contents
            .tags
            .iter()
            .filter(|tag| tag.completed.is_some())
            .map(|tag| tag.tag.as_str())
            .collect();
        let mut candidates = Vec::new();
        for entry in
            contents.tags.iter().copied().filter(|entry| !in_flight.contains(entry.tag.as_str()))
        {
            let times = (self.look_up_usage)(self.name, Some(&entry.tag), entry.digest);
            let written = entry.written.map_or(0, unix_seconds).min(self.now);
            match entry.owner {
                Owner::ReadOnly => continue,
                Owner::Store
                    if !(self.rule.includes_local_models
                        || times.is_written_by_mirror(written)) =>
                {
                    *kept_local_models += 1;
                    continue;
                }
                Owner::Store | Owner::Registry => {}
            }
            if !self.rule.keeps_tag(&entry.tag) {
                let sort_key = (times.arrived.max(written), written);
                candidates.push(Candidate {
                    entry,
                    sort_key,
                    last_used: times.last_used.max(written),
                    logged_use: times.last_used,
                });
            }
        }
        candidates.sort_by(|a, b| {
            b.sort_key.cmp(&a.sort_key).then_with(|| b.entry.tag.cmp(&a.entry.tag))
        });
        let surplus = candidates.into_iter().skip(self.rule.last.unwrap_or(0));
        let planned = |Candidate { entry, last_used, logged_use, .. }: Candidate<'a>| {
            Some(PlannedRemoval {
                item: entry,
                reason: self.reason(true, last_used)?,
                last_used: logged_use,
            })
        };
        let mut planned_tags: Vec<_> = surplus.filter_map(planned).collect();
        planned_tags.sort_by(|a, b| a.item.tag.cmp(&b.item.tag));
        planned_tags
    }

    /// Why an item is removed that is not among the newest tags; `None` if it is kept. A tag that
    /// was used within the last day is kept under every rule.
    fn reason(&self, is_tag: bool, last_used: u64) -> Option<String> {
        let days = self.now.saturating_sub(last_used) / SECONDS_PER_DAY;
        if days < self.rule.pulled.unwrap_or(1) {
            return None;
        }
        let mut reasons = Vec::new();
        match (is_tag, self.rule.last) {
            (false, _) => reasons.push("no tag".to_owned()),
            (true, Some(last)) => reasons.push(format!("not among the newest {last}")),
            (true, None) => {}
        }
        if self.rule.pulled.is_some() {
            reasons.push(format!("not pulled for {days} days"));
        }
        Some(reasons.join(", "))
    }
}

/// Number of manifests that reference each blob.
struct BlobReferenceCounts(HashMap<Digest, usize>);

impl BlobReferenceCounts {
    fn of(stored_objects: &[StoredObject]) -> Self {
        let mut references: HashMap<Digest, usize> = HashMap::new();
        // Pushed blobs without a manifest do not count: the garbage collector removes them.
        for blob in stored_objects
            .iter()
            .filter(|object| object.manifest.is_some())
            .flat_map(distinct_blobs)
        {
            *references.entry(blob.0).or_default() += 1;
        }
        Self(references)
    }

    /// Removes the references of a manifest. Returns the bytes of blobs that become unreferenced.
    fn release(&mut self, object: &StoredObject) -> u64 {
        let mut freed = 0u64;
        for (digest, size) in distinct_blobs(object) {
            let references = self.0.entry(digest).or_default();
            *references = references.saturating_sub(1);
            if *references == 0 {
                freed = freed.saturating_add(size);
            }
        }
        freed
    }
}

/// The distinct blobs of a manifest with their sizes.
fn distinct_blobs(object: &StoredObject) -> HashMap<Digest, u64> {
    object.blobs.iter().copied().collect()
}
