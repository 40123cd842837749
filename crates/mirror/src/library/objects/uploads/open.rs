//! Which uploads are open, and which of them go.
//!
//! What lies in the bucket of one is all that other mirrors know of it: so one that bytes come to says so in its note, again and again
//! (`Writer::sign`), and only a note that has become old is one of an upload that was left alone.

use std::collections::HashSet;
use std::time::Duration;

use super::Uploads;
use super::note::Note;
use crate::error::MirrorError;
use crate::id::UploadId;
use crate::library::crowd::{Crowd, MAX_AGE, Open};
use crate::lock::lock;

/// How long an upload without bytes is kept. A mirror of before notes said that bytes come may have those of a first part in its memory.
const EMPTY_AGE: Duration = Duration::from_secs(60 * 60);

/// What does not change of an upload, so that its note need not be read again.
#[derive(Clone)]
pub(super) struct Known {
    owner: String,
    has_bytes: bool,
}

impl Known {
    fn of(note: &Note) -> Self {
        Self { owner: note.owner.clone(), has_bytes: note.has_bytes() }
    }
}

/// What has come of giving an upload up.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Fate {
    /// It is none any more.
    Gone,
    /// Somebody is at it, or it is none that goes.
    Stays,
    /// Nobody can read its note, or go on with it.
    Unreadable,
}

/// How long an upload is kept that nobody is at.
fn most(has_bytes: bool) -> Duration {
    if has_bytes { MAX_AGE } else { EMPTY_AGE }
}

impl Uploads {
    /// Gives one up for somebody who has too many, or of those who have, where there are.
    pub(super) async fn make_room(&self, crowd: &Crowd) -> Result<(), MirrorError> {
        for is_empty in [true, false] {
            for (one, rest) in crowd.going(is_empty) {
                let goes = |note: &Note, age: Duration| note.has_bytes() != is_empty && age >= rest;
                if self.give_up(&one.id, goes).await? == Fate::Gone {
                    tracing::info!(
                        owner = one.owner,
                        "an open upload is given up: there are too many"
                    );
                    return Ok(());
                }
            }
        }
        Err(crowd.refusal())
    }

    /// Removes an upload, unless somebody is at it, or it is none that goes, as its note says by now, and how old that is.
    pub(in super::super) async fn give_up(
        &self,
        id: &UploadId,
        goes: impl Fn(&Note, Duration) -> bool,
    ) -> Result<Fate, MirrorError> {
        // Held until nothing is left of it: a part that came meanwhile would be taken, and lost. What lies in the bucket of one that
        // somebody is at here says little of it.
        let Some(_held) = self.held.now(id.clone()) else { return Ok(Fate::Stays) };
        let (note, age) = match self.note(id).await {
            Ok(Some(noted)) => noted,
            Ok(None) => return Ok(Fate::Gone),
            // It keeps nobody from beginning another.
            Err(error) => {
                tracing::warn!(%error, "an open upload cannot be given up");
                return Ok(Fate::Unreadable);
            }
        };
        lock(&self.known).insert(id.clone(), Known::of(&note));
        if !goes(&note, age) {
            return Ok(Fate::Stays);
        }
        self.forget(id, &note, false).await?;
        Ok(Fate::Gone)
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
            let Some(Ok(id)) = entry.name.strip_suffix(".json").map(UploadId::parse) else {
                continue;
            };
            let age = entry.age();
            let Some(Known { owner, has_bytes }) = self.known(&id, age).await? else { continue };
            let is_over = |note: &Note, age: Duration| age > most(note.has_bytes());
            if age <= most(has_bytes) || self.give_up(&id, is_over).await? == Fate::Stays {
                alive.insert(id.clone());
                open.push(Open { id, owner, age, has_bytes });
            }
        }
        lock(&self.known).retain(|id, _| alive.contains(id));
        // What a crash has left of others.
        for entry in
            entries.iter().filter(|entry| entry.age() > MAX_AGE && !entry.name.ends_with(".json"))
        {
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
            Ok(Some((note, _))) => note,
            Ok(None) => return Ok(None),
            // One that nobody can go on with keeps nobody from beginning another.
            Err(_) => return Ok(Some(Known { owner: String::new(), has_bytes: true })),
        };
        let known = Known::of(&note);
        lock(&self.known).insert(id.clone(), known.clone());
        Ok(Some(known))
    }
}
