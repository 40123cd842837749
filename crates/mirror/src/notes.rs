//! Notes of those who serve a library, beside what it keeps. Each writes its own and reads those of the others, so that nobody
//! overwrites what another one knows.

use std::time::Duration;

use bytes::Bytes;

use crate::waiting::Answer;

/// How long notes of sizes count, so long after a manifest was handed out.
const SAID: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A note of sizes that was written so shortly ago need not be written again, so that it stays, however many there are.
pub(crate) const AGAIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Notes of sizes at most, of all repositories, but for those that were written so shortly ago.
const MAX_SAID: usize = if cfg!(test) { 8 } else { 20_000 };

/// A note, as a list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Its name.
    pub name: String,
    /// What tells this version from others.
    pub version: String,
    /// How long ago it was written.
    pub age: Duration,
}

/// Where notes are.
pub trait Notes: Send + Sync {
    /// All of them, in no order.
    fn list(&self) -> Answer<'_, Vec<Note>>;

    /// What one says; `None` if it is not there.
    fn read<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Bytes>>;

    /// Writes one whole: the old one is there until the new one is.
    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> Answer<'a, ()>;

    /// Removes one, if it is there.
    fn remove<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;
}

/// Of all notes of sizes, as the folder of their repository, name and age, those that go: the old ones, and the oldest of too many. One
/// that was written again since it was listed, and is younger than `AGAIN` now, stays nevertheless.
pub(crate) fn outdated(mut notes: Vec<(String, String, Duration)>) -> Vec<(String, String)> {
    notes.sort_by_key(|(_, _, age)| *age);
    let stays = |(n, (_, _, age)): &(usize, &(String, String, Duration))| {
        *age <= AGAIN || (*n < MAX_SAID && *age <= SAID)
    };
    let stay = notes.iter().enumerate().take_while(stays).count();
    notes.split_off(stay).into_iter().map(|(folder, name, _)| (folder, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_notes_the_oldest_go_and_old_ones_in_any_case() {
        let of = |age: u64| ("a".to_owned(), age.to_string(), Duration::from_secs(age));
        let day = AGAIN.as_secs();
        let gone = |ages: &[u64]| -> Vec<String> {
            outdated(ages.iter().map(|age| of(*age)).collect())
                .into_iter()
                .map(|(_, name)| name)
                .collect()
        };
        let month = SAID.as_secs();
        assert_eq!(gone(&[month, 5, month + 1]), [(month + 1).to_string()]);
        let days = [9, 1, 8, 2, 7, 3, 6, 4, 5, 10].map(|n| n * day);
        assert_eq!(gone(&days), [9 * day, 10 * day].map(|age| age.to_string()));
        // Whoever has written one does not write it again on the same day.
        assert_eq!(gone(&[9, 1, 8, 2, 7, 3, 6, 4, 5, day]), [""; 0]);
        assert_eq!(gone(&[9, 1, 8, 2, 7, 3, 6, 4, 5, day + 1]), [(day + 1).to_string()]);
    }
}
