//! The notes of those who remember: written for the others, and read.
//!
//! A hundred thousand records are tens of megabytes. They are read, written and looked through on threads that may take their time,
//! a few at a time, so that nobody who answers waits for the lock.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::record::{Record, TURN};
use super::{DAY, History, key, key_of_digest};
use crate::error::MirrorError;
use crate::holding::{Holding, Shown};
use crate::lock::lock;
use crate::notes::{Note, Notes};
use crate::waiting::blocking;

/// How long what is new is gathered before it is written.
const GATHER: Duration = Duration::from_secs(10);
/// The same of what others should know soon.
const SOON: Duration = Duration::from_secs(1);
/// How long nothing is tried after the notes could not be written.
const REST: Duration = Duration::from_secs(10 * 60);
/// How old what the others say may be where people look at it.
const RECENT: Duration = Duration::from_secs(60);
/// Records of one note, which may not be larger than a manifest.
const OF_NOTE: usize = 10_000;

impl History {
    /// Forgets what is not there any more, once a day has passed since.
    pub(crate) async fn forget(
        &self,
        shown: Vec<Shown>,
        holdings: Vec<Holding>,
    ) -> Result<(), MirrorError> {
        let history = self.clone();
        blocking(move || {
            history.forget_all_but(&shown, &holdings);
            Ok(())
        })
        .await
    }

    fn forget_all_but(&self, shown: &[Shown], holdings: &[Holding]) {
        let tags = shown.iter().map(|shown| key(&shown.name, &shown.tag));
        let manifests =
            holdings.iter().filter_map(|held| Some(key_of_digest(&held.name, &held.manifest?)));
        let there: HashSet<String> = tags.chain(manifests).collect();
        let now = self.now();
        let is_young = |record: &Record| {
            record.arrived.max(record.pulled).is_some_and(|at| at.saturating_add(DAY) > now)
        };
        let mut behind: Option<String> = None;
        loop {
            let mut known = lock(&self.0.known);
            let turn = known.turn(behind.as_deref());
            let (mut last, mut gone) = (None, Vec::new());
            for (key, record) in turn {
                if !there.contains(key) && !is_young(record) {
                    gone.push(key.clone());
                }
                last = Some(key);
            }
            behind = last.cloned();
            known.is_new |= !gone.is_empty();
            gone.iter().for_each(|key| _ = known.records.remove(key));
            if behind.is_none() {
                return;
            }
        }
    }

    /// Reads the notes of others, as far as they have changed.
    pub(crate) async fn learn(&self, notes: &dyn Notes) -> Result<Vec<Note>, MirrorError> {
        let mut listed = notes.list().await?;
        listed.retain(|note| !note.name.starts_with(&self.0.id));
        for Note { name, version, .. } in &listed {
            if lock(&self.0.known).read.get(name) == Some(version) {
                continue;
            }
            let Some(bytes) = notes.read(name).await? else { continue };
            let history = self.clone();
            match blocking(move || Ok(history.merge(&bytes))).await? {
                Ok(()) => _ = lock(&self.0.known).read.insert(name.clone(), version.clone()),
                Err(error) => {
                    tracing::warn!(name, %error, "a note of earlier pulls cannot be read: it is left alone")
                }
            }
        }
        let there: HashSet<&String> = listed.iter().map(|note| &note.name).collect();
        lock(&self.0.known).read.retain(|name, _| there.contains(name));
        Ok(listed)
    }

    /// Learns what a note says.
    fn merge(&self, bytes: &[u8]) -> Result<(), serde_json::Error> {
        let mut records =
            serde_json::from_slice::<BTreeMap<String, Record>>(bytes)?.into_iter().peekable();
        while records.peek().is_some() {
            let mut known = lock(&self.0.known);
            let was_new = known.is_new;
            for (key, record) in records.by_ref().take(TURN) {
                known.change(key, |own| own.merge(record));
            }
            // It is written already.
            known.is_new = was_new;
        }
        Ok(())
    }

    /// The same for people who look, now and then.
    pub(crate) async fn learn_for_people(&self, notes: &dyn Notes) {
        let mut looked = self.0.looked.lock().await;
        if looked.is_none_or(|at| at.elapsed() >= RECENT) {
            if let Err(error) = self.learn(notes).await {
                tracing::warn!(%error, "the notes of earlier pulls cannot be read");
            }
            *looked = Some(Instant::now());
        }
    }

    /// Writes what is new.
    pub(crate) async fn write(&self, notes: &dyn Notes) -> Result<(), MirrorError> {
        let _writing = self.0.writing.lock().await;
        if !std::mem::take(&mut lock(&self.0.known).is_new) {
            return Ok(());
        }
        let written = self.write_all(notes).await;
        if written.is_err() {
            lock(&self.0.known).is_new = true;
        }
        written
    }

    async fn write_all(&self, notes: &dyn Notes) -> Result<(), MirrorError> {
        let name = |n: usize| format!("{}-{n}.json", self.0.id);
        let (mut behind, mut count) = (None, 0);
        loop {
            let history = self.clone();
            let Some((text, last)) = blocking(move || history.note(behind)).await? else { break };
            notes.write(&name(count), text).await?;
            (behind, count) = (Some(last), count + 1);
        }
        let before = std::mem::replace(&mut lock(&self.0.known).notes, count);
        for n in count..before {
            notes.remove(&name(n)).await?;
        }
        Ok(())
    }

    /// A note of the records behind a key, and the last of them; `None` if there are no more.
    fn note(&self, mut behind: Option<String>) -> Result<Option<(Bytes, String)>, MirrorError> {
        let mut records = BTreeMap::new();
        while records.len() < OF_NOTE {
            let before = records.len();
            let known = lock(&self.0.known);
            records.extend(
                known.turn(behind.as_deref()).map(|(key, record)| (key.clone(), record.clone())),
            );
            drop(known);
            if records.len() == before {
                break;
            }
            behind = records.last_key_value().map(|(key, _)| key.clone());
        }
        let Some((last, _)) = records.last_key_value() else { return Ok(None) };
        let text =
            serde_json::to_vec(&records).map_err(|e| MirrorError::Internal(e.to_string()))?;
        Ok(Some((text.into(), last.clone())))
    }

    /// Writes what is new, and takes over the notes that nobody has written for a day: their writers are gone, or know what is in
    /// them and will write it again.
    pub(crate) async fn gather(&self, notes: &dyn Notes) -> Result<(), MirrorError> {
        let mut old = self.learn(notes).await?;
        old.retain(|note| {
            let is_read = lock(&self.0.known).read.get(&note.name) == Some(&note.version);
            is_read && note.age.as_secs() > DAY
        });
        lock(&self.0.known).is_new |= !old.is_empty();
        self.write(notes).await?;
        if old.is_empty() {
            return Ok(());
        }
        let now = notes.list().await?;
        for note in old {
            if now.iter().any(|other| (&other.name, &other.version) == (&note.name, &note.version))
            {
                notes.remove(&note.name).await?;
            }
        }
        Ok(())
    }

    /// Writes what is new for ever, some seconds behind it.
    pub(crate) async fn keep(&self, notes: &dyn Notes) {
        self.learn_for_people(notes).await;
        let mut written: Option<Instant> = None;
        loop {
            self.0.changed.notified().await;
            // Many who press do not have everything written all the time.
            let rest = written.map_or(Duration::ZERO, |at| GATHER.saturating_sub(at.elapsed()));
            let pressed = async {
                self.0.pressed.notified().await;
                tokio::time::sleep(SOON.max(rest)).await;
            };
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = pressed => {}
            }
            written = Some(Instant::now());
            if let Err(error) = self.write(notes).await {
                tracing::warn!(%error, "when models were pulled cannot be noted: it is tried again in ten minutes");
                tokio::time::sleep(REST).await;
                self.0.changed.notify_one();
            }
        }
    }
}
