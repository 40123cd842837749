//! Upload of the files that models are created from: `/api/blobs/{digest}`.

use axum::body::HttpBody;
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
use crate::models::disk_reserve::{PeriodicCheck, check_free_space};
use crate::models::quota::free_quotas;

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
    let stated_length = request.body().size_hint().exact().unwrap_or(0);
    let reserved = match caller.is_confined() {
        true => Some(reserve(&app, caller, stated_length).await?),
        false => None,
    };
    let (pieces, received) = mpsc::channel(CHANNEL_PIECES);
    let stored = app.store(move |store| {
        let Some((mut reserved, stated_length)) = reserved else {
            return write_blob(store, received, &digest, None).map(drop);
        };
        if write_blob(store, received, &digest, Some((&mut reserved, stated_length)))? {
            reserved.complete(&digest);
        }
        Ok(())
    });
    let (sent, stored) = tokio::join!(send_body(request, pieces), stored);
    sent?;
    match stored? {
        Ok(()) => Ok(StatusCode::CREATED.into_response()),
        Err(error) => Err(space_error(&error, &Caller::current()).into()),
    }
}

/// Starts the upload of a caller with namespaces, before its body is read. Space for the stated
/// length of the body, 0 if it has none, is reserved at once. Returns also that length.
async fn reserve(
    app: &App,
    caller: Caller,
    stated_length: u64,
) -> Result<(UploadReservation, u64), ApiError> {
    let free = free_quotas(app.mirror(), &caller).await.map_err(|error| store_error(&error))?;
    let work = app.clone();
    let reserved = app.store(move |store| {
        let mut reserved = work.uploaded_blobs().reserve(store, &caller, &free)?;
        reserved.grow(stated_length)?;
        check_free_space(store.free_bytes(), stated_length)?;
        Ok((reserved, stated_length))
    });
    reserved.await?.map_err(|error: StoreError| space_error(&error, &Caller::current()))
}

/// Error of an upload or of a new model of a caller. A caller with namespaces does not learn how
/// much space the server has.
pub(super) fn space_error(error: &StoreError, caller: &Caller) -> ApiError {
    match error {
        StoreError::NoSpace { .. } if caller.is_confined() => {
            ApiError::new(507, "not enough space on the server: ask its administrator to free some")
        }
        error => store_error(error),
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
    loop {
        let data = tokio::select! {
            data = pieces.next() => data?,
            () = to.closed() => return Ok(()),
        };
        let Some(data) = data else { break };
        if to.send(Some(data)).await.is_err() {
            // The writer has failed and reports the reason.
            return Ok(());
        }
    }
    let _ = to.send(None).await;
    Ok(())
}

/// Writes the pieces of an upload, within the reservation of a caller with namespaces. The
/// reservation grows after its reserved bytes. Returns whether the upload is complete.
fn write_blob(
    store: &puna_store::Store,
    mut from: mpsc::Receiver<Option<Bytes>>,
    digest: &Digest,
    mut reserved: Option<(&mut UploadReservation, u64)>,
) -> Result<bool, StoreError> {
    let mut writer = store.blob_writer()?;
    let mut free_space = PeriodicCheck::new();
    while let Some(piece) = from.blocking_recv() {
        match piece {
            Some(bytes) => {
                if let Some((reserved, left)) = &mut reserved {
                    let length = bytes.len() as u64;
                    reserved.grow(length.saturating_sub(*left))?;
                    *left = left.saturating_sub(length);
                    free_space.count(bytes.len(), || store.free_bytes())?;
                }
                writer.write(&bytes)?;
            }
            None => return writer.finish(Some(digest)).map(|_| true),
        }
    }
    // The upload was interrupted: dropping the writer removes the partial file.
    Ok(false)
}
