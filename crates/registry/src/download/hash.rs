//! The thread that computes the digest of a file behind those who write it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use puna_store::{Digest, StoreError};

use super::{IDLE, PIECE, Work};
use crate::error::RegistryError;
use crate::file::{file_number, read_at};
use crate::lock::lock;
use crate::sum::{Saved, Sum};

impl Work {
    /// Computes the digest of the file behind those who write it. `None`: it ends without having been completed.
    pub(super) fn hash(&self) -> Result<Option<Digest>, RegistryError> {
        let file = file_number(&self.file).unwrap_or(0);
        let (mut hasher, mut at) = self.kept_sum(file);
        let mut life = 0;
        let mut buffer = vec![0; PIECE];
        loop {
            let until = {
                let mut table = self.table();
                loop {
                    if self.over.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                    // A server without ranges makes a download begin anew.
                    if table.life() != life {
                        (hasher, at, life) = (Sum::default(), 0, table.life());
                        *lock(&self.sum) = None;
                    }
                    if table.frontier() > at || table.is_complete() {
                        break;
                    }
                    let wait = self.arrived.wait_timeout(table, IDLE);
                    table = wait.unwrap_or_else(PoisonError::into_inner).0;
                }
                if at == table.total() {
                    return Ok(Some(hasher.finish()));
                }
                table.frontier()
            };
            let want = usize::try_from(until - at).unwrap_or(PIECE).min(PIECE);
            read_at(&self.file, &mut buffer[..want], at)
                .map_err(|e| StoreError::io("read", self.partial.data(), &e))?;
            hasher.update(&buffer[..want]);
            at += want as u64;
            if let Some(saved) = hasher.save(file).filter(|_| file > 0) {
                *lock(&self.sum) = Some(saved);
            }
        }
    }

    /// How far an interrupted download computed the digest of this very file, as far as its bytes count.
    fn kept_sum(&self, file: u64) -> (Sum, u64) {
        if !self.verified {
            // Nothing would find out that it is not of these bytes.
            return (Sum::default(), 0);
        }
        let saved =
            self.partial.read_sum().and_then(|text| serde_json::from_slice::<Saved>(&text).ok());
        let frontier = self.table().frontier();
        match saved.filter(|saved| {
            saved.file == file && file > 0 && saved.at <= frontier && saved.at % 64 == 0
        }) {
            Some(saved) => (Sum::resume(&saved), saved.at),
            None => (Sum::default(), 0),
        }
    }
}

/// Ends the thread that computes the digest when this is dropped.
pub(super) struct EndsHashing<'a>(pub(super) &'a Work);

impl Drop for EndsHashing<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        self.0.arrived.notify_one();
    }
}
