//! Encoding of media between the steps of sequences.

use std::sync::Arc;

use puna_models::TowerPicture;

use super::EngineLoop;
use crate::error::EngineError;
use crate::media::MediaNumbers;
use crate::media_cache::{MediaCache, MediumKey};
use crate::projector::Projector;
use crate::request::RequestId;
use crate::scheduler::MissingMedia;

/// Largest number of pixels of the pictures that the tower reads together.
const BATCH_PIXELS: usize = 1 << 20;

/// The projector of the model, and the rows that it has made.
pub struct MediaEncoder {
    projector: Option<Projector>,
    cache: MediaCache,
    pub numbers: MediaNumbers,
}

impl MediaEncoder {
    /// Keeps at most `cache_bytes` of rows.
    pub fn new(projector: Option<Projector>, cache_bytes: usize) -> Self {
        Self { projector, cache: MediaCache::new(cache_bytes), numbers: MediaNumbers::default() }
    }

    /// Rows of pictures: those in the cache, or the rows that the tower makes.
    fn rows(&mut self, missing: &MissingMedia) -> Result<Vec<(MediumKey, Rows)>, EngineError> {
        let key = |content| MediumKey { namespace: missing.namespace, content };
        let cached = missing.pictures.iter().filter_map(|(content, _)| {
            let key = key(*content);
            Some((key, self.cache.get(&key)?))
        });
        let cached: Vec<_> = cached.collect();
        if !cached.is_empty() {
            return Ok(cached);
        }
        let projector = self.projector.as_mut().ok_or(EngineError::NoMedia)?;
        let pictures: Vec<&TowerPicture> =
            missing.pictures.iter().map(|(_, picture)| &**picture).collect();
        let made = projector.encode(&pictures)?;
        let keys = missing.pictures.iter().map(|(content, _)| key(*content));
        let made: Vec<_> = keys.zip(made.into_iter().map(Arc::new)).collect();
        made.iter().for_each(|(key, rows)| self.cache.insert(*key, Arc::clone(rows)));
        Ok(made)
    }
}

type Rows = Arc<Vec<f32>>;

impl EngineLoop {
    /// Encodes the pictures that a sequence needs next. Returns whether there was work.
    pub(super) fn encode_media(&mut self) -> bool {
        let Some(missing) = self.scheduler.missing_media(BATCH_PIXELS) else { return false };
        match self.media.rows(&missing) {
            Ok(all) => {
                all.iter().for_each(|(key, rows)| self.scheduler.set_media_rows(key, rows));
            }
            Err(error) => self.fail_sequence(missing.id, &error.to_string()),
        }
        true
    }

    /// Ends a sequence with an error.
    fn fail_sequence(&mut self, id: RequestId, reason: &str) {
        if let Some(state) = self.scheduler.remove(id) {
            self.fail(&state, reason);
        }
    }
}
