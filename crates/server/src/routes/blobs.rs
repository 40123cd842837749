//! Uploads of files that models are made of.

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use puna_store::{Digest, StoreError};
use tokio::sync::mpsc;

use crate::app::{App, store_error};
use crate::canonical::ApiError;
use crate::http::{BodyReader, ErrorResponse, Native};

/// Pieces of an upload that may wait for the disk.
const WAITING_PIECES: usize = 16;

/// `HEAD /api/blobs/sha256:…`
pub(super) async fn head(
    State(app): State<App>,
    Path(digest): Path<String>,
) -> Result<Response, ErrorResponse<Native>> {
    let wanted = parse(&digest)?;
    match app.store(move |store| store.has_blob(&wanted)).await? {
        true => Ok(StatusCode::OK.into_response()),
        false => Err(ApiError::not_found(format!("blob {digest:?} not found")).into()),
    }
}

/// `POST /api/blobs/sha256:…`: the body is the file.
pub(super) async fn upload(
    State(app): State<App>,
    Path(digest): Path<String>,
    request: Request,
) -> Result<Response, ErrorResponse<Native>> {
    let digest = parse(&digest)?;
    // A damaged one is replaced.
    if app.store(move |store| store.verify_blob(&digest).is_ok()).await? {
        return Ok(StatusCode::OK.into_response());
    }
    let (pieces, received) = mpsc::channel(WAITING_PIECES);
    let stored = app.store(move |store| write(store, received, &digest));
    let (sent, stored) = tokio::join!(send(request, pieces), stored);
    sent?;
    match stored? {
        Ok(()) => Ok(StatusCode::CREATED.into_response()),
        Err(error) => Err(store_error(&error).into()),
    }
}

fn parse(digest: &str) -> Result<Digest, ApiError> {
    digest.parse::<Digest>().map_err(|_| ApiError::bad_request("invalid digest format"))
}

/// Passes the body on; `None` stands for its proper end.
async fn send(request: Request, to: mpsc::Sender<Option<Bytes>>) -> Result<(), ApiError> {
    let mut pieces = BodyReader::new(request.into_body());
    while let Some(data) = pieces.next().await? {
        if to.send(Some(data)).await.is_err() {
            // The writer has failed and says why.
            return Ok(());
        }
    }
    let _ = to.send(None).await;
    Ok(())
}

fn write(
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
    // Broken off: the writer removes what there is.
    Ok(())
}
