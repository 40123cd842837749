//! Which uploads are open, and which of them go.

use std::collections::HashSet;
use std::time::Duration;

use super::Uploads;
use crate::error::MirrorError;
use crate::id::UploadId;
use crate::library::crowd::{Crowd, MAX_AGE, Open};
use crate::lock::lock;

/// How long an upload without bytes is kept. Another mirror has in its memory what a slow client has sent it of a first part.
const EMPTY_AGE: Duration = Duration::from_secs(60 * 60);

/// What does not change of an upload, so that its note need not be read again.
#[derive(Clone)]
pub(super) struct Known {
    owner: String,
    has_bytes: bool,
}

impl Uploads {
    /// Gives one up for somebody who has too many, or of those who have, where there are.
    pub(super) async fn make_room(&self, crowd: &Crowd) -> Result<(), MirrorError> {
        for is_empty in [true, false] {
            for one in &crowd.of {
                // What lies in the bucket of one that somebody is at here says little of it.
                if !crowd.may_go(one, is_empty) || self.is_held(&one.id) {
                    continue;
                }
                let Some(note) = self.note(&one.id).await? else { return Ok(()) };
                if (note.len == 0) == is_empty {
                    tracing::info!(owner = one.owner, "an open upload is given up: there are too many");
                    return self.forget(&one.id, &note, false).await;
                }
            }
        }
        Err(crowd.refusal())
    }

    fn is_held(&self, id: &UploadId) -> bool {
        lock(&self.held).get(id).is_some_and(|held| held.try_lock().is_err())
    }

    /// Removes uploads that were left alone for too long.
    pub(in super::super) async fn clear(&self) -> Result<(), MirrorError> {
        self.look().await.map(drop)
    }

    /// The same, and what is left.
    pub(super) async fn look(&self) -> Result<Vec<Open>, MirrorError> {
        let entries = self.bucket.entries(&self.bucket.key(["uploads"])).await?;
        let (mut open, mut alive) = (Vec::new(), HashSet::new());
        for entry in &entries {
            let Some(Ok(id)) = entry.name.strip_suffix(".json").map(UploadId::parse) else { continue };
            let age = entry.age();
            let Some(known) = self.known(&id, age).await? else { continue };
            let most = if known.has_bytes { MAX_AGE } else { EMPTY_AGE };
            if age <= most || self.is_held(&id) {
                alive.insert(id.clone());
                open.push(Open { id, owner: known.owner, age });
            } else if let Some(note) = self.note(&id).await? {
                self.forget(&id, &note, false).await?;
            }
        }
        lock(&self.known).retain(|id, _| alive.contains(id));
        // What a crash has left of others.
        for entry in entries.iter().filter(|entry| entry.age() > MAX_AGE && !entry.name.ends_with(".json")) {
            let id = entry.name.split('.').next().map(UploadId::parse);
            if !id.is_some_and(|id| id.is_ok_and(|id| alive.contains(&id))) {
                self.bucket.remove(&self.bucket.key(["uploads", &entry.name])).await?;
            }
        }
        Ok(open)
    }

    /// What is known of an upload of an age, whose note is read once, and once more when it may be that no byte has come; `None`: it is
    /// none any more.
    async fn known(&self, id: &UploadId, age: Duration) -> Result<Option<Known>, MirrorError> {
        let known = lock(&self.known).get(id).cloned();
        if let Some(known) = known.filter(|known| known.has_bytes || age <= EMPTY_AGE) {
            return Ok(Some(known));
        }
        let note = match self.note(id).await {
            Ok(Some(note)) => note,
            Ok(None) => return Ok(None),
            // One that nobody can go on with keeps nobody from beginning another.
            Err(_) => return Ok(Some(Known { owner: String::new(), has_bytes: true })),
        };
        let known = Known { owner: note.owner, has_bytes: note.len > 0 };
        lock(&self.known).insert(id.clone(), known.clone());
        Ok(Some(known))
    }
}
