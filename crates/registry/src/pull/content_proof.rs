//! Proof that an upstream registry has the content of a blob that the store has already.
//!
//! A manifest names a blob by digest and size, which do not prove that its author has the content.
//! If the store has the blob for another caller, a pull must neither give it to the caller nor tell
//! that it exists. So the pull receives the whole blob again and verifies its digest.

use std::time::Instant;

use bytes::Bytes;
use puna_store::{Digest, Hasher};

use super::{BlobSpec, Sources, progress_reporter};
use crate::Registry;
use crate::client::settings::{Progress, Report, send_progress};
use crate::display::display_url;
use crate::download::connection::PROGRESS_BYTES;
use crate::download::shared::DownloadUpdate;
use crate::download::source::{BlobSource, DownloadSpec, RangeResponse};
use crate::download::throughput::ThroughputMonitor;
use crate::error::RegistryError;

impl Registry {
    /// Receives a stored blob from the first endpoint that has it, and verifies its digest. Stores
    /// nothing.
    ///
    /// # Errors
    /// Those of the download of an absent blob.
    pub(super) async fn prove_content(
        &self,
        sources: &mut Sources,
        blob: &BlobSpec,
        report: &Report,
    ) -> Result<(), RegistryError> {
        let (digest, total) = (blob.digest, blob.size);
        if total == 0 {
            let got = Digest::of(b"");
            return if got == digest { Ok(()) } else { Err(mismatch(digest, got)) };
        }
        let mut update = progress_reporter(report, digest, total);
        while let Some(session) = sources.first().cloned() {
            let url = blob.url.clone().unwrap_or_else(|| session.blob_url(&digest));
            let spec = DownloadSpec { key: digest, verified: true, total, url };
            let error = match receive(&BlobSource::new(session, &spec), total, &mut update).await {
                Ok(got) if got == digest => return Ok(()),
                Ok(got) => {
                    send_progress(report, Progress::status("verifying sha256 digest")).await;
                    mismatch(digest, got)
                }
                Err(error) if error.is_local() => return Err(error),
                Err(error) => error,
            };
            sources.advance_after(error)?;
        }
        Err(RegistryError::NotFound)
    }
}

fn mismatch(want: Digest, got: Digest) -> RegistryError {
    RegistryError::DigestMismatch { want, got }
}

/// Receives all `total` bytes of a blob, with retries. Returns their digest.
async fn receive(
    source: &BlobSource,
    total: u64,
    update: &mut impl FnMut(DownloadUpdate),
) -> Result<Digest, RegistryError> {
    let mut retry = source.session().retry();
    let (mut hasher, mut received) = (Hasher::default(), 0);
    loop {
        let before = received;
        match receive_rest(source, total, (&mut hasher, &mut received), update).await {
            Ok(()) => return Ok(hasher.finish()),
            Err(error) => {
                if received.saturating_sub(before) >= PROGRESS_BYTES {
                    retry.reset();
                }
                retry.wait_after(error).await?;
            }
        }
    }
}

/// Receives the bytes from `received` on in one response.
async fn receive_rest(
    source: &BlobSource,
    total: u64,
    (hasher, received): (&mut Hasher, &mut u64),
    update: &mut impl FnMut(DownloadUpdate),
) -> Result<(), RegistryError> {
    let mut from = *received;
    let mut response = match source.open(from, total).await? {
        RangeResponse::Range(response) => response,
        RangeResponse::Whole(response) => {
            (*hasher, *received, from) = (Hasher::default(), 0, 0);
            response
        }
    };
    let stall_timeout = source.session().settings().stall_timeout;
    let mut throughput = ThroughputMonitor::new(stall_timeout);
    while *received < total {
        let waiting_since = Instant::now();
        let piece = source.session().next_piece(&mut response).await?;
        let bytes = piece.as_ref().map_or(0, Bytes::len) as u64;
        if let Some(got) = throughput.too_slow(waiting_since.elapsed(), bytes) {
            let (url, seconds) = (display_url(response.url()), stall_timeout.as_secs());
            return Err(RegistryError::TooSlow { url, got, seconds });
        }
        let Some(piece) = piece else {
            let url = display_url(response.url());
            return Err(RegistryError::Truncated {
                url,
                got: *received - from,
                want: total - from,
            });
        };
        let piece =
            &piece[..piece.len().min(usize::try_from(total - *received).unwrap_or(usize::MAX))];
        hasher.update(piece);
        *received += piece.len() as u64;
        update(DownloadUpdate::Completed(*received));
        source.session().throttle(piece.len()).await;
    }
    Ok(())
}
