//! Notes: small files that mirrors keep in the storage they share. Each mirror writes its own notes
//! and reads those of others, so that none overwrites another one's data.

use std::time::Duration;

use bytes::Bytes;

use crate::blocking::StorageFuture;

/// How long a size note is valid after a manifest was served.
const SIZE_NOTE_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A size note younger than this is not written again, and never expires for the number of notes.
pub(crate) const SIZE_NOTE_REFRESH: Duration = Duration::from_secs(24 * 60 * 60);
/// Largest number of size notes of all repositories, without those younger than
/// [`SIZE_NOTE_REFRESH`].
const MAX_SIZE_NOTES: usize = if cfg!(test) { 8 } else { 20_000 };

/// A note in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteInfo {
    /// Name of the note.
    pub name: String,
    /// Version of the note; it changes with the content.
    pub version: String,
    /// Time since the note was written.
    pub age: Duration,
}

/// A directory of notes.
pub trait NoteStore: Send + Sync {
    /// Lists all notes in any order.
    fn list(&self) -> StorageFuture<'_, Vec<NoteInfo>>;

    /// Reads a note; `None` if it does not exist.
    fn read<'a>(&'a self, name: &'a str) -> StorageFuture<'a, Option<Bytes>>;

    /// Writes a note atomically.
    fn write<'a>(&'a self, name: &'a str, bytes: Bytes) -> StorageFuture<'a, ()>;

    /// Removes a note if it exists.
    fn remove<'a>(&'a self, name: &'a str) -> StorageFuture<'a, ()>;
}

/// Returns the size notes that have expired: old ones, and the oldest if there are too many. A note
/// is given by repository directory, name and age. The caller must keep notes that were written
/// again since they were listed and are younger than [`SIZE_NOTE_REFRESH`].
pub(crate) fn expired_size_notes(
    mut notes: Vec<(String, String, Duration)>,
) -> Vec<(String, String)> {
    notes.sort_by_key(|(_, _, age)| *age);
    let is_kept = |(n, (_, _, age)): &(usize, &(String, String, Duration))| {
        *age <= SIZE_NOTE_REFRESH || (*n < MAX_SIZE_NOTES && *age <= SIZE_NOTE_LIFETIME)
    };
    let kept_count = notes.iter().enumerate().take_while(is_kept).count();
    notes.split_off(kept_count).into_iter().map(|(folder, name, _)| (folder, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_and_surplus_size_notes_are_selected() {
        let of = |age: u64| ("a".to_owned(), age.to_string(), Duration::from_secs(age));
        let day = SIZE_NOTE_REFRESH.as_secs();
        let expired = |ages: &[u64]| -> Vec<String> {
            expired_size_notes(ages.iter().map(|age| of(*age)).collect())
                .into_iter()
                .map(|(_, name)| name)
                .collect()
        };
        let month = SIZE_NOTE_LIFETIME.as_secs();
        assert_eq!(expired(&[month, 5, month + 1]), [(month + 1).to_string()]);
        let days = [9, 1, 8, 2, 7, 3, 6, 4, 5, 10].map(|n| n * day);
        assert_eq!(expired(&days), [9 * day, 10 * day].map(|age| age.to_string()));
        // A mirror that wrote a note does not write it again on the same day.
        assert_eq!(expired(&[9, 1, 8, 2, 7, 3, 6, 4, 5, day]), [""; 0]);
        assert_eq!(expired(&[9, 1, 8, 2, 7, 3, 6, 4, 5, day + 1]), [(day + 1).to_string()]);
    }
}
