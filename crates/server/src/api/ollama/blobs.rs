//! Upload of the files that models are created from: `/api/blobs/{digest}`.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use puna_store::{Digest, StoreError};
use tokio::sync::mpsc;

use crate::app::{App, store_error};
use crate::auth::caller::Caller;
use crate::canonical::ApiError;
use crate::http::{BodyReader, ErrorResponse, Ollama};
use crate::models::blob_access::UploadReservation;
use crate::models::quota::free_quotas;

/// Bytes of the disk that uploads of callers with limited namespaces leave free.
const MIN_FREE_BYTES: u64 = 256 << 20;
/// Bytes between two checks of the free disk space.
const FREE_SPACE_CHECK_BYTES: usize = 64 << 20;
/// Number of pieces of an upload that may wait for the disk.
const CHANNEL_PIECES: usize = 16;

/// `HEAD /api/blobs/sha256:…`
pub(crate) async fn head(
    State(app): State<App>,
    Path(digest): Path<String>,
) -> Result<Response, ErrorResponse<Ollama>> {
    let parsed = parse(&digest)?;
    let has_blob = is_visible(&app, parsed).await?;
    match has_blob {
        true => Ok(StatusCode::OK.into_response()),
        false => Err(ApiError::not_found(format!("blob {digest:?} not found")).into()),
    }
}

/// `POST /api/blobs/sha256:…`: stores the body as a blob.
pub(crate) async fn upload(
    State(app): State<App>,
    Path(digest): Path<String>,
    request: Request,
) -> Result<Response, ErrorResponse<Ollama>> {
    let digest = parse(&digest)?;
    // The upload replaces a damaged blob.
    let is_visible = is_visible(&app, digest).await?;
    if is_visible && app.store(move |store| store.verify_blob(&digest).is_ok()).await? {
        return Ok(StatusCode::OK.into_response());
    }
    let caller = Caller::current();
    let free = match caller.is_confined() {
        true => free_quotas(app.mirror(), &caller).await.map_err(|error| store_error(&error))?,
        false => Vec::new(),
    };
    let (pieces, received) = mpsc::channel(CHANNEL_PIECES);
    let work = app.clone();
    let stored = app.store(move |store| {
        if !caller.is_confined() {
            return write_blob(store, received, &digest, None).map(drop);
        }
        let mut reserved = work.uploaded_blobs().reserve(store, &caller, &free)?;
        if write_blob(store, received, &digest, Some(&mut reserved))? {
            reserved.complete(&digest);
        }
        Ok(())
    });
    let (sent, stored) = tokio::join!(send_body(request, pieces), stored);
    sent?;
    match stored? {
        Ok(()) => Ok(StatusCode::CREATED.into_response()),
        Err(error) => Err(store_error(&error).into()),
    }
}

/// Whether the store has a blob, and the caller may know it.
async fn is_visible(app: &App, digest: Digest) -> Result<bool, ApiError> {
    let (caller, work) = (Caller::current(), app.clone());
    let visible = app.store(move |store| {
        // In this order, the time does not tell whether others have the blob.
        Ok(work.uploaded_blobs().is_visible(store, &caller, &digest)? && store.has_blob(&digest))
    });
    visible.await?.map_err(|error: StoreError| store_error(&error))
}

fn parse(digest: &str) -> Result<Digest, ApiError> {
    digest.parse::<Digest>().map_err(|_| ApiError::bad_request("invalid digest format"))
}

/// Sends the body's pieces to the writer, and `None` at the proper end.
async fn send_body(request: Request, to: mpsc::Sender<Option<Bytes>>) -> Result<(), ApiError> {
    let mut pieces = BodyReader::new(request.into_body());
    while let Some(data) = pieces.next().await? {
        if to.send(Some(data)).await.is_err() {
            // The writer has failed and reports the reason.
            return Ok(());
        }
    }
    let _ = to.send(None).await;
    Ok(())
}

/// Fails if the disk is nearly full, so that uploads leave space for other work.
fn check_free_space(store: &puna_store::Store) -> Result<(), StoreError> {
    match store.free_bytes() {
        Some(free) if free < MIN_FREE_BYTES => {
            Err(StoreError::NoSpace { free, reserved: MIN_FREE_BYTES })
        }
        _ => Ok(()),
    }
}

/// Writes the pieces of an upload, within the reservation of a caller with namespaces. Returns
/// whether the upload is complete.
fn write_blob(
    store: &puna_store::Store,
    mut from: mpsc::Receiver<Option<Bytes>>,
    digest: &Digest,
    mut reserved: Option<&mut UploadReservation>,
) -> Result<bool, StoreError> {
    let mut writer = store.blob_writer()?;
    let mut unchecked = FREE_SPACE_CHECK_BYTES;
    while let Some(piece) = from.blocking_recv() {
        match piece {
            Some(bytes) => {
                unchecked += bytes.len();
                if let Some(reserved) = reserved.as_deref_mut() {
                    reserved.grow(bytes.len() as u64)?;
                    if unchecked >= FREE_SPACE_CHECK_BYTES {
                        check_free_space(store)?;
                        unchecked = 0;
                    }
                }
                writer.write(&bytes)?;
            }
            None => return writer.finish(Some(digest)).map(|_| true),
        }
    }
    // The upload was interrupted: dropping the writer removes the partial file.
    Ok(false)
}
