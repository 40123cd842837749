//! Writes the usage log to notes and reads the notes of other mirrors.
//!
//! A hundred thousand records are tens of megabytes. Blocking threads read, write and search them
//! in chunks, so that no request waits long for the lock.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::record::{RECORDS_PER_LOCK, Record};
use super::{SECONDS_PER_DAY, UsageLog, key, key_of_digest};
use crate::blocking::blocking;
use crate::error::{InternalError, MirrorError};
use crate::locks::lock;
use crate::storage::note_store::{NoteInfo, NoteStore};
use crate::types::stored_object::{StoredObject, TagEntry};

/// How long changes are collected before they are written.
const WRITE_DELAY: Duration = Duration::from_secs(10);
/// The same for urgent changes.
const URGENT_WRITE_DELAY: Duration = Duration::from_secs(1);
/// Delay before the next attempt after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(10 * 60);
/// Largest age of other mirrors' records on the web page.
const WEB_UI_MAX_AGE: Duration = Duration::from_secs(60);
/// Records of one note, which may not be larger than a manifest.
const RECORDS_PER_NOTE: usize = 10_000;

impl UsageLog {
    /// Removes records of items that no longer exist, once the record is a day old.
    pub(crate) async fn forget_missing(
        &self,
        tag_entries: Vec<TagEntry>,
        stored_objects: Vec<StoredObject>,
    ) -> Result<(), MirrorError> {
        let usage_log = self.clone();
        blocking(move || {
            usage_log.retain_existing(&tag_entries, &stored_objects);
            Ok(())
        })
        .await
    }

    fn retain_existing(&self, tag_entries: &[TagEntry], stored_objects: &[StoredObject]) {
        let tags = tag_entries.iter().map(|entry| key(&entry.name, &entry.tag));
        let manifests = stored_objects
            .iter()
            .filter_map(|held| Some(key_of_digest(&held.name, &held.manifest?)));
        let existing: HashSet<String> = tags.chain(manifests).collect();
        let now = self.now();
        let is_recent = |record: &Record| {
            record
                .arrived
                .max(record.pulled)
                .is_some_and(|at| at.saturating_add(SECONDS_PER_DAY) > now)
        };
        let mut after: Option<String> = None;
        loop {
            let mut table = lock(&self.0.table);
            let records = table.chunk_after(after.as_deref());
            let (mut last, mut missing) = (None, Vec::new());
            for (key, record) in records {
                if !existing.contains(key) && !is_recent(record) {
                    missing.push(key.clone());
                }
                last = Some(key);
            }
            after = last.cloned();
            table.is_dirty |= !missing.is_empty();
            missing.iter().for_each(|key| table.remove(key));
            if after.is_none() {
                return;
            }
        }
    }

    /// Reads the notes of other mirrors that have changed. Returns all their notes.
    pub(crate) async fn read_other_notes(
        &self,
        notes: &dyn NoteStore,
    ) -> Result<Vec<NoteInfo>, MirrorError> {
        let mut listed = notes.list().await?;
        listed.retain(|note| !note.name.starts_with(&self.0.id));
        for NoteInfo { name, version, .. } in &listed {
            if lock(&self.0.table).read_versions.get(name) == Some(version) {
                continue;
            }
            let Some(bytes) = notes.read(name).await? else { continue };
            let usage_log = self.clone();
            match blocking(move || Ok(usage_log.merge_note(&bytes))).await? {
                Ok(()) => {
                    _ = lock(&self.0.table).read_versions.insert(name.clone(), version.clone())
                }
                Err(error) => {
                    tracing::warn!(name, %error, "cannot parse usage records; ignoring them")
                }
            }
        }
        let existing: HashSet<&String> = listed.iter().map(|note| &note.name).collect();
        lock(&self.0.table).read_versions.retain(|name, _| existing.contains(name));
        Ok(listed)
    }

    /// Merges the records of a note.
    fn merge_note(&self, bytes: &[u8]) -> Result<(), serde_json::Error> {
        let mut records =
            serde_json::from_slice::<BTreeMap<String, Record>>(bytes)?.into_iter().peekable();
        while records.peek().is_some() {
            let mut table = lock(&self.0.table);
            let was_new = table.is_dirty;
            for (key, record) in records.by_ref().take(RECORDS_PER_LOCK) {
                table.change(key, |own| own.merge(record));
            }
            // These records are already in a note.
            table.is_dirty = was_new;
        }
        Ok(())
    }

    /// Reads the notes of others for the web page, at most once in [`WEB_UI_MAX_AGE`].
    pub(crate) async fn refresh_for_web_ui(&self, notes: &dyn NoteStore) {
        let mut notes_read_at = self.0.notes_read_at.lock().await;
        if notes_read_at.is_none_or(|at| at.elapsed() >= WEB_UI_MAX_AGE) {
            if let Err(error) = self.read_other_notes(notes).await {
                tracing::warn!(%error, "cannot read usage records");
            }
            *notes_read_at = Some(Instant::now());
        }
    }

    /// Writes all records if there are changes.
    pub(crate) async fn write(&self, notes: &dyn NoteStore) -> Result<(), MirrorError> {
        let _writing = self.0.writing.lock().await;
        if !std::mem::take(&mut lock(&self.0.table).is_dirty) {
            return Ok(());
        }
        let written = self.write_all(notes).await;
        if written.is_err() {
            lock(&self.0.table).is_dirty = true;
        }
        written
    }

    async fn write_all(&self, notes: &dyn NoteStore) -> Result<(), MirrorError> {
        let name = |n: usize| format!("{}-{n}.json", self.0.id);
        let (mut after, mut count) = (None, 0);
        loop {
            let usage_log = self.clone();
            let Some((text, last)) = blocking(move || usage_log.note(after)).await? else { break };
            notes.write(&name(count), text).await?;
            (after, count) = (Some(last), count + 1);
        }
        let before = std::mem::replace(&mut lock(&self.0.table).note_count, count);
        for n in count..before {
            notes.remove(&name(n)).await?;
        }
        Ok(())
    }

    /// Serializes the records after a key as one note. Returns the note and its last key; `None` if
    /// there are no more records.
    fn note(&self, mut after: Option<String>) -> Result<Option<(Bytes, String)>, MirrorError> {
        let mut records = BTreeMap::new();
        while records.len() < RECORDS_PER_NOTE {
            let before = records.len();
            let table = lock(&self.0.table);
            records.extend(
                table
                    .chunk_after(after.as_deref())
                    .map(|(key, record)| (key.clone(), record.clone())),
            );
            drop(table);
            if records.len() == before {
                break;
            }
            after = records.last_key_value().map(|(key, _)| key.clone());
        }
        let Some((last, _)) = records.last_key_value() else { return Ok(None) };
        let text = serde_json::to_vec(&records).map_err(InternalError::from)?;
        Ok(Some((text.into(), last.clone())))
    }

    /// Writes changes, and removes the notes of others that are older than a day after reading
    /// them. Their process has ended, or knows their records and writes them again.
    pub(crate) async fn write_and_merge_notes(
        &self,
        notes: &dyn NoteStore,
    ) -> Result<(), MirrorError> {
        let mut abandoned = self.read_other_notes(notes).await?;
        abandoned.retain(|note| {
            let is_read = lock(&self.0.table).read_versions.get(&note.name) == Some(&note.version);
            is_read && note.age.as_secs() > SECONDS_PER_DAY
        });
        lock(&self.0.table).is_dirty |= !abandoned.is_empty();
        self.write(notes).await?;
        if abandoned.is_empty() {
            return Ok(());
        }
        let now = notes.list().await?;
        for note in abandoned {
            if now.iter().any(|other| (&other.name, &other.version) == (&note.name, &note.version))
            {
                notes.remove(&note.name).await?;
            }
        }
        Ok(())
    }

    /// Writes changes continuously, with a delay.
    pub(crate) async fn run(&self, notes: &dyn NoteStore) {
        self.refresh_for_web_ui(notes).await;
        let mut written: Option<Instant> = None;
        loop {
            self.0.changed.notified().await;
            // Frequent urgent changes do not cause frequent writes.
            let rest =
                written.map_or(Duration::ZERO, |at| WRITE_DELAY.saturating_sub(at.elapsed()));
            let urgent = async {
                self.0.urgent.notified().await;
                tokio::time::sleep(URGENT_WRITE_DELAY.max(rest)).await;
            };
            tokio::select! {
                () = tokio::time::sleep(WRITE_DELAY) => {}
                () = urgent => {}
            }
            written = Some(Instant::now());
            if let Err(error) = self.write(notes).await {
                tracing::warn!(%error, "cannot write the usage log; retrying in 10 minutes");
                tokio::time::sleep(RETRY_DELAY).await;
                self.0.changed.notify_one();
            }
        }
    }
}
