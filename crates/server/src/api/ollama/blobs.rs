//! Upload of the files that models are created from: `/api/blobs/{digest}`.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use puna_store::{Digest, StoreError};
use tokio::sync::mpsc;

use crate::app::{App, store_error};
use crate::canonical::ApiError;
use crate::http::{BodyReader, ErrorResponse, Native};

/// Number of pieces of an upload that may wait for the disk.
const CHANNEL_PIECES: usize = 16;

/// `HEAD /api/blobs/sha256:…`
pub(crate) async fn head(
    State(app): State<App>,
    Path(digest): Path<String>,
) -> Result<Response, ErrorResponse<Native>> {
    let parsed = parse(&digest)?;
    match app.store(move |store| store.has_blob(&parsed)).await? {
        true => Ok(StatusCode::OK.into_response()),
        false => Err(ApiError::not_found(format!("blob {digest:?} not found")).into()),
    }
}

/// `POST /api/blobs/sha256:…`: stores the body as a blob.
pub(crate) async fn upload(
    State(app): State<App>,
    Path(digest): Path<String>,
    request: Request,
) -> Result<Response, ErrorResponse<Native>> {
    let digest = parse(&digest)?;
    // The upload replaces a damaged blob.
    if app.store(move |store| store.verify_blob(&digest).is_ok()).await? {
        return Ok(StatusCode::OK.into_response());
    }
    let (pieces, received) = mpsc::channel(CHANNEL_PIECES);
    let stored = app.store(move |store| write_blob(store, received, &digest));
    let (sent, stored) = tokio::join!(send_body(request, pieces), stored);
    sent?;
    match stored? {
        Ok(()) => Ok(StatusCode::CREATED.into_response()),
        Err(error) => Err(store_error(&error).into()),
    }
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

fn write_blob(
    store: &puna_store::Store,
    mut from: mpsc::Receiver<Option<Bytes>>,
    digest: &Digest,
) -> Result<(), StoreError> {
    let mut writer = store.blob_writer()?;
    while let Some(piece) = from.blocking_recv() {
        match piece {
            Some(bytes) => writer.write(&bytes)?,
            None => return writer.finish(Some(digest)).map(drop),
        }
    }
    // The upload was interrupted: dropping the writer removes the partial file.
    Ok(())
}
