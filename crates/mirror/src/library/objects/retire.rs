//! What rules remove from a bucket, while others push.
//!
//! A bucket has no locks, and not every service removes an object only if it is as it was seen. So whoever removes something of a
//! repository first writes a mark beside it, and only then looks what is there; whoever pushes looks for marks behind his push. One of
//! the two sees the other: either what was pushed is there before the look, and stays, or the mark is there before it is looked for.
//! Then the push waits until it has gone, and writes again what was taken. A mark whose writer has died counts for a minute.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime};

use object_store::path::Path;
use puna_store::Digest;

use super::bucket::Entry;
use super::{AT_ONCE, ObjectLibrary, each_of};
use crate::error::MirrorError;
use crate::holding::{Doomed, Holding, leaving};
use crate::id::UploadId;
use crate::manifest::Manifest;
use crate::name::{Reference, Repository};

/// The folder of marks.
pub(super) const RETIRING: &str = "retiring";
/// How long a push waits for a mark to go, which belongs to nobody then.
const MARKED: Duration = Duration::from_secs(60);
/// How long behind its mark something may be removed. What takes longer is left for the next time.
const HURRY: Duration = Duration::from_secs(30);
/// How often it is looked whether a mark has gone.
const LOOK: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 200 });

/// Something that is to go, by its number among all that is.
type One = (usize, Doomed);

/// What became of it.
type Done = (usize, Result<bool, MirrorError>);

impl ObjectLibrary {
    /// Removes what still is as it was seen.
    pub(super) async fn let_go(
        &self,
        doomed: Vec<Doomed>,
    ) -> Result<Vec<Result<bool, MirrorError>>, MirrorError> {
        let mut removed: Vec<_> = doomed.iter().map(|_| Ok(false)).collect();
        if self.collectable().await?.is_none() {
            return Ok(removed);
        }
        let mut of: BTreeMap<Repository, Vec<One>> = BTreeMap::new();
        for (n, one) in doomed.into_iter().enumerate() {
            of.entry(one.name.clone()).or_default().push((n, one));
        }
        // So many requests at once, whether of one repository or of many.
        let at_once = AT_ONCE.div_ceil(of.len().max(1));
        let retire = |(name, ones): (Repository, Vec<One>)| async move {
            let numbers: Vec<usize> = ones.iter().map(|(n, _)| *n).collect();
            Ok(Some(match self.retire_marked(&name, ones, at_once).await {
                Ok(done) => done,
                Err(error) => numbers.into_iter().map(|n| (n, Err(error.clone()))).collect(),
            }))
        };
        for (n, done) in each_of(of, AT_ONCE, retire).await?.into_iter().flatten() {
            removed[n] = done;
        }
        Ok(removed)
    }

    async fn retire_marked(
        &self,
        name: &Repository,
        ones: Vec<One>,
        at_once: usize,
    ) -> Result<Vec<Done>, MirrorError> {
        let mark = self.marks(name).join(UploadId::random()?.as_str());
        let begun = Instant::now();
        self.bucket.write(&mark, "").await?;
        let done = self.retire_in(name, ones, at_once, begun).await;
        self.bucket.remove(&mark).await?;
        done
    }

    /// Removes tags of a repository, and then the manifests that go with them or by themselves.
    async fn retire_in(
        &self,
        name: &Repository,
        ones: Vec<One>,
        at_once: usize,
        begun: Instant,
    ) -> Result<Vec<Done>, MirrorError> {
        let tags = self.bucket.entries(&self.folder(name).join("tags")).await?;
        let mut staying: HashMap<String, Entry> =
            tags.into_iter().map(|tag| (tag.name.clone(), tag)).collect();
        let there =
            |one: &Doomed| one.tag.as_ref().and_then(|tag| staying.get(tag)).map(|tag| tag.written);
        let ones = ones.into_iter().map(|(n, one)| (n, there(&one), one)).collect::<Vec<_>>();
        let remove = |(n, there, one): (usize, Option<SystemTime>, Doomed)| async move {
            let removed = self.remove_tag(name, &one, there, begun).await;
            Ok(Some((n, one, removed)))
        };
        let tags = each_of(ones, at_once, remove).await?;
        let mut going = HashMap::new();
        for (_, one, removed) in &tags {
            if let Some(tag) = one.tag.as_ref().filter(|_| *removed == Ok(true)) {
                staying.remove(tag);
            }
            if one.with_manifest && (one.tag.is_none() || *removed == Ok(true)) {
                going.insert(one.digest, one.manifest_written);
            }
        }
        let gone = self.remove_manifests(name, &going, staying, at_once, begun).await?;
        let done = |(n, one, removed): (usize, Doomed, _)| match one.tag {
            Some(_) => (n, removed),
            None => (n, Ok(gone.contains(&one.digest))),
        };
        Ok(tags.into_iter().map(done).collect())
    }

    /// Removes those manifests of a repository that nothing needs. Says which.
    async fn remove_manifests(
        &self,
        name: &Repository,
        going: &HashMap<Digest, Option<SystemTime>>,
        tags: HashMap<String, Entry>,
        at_once: usize,
        begun: Instant,
    ) -> Result<Vec<Digest>, MirrorError> {
        if going.is_empty() {
            return Ok(Vec::new());
        }
        let known = |tag: Entry| async move { self.known_tag(name, &tag).await };
        let tagged = each_of(tags.into_values(), at_once, known).await?;
        let mut kept = self.holdings_of(name, at_once).await?;
        let leaving = leaving(going, tagged, &kept);
        kept.retain(|held| held.manifest.is_some_and(|digest| leaving.contains(&digest)));
        let remove = |held: Holding| async move { self.remove_held(name, &held, begun).await };
        each_of(kept, at_once, remove).await
    }

    async fn remove_tag(
        &self,
        name: &Repository,
        one: &Doomed,
        there: Option<SystemTime>,
        begun: Instant,
    ) -> Result<bool, MirrorError> {
        let Some(tag) = one.tag.as_ref().filter(|_| there.is_some() && there == one.tag_written)
        else {
            return Ok(false);
        };
        if self.tagged(name, tag).await? != Some(one.digest) || begun.elapsed() > HURRY {
            return Ok(false);
        }
        self.bucket.remove(&self.tag_key(name, tag)).await?;
        Ok(true)
    }

    async fn remove_held(
        &self,
        name: &Repository,
        held: &Holding,
        begun: Instant,
    ) -> Result<Option<Digest>, MirrorError> {
        let Some(digest) = held.manifest.filter(|_| begun.elapsed() <= HURRY) else {
            return Ok(None);
        };
        let list = match held.children.is_empty() {
            true => None,
            false => self.kept(name, &digest).await?,
        };
        self.move_to_trash(
            &self.manifest_key(name, &digest),
            &format!("manifest-{}", digest.hex()),
        )
        .await?;
        if let Some(subject) = &held.subject {
            self.bucket.remove(&self.referrer_key(name, subject, &digest)).await?;
        }
        if let Some(list) = list {
            self.forget_children(name, &list).await?;
        }
        Ok(Some(digest))
    }

    /// The manifests of a repository.
    async fn holdings_of(
        &self,
        name: &Repository,
        at_once: usize,
    ) -> Result<Vec<Holding>, MirrorError> {
        let entries = self.bucket.entries(&self.folder(name).join("manifests")).await?;
        let read = |entry: Entry| async move {
            let kept = self.listed(name, &entry).await?;
            Ok(kept.map(|kept| Holding::of_manifest(name.clone(), &kept, Some(entry.written))))
        };
        each_of(entries, at_once, read).await
    }

    fn marks(&self, name: &Repository) -> Path {
        self.bucket.key([RETIRING, &name.folder()])
    }

    /// Waits for those who may have looked before something was pushed, and writes again what they have taken of it.
    pub(super) async fn outlast(
        &self,
        name: &Repository,
        reference: &Reference,
        manifest: &Manifest,
        listed: Vec<Manifest>,
    ) -> Result<(), MirrorError> {
        self.wait_for_marks(name).await?;
        if manifest.list.is_some()
            && self.bucket.age(&self.manifest_key(name, &manifest.digest)).await?.is_none()
        {
            self.note_children(name, manifest).await?;
        }
        for manifest in listed.iter().chain([manifest]) {
            let key = self.manifest_key(name, &manifest.digest);
            if self.bucket.age(&key).await?.is_none() {
                self.bucket.write(&key, manifest.bytes.clone()).await?;
            }
            if let Some(subject) = &manifest.subject {
                let key = self.referrer_key(name, subject, &manifest.digest);
                if self.bucket.age(&key).await?.is_none() {
                    self.bucket.write(&key, "").await?;
                }
            }
        }
        if let Reference::Tag(tag) = reference {
            let key = self.tag_key(name, tag);
            if self.bucket.age(&key).await?.is_none() {
                self.bucket.write(&key, manifest.digest.to_string()).await?;
            }
        }
        Ok(())
    }

    /// Waits until the marks of a repository have gone that are there now: those that come later are of somebody who looks later.
    async fn wait_for_marks(&self, name: &Repository) -> Result<(), MirrorError> {
        let marks = self.marks(name);
        let mut waited_for = self.bucket.entries(&marks).await?;
        let begun = Instant::now();
        while !waited_for.is_empty() && begun.elapsed() < MARKED {
            tokio::time::sleep(LOOK).await;
            let now = self.bucket.entries(&marks).await?;
            waited_for.retain(|mark| now.iter().any(|there| there.name == mark.name));
        }
        for mark in waited_for {
            // Its writer has died, or has stopped half a minute ago.
            self.bucket.remove(&marks.clone().join(mark.name)).await?;
        }
        Ok(())
    }
}
