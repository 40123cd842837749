//! Queue of checks in progress. Clients take turns, so that a client that reads many blobs does not
//! delay the blobs of others.

use std::collections::VecDeque;

use super::file_check::{BlobFile, FileCheck};
use crate::auth::ClientId;

/// Checks of each client. The client at the front is next.
#[derive(Default)]
pub(super) struct CheckQueue(VecDeque<(ClientId, VecDeque<FileCheck>)>);

impl CheckQueue {
    /// Adds a check behind the other ones of its client.
    pub(super) fn push(&mut self, check: FileCheck) {
        match self.0.iter_mut().find(|(client, _)| *client == check.client) {
            Some((_, checks)) => checks.push_back(check),
            None => self.0.push_back((check.client.clone(), VecDeque::from([check]))),
        }
    }

    /// Takes the next check. Its client goes to the end.
    pub(super) fn pop(&mut self) -> Option<FileCheck> {
        let (client, mut checks) = self.0.pop_front()?;
        let check = checks.pop_front();
        if !checks.is_empty() {
            self.0.push_back((client, checks));
        }
        check
    }

    /// Moves a check to another client that waits for it, if it has fewer checks.
    pub(super) fn move_to_client(&mut self, blob_file: &BlobFile, client: &ClientId) {
        let len = |of: &ClientId| {
            self.0.iter().find(|(client, _)| client == of).map_or(0, |(_, checks)| checks.len())
        };
        let is_it = |check: &FileCheck| check.blob_file.key() == blob_file.key();
        let found = self.0.iter().enumerate().find_map(|(at, (owner, checks))| {
            Some((at, owner.clone(), checks.iter().position(is_it)?))
        });
        let Some((at, owner, position)) = found else { return };
        if owner == *client || len(&owner) <= len(client) + 1 {
            return;
        }
        if let Some(mut check) = self.0[at].1.remove(position) {
            check.client = client.clone();
            self.push(check);
        }
    }

    /// Removes the check of a file.
    pub(super) fn remove(&mut self, blob_file: &BlobFile) {
        for (_, checks) in &mut self.0 {
            checks.retain(|check| check.blob_file.key() != blob_file.key());
        }
        self.0.retain(|(_, checks)| !checks.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use puna_store::Digest;

    use super::*;

    fn check(dir: &tempfile::TempDir, name: &str, client: &str) -> FileCheck {
        let path = dir.path().join(name);
        std::fs::write(&path, name).unwrap();
        let file = Arc::new(File::open(path).unwrap());
        let blob_file = BlobFile::new(Digest::of(name.as_bytes()), &file).unwrap();
        FileCheck::new(blob_file, &file, ClientId::of_key(client))
    }

    #[test]
    fn clients_take_turns() {
        let (dir, mut queue) = (tempfile::tempdir().unwrap(), CheckQueue::default());
        for n in 0..100 {
            queue.push(check(&dir, &format!("a{n}"), "a"));
        }
        let of_b = check(&dir, "b0", "b");
        let blob_file = of_b.blob_file;
        queue.push(of_b);
        let order: Vec<_> = (0..3).map(|_| queue.pop().unwrap().client).collect();
        assert_eq!(order, ["a", "b", "a"].map(ClientId::of_key));
        // A check that another client waits for has the turn of that client.
        let last = check(&dir, "a99", "a").blob_file;
        queue.move_to_client(&last, &ClientId::of_key("c"));
        queue.pop();
        assert_eq!(queue.pop().map(|check| check.blob_file.digest), Some(last.digest));
        queue.remove(&blob_file);
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left.len(), 96);
    }
}
